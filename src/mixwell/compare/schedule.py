"""Do what is missing: claim cells, give them to an engine, write their records.

Several processes may work on one folder. Each claims a cell by its lock when it has a free slot, checks again
whether the record exists, and releases the lock when it is written. A process that is killed loses its locks, and
the others take its cells over.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mixwell.compare.engines.base import Engine, Event, Failed, Finished, Note, Started
from mixwell.compare.live import LiveView
from mixwell.compare.records import CorruptRecord, Failure, Record, Records
from mixwell.compare.spec import CellSpec
from mixwell.utils.errors import RunError
from mixwell.utils.locks import CellLocks

_CHECK_INTERVAL = 0.5  # seconds between checks of cells that another process trains,
_LONGEST_INTERVAL = 4.0  # which grow: many processes that wait for the last cells would keep a file server busy


@dataclass
class ScheduleOutcome:
    """What became of the requested cells.

    Attributes:
        finished: the finished ones, by name.
        failed: the failed ones, by name.
        trained: the names of those that this call trained.
    """

    finished: dict[str, Record] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    trained: list[str] = field(default_factory=list)


def check_data(records: Records, cells: Sequence[CellSpec], *, new_data: bool = False) -> None:
    """Check the records in a folder against what is planned.

    Args:
        records: the folder.
        cells: the plan.
        new_data: accept that a source has other data than when its records were made.

    Raises:
        RunError: the data of a source changed, or there are records of another version.
    """
    planned = {cell.source: cell for cell in cells}
    seen: dict[object, set[str]] = {source: set() for source in planned}
    for key in records.names():
        try:
            spec = records.read_spec(key)
        except CorruptRecord:
            continue
        if spec.source in seen:
            seen[spec.source].add(spec.fingerprint)
    for source, cell in planned.items():
        if seen[source] and cell.fingerprint not in seen[source] and not new_data:
            raise RunError(
                f"{source.data}: the data changed since the records in {records.path} were made; bring the old data "
                f"back, name a new folder with --output, or add --new-data to keep both"
            )


def execute(
    cells: Sequence[CellSpec],
    records: Records,
    engine: Engine,
    view: LiveView,
    *,
    retry_failed: bool = False,
    close: bool = True,
) -> ScheduleOutcome:
    """Train the cells that have no record, and return the records of all.

    Args:
        cells: what is wanted, in order; each name once.
        records: the folder, made before.
        engine: where cells run.
        view: shows what happens.
        retry_failed: try cells again that failed before.
        close: close the engine at the end.

    Raises:
        RunError: the folder has records of another version, or the engine has no machine left.
    """
    try:
        with CellLocks(records.path).opened() as locks:
            return _Schedule(cells, records, engine, view, locks, retry_failed).run()
    finally:
        if close:
            engine.close()


class _Schedule:
    def __init__(
        self,
        cells: Sequence[CellSpec],
        records: Records,
        engine: Engine,
        view: LiveView,
        locks: CellLocks,
        retry_failed: bool,
    ) -> None:
        self.cells = {cell.key: cell for cell in cells}
        self.records, self.engine, self.view, self.locks = records, engine, view, locks
        self.outcome = ScheduleOutcome()
        self.running: set[str] = set()
        self.lost: Counter[str] = Counter()
        # With `retry_failed` only a failure after these attempts counts.
        self.earlier_attempts = {key: failure.attempts for key in self.cells if (failure := records.failure(key))}
        if not retry_failed:
            self.earlier_attempts = {}
        self.waiting = list(self.cells)
        self.interval, self.next_check = _CHECK_INTERVAL, 0.0

    def run(self) -> ScheduleOutcome:
        self.waiting = [key for key in self.waiting if not self._settled(key)]
        self.view.begin(list(self.cells.values()), self.outcome.finished, self.outcome.failed)
        try:
            while self.waiting or self.running:
                self._fill()
                # Without running cells too: nodes come and go.
                for event in self.engine.wait(_CHECK_INTERVAL if self.running else 0.0):
                    self._handle(event)
                if self.waiting and not self.running and time.monotonic() < self.next_check:
                    time.sleep(_CHECK_INTERVAL)  # others have the rest
                self.view.progress.slots = max(self.engine.slots, 1)
                self.view.tick()
        finally:
            self.view.end()
        return self.outcome

    def _fill(self) -> None:
        """Claim cells for the free slots; drop those that another process has done meanwhile."""
        if not self.waiting or time.monotonic() < self.next_check:
            return
        before = len(self.waiting)
        for key in list(self.waiting):
            full = len(self.running) >= self.engine.slots
            if full and self.running:
                return
            if self._settled(key):
                self.waiting.remove(key)
                self._show(key)
            elif not full and self.locks.take(key):
                if self._settled(key, locked=True):  # done between the check and the lock
                    self.locks.release(key)
                    self._show(key)
                else:
                    self._submit(key)
                self.waiting.remove(key)
        # Other processes train the rest.
        progress = len(self.waiting) < before
        self.interval = _CHECK_INTERVAL if progress else min(2 * self.interval, _LONGEST_INTERVAL)
        self.next_check = time.monotonic() + self.interval

    def _submit(self, key: str) -> None:
        self.records.tidy(key)
        self.records.log("submitted", cell=key, label=self.cells[key].label, seed=self.cells[key].seed)
        self.running.add(key)
        self.engine.submit(self.cells[key])

    def _settled(self, key: str, locked: bool = False) -> bool:
        """Whether a cell is finished or has failed; moves a damaged record aside if its lock is free."""
        if self.records.has(key):
            try:
                self.outcome.finished[key] = self.records.read(key)
                return True
            except CorruptRecord as error:
                if not locked and not self.locks.take(key):
                    return False
                try:
                    if self.records.has(key):
                        aside = self.records.set_aside(key)
                        self.records.log("corrupt", cell=key, reason=str(error))
                        what = f"record {key[:12]} ({self.cells[key].label}, seed {self.cells[key].seed})"
                        self.view.note(f"{what} is corrupt: {error}; moved to {aside}, and trained again")
                finally:
                    if not locked:
                        self.locks.release(key)
                return False
        failure = self.records.failure(key)
        if failure is not None and failure.attempts > self.earlier_attempts.get(key, 0):
            self.outcome.failed[key] = failure
            return True
        return False

    def _show(self, key: str) -> None:
        """Show a cell that another process has done."""
        if key in self.outcome.finished:
            self.view.finished(self.outcome.finished[key], elsewhere=True)
        else:
            self.view.failed(self.outcome.failed[key])

    def _handle(self, event: Event) -> None:
        """Write down and show what happened."""
        if isinstance(event, Note):
            self.records.log("note", text=event.text)
            self.view.note(event.text)
            return
        key = event.key
        spec = self.cells[key]
        if isinstance(event, Started):
            self.records.log("started", cell=key, worker=event.worker)
            self.view.started(spec, event.worker)
            return
        if isinstance(event, Failed) and event.lost and self.lost[key] < event.retries:
            self.lost[key] += 1
            self.records.log("lost", cell=key, reason=event.reason)
            self.view.note(f"{spec.label}, seed {spec.seed}: {event.reason}; trying again")
            self.engine.submit(spec)
            return
        if isinstance(event, Finished):
            record = self.records.write(spec, event.result)
            self.records.log("finished", cell=key)
            self.outcome.finished[key] = record
            self.outcome.trained.append(key)
            self.view.finished(record)
        else:
            failure = self.records.write_failure(spec, event.reason, event.detail)
            self.records.log("failed", cell=key, reason=event.reason)
            self.outcome.failed[key] = failure
            self.view.failed(failure)
        self.running.discard(key)
        self.locks.release(key)
