"""Where cells run: the interface of engines, the events they give, and one that runs cells in this process.

An engine knows nothing of records or locks. It is given cells, one at a time and never more than it has slots, and
gives events. `schedule` decides what runs and writes the records, so that another engine (a cluster) only has to
call `cell.run_cell` elsewhere.
"""

from __future__ import annotations

import traceback
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from mixwell.compare.cell import Cache, run_cell
from mixwell.compare.records import CellResult
from mixwell.compare.spec import CellSpec
from mixwell.errors import MixwellError


@dataclass(frozen=True)
class Started:
    """A cell began to run."""

    key: str
    worker: str


@dataclass(frozen=True)
class Finished:
    """A cell has its result."""

    key: str
    result: CellResult


@dataclass(frozen=True)
class Failed:
    """A cell has none.

    Attributes:
        key: of the cell.
        reason: one line.
        detail: a traceback, or nothing.
        lost: the worker was lost with it (killed, machine gone): another try may go well.
        retries: how often a cell that was lost in this way may be tried again.
    """

    key: str
    reason: str
    detail: str = ""
    lost: bool = False
    retries: int = 1


@dataclass(frozen=True)
class Note:
    """Something about the machines that the user should know; it belongs to no cell."""

    text: str


Event = Started | Finished | Failed | Note


class Engine(Protocol):
    """Runs cells somewhere.

    Attributes:
        slots: how many cells can run at a time; may change as machines come and go.
    """

    @property
    def slots(self) -> int:
        """See above."""

    def submit(self, spec: CellSpec) -> None:
        """Run a cell; called only while fewer than `slots` cells are neither finished nor failed."""

    def wait(self, timeout: float) -> list[Event]:
        """Return what happened, in order; wait up to so many seconds for the first event.

        Raises:
            MixwellError: no cell can run any more; those that are not finished are not to blame.
        """

    def close(self) -> None:
        """Stop; cells that still run are given up."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text; some run over many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".")[:300] if lines else type(error).__name__


def failure_of(key: str, error: BaseException) -> Failed:
    """Put an exception of a cell into words."""
    text = " ".join(str(error).split())
    detail = "".join(traceback.format_exception(error))
    if isinstance(error, MixwellError):
        return Failed(key, text)
    if isinstance(error, MemoryError) or "out of memory" in text.lower() or "can't allocate memory" in text.lower():
        return Failed(key, f"out of memory ({text or type(error).__name__}); lower --batch-size or --workers", detail)
    return Failed(key, f"{type(error).__name__}: {text}" if text else type(error).__name__, detail)


class InlineEngine:
    """Runs cells in this process, one after the other: for debugging, and where processes cannot be started."""

    slots = 1

    def __init__(self, cache: Cache | None = None, threads: int | None = None) -> None:
        self._cache = cache or Cache()
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        self._told: deque[CellSpec] = deque()
        self._next: deque[CellSpec] = deque()

    def submit(self, spec: CellSpec) -> None:
        """See `Engine`."""
        self._next.append(spec)

    def wait(self, timeout: float) -> list[Event]:
        """See `Engine`."""
        if self._next:
            self._told.append(self._next.popleft())
            return [Started(self._told[-1].key, "this process")]
        if not self._told:
            return []
        spec = self._told.popleft()
        try:
            return [Finished(spec.key, run_cell(spec, self._cache))]
        except Exception as error:
            return [failure_of(spec.key, error)]

    def close(self) -> None:
        """See `Engine`."""
        self._next.clear()
        self._told.clear()
