"""The engine that trains in this process."""

from __future__ import annotations

from collections import deque

from mixwell.compare.cell import Cache, run_cell
from mixwell.compare.engines.base import Event, Finished, Started, failure_of
from mixwell.compare.spec import CellSpec


class InlineEngine:
    """Runs cells in this process, one after the other: for debugging, and where processes cannot be started."""

    slots = 1

    def __init__(self, cache: Cache | None = None, threads: int | None = None) -> None:
        self._cache = cache or Cache()
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        self._submitted: deque[CellSpec] = deque()
        self._started: deque[CellSpec] = deque()

    def submit(self, spec: CellSpec) -> None:
        """See `Engine`."""
        self._submitted.append(spec)

    def wait(self, timeout: float) -> list[Event]:
        """See `Engine`."""
        if self._submitted:
            self._started.append(self._submitted.popleft())
            return [Started(self._started[-1].key, "this process")]
        if not self._started:
            return []
        spec = self._started.popleft()
        try:
            return [Finished(spec.key, run_cell(spec, self._cache))]
        except Exception as error:
            return [failure_of(spec.key, error)]

    def close(self) -> None:
        """See `Engine`."""
        self._submitted.clear()
        self._started.clear()
