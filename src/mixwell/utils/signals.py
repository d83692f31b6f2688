"""Ctrl-C and SIGTERM: stop at the end of a step, or at once, and say how to continue."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from mixwell.utils.errors import MixwellError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 0.5  # seconds until a signal whose error was ignored is raised again


class Interrupted(MixwellError):
    """Training was stopped by a signal, after a checkpoint.

    Attributes:
        signal: the signal's number; the command line exits with 128 more.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


class StopSignal:
    """Notes the first Ctrl-C or SIGTERM, so that training can stop at a step's end; a second one ends at once."""

    def __init__(self) -> None:
        self.number: int | None = None

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Watch inside; does nothing in threads, where Python has no signals."""
        return _handled_by(self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def agreed(self) -> int | None:
        """The signal that any of the processes heard; all of them must ask at the same step."""
        import torch

        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self.number
        heard = torch.tensor(self.number or 0)
        if torch.distributed.get_backend() == "nccl":
            heard = heard.cuda()
        torch.distributed.all_reduce(heard, op=torch.distributed.ReduceOp.MAX)
        return int(heard) or None


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Give Ctrl-C and SIGTERM to a handler inside; does nothing in threads, where Python has no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class _Ended(BaseException):
    """A signal came. No Exception: what catches those would take it for a failure of its own."""


@contextlib.contextmanager
def _ended_by(error: Callable[[int], BaseException]) -> Iterator[None]:
    """Raise an error inside when Ctrl-C or SIGTERM comes; does nothing in threads, where Python has no signals.

    Python ignores an error that is raised in a finaliser, and a signal may well come in one. So as long as the error is
    not on its way out, it is raised again.

    Args:
        error: makes it, of the signal's number.
    """
    raised: list[BaseException] = []
    numbers: list[int] = []
    again, over = threading.Event(), threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if again.is_set():
            again.clear()
            if _on_its_way_out(raised):
                return
        made = error(number)
        raised.append(made)
        numbers.append(number)
        raise made

    def insist() -> None:
        while not over.wait(_PATIENCE):
            if numbers:
                again.set()
                signal.pthread_kill(threading.main_thread().ident or 0, numbers[-1])

    can_insist = threading.current_thread() is threading.main_thread() and hasattr(signal, "pthread_kill")
    helper = threading.Thread(target=insist, daemon=True)
    with _handled_by(stop):
        if can_insist:
            helper.start()
        try:
            yield
        finally:
            over.set()
            if can_insist:
                helper.join()


def _on_its_way_out(raised: list[BaseException]) -> bool:
    """Whether the code that was interrupted cleans up after one of these errors."""
    handled = sys.exc_info()[1]
    while handled is not None:
        if any(handled is each for each in raised):
            return True
        handled = handled.__context__
    return False


@contextlib.contextmanager
def telling(advice: str) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end what happens inside, and say how to go on; everything is closed on the way out.

    Args:
        advice: what to do next.
    """
    heard: list[int] = []

    def ended(number: int) -> BaseException:
        heard.append(number)
        return _Ended()

    try:
        with _ended_by(ended):
            yield
    except _Ended:
        raise Interrupted(f"stopped by {signal.Signals(heard[0]).name}; {advice}", heard[0]) from None


def stoppable(path: Path) -> contextlib.AbstractContextManager[None]:
    """Let Ctrl-C and SIGTERM end what happens inside at once, and say how to go on with the run.

    For what is not training: `StopSignal` takes over there, to write a checkpoint first.
    """

    def stopped(number: int) -> BaseException:
        name = signal.Signals(number).name
        return Interrupted(f"stopped by {name}; continue with `mixwell train --resume {path}`", number)

    return _ended_by(stopped)
