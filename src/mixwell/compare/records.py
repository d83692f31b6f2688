"""The folder of a comparison: one record per cell, written completely or not at all.

    FOLDER/compare.json              marks the folder
    FOLDER/cells/<key>/              a finished cell: spec.json, result.json, outputs.safetensors
    FOLDER/failed/<key>.json         a failed cell: its spec, the reason and how often it was tried
    FOLDER/corrupt/                  damaged records, moved aside
    FOLDER/log.jsonl                 what happened when, one line per event
    FOLDER/.locks                    see `locks`

Outputs are `test_logits`, `test_labels`, `validation_logits` and `validation_labels`, so that any metric can be
computed later. result.json has their SHA-256 and one of itself; spec.json is checked by the name of the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mixwell.compare.contents import CorruptRecord, check_contents
from mixwell.compare.spec import FORMAT, CellSpec, canonical
from mixwell.utils.errors import RunError
from mixwell.utils.files import atomic_folder, write_json
from mixwell.utils.records import parse_json, read_json

FOLDER_FORMAT = "mixwell compare 1"


@dataclass(frozen=True)
class CellResult:
    """The result of a trained cell.

    Attributes:
        result: metrics, temperature, history, timing and versions as plain values.
        outputs: arrays by name: logits (N, C) and labels of validation and test.
    """

    result: dict[str, Any]
    outputs: dict[str, Any]


@dataclass(frozen=True)
class Record:
    """A finished cell, read back."""

    spec: CellSpec
    result: dict[str, Any]
    path: Path

    def outputs(self) -> dict[str, Any]:
        """The arrays by name; read and verified once, then kept in memory.

        Raises:
            CorruptRecord: the file is damaged.
        """
        return self._outputs

    @cached_property
    def _outputs(self) -> dict[str, Any]:
        return _read_outputs(self.path, self.result)


@dataclass(frozen=True)
class Failure:
    """A failed cell.

    Attributes:
        spec: the cell.
        reason: one line.
        detail: a traceback, or nothing.
        attempts: how often it was tried.
    """

    spec: CellSpec
    reason: str
    detail: str
    attempts: int


class Records:
    """The records in a folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.cells = self.path / "cells"
        self.failed = self.path / "failed"

    # --- the folder ---

    def check_usable(self) -> None:
        """Check that records can go here, without touching anything.

        Raises:
            RunError: there is something else, or a comparison of another version.
        """
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise RunError(f"output {self.path} is a file; name another folder with --output")
        if (self.path / "compare.json").exists():
            self.check()
        elif any(not name.startswith(".compare.tmp-") for name in os.listdir(self.path)):
            raise RunError(f"output {self.path} holds no comparison and is not empty; name another with --output")

    def create(self) -> None:
        """Make the folder, unless it exists; raises as `check_usable` does."""
        self.check_usable()
        if not (self.path / "compare.json").exists():
            write_json(self.path / "compare.json", {"format": FOLDER_FORMAT})
        self.cells.mkdir(exist_ok=True)
        self.failed.mkdir(exist_ok=True)

    def check(self) -> None:
        """Raise `RunError` unless this is a folder of a comparison of this version."""
        if not self.path.is_dir():
            raise RunError(f"{self.path}: no such folder")
        read_json(self.path / "compare.json", FOLDER_FORMAT, "the folder of a comparison")

    def names(self) -> list[str]:
        """The names of all recorded cells, finished or damaged."""
        if not self.cells.is_dir():
            return []
        return sorted(name for name in os.listdir(self.cells) if not name.startswith("."))

    def log(self, event: str, **values: Any) -> None:
        """Add a line to the log; several processes may write to it."""
        line = json.dumps({"time": round(time.time(), 3), "process": os.getpid(), "event": event, **values})
        self._check_there()
        with open(self.path / "log.jsonl", "a", encoding="utf-8") as stream:
            stream.write(line + "\n")

    def _check_there(self) -> None:
        """Raise `RunError` if somebody removed the folder while the comparison was at it."""
        if not (self.path / "compare.json").is_file():
            raise RunError(f"{self.path}: the folder was removed or moved during the comparison; start it again")

    def commands(self) -> list[str]:
        """The command lines that worked on the folder, each once, from its log."""
        return list(dict.fromkeys(str(values["command"]) for values in self._logged("command", "command")))

    def looks(self) -> dict[str, set[int]]:
        """Per comparison (`CellSpec.group_mark`) the numbers of seeds at which results were shown; from the log."""
        looks: dict[str, set[int]] = {}
        for values in self._logged("look", "comparison"):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                looks.setdefault(str(values["comparison"]), set()).add(int(values["seeds"]))
        return looks

    def _logged(self, event: str, name: str) -> Iterator[dict[str, Any]]:
        """The lines of an event in the log that have a value of that name."""
        try:
            with open(self.path / "log.jsonl", encoding="utf-8", errors="replace") as stream:
                for line in stream:
                    with contextlib.suppress(ValueError):  # a line cut short by a kill
                        values = parse_json(line)
                        if isinstance(values, dict) and values.get("event") == event and name in values:
                            yield values
        except OSError:
            return

    # --- finished cells ---

    def has(self, key: str) -> bool:
        """Whether there is a record of the cell, intact or damaged."""
        return (self.cells / key).is_dir()

    def read_spec(self, key: str) -> CellSpec:
        """Read a record's cell alone.

        Raises:
            CorruptRecord: it is damaged.
            RunError: it is of another version.
        """
        values = _read_json(self.cells / key / "spec.json")
        format = values.get("format")
        if format != FORMAT and isinstance(format, str) and format.startswith("mixwell cell "):
            raise RunError(
                f"{self.cells / key}: expected {FORMAT!r}, found {format!r}; the records were made by another version "
                f"of mixwell, so name a new folder with --output"
            )
        try:
            spec = CellSpec.from_dict(values)
            name = spec.key
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptRecord(f"spec.json cannot be read ({error})") from error
        if format != FORMAT or name != key:
            raise CorruptRecord("spec.json does not belong to the folder's name")
        return spec

    def read(self, key: str, *, keep_outputs: bool = False) -> Record:
        """Read and verify a record.

        Args:
            key: the cell's name.
            keep_outputs: keep the arrays that were read for verification, for callers that use them next.

        Raises:
            CorruptRecord: it is damaged.
            RunError: it is of another version.
        """
        spec = self.read_spec(key)
        folder = self.cells / key
        result = _read_json(folder / "result.json")
        if result.pop("checksum", None) != _checksum(result):
            raise CorruptRecord("result.json was changed or damaged")
        record = Record(spec, result, folder)
        check_contents(spec, result, record.outputs() if keep_outputs else _read_outputs(folder, result))
        return record

    def write(self, spec: CellSpec, result: CellResult) -> Record:
        """Write a finished cell; the caller holds its lock."""
        from safetensors.numpy import save

        data = save({name: _contiguous(array) for name, array in result.outputs.items()})
        values = {"format": FORMAT, **result.result, "outputs_sha256": hashlib.sha256(data).hexdigest()}
        values = json.loads(json.dumps(values))  # as it will be read, for the checksum
        self._check_there()
        self.tidy(spec.key)
        with atomic_folder(self.cells / spec.key) as folder:
            write_json(folder / "spec.json", spec.to_dict())
            write_json(folder / "result.json", {**values, "checksum": _checksum(values)})
            with open(folder / "outputs.safetensors", "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        with contextlib.suppress(FileNotFoundError):
            self._failure_path(spec.key).unlink()
        return Record(spec, values, self.cells / spec.key)

    def tidy(self, key: str) -> None:
        """Remove what a process that was killed while writing left behind; the caller holds the lock."""
        for left in self.cells.glob(f".{key}.*"):
            shutil.rmtree(left, ignore_errors=True)

    def set_aside(self, key: str) -> Path:
        """Move a damaged record to the folder `corrupt`; the caller holds its lock."""
        aside = self.path / "corrupt"
        aside.mkdir(exist_ok=True)
        target = next(path for number in range(10**6) if not (path := aside / f"{key}-{number}").exists())
        os.replace(self.cells / key, target)
        return target

    # --- failed cells ---

    def failure(self, key: str) -> Failure | None:
        """The failure of a cell, or None."""
        try:
            values = _read_json(self._failure_path(key))
            spec = CellSpec.from_dict(values["spec"])
            return Failure(spec, str(values["reason"]), str(values.get("detail", "")), int(values["attempts"]))
        except (FileNotFoundError, CorruptRecord, KeyError, TypeError, ValueError, AttributeError):
            return None  # a lost failure only means that the cell is tried again

    def failures(self) -> Iterator[Failure]:
        """All failed cells that have no result."""
        for path in sorted(self.failed.glob("*.json")) if self.failed.is_dir() else []:
            failure = self.failure(path.stem)
            if failure is not None and not self.has(path.stem):
                yield failure

    def write_failure(self, spec: CellSpec, reason: str, detail: str) -> Failure:
        """Record a failure; the caller holds the cell's lock."""
        self._check_there()
        before = self.failure(spec.key)
        failure = Failure(spec, reason, detail, 1 + (before.attempts if before else 0))
        values = {"spec": spec.to_dict(), "reason": reason, "detail": detail, "attempts": failure.attempts}
        write_json(self._failure_path(spec.key), values)
        return failure

    def _failure_path(self, key: str) -> Path:
        return self.failed / f"{key}.json"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if path.parent.name == "failed":
            raise
        raise CorruptRecord(f"{path.name} is missing") from error
    except OSError as error:
        raise CorruptRecord(f"{path.name} cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise CorruptRecord(f"{path.name} is damaged ({error})") from error
    if not isinstance(values, dict):
        raise CorruptRecord(f"{path.name} is damaged (no object)")
    return values


def _read_outputs(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        data = (folder / "outputs.safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != result.get("outputs_sha256"):
            raise CorruptRecord("outputs.safetensors was changed or damaged")
        return dict(load(data))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CorruptRecord(f"outputs.safetensors cannot be read ({error})") from error


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(values).encode()).hexdigest()


def _contiguous(array: Any) -> Any:
    import numpy as np

    return np.ascontiguousarray(array)
