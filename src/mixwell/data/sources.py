"""From what the user names (a file, a folder, a saved data set, a hub id) to the rows of each split."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixwell.data.encoding import one_line
from mixwell.data.frames import frame_rows
from mixwell.data.opening import SUFFIXES, data_suffix, open_rows
from mixwell.data.readers import DatasetRows, Rows
from mixwell.utils.errors import DataError
from mixwell.utils.files import home

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
_SHARD = re.compile(r"(?P<split>[a-z]+)[-_.]\d+([-_.]of[-_.]\d+)?")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


@dataclass
class Source:
    """Opened data.

    Attributes:
        name: how messages and reports call it.
        splits: the rows of each split; there is always `train`, and one split may be several files.
        notes: what the user should know.
    """

    name: str
    splits: dict[str, list[Rows]]
    notes: list[str] = field(default_factory=list)


def open_source(source: Any) -> Source:
    """Open a file, a folder of split files, a folder of `datasets.save_to_disk`, a hub id, or rows in memory.

    A hub id is `owner/name`, with `:config` behind it where the data set has several.

    Raises:
        DataError: nothing of the kind is there, or it cannot be read.
    """
    if not isinstance(source, (str, os.PathLike)):
        return _in_memory(source)
    name = os.fspath(source)
    path = home(name)
    if path.is_dir():
        if any((path / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
            return _saved(path)
        return _folder(path)
    if path.exists() or isinstance(source, Path) or data_suffix(path) or not _HUB_ID.fullmatch(name):
        rows = open_rows(path)
        return Source(name, {"train": [rows]}, list(rows.notes))
    return _hub(name)


def _in_memory(source: Any) -> Source:
    """Frames, tables, data sets of the datasets library."""
    if isinstance(source, dict) and source and all(hasattr(part, "column_names") for part in source.values()):
        return _dataset_splits(source, "data set")  # a DatasetDict
    rows = frame_rows(source)
    if rows is None:
        raise DataError(
            f"data of type {type(source).__name__} cannot be read; give a path, a pandas or Polars frame, an Arrow "
            f"table or a data set of the datasets library"
        )
    return Source(rows.name, {"train": [rows]})


def _folder(path: Path) -> Source:
    files: dict[str, list[Path]] = {}
    others = []
    for file in sorted(path.iterdir()):
        suffix = data_suffix(file)
        if not suffix or file.is_dir() or file.name.startswith("."):
            continue
        stem = file.name.casefold().removesuffix(".gz").removesuffix(suffix)
        shard = _SHARD.fullmatch(stem)
        split = SPLIT_NAMES.get(shard["split"] if shard else stem)
        if split is None:
            others.append(file.name)
            continue
        before = files.setdefault(split, [])
        if before and not (shard and _SHARD.fullmatch(before[-1].name.casefold().split(suffix)[0])):
            raise DataError(f"{path}: both {before[-1].name} and {file.name} could be the {split} data; remove one")
        before.append(file)
    if "train" not in files:
        names = [file.name for group in files.values() for file in group] + others
        has = f"it has {', '.join(names[:8])}; pass one of these files itself" if names else "it has no data files"
        raise DataError(f"{path}: no train file (train{' train'.join(SUFFIXES)}) in this folder; {has}")
    notes = [f"files left aside: {', '.join(others[:8])}"] if others else []
    splits = {split: [open_rows(file) for file in group] for split, group in files.items()}
    notes += [note for group in splits.values() for rows in group for note in rows.notes]
    return Source(str(path), splits, notes)


def _saved(path: Path) -> Source:
    import datasets

    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever the library makes of a damaged folder
        raise DataError(f"{path}: this saved data set cannot be read ({one_line(error)}); save it again") from error
    return _dataset_splits(loaded, str(path))


def _hub(name: str) -> Source:
    import datasets

    repository, _, config = name.partition(":")
    try:
        loaded = datasets.load_dataset(repository, config or None)
    except Exception as error:  # network, permission, unknown name or configuration, broken repository
        raise DataError(
            f"{name}: no such file or folder, and loading it as a hub data set failed "
            f"({one_line(error)}); check the "
            "path, or the hub id (owner/name or owner/name:config) and the network"
        ) from error
    return _dataset_splits(loaded, name)


def _dataset_splits(loaded: Any, name: str) -> Source:
    if hasattr(loaded, "column_names") and isinstance(loaded.column_names, list):
        return Source(name, {"train": [DatasetRows(loaded, name)]})
    splits: dict[str, list[Rows]] = {}
    others = []
    for key, dataset in loaded.items():
        split = SPLIT_NAMES.get(str(key).casefold())
        if split is None or split in splits:
            others.append(str(key))
        else:
            splits[split] = [DatasetRows(dataset, f"{name} [{key}]")]
    if "train" not in splits:
        raise DataError(f"{name}: no train split; it has {', '.join(map(str, loaded)) or 'none'}")
    notes = [f"splits left aside: {', '.join(others)}"] if others else []
    return Source(name, splits, notes)
