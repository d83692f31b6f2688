"""The engine for one machine: worker processes that keep data and weights between cells."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from multiprocessing.connection import wait
from typing import Any

from mixwell.compare.engines.base import Event, Failed, Finished, Started
from mixwell.compare.engines.worker import run_worker, set_allocator, set_threads
from mixwell.compare.spec import CellSpec

START_METHOD = "spawn"


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> int:
    """The GPUs of this machine."""
    import torch

    return torch.cuda.device_count()


class WorkerProcess:
    """A process, the pipe to it, and the cell that it trains."""

    def __init__(self, context: Any, number: int, threads: int, devices: int, cache_dir: str | None) -> None:
        self.number = number
        self.cell: str | None = None
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, number, threads, devices, cache_dir)
        self.process = context.Process(target=run_worker, args=arguments, name=f"mixwell-{number}", daemon=True)
        self.process.start()
        theirs.close()  # else its end would never be seen

    @property
    def name(self) -> str:
        """For the user."""
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
        threads: of each worker; None divides the cores among them.
        cache_dir: for tokenised texts.
        start_method: of `multiprocessing`; None for the one that is safe everywhere.
    """

    def __init__(
        self,
        workers: int = 1,
        threads: int | None = None,
        cache_dir: str | None = None,
        start_method: str | None = None,
    ) -> None:
        self.slots = workers
        self.threads = threads or max(1, cores() // workers)
        self._cache_dir = cache_dir
        self._context = multiprocessing.get_context(start_method or START_METHOD)
        self._workers: list[WorkerProcess] = []
        self._events: deque[Event] = deque()
        self._devices = gpus()

    def submit(self, spec: CellSpec) -> None:
        """See `Engine`."""
        free = next((worker for worker in self._workers if worker.cell is None), None)
        if free is not None and not free.process.is_alive():
            self._drop(free)
            free = None
        if free is None:
            taken = {worker.number for worker in self._workers}
            free = self._start(min(set(range(self.slots)) - taken))
            self._workers.append(free)
        free.cell = spec.key
        with contextlib.suppress(OSError):  # it died just now: `wait` sees that
            free.pipe.send(spec.to_dict())

    def wait(self, timeout: float) -> list[Event]:
        """See `Engine`."""
        busy = {worker.pipe: worker for worker in self._workers if worker.cell is not None}
        if not busy:
            return []
        for pipe in wait(list(busy), timeout):
            self._receive(busy[pipe])
        events = list(self._events)
        self._events.clear()
        return events

    def _receive(self, worker: WorkerProcess) -> None:
        """Handle a message of a worker."""
        assert worker.cell is not None
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, OSError):
            self._events.append(Failed(worker.cell, worker.ending(), lost=True))
            self._drop(worker)
            return
        if kind == "started":
            self._events.append(Started(worker.cell, worker.name))
            return
        self._events.append(Finished(worker.cell, value) if kind == "finished" else value)
        worker.cell = None

    def _start(self, number: int) -> WorkerProcess:
        # The environment goes with the process, so that threads are right before anything is imported.
        before = dict(os.environ)
        set_threads(os.environ, self.threads)
        set_allocator(os.environ)
        try:
            return WorkerProcess(self._context, number, self.threads, self._devices, self._cache_dir)
        finally:
            os.environ.clear()
            os.environ.update(before)

    def _drop(self, worker: WorkerProcess) -> None:
        worker.pipe.close()
        self._workers.remove(worker)

    def close(self) -> None:
        """See `Engine`."""
        for worker in self._workers:
            if worker.cell is None:
                with contextlib.suppress(OSError):
                    worker.pipe.send(None)
            else:
                worker.process.terminate()
        for worker in self._workers:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()  # workers hold nothing: neither locks nor files half written
                worker.process.join()
            worker.pipe.close()
        self._workers.clear()
