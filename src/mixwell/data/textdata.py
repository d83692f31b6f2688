"""`TextData`: labelled texts in train, validation and test."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixwell.data.splits import SPLITS, RowKeys, check_fraction, check_seed, leaked, multi_hot, sample_rows, strata
from mixwell.metrics.tasks import MULTI, REGRESSION
from mixwell.utils.errors import DataError, OptionError
from mixwell.utils.files import write_json
from mixwell.utils.options import check_whole
from mixwell.utils.records import parse_json

_SPLITS_FORMAT = "mixwell splits 1"


@dataclass(frozen=True, eq=False)
class TextData:
    """Labelled texts, split. Made by `load`; never changed, `sample` returns a new one.

    Attributes:
        splits: `train`, `validation` and `test`, each a `pyarrow.Table` with the columns `row_id` (string,
            such as `train:17`: row 17, counted from 1, of the source's train data), `text`, `text_pair` (only
            for pairs) and `label` (int64; for multi-label list<float32> of the length of `labels`; for
            regression float64).
        task: `single_label`, `multi_label` or `regression`.
        labels: the class names in the order of the class numbers; empty for regression.
        fingerprint: SHA-256 over texts, labels and splits; the same on every machine.
        source: what was loaded.
        columns: the source's column for each part (text, text_pair, label, head, tail).
        notes: what was guessed, found, cut or left out.
        leaks: for `validation` and `test`, how many of their rows have their text also in train, where case
            and white space do not count.
        source_fingerprint: SHA-256 over the source's rows as they stand in it, before any cut.
    """

    splits: dict[str, Any]
    task: str
    labels: tuple[str, ...]
    fingerprint: str
    source: str
    columns: dict[str, str]
    notes: list[str]
    leaks: dict[str, int]
    source_fingerprint: str
    _keys: dict[str, RowKeys] = field(repr=False)

    @property
    def train(self) -> Any:
        """The train table."""
        return self.splits["train"]

    @property
    def validation(self) -> Any:
        """The validation table."""
        return self.splits["validation"]

    @property
    def test(self) -> Any:
        """The test table."""
        return self.splits["test"]

    def row_keys(self, split: str) -> RowKeys:
        """The hashes of a split's rows, by which texts are compared."""
        return self._keys[split]

    def sample(
        self,
        fraction: float | None = None,
        per_class: int | None = None,
        max_train: int | None = None,
        seed: int = 0,
    ) -> TextData:
        """A low-resource version: part of train, validation and test as they are.

        Samples are nested: for one seed, a smaller `fraction`, `per_class` or `max_train` gives rows that lie
        inside those of a larger one. They are stratified: each class keeps its share. A fraction keeps at
        least one row of each class, and so does `max_train` from the number of classes up. With multi-label
        data `per_class` keeps the first rows of each label, so that frequent labels may have more.
        `max_train` may go with either of the others and caps them.

        Args:
            fraction: the share of train to keep, above 0 and at most 1.
            per_class: the number of rows of each class to keep (all, where a class has fewer).
            max_train: the most rows to keep.
            seed: chooses the rows.

        Raises:
            OptionError: a value is out of range, or fraction and per_class come together.
        """
        fraction = _check_sample(self.task, fraction, per_class, max_train, seed)
        if fraction is None and per_class is None and max_train is None:
            return self
        keys = self._keys["train"]
        asked: dict[str, Any] = {"fraction": fraction, "per_class": per_class, "max_train": max_train}
        label = self.train["label"]
        members = class_members(self.task, label, len(self.labels))
        rows = sample_rows(keys, strata(self.task, label), members, seed, **asked)
        shown = ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
        train = self.train.take(rows)
        note = f"train sampled: {len(rows)} of {len(keys)} rows ({shown}, seed {seed})"
        note += self._classes_note(train, per_class)
        return make_text_data(
            {**self.splits, "train": train},
            {**self._keys, "train": keys.take(rows)},
            dataclasses.replace(self, notes=[*self.notes, note]),
        )

    def _class_sizes(self, table: Any) -> list[int]:
        """The rows of each class."""
        members = class_members(self.task, table["label"], len(self.labels))
        return [len(rows) for rows in members[: len(self.labels)]]

    def _classes_note(self, train: Any, per_class: int | None) -> str:
        """Which classes a sample lacks, and how many have fewer rows than wanted; empty if all is well."""
        if self.task == REGRESSION:
            return ""
        counts = self._class_sizes(train)
        note = ""
        empty = [name for name, count in zip(self.labels, counts) if not count]
        if empty:
            note += f"; classes without a row: {len(empty)} ({listed(empty, 5)})"
        if per_class is not None and (short := sum(count < per_class for count in counts)):
            note += f"; {short} classes have fewer than {per_class}"
        return note

    def save_splits(self, path: str | os.PathLike[str]) -> None:
        """Write which row is in which split, as JSON; `load(..., splits_file=path)` reads it back.

        Args:
            path: the file to write.
        """
        ids = {name: table["row_id"].to_pylist() for name, table in self.splits.items()}
        data = {"format": _SPLITS_FORMAT, "source": Path(self.source).name, "data": self.source_fingerprint}
        write_json(path, {**data, "splits": ids})

    def describe(self) -> list[tuple[str, str]]:
        """What the data are, as (name, value) lines for a report."""
        import pyarrow.compute as pc

        lines = [("source", self.source), ("task", self.task.replace("_", " "))]
        lines += [("columns", ", ".join(f"{part} = {name}" for part, name in self.columns.items()))]
        lines += [(name, f"{table.num_rows:,} rows") for name, table in self.splits.items()]
        if self.task == REGRESSION:
            target = self.train["label"].to_numpy()
            low, mean, high = (f"{value:.4g}" for value in (target.min(), target.mean(), target.max()))
            lines.append(("target in train", f"{low} to {high}, mean {mean}"))
        else:
            lines.append(("labels", f"{len(self.labels)} ({listed(self.labels, 10)})"))
            sizes = dict(zip(self.labels, self._class_sizes(self.train)))
            rare, often = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
            shown = f"fewest {rare} {sizes[rare]:,}, most {often} {sizes[often]:,}"
            lines.append(("rows per label in train", shown))
        lengths = pc.utf8_length(self.train["text"])
        lines.append(("characters per text", f"mean {pc.mean(lengths).as_py():.0f}, most {pc.max(lengths).as_py()}"))
        leaks = ", ".join(f"{count} {name} rows" for name, count in self.leaks.items() if count)
        lines.append(("also in train", leaks or "none"))
        lines.append(("fingerprint", self.fingerprint[:16]))
        return lines + [("note", note) for note in self.notes]


def _check_sample(
    task: str, fraction: float | None, per_class: int | None, max_train: int | None, seed: int
) -> float | None:
    """Check the arguments of `TextData.sample`; returns the fraction as a float."""
    check_seed(seed)
    if fraction is not None:
        fraction = check_fraction(fraction, "fraction", whole=True)
    for name, value in (("per_class", per_class), ("max_train", max_train)):
        if value is not None:
            check_whole(value, name, 1)
    if fraction is not None and per_class is not None:
        raise OptionError("fraction and per_class do not go together; give one of them")
    if per_class is not None and task == REGRESSION:
        raise OptionError(f"per_class needs classes, and task {REGRESSION!r} has none; use fraction or max_train")
    return fraction


def listed(names: Sequence[str], most: int) -> str:
    """The first names with commas, and dots if there are more."""
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


def texts_of(table: Any) -> list[str]:
    """The texts of a table's rows, those of a pair in one."""
    texts: list[str] = table["text"].to_pylist()
    if "text_pair" in table.column_names:
        texts = [f"{one} ‖ {two}" for one, two in zip(texts, table["text_pair"].to_pylist())]
    return texts


def class_members(task: str, label: Any, classes: int) -> list[Any]:
    """Per class the numbers of the rows that have it.

    For multi-label data the last entry holds the rows without any label; for regression there are no entries.
    """
    import numpy as np

    if task == REGRESSION:
        return []
    if task == MULTI:
        hot = multi_hot(label) > 0
        if not len(hot):
            return [np.zeros(0, dtype=np.int64) for _ in range(classes + 1)]
        return [np.flatnonzero(hot[:, number]) for number in range(classes)] + [np.flatnonzero(~hot.any(axis=1))]
    values = label.to_numpy()
    order = np.argsort(values, kind="stable")
    return np.split(order, np.searchsorted(values[order], np.arange(1, classes)))


def make_text_data(splits: dict[str, Any], keys: dict[str, RowKeys], base: TextData) -> TextData:
    """`base` with other rows: fingerprint, leaks and their note are made anew."""
    splits = {name: splits[name] for name in SPLITS}
    leaks = {name: leaked(keys["train"], keys[name])[1] for name in ("validation", "test")}
    notes = [note for note in base.notes if not note.startswith("leaks: ")]
    if any(leaks.values()):
        counts = " and ".join(f"{count} {name} rows" for name, count in leaks.items() if count)
        notes.append(f"leaks: {counts} have their text also in train (drop_leaks removes them from train)")
    data = dataclasses.replace(base, splits=splits, _keys=keys, leaks=leaks, notes=notes)
    return dataclasses.replace(data, fingerprint=fingerprint(data))


def fingerprint(data: TextData) -> str:
    """SHA-256 over task, label names and, split by split, the hashes of the texts and the labels."""
    import numpy as np

    total = hashlib.sha256(json.dumps([data.task, data.labels]).encode())
    for name, table in data.splits.items():
        total.update(f"\n{name} {table.num_rows}\n".encode())
        total.update(np.ascontiguousarray(data.row_keys(name).exact, dtype="<u8").tobytes())
        for chunk in table["label"].chunks:
            if data.task == MULTI:
                total.update((chunk.flatten().to_numpy() > 0).tobytes())
            else:
                total.update(chunk.to_numpy().astype("<f8" if data.task == REGRESSION else "<i8").tobytes())
    return total.hexdigest()


def read_splits(path: Path, data: str, ids: dict[str, int]) -> dict[str, Any]:
    """Read a file of `save_splits`.

    Args:
        path: the file.
        data: the fingerprint of the source now.
        ids: row id to row number, for all rows of the source.

    Returns:
        Per split the row numbers.

    Raises:
        DataError: the file is missing or broken, or the data changed since.
    """
    import numpy as np

    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        splits = {name: content["splits"][name] for name in SPLITS}
        good = content["format"] == _SPLITS_FORMAT and all(isinstance(rows, list) for rows in splits.values())
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such splits file; write one with save_splits") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a splits file ({error}); write one with save_splits") from error
    if not good:
        raise DataError(f"{path}: not a splits file of this version ({_SPLITS_FORMAT!r}); write it anew")
    if content.get("data") != data:
        raise DataError(
            f"{path}: the data changed since these splits were saved (their fingerprint differs); bring "
            "the old data back or write the splits anew"
        )
    seen: set[str] = set()
    rows: dict[str, Any] = {}
    for name, names in splits.items():
        for row in names:
            known = isinstance(row, str) and row in ids
            if not known or row in seen:
                what = "is there twice" if known else "is not a row of the data"
                raise DataError(f"{path}: {name}: row id {row!r} {what}; write the splits anew")
            seen.add(row)
        if not names and name == "train":
            raise DataError(f"{path}: {name} has no rows; write the splits anew")
        rows[name] = np.array([ids[row] for row in names], dtype=np.int64)
    return rows
