"""The run folder: who may write in it, and its record.

RUN/run.json            settings, versions, seeds, data fingerprint; written first
RUN/data.parquet        the rows, where `mixwell.train` was given a frame
RUN/splits.json         which row is in which split
RUN/folds/              while training, for each fold that is over: the logits of its held-out rows per epoch
RUN/checkpoints/        while training; each checkpoint is complete when its manifest is there
RUN/model/              the trained model
RUN/predictions.parquet, reliability.svg, loss.svg
RUN/metrics.json        written last: a run with it is finished
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mixwell.training.checkpoints import remove_checkpoints
from mixwell.utils.errors import RunError
from mixwell.utils.files import write_json
from mixwell.utils.locks import take_lock
from mixwell.utils.records import damage, read_json

RUN_FORMAT = "mixwell run 1"
# Rows that were in memory when the run began, so that it can be resumed and looked at; written before the run begins.
DATA_FILE = "data.parquet"


_OURS: set[str] = set()  # folders locked by this process: a POSIX lock does not stop its own process


class RunFolder:
    """A run folder by its path; nothing is touched until a method says so.

    Attributes:
        path: the folder.
        checkpoints: where the checkpoints are.
        folds: where the folds that are over keep what they said, until the run is finished.
        model: where the trained model is.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints, self.folds, self.model = (self.path / name for name in ("checkpoints", "folds", "model"))

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "metrics.json").is_file()

    @property
    def diverged(self) -> bool:
        """Whether the run ended in a loss that is no number: a new one may take its place."""
        if self.finished or not (self.path / "run.json").is_file():
            return False
        with contextlib.suppress(RunError):
            return isinstance(self.read_record().get("diverged"), str)
        return False

    def _set_aside(self) -> None:
        """Move a run that diverged to a free name beside its own."""
        with open(self.path / ".lock", "a+", encoding="utf-8") as handle:
            _take(handle, self.path)
            names = (self.path.with_name(f"{self.path.name}.diverged-{number}") for number in itertools.count(1))
            os.replace(self.path, next(name for name in names if not name.exists()))

    def check_new(self) -> None:
        """Raise `RunError` unless a new run can go here: the folder is missing, empty or of a run that diverged."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise RunError(f"output {self.path} is a file; name another folder with --output")
        if [entry for entry in os.listdir(self.path) if entry not in (".lock", DATA_FILE)]:
            if self.finished:
                raise RunError(f"output {self.path} holds a finished run; name another folder with --output")
            if self.diverged:
                return  # it is moved aside when the new run begins
            if (self.path / "run.json").is_file():
                raise RunError(
                    f"output {self.path} holds an unfinished run; continue it with `mixwell train --resume {self.path}`"
                    f" or name another folder with --output"
                )
            raise RunError(f"output {self.path} is not empty; name another folder with --output")

    @contextlib.contextmanager
    def lock(self, *, new: bool) -> Iterator[None]:
        """Hold the folder for this process.

        The lock is the operating system's and goes away with the process, however it ends.

        Args:
            new: make the folder, and remove it again if nothing was put into it.

        Raises:
            RunError: another process holds it.
        """
        if new and self.diverged:
            self._set_aside()
        made = _make(self.path) if new else []
        if not new and not self.path.is_dir():
            raise RunError(f"{self.path}: no such run folder")
        key = str(self.path.resolve())
        file = self.path / ".lock"
        if key in _OURS:
            raise RunError(f"{self.path} is in use by this process; wait for it to end")
        handle = open(file, "a+", encoding="utf-8")  # noqa: SIM115 - held for long
        try:
            _take(handle, self.path)
            _OURS.add(key)
            if new:
                self.check_new()
            else:
                self._sweep()
            handle.seek(0)
            handle.truncate()
            handle.write(f"{os.getpid()}\n")
            handle.flush()
            yield
            file.unlink(missing_ok=True)
        finally:
            _OURS.discard(key)
            handle.close()
            if made and self.path.is_dir() and os.listdir(self.path) in ([], [".lock"]):
                file.unlink(missing_ok=True)
                for folder in made:
                    folder.rmdir()

    def _sweep(self) -> None:
        """Remove what a kill left of files and folders that were being written."""
        for entry in [*self.path.glob(".*.tmp-*"), *self.path.glob(".*.old-*")]:
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)

    def write_record(self, record: dict[str, Any]) -> None:
        """Write run.json."""
        write_json(self.path / "run.json", {"format": RUN_FORMAT, **record})

    def read_record(self) -> dict[str, Any]:
        """Read run.json.

        Raises:
            RunError: it is missing, damaged or of another version.
        """
        record = read_json(self.path / "run.json", RUN_FORMAT, "a run folder")
        if lost := {"settings", "data", "processes", "versions"} - record.keys():
            raise RunError(f"{self.path / 'run.json'}: damaged (no {min(lost)!r})")
        for name in ("settings", "data", "versions"):
            if not isinstance(record[name], dict):
                raise damage(self.path / "run.json", f"{name} is no table")
        return record

    def check_there(self) -> None:
        """Raise `RunError` if somebody removed the folder while the run was at it; it would come back without parts."""
        if not (self.path / "run.json").is_file():
            raise RunError(f"{self.path}: the run folder was removed or moved during the run; train anew")

    def discard(self) -> None:
        """Remove what a run that did not begin to train has written; the lock goes with it."""
        for name in ("run.json", "splits.json"):
            (self.path / name).unlink(missing_ok=True)
        for folder in (self.checkpoints, self.folds):
            shutil.rmtree(folder, ignore_errors=True)

    def finish(self, metrics: dict[str, Any], *, keep_checkpoints: bool) -> None:
        """Write metrics.json, the mark of a finished run, and then remove the checkpoints."""
        write_json(self.path / "metrics.json", metrics)
        if not keep_checkpoints:
            self.remove_checkpoints()

    def remove_checkpoints(self) -> None:
        """Remove what training left behind; a run that is finished does not need it."""
        remove_checkpoints(self.checkpoints)
        shutil.rmtree(self.folds, ignore_errors=True)


def _make(path: Path) -> list[Path]:
    """Make a folder and its parents; return those made, innermost first."""
    missing = list(itertools.takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
    return missing


def _take(handle: Any, path: Path) -> None:
    """Lock an open file; raise `RunError` when another process has it."""
    if not take_lock(handle.fileno(), path):
        handle.seek(0)
        holder = handle.read().strip()
        named = f" ({holder})" if holder else ""
        raise RunError(f"{path} is in use by another process{named}; wait for it, or name another folder")
