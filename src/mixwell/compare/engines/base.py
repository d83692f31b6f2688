"""Where cells are trained: the interface of engines and the events that they report."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Protocol

from mixwell.compare.records import CellResult
from mixwell.compare.spec import CellSpec
from mixwell.utils.errors import MixwellError


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
    """A cell has no result.

    Attributes:
        key: of the cell.
        reason: one line.
        detail: a traceback, or nothing.
        lost: the worker was lost with it (killed, machine gone): another attempt may succeed.
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
            MixwellError: no cell can run any more; it is not the fault of those that are unfinished.
        """

    def close(self) -> None:
        """Stop, with the cells that still run."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text; some have many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".")[:300] if lines else type(error).__name__


def failure_of(key: str, error: BaseException) -> Failed:
    """The event of a cell that raised an exception."""
    text = " ".join(str(error).split())
    detail = "".join(traceback.format_exception(error))
    if isinstance(error, MixwellError):
        return Failed(key, text)
    if isinstance(error, MemoryError) or "out of memory" in text.lower() or "can't allocate memory" in text.lower():
        return Failed(key, f"out of memory ({text or type(error).__name__}); lower --batch-size or --workers", detail)
    return Failed(key, f"{type(error).__name__}: {text}" if text else type(error).__name__, detail)
