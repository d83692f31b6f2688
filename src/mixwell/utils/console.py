"""What the user sees while something runs.

Progress goes to stderr: a bar with loss, validation and time left on a terminal, a line per epoch elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

from mixwell.utils.environment import rank

ROWS_A_LINE = 50_000
_NO_BREAK = "\xa0"


class Reporter:
    """Says nothing. The base of those that do."""

    def note(self, text: str) -> None:
        """Tell something worth knowing."""

    def say(self, text: str) -> None:
        """Tell a result."""

    def rows(self, doing: str, done: int, total: int | None = None) -> None:
        """So many rows are read or tokenised; `total` is None where it is not known yet."""

    def begin(self, steps: int, done: int) -> None:
        """Training begins: `steps` in all, `done` of them before."""

    def step(self, done: int, loss: float | None) -> None:
        """So many steps are done; `loss` is the latest known."""

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch is over; `row` is its line of the history."""

    def end(self) -> None:
        """Training is over."""


class PlainReporter(Reporter):
    """One line for each note and epoch, for pipes and logs."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._steps = self._first = self._done = 0
        self._rows: dict[str, int] = {}

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """See `Reporter`."""
        self._print(f"note: {text}")

    def say(self, text: str) -> None:
        """See `Reporter`."""
        self._print(text)

    def rows(self, doing: str, done: int, total: int | None = None) -> None:
        """See `Reporter`; a line every `ROWS_A_LINE` rows."""
        if done // ROWS_A_LINE > self._rows.get(doing, 0):
            self._rows[doing] = done // ROWS_A_LINE
            self._print(f"{doing}: {done:,}{f' of {total:,}' if total else ''} rows")

    def begin(self, steps: int, done: int) -> None:
        """See `Reporter`."""
        self._start, self._steps, self._first, self._done = time.monotonic(), steps, done, done
        self._print(f"training: {steps} steps" + (f", continuing after {done}" if done else ""))

    def step(self, done: int, loss: float | None) -> None:
        """See `Reporter`."""
        self._done = done

    def epoch(self, row: dict[str, Any]) -> None:
        """See `Reporter`."""
        spent = time.monotonic() - self._start
        left = spent / max(self._done - self._first, 1) * (self._steps - self._done)
        self._print(f"{epoch_line(row)}  step {self._done}/{self._steps}  at most {clock(left)} left")


class TerminalReporter(PlainReporter):
    """A bar on a terminal."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console

        self._console = Console(stderr=True)
        self._bar: Any = None
        self._task: Any = None

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def _start_bar(self, *more: str) -> None:
        """Show a bar of tasks; `more` are texts about each, behind its numbers."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        texts = [TextColumn(text) for text in ("{task.description}", *more)]
        columns = (texts[0], BarColumn(), MofNCompleteColumn(), *texts[1:], TimeRemainingColumn())
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._bar.start()

    def rows(self, doing: str, done: int, total: int | None = None) -> None:
        """See `Reporter`."""
        if self._bar is None:
            self._start_bar()
        if doing not in self._rows:
            self._rows[doing] = self._bar.add_task(doing, total=total)
        self._bar.update(self._rows[doing], completed=done, total=total)

    def begin(self, steps: int, done: int) -> None:
        """See `Reporter`."""
        self.end()
        self._start_bar("loss {task.fields[loss]}")
        self._task = self._bar.add_task("training", total=steps, completed=done, loss="-")

    def step(self, done: int, loss: float | None) -> None:
        """See `Reporter`."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, loss="-" if loss is None else f"{loss:.4f}")

    def epoch(self, row: dict[str, Any]) -> None:
        """See `Reporter`."""
        self._print(epoch_line(row))

    def end(self) -> None:
        """See `Reporter`."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def make_reporter(quiet: bool = False) -> Reporter:
    """The reporter for this process: silent, a bar, or lines."""
    if quiet or rank() != 0:
        return Reporter()
    if sys.stderr.isatty() and not os.environ.get("CI"):
        return TerminalReporter()
    return PlainReporter()


def screen_width() -> int | None:
    """Columns of the terminal that stdout is; None for a file or a pipe, which have no width."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def write_wrapped(text: str, indent: int = 0) -> None:
    """Print a paragraph on stdout; on a terminal it is wrapped between words, further lines are indented."""
    width = screen_width()
    print("\n".join(_wrap(text, width, indent) if width else [text]))


def fit_table(lines: Sequence[Sequence[str]], width: int | None = None, *, keep: int = 1) -> list[str]:
    """A table as lines of text, the first of `lines` being its head.

    Where it is too wide, long cells are wrapped between words; columns that still do not fit are left out from the
    right and named below the table.

    Args:
        lines: rows of cells.
        width: of the screen; None for no limit.
        keep: so many columns from the left are never left out.
    """
    # An interval and a spread stay on one line.
    lines = [
        [re.sub(r"\[[^\]]*\]| ± ", lambda part: part[0].replace(" ", _NO_BREAK), cell) for cell in line]
        for line in lines
    ]
    columns = list(zip(*lines))
    sizes = [max(map(len, column)) for column in columns]
    count = len(columns)
    if width is not None:
        words = [max(len(word) for cell in column for word in ["", *cell.split(" ")]) for column in columns]
        least = [min(size, max(14, longest)) for size, longest in zip(sizes, words)]
        while count > keep and sum(least[:count]) + 2 * (count - 1) > width:
            count -= 1
        sizes = _shrink(sizes[:count], least[:count], width)
    texts: list[str] = []
    for line in lines:
        cells = [_wrap(cell, size) for cell, size in zip(line, sizes)]
        for part in range(max(map(len, cells))):
            parts = [cell[part] if part < len(cell) else "" for cell in cells]
            texts.append("  ".join(text.ljust(size) for text, size in zip(parts, sizes)).rstrip())
        if line is lines[0]:
            head = len(texts)
    texts.insert(head, "-" * max(map(len, texts)))
    if width is not None and count < len(columns):
        texts += _wrap(f"Not shown at {width} columns: {', '.join(lines[0][count:])}.", width)
    return [text.replace(_NO_BREAK, " ") for text in texts]


def _wrap(text: str, width: int, indent: int = 0) -> list[str]:
    """Lines of a text, broken between words only, from the second on indented; at least one."""
    more = " " * indent
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=more) or [""]


def _shrink(sizes: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """The sizes of columns so that they fit: those with the most to spare become narrower first."""
    chosen = list(sizes)
    for k in sorted(range(len(sizes)), key=lambda k: least[k] - sizes[k]):
        over = sum(chosen) + 2 * (len(chosen) - 1) - width
        chosen[k] = max(least[k], chosen[k] - max(over, 0))
    return chosen


def epoch_line(row: dict[str, Any]) -> str:
    """One epoch of a history as a line."""
    loss = row.get("train_loss")
    parts = [f"epoch {row['epoch']:>3}", f"train loss {'-' if loss is None else format(loss, '.4f')}"]
    shown = row.get("validation", {})
    names = [name for name in ("loss", "accuracy", "micro_f1", "macro_f1", "ece", "mse", "pearson") if name in shown]
    if names:
        parts.append("validation " + " ".join(f"{name} {shown[name]:.4f}" for name in names))
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds, or hours."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
