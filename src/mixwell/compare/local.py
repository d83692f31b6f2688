"""The engine for one machine: worker processes that keep data and weights between cells."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from multiprocessing.connection import wait
from typing import Any

from mixwell.compare import worker
from mixwell.compare.engine import Event, Failed, Finished, Started
from mixwell.compare.spec import CellSpec


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> int:
    """The GPUs that are there."""
    import torch

    return torch.cuda.device_count()


class _Worker:
    """A process, the pipe to it, and the cell it is at."""

    def __init__(self, context: Any, number: int, threads: int, devices: int, cache_dir: str | None) -> None:
        self.number = number
        self.cell: str | None = None
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, number, threads, devices, cache_dir)
        self.process = context.Process(target=worker.main, args=arguments, name=f"mixwell-{number}", daemon=True)
        self.process.start()
        theirs.close()  # else its end would never be seen

    @property
    def name(self) -> str:
        return f"worker {self.number} (process {self.process.pid})"

    def ending(self) -> str:
        """How the process ended, in words."""
        self.process.join(10)
        code = self.process.exitcode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                name = signal.Signals(-code).name
                hint = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
                return f"its worker was killed by {name}{hint}"
        return f"its worker ended with exit code {code}"


class LocalEngine:
    """Runs cells in worker processes of this machine.

    Args:
        workers: how many cells run at a time.
        threads: of each worker; None shares the cores out.
        cache_dir: for tokenised texts.
        start_method: of `multiprocessing`. `spawn` is safe everywhere.
    """

    def __init__(
        self,
        workers: int = 1,
        threads: int | None = None,
        cache_dir: str | None = None,
        start_method: str = "spawn",
    ) -> None:
        self.slots = workers
        self.threads = threads or max(1, cores() // workers)
        self._cache_dir = cache_dir
        self._context = multiprocessing.get_context(start_method)
        self._workers: list[_Worker] = []
        self._events: deque[Event] = deque()
        self._devices = gpus()

    def submit(self, spec: CellSpec) -> None:
        """See `Engine`."""
        free = next((each for each in self._workers if each.cell is None), None)
        if free is not None and not free.process.is_alive():
            self._drop(free)
            free = None
        if free is None:
            taken = {each.number for each in self._workers}
            free = self._start(min(set(range(self.slots)) - taken))
            self._workers.append(free)
        free.cell = spec.key
        with contextlib.suppress(OSError):  # it died just now: `wait` sees that
            free.pipe.send(spec.to_dict())

    def wait(self, timeout: float) -> list[Event]:
        """See `Engine`."""
        busy = {each.pipe: each for each in self._workers if each.cell is not None}
        if not busy:
            return []
        for pipe in wait(list(busy), timeout):
            self._hear(busy[pipe])
        found = list(self._events)
        self._events.clear()
        return found

    def _hear(self, each: _Worker) -> None:
        assert each.cell is not None
        try:
            kind, value = each.pipe.recv()
        except (EOFError, OSError):
            self._events.append(Failed(each.cell, each.ending(), lost=True))
            self._drop(each)
            return
        if kind == "started":
            self._events.append(Started(each.cell, each.name))
            return
        self._events.append(Finished(each.cell, value) if kind == "finished" else value)
        each.cell = None

    def _start(self, number: int) -> _Worker:
        # The environment goes with the process, so that threads are right before anything is imported.
        before = dict(os.environ)
        worker.set_threads(os.environ, self.threads)
        try:
            return _Worker(self._context, number, self.threads, self._devices, self._cache_dir)
        finally:
            os.environ.clear()
            os.environ.update(before)

    def _drop(self, each: _Worker) -> None:
        each.pipe.close()
        self._workers.remove(each)

    def close(self) -> None:
        """See `Engine`."""
        for each in self._workers:
            if each.cell is None:
                with contextlib.suppress(OSError):
                    each.pipe.send(None)
            else:
                each.process.terminate()
        for each in self._workers:
            each.process.join(5)
            if each.process.is_alive():
                each.process.kill()  # workers hold nothing: neither locks nor files half written
                each.process.join()
            each.pipe.close()
        self._workers.clear()
