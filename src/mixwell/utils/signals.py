"""Ctrl-C and SIGTERM: stop at the end of a step, or at once, and say how to continue."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from mixwell.utils.errors import MixwellError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
def telling(advice: str) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end what happens inside, and say how to go on; everything is closed on the way out.

    Args:
        advice: what to do next.
    """
    heard: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise _Ended

    try:
        with _handled_by(stop):
            yield
    except _Ended:
        raise Interrupted(f"stopped by {signal.Signals(heard[0]).name}; {advice}", heard[0]) from None


def stoppable(path: Path) -> contextlib.AbstractContextManager[None]:
    """Let Ctrl-C and SIGTERM end what happens inside at once, and say how to go on with the run.

    For what is not training: `StopSignal` takes over there, to write a checkpoint first.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        raise Interrupted(f"stopped by {name}; continue with `mixwell train --resume {path}`", number)

    return _handled_by(stop)
