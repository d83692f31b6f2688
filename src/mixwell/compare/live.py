"""What the user sees during the runs of a comparison: a live table on a terminal, lines elsewhere; both on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mixwell.compare.records import Failure, Record
from mixwell.compare.spec import BASELINE, CellSpec
from mixwell.compare.stats.verdicts import PRIMARY
from mixwell.utils.console import clock
from mixwell.utils.titles import method_title

if TYPE_CHECKING:
    from mixwell.compare.race import RaceResult


class Progress:
    """Where a comparison stands: counts, leaders and the time left."""

    def __init__(self, cells: Sequence[CellSpec], slots: int = 1) -> None:
        self.cells = {cell.key: cell for cell in cells}
        self.slots = slots
        self.done: set[str] = set()
        self.failed: set[str] = set()
        self.running: dict[str, tuple[str, float]] = {}
        self._seconds: list[float] = []
        self.records: dict[str, Record] = {}
        self._values: dict[str, dict[str, dict[int, float]]] = {}  # group -> label -> seed -> value

    def start(self, key: str, worker: str) -> None:
        """A cell began."""
        self.running[key] = (worker, time.monotonic())

    def finish(self, record: Record, *, measured: bool) -> None:
        """A cell is finished; `measured` if its time counts for the estimate."""
        spec = record.spec
        self.running.pop(spec.key, None)
        self.done.add(spec.key)
        self.records[spec.key] = record
        if measured:
            self._seconds.append(float(record.result["timing"]["seconds"]))
        value = record.result["test"]["before"][PRIMARY[spec.task]]
        self._values.setdefault(spec.group_key, {}).setdefault(spec.label, {})[spec.seed] = value

    def fail(self, key: str) -> None:
        """A cell failed."""
        self.running.pop(key, None)
        self.failed.add(key)

    @property
    def waiting(self) -> int:
        """Cells that have not begun here."""
        return len(self.cells) - len(self.done) - len(self.failed) - len(self.running)

    def left(self) -> float | None:
        """Seconds left, by the mean time of the cells so far; None before the first."""
        if not self._seconds:
            return None
        mean, now = sum(self._seconds) / len(self._seconds), time.monotonic()
        begun = sum(max(mean - (now - since), 0.0) for _, since in self.running.values())
        return (begun + mean * self.waiting) / self.slots

    def leader(self, group: str) -> tuple[str, float, int] | None:
        """The method that is ahead in a group: its label, its mean and the seeds it is ahead in.

        Methods are compared over the seeds that all of them have, or over all seeds if they have none in common.
        """
        values = {label: by_seed for label, by_seed in self._values.get(group, {}).items() if by_seed}
        if not values:
            return None
        common = set.intersection(*(set(by_seed) for by_seed in values.values()))
        spec = next(cell for cell in self.cells.values() if cell.group_key == group)
        sign = -1 if spec.task == "regression" else 1
        means = {
            label: sum(by_seed[seed] for seed in (common or by_seed)) / len(common or by_seed)
            for label, by_seed in values.items()
        }
        best = max(means, key=lambda label: (sign * means[label], label == BASELINE))
        return best, means[best], len(common) or len(values[best])

    def sign(self, cell: CellSpec) -> str:
        """One sign for how a cell stands."""
        for sign, keys in (("+", self.done), (">", self.running), ("x", self.failed)):
            if cell.key in keys:
                return sign
        return "."

    def mean_words(self, group: str, label: str, metric: str) -> str:
        """The mean of a method over its finished seeds; empty before the first."""
        values = list(self._values.get(group, {}).get(label, {}).values())
        return f"{metric.replace('_', '-')} {sum(values) / len(values):.4f}" if values else ""

    def line(self) -> str:
        """The counts and the time left."""
        left = self.left()
        parts = [f"{len(self.done)} of {len(self.cells)} finished", f"{len(self.running)} running"]
        parts.append(f"{self.waiting} waiting")
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        if left is not None and self.waiting + len(self.running):
            parts.append(f"about {clock(left)} left")
        return ", ".join(parts)


class LiveView:
    """Shows nothing; the base of the views that do.

    Args:
        slots: how many cells run at a time.
    """

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots
        self.progress = Progress([], slots)
        self.race: RaceResult | None = None  # is set where seeds are added in rounds

    def note(self, text: str) -> None:
        """Show something that the user should know."""

    def begin(self, cells: Sequence[CellSpec], done: Mapping[str, Record], failed: Mapping[str, Failure]) -> None:
        """Work begins; some cells are finished or failed already."""
        self.progress = Progress(cells, self.slots)
        for record in done.values():
            self.progress.finish(record, measured=False)
        for key in failed:
            self.progress.fail(key)

    def started(self, spec: CellSpec, worker: str) -> None:
        """A cell began to run here."""
        self.progress.start(spec.key, worker)

    def finished(self, record: Record, elsewhere: bool = False) -> None:
        """A cell is finished, here or in another process."""
        self.progress.finish(record, measured=not elsewhere)

    def failed(self, failure: Failure) -> None:
        """A cell failed."""
        self.progress.fail(failure.spec.key)

    def tick(self) -> None:
        """Some time has passed."""

    def end(self) -> None:
        """All is done, or an error occurred."""


def run_title(spec: CellSpec) -> str:
    """A cell in words."""
    return f"{spec.name}, {spec.title}: {spec.label}, seed {spec.seed}"


class PlainView(LiveView):
    """One line per event, for pipes and logs."""

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """See `LiveView`."""
        self._print(f"note: {text}")

    def begin(self, cells: Sequence[CellSpec], done: Mapping[str, Record], failed: Mapping[str, Failure]) -> None:
        """See `LiveView`."""
        super().begin(cells, done, failed)
        self._print(f"comparison: {self.progress.line()}")

    def finished(self, record: Record, elsewhere: bool = False) -> None:
        """See `LiveView`."""
        super().finished(record, elsewhere)
        spec, name = record.spec, PRIMARY[record.spec.task]
        value = record.result["test"]["before"][name]
        where = " (by another process)" if elsewhere else f" in {clock(record.result['timing']['seconds'])}"
        ahead = self.progress.leader(spec.group_key)
        assert ahead is not None
        self._print(
            f"finished {run_title(spec)}{where}: {name} {value:.4f}; {self.progress.line()}; ahead so far: {ahead[0]} "
            f"({ahead[1]:.4f}, {ahead[2]} seeds)"
        )

    def failed(self, failure: Failure) -> None:
        """See `LiveView`."""
        super().failed(failure)
        self._print(f"failed {run_title(failure.spec)}: {failure.reason}; {self.progress.line()}")


class TerminalView(LiveView):
    """A table that is drawn again and again."""

    def __init__(self, slots: int = 1) -> None:
        from rich.console import Console

        super().__init__(slots)
        self._console = Console(stderr=True)
        self._live: Any = None

    def note(self, text: str) -> None:
        """See `LiveView`."""
        self._console.print(f"note: {text}", markup=False, highlight=False)

    def begin(self, cells: Sequence[CellSpec], done: Mapping[str, Record], failed: Mapping[str, Failure]) -> None:
        """See `LiveView`."""
        from rich.live import Live

        super().begin(cells, done, failed)
        self._live = Live(self.table(), console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def failed(self, failure: Failure) -> None:
        """See `LiveView`."""
        super().failed(failure)
        self.note(f"failed {run_title(failure.spec)}: {failure.reason}")

    def tick(self) -> None:
        """See `LiveView`."""
        if self._live is not None:
            self._live.update(self.table())

    def end(self) -> None:
        """See `LiveView`."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def table(self) -> Any:
        """The table as of now."""
        from rich.table import Table
        from rich.text import Text

        if self.race is not None:
            return self._race_table(self.race)
        groups: dict[str, list[CellSpec]] = {}
        for cell in self.progress.cells.values():
            groups.setdefault(cell.group_key, []).append(cell)
        signs = "+ finished  > running  x failed  . waiting"
        table = Table(title=Text(self.progress.line()), title_justify="left", caption=signs)
        for column in ("data", "method", "seeds", "mean so far"):
            table.add_column(column)
        for key in self._visible(groups):
            cells = groups[key]
            labels, ahead = list(dict.fromkeys(cell.label for cell in cells)), self.progress.leader(key)
            for number, label in enumerate(labels):
                own = [cell for cell in cells if cell.label == label]
                words = self.progress.mean_words(key, label, PRIMARY[own[0].task])
                words += " (ahead)" if ahead is not None and ahead[0] == label and len(labels) > 1 else ""
                first = "" if number else f"{cells[0].name}, {cells[0].title}"
                row = [first, method_title(label), "".join(map(self.progress.sign, own)), words]
                table.add_row(*map(Text, row))
            table.add_section()
        return table

    def _visible(self, groups: Mapping[str, Sequence[CellSpec]]) -> list[str]:
        """The comparisons that fit the screen: all, or those that are being worked on."""
        rows = sum(len({cell.label for cell in cells}) + 1 for cells in groups.values())
        if rows + 6 <= self._console.height:
            return list(groups)
        busy = [key for key, cells in groups.items() if any(cell.key in self.progress.running for cell in cells)]
        return busy or list(groups)[-1:]

    def _race_table(self, race: RaceResult) -> Any:
        """Methods x seeds of a race, who is out and why, and what is spent."""
        from rich.table import Table
        from rich.text import Text

        runs, seconds = race.spent
        fresh = [record for key, record in self.progress.records.items() if not race.holds(key)]
        runs += sum(not record.spec.is_reference for record in fresh)
        seconds += sum(float(record.result["timing"]["seconds"]) for record in fresh if not record.spec.is_reference)
        title = f"{self.progress.line()}; spent: {race.budget.words(runs, seconds)}"
        table = Table(
            title=Text(title), title_justify="left", caption="+ finished  > running  . this round  - perhaps later"
        )
        for column in ("data", "method", "seeds", ""):
            table.add_column(column)
        for lane in race.lanes:
            for number, (method, signs, status) in enumerate(lane.grid_rows(self.progress.running, self.progress.done)):
                table.add_row(Text("" if number else lane.title), Text(method_title(method)), Text(signs), Text(status))
            table.add_section()
        return table


def make_view(slots: int, quiet: bool = False) -> LiveView:
    """The view for this process: none, a table, or lines."""
    if quiet:
        return LiveView(slots)
    if sys.stderr.isatty() and not os.environ.get("CI"):
        return TerminalView(slots)
    return PlainView(slots)
