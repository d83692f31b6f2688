"""Which row of a source goes to which split: what was asked for, the cut of what the source lacks, and its checks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from mixwell.data.opening import open_rows
from mixwell.data.sources import Source
from mixwell.data.splits import (
    TEST_FRACTION,
    VALIDATION_FRACTION,
    RowKeys,
    check_classes,
    check_fraction,
    cut,
    keep_labels_in_train,
    keep_texts_together,
    leaked,
    multi_hot,
    strata,
)
from mixwell.data.textdata import TextData, class_members, make_text_data
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE
from mixwell.utils.errors import DataError, OptionError
from mixwell.utils.files import home

NOTHING = "none"


@dataclass(frozen=True)
class SplitRequest:
    """What was asked for validation and test.

    Attributes:
        files: split to a file of its own.
        fractions: split to the share of train to cut for it.
        left_out: splits that get no rows.
    """

    files: dict[str, str | os.PathLike[str]] = field(default_factory=dict)
    fractions: dict[str, float] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, validation: str | os.PathLike[str] | float | None, test: str | os.PathLike[str] | float | None
    ) -> SplitRequest:
        """Read the arguments of `load`: a file, a share, `none`, or None for the default.

        Raises:
            OptionError: a share is out of range.
        """
        files: dict[str, str | os.PathLike[str]] = {}
        fractions = {}
        for name, value in (("test", test), ("validation", validation)):
            if isinstance(value, (str, os.PathLike)):
                if value != NOTHING:
                    files[name] = value
            elif value is not None:
                fractions[name] = check_fraction(value, name, whole=False)
        left_out = frozenset(name for name, value in (("test", test), ("validation", validation)) if value == NOTHING)
        return cls(files, fractions, left_out)

    def apply_to(self, opened: Source) -> None:
        """Put the files in their places and take the splits away that are to be left out."""
        for name in sorted(self.left_out & opened.splits.keys()):
            del opened.splits[name]
            opened.notes.append(f"{name} data of {opened.name} left aside, as asked")
        for name in ("validation", "test"):
            if name in self.files:
                rows = open_rows(home(self.files[name]))
                opened.splits[name] = [rows]
                opened.notes += [*rows.notes, f"{name} data from {rows.name}"]

    def check_fractions(self, source: str, present: dict[str, Any], splits_file: object) -> None:
        """Raise `OptionError` for a share of a split that the source, or a splits file, already has."""
        for name, share in self.fractions.items():
            if name in present:
                raise OptionError(f"{name}={share}: {source} has {name} data of its own; leave {name} out")
            if splits_file is not None:
                raise OptionError(f"{name}={share} does not go with splits_file, which already has the splits")


def partition(data: TextData, request: SplitRequest, seed: int, hold_out_from: float, together: bool) -> dict[str, Any]:
    """Assign the rows: what the source lacks is cut from train, or left empty.

    Args:
        data: the source's own splits; what was cut is noted there.
        request: what was asked for.
        seed: decides the cut.
        hold_out_from: with fewer training rows than this, only what was asked for is cut.
        together: keep rows of equal text on one side of the cut.

    Returns:
        Per split its row numbers in the table of all rows.

    Raises:
        DataError: there are too few rows.
        OptionError: the shares together leave nothing for train.
    """
    import numpy as np

    few = data.train.num_rows < hold_out_from and "validation" not in {*data.splits, *request.fractions}
    skipped = request.left_out | ({"validation", "test"} - request.fractions.keys() if few else set())
    defaults = {"test": TEST_FRACTION, "validation": VALIDATION_FRACTION}
    lacking = {name: request.fractions.get(name, share) for name, share in defaults.items() if name not in data.splits}
    wanted = {name: share for name, share in lacking.items() if name not in skipped}
    if sum(wanted.values()) >= 1:
        raise OptionError(f"validation and test together take {sum(wanted.values()):g} of train; keep it below 1")
    parts: dict[str, Any] = {}
    start = 0
    for name, table in data.splits.items():
        parts[name] = np.arange(start, start + table.num_rows)
        start += table.num_rows
    parts |= {name: np.zeros(0, dtype=np.int64) for name in lacking if name in skipped}
    return {**parts, **_cut_train(data, wanted, seed, together)} if wanted else parts


def _cut_train(data: TextData, wanted: dict[str, float], seed: int, together: bool) -> dict[str, Any]:
    """Row numbers of the splits that are cut from train, and of what is left of it."""
    train, keys = data.train, data.row_keys("train")
    stratum = strata(data.task, train["label"])
    single = data.task == SINGLE
    if single:
        check_classes(data.source, data.columns["label"], stratum, data.labels, list(wanted))
    parts = cut(keys, stratum, wanted, seed, every_stratum=single)
    moved_rows = keep_texts_together(parts, keys) if together else 0
    if moved_rows:
        data.notes.append(f"{moved_rows} rows whose text stands on both sides of the cut were put on one")
    if data.task == MULTI:
        moved = keep_labels_in_train(parts, multi_hot(train["label"]), keys, seed)
        if moved:
            shown = ", ".join(data.labels[label] for label in moved[:5]) + (" ..." if len(moved) > 5 else "")
            data.notes.append(f"rare labels kept in train: {len(moved)} ({shown})")
    for name in (*wanted, "train"):
        if not len(parts[name]):
            raise DataError(
                f"{data.source}: {train.num_rows} rows are too few to cut {' and '.join(wanted)} from; add rows"
            )
    shown = " and ".join(f"{name} ({len(parts[name])} rows)" for name in wanted)
    way = "at random" if data.task == REGRESSION else "by label"
    data.notes.append(f"cut from train {way}, seed {seed}: {shown}")
    return parts


def check_labels_in_train(data: TextData, opened: Source, whole: Any, parts: dict[str, Any]) -> None:
    """Raise a `DataError` for a label of validation or test that train does not have.

    Args:
        data: the data, for names.
        opened: the source, to name the file of a row where a split is one file.
        whole: all rows.
        parts: which rows are in which split.
    """
    if data.task == REGRESSION:
        return
    label, classes = whole["label"], len(data.labels)
    files = {name: rows[0].name for name, rows in opened.splits.items() if len(rows) == 1}
    members = {name: class_members(data.task, label.take(rows), classes)[:classes] for name, rows in parts.items()}
    for name in ("validation", "test"):
        counts = [(len(members[name][number]), len(members["train"][number])) for number in range(classes)]
        unseen = [number for number, (held_out, trained) in enumerate(counts) if held_out and not trained]
        if unseen:
            first = unseen[0]
            row = whole["row_id"][int(parts[name][members[name][first][0]])].as_py()
            more = f" (nor are {len(unseen) - 1} more labels)" if unseen[1:] else ""
            split, _, number = row.partition(":")
            where = f"{files[split]}: row {number}" if split in files else f"{data.source}: row {row}"
            raise DataError(
                f"{where}, column {data.columns['label']!r}: label {data.labels[first]!r} of "
                f"{name} is not in train{more}; add train rows with it, or mend or remove the {name} rows"
            )


def without_leaks(data: TextData, whole: Any, keys: RowKeys, parts: dict[str, Any]) -> Any:
    """The numbers of the train rows whose text is neither in validation nor in test.

    Args:
        data: the data, for names; what was dropped is noted there.
        whole: all rows.
        keys: of all rows.
        parts: which rows are in which split.

    Raises:
        DataError: nothing, or nothing of a class, would be left.
    """
    train = keys.take(parts["train"])
    drop = leaked(train, keys.take(parts["validation"]))[0] | leaked(train, keys.take(parts["test"]))[0]
    if not drop.any():
        return parts["train"]
    kept = parts["train"][~drop]
    if not len(kept):
        raise DataError(f"{data.source}: all train rows are also in validation or test; nothing is left to train on")
    if data.task != REGRESSION:
        classes, label = len(data.labels), whole["label"]
        before, after = (class_members(data.task, label.take(rows), classes) for rows in (parts["train"], kept))
        gone = [data.labels[number] for number in range(classes) if len(before[number]) and not len(after[number])]
        if gone:
            raise DataError(
                f"{data.source}: drop_leaks would remove every train row of label {gone[0]!r}; add rows of "
                "it or load without drop_leaks"
            )
    data.notes.append(f"dropped {int(drop.sum())} train rows whose text is also in validation or test")
    return kept


def assemble(data: TextData, whole: Any, keys: RowKeys, parts: dict[str, Any]) -> TextData:
    """The data in their final splits.

    Args:
        data: in the source's own splits.
        whole: all rows.
        keys: of all rows.
        parts: which rows are in which split.
    """
    tables = {name: _take(whole, rows) for name, rows in parts.items()}
    return make_text_data(tables, {name: keys.take(rows) for name, rows in parts.items()}, data)


def _take(whole: Any, rows: Any) -> Any:
    """Rows of a table; a run of neighbours is not copied."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and (rows[1:] > rows[:-1]).all():
        return whole.slice(int(rows[0]), len(rows))
    return whole.take(rows)
