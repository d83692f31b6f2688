"""`load`: from a file, folder, saved data set or hub id to `TextData`, and which of its rows go to which split.

Sources: a CSV, TSV or JSON-lines file (each also `.gz`), a Parquet file; a folder with such files named train,
validation (or dev, val, valid) and test; a folder written by `datasets.save_to_disk`; a hub id `owner/name` or
`owner/name:config`.

Columns that are not named are found by well-known names, else by their values (see `find_columns`). Records with
`tokens`, `head` and `tail` become texts with entity markers (see `relation_text`).

Splits that the source lacks are cut from train, stratified by label: 10 % validation and 20 % test of train's rows. A
folder with train and test thus has validation cut from train; one with train and validation has test cut from train.
The cut depends on the texts and `split_seed` only, not on the order of the rows. Nothing is cut by default from fewer
than `hold_out_from` rows.

Labels may be texts, whole numbers or booleans. Lists (in CSV: cells that are all JSON lists) make a multi-label task;
with `task="multi_label"` cells such as `a|b` or `a;b` do too. Floats need `task="regression"`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mixwell.data import splits
from mixwell.data.columns import Columns, find_columns
from mixwell.data.readers import Rows, open_rows
from mixwell.data.sources import Source, open_source
from mixwell.data.tables import read_tables, without_rare_classes
from mixwell.data.textdata import TextData, class_members, fingerprint, listed, make_text_data, read_splits
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE, TASKS
from mixwell.utils.errors import DataError, OptionError
from mixwell.utils.files import home
from mixwell.utils.options import check_choice

RARE = ("error", "drop", "merge")
NOTHING = "none"


def load(
    source: str | os.PathLike[str],
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    task: str | None = None,
    split_seed: int = 0,
    validation: str | os.PathLike[str] | float | None = None,
    test: str | os.PathLike[str] | float | None = None,
    splits_file: str | os.PathLike[str] | None = None,
    drop_leaks: bool = False,
    hold_out_from: float = 0,
    keep_together: bool = False,
    rare: str = "error",
    progress: Callable[[int], None] | None = None,
) -> TextData:
    """Load labelled texts and split them; the module's text says what sources, columns and labels can be.

    Args:
        source: the data.
        text: the text column.
        text_pair: the column of the second text.
        label: the label column.
        task: `single_label`, `multi_label` or `regression`; None to decide by the labels.
        split_seed: decides the cut.
        validation: a file of validation data, the share of train to cut for it, or `none` for no validation rows.
        test: the same for test data.
        splits_file: a file of `TextData.save_splits`, to have those splits again.
        drop_leaks: remove rows from train whose text is also in validation or test.
        hold_out_from: with fewer training rows than this, validation and test are cut only if a share is given.
        keep_together: keep rows of equal text on one side of the cut.
        rare: what to do with classes of one row: `error` where they cannot be cut, `drop` their rows, or `merge` them
            into one class `other`.
        progress: called with the rows read so far, of all splits.

    Raises:
        DataError: the data cannot be used; the message names file, row and column.
        OptionError: an argument cannot be used.
    """
    if task is not None:
        check_choice(task, "task", TASKS)
    splits.check_seed(split_seed, "split_seed")
    check_choice(rare, "rare", RARE)
    request = SplitRequest(test=test, validation=validation)
    opened = open_source(source)
    request.apply_to(opened)
    columns = find_columns(opened.splits["train"][0], text=text, text_pair=text_pair, label=label, task=task)
    data = read_tables(opened, columns, task, progress)
    if rare != "error":
        data = without_rare_classes(data, rare, opened)
    _check_header(opened.splits["train"][0], columns, data.labels, named=label is not None)
    request.check_fractions(opened.name, data.splits, splits_file)
    data = dataclasses.replace(data, notes=[*opened.notes, *columns.notes], source_fingerprint=fingerprint(data))
    whole, keys = _joined(data)
    if splits_file is not None:
        numbers = {row_id: number for number, row_id in enumerate(whole["row_id"].to_pylist())}
        parts = read_splits(Path(splits_file), data.source_fingerprint, numbers)
        data.notes.append(f"splits from {splits_file}")
    else:
        parts = partition(data, request, split_seed, hold_out_from, keep_together)
    check_labels_in_train(data, opened, whole, parts)
    if drop_leaks:
        parts["train"] = without_leaks(data, whole, keys, parts)
    tables = {name: _take(whole, rows) for name, rows in parts.items()}
    return make_text_data(tables, {name: keys.take(rows) for name, rows in parts.items()}, data)


def _check_header(rows: Rows, columns: Columns, labels: tuple[str, ...], named: bool) -> None:
    """Raise a `DataError` if the first line looks like a data row that was taken for the header."""
    if not named and not rows.typed and columns.label in labels:
        raise DataError(
            f"{rows.name}: the first line is read as the header, but its {columns.label!r} is a label of other rows; "
            f"put a line with the columns' names on top, or name the label column with --label if this is one"
        )


def _joined(data: TextData) -> tuple[Any, splits.RowKeys]:
    """All rows as one table, and their keys."""
    import numpy as np
    import pyarrow as pa

    keys = [data.row_keys(name) for name in data.splits]
    exact, folded = (np.concatenate([getattr(part, name) for part in keys]) for name in ("exact", "folded"))
    return pa.concat_tables(data.splits.values()), splits.RowKeys(exact, folded)


class SplitRequest:
    """What was asked for validation and test: a file, a share of train, `none`, or None for the default.

    Attributes:
        files: split to a file of its own.
        fractions: split to the share of train to cut for it.
        left_out: splits that get no rows.

    Raises:
        OptionError: a share is out of range.
    """

    def __init__(self, **asked: str | os.PathLike[str] | float | None) -> None:
        named = {name: value for name, value in asked.items() if isinstance(value, (str, os.PathLike))}
        self.left_out = {name for name, value in named.items() if value == NOTHING}
        self.files = {name: value for name, value in named.items() if value != NOTHING}
        self.fractions = {
            name: splits.check_fraction(value, name, whole=False)
            for name, value in asked.items()
            if value is not None and name not in named
        }

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
    defaults = {"test": splits.TEST_FRACTION, "validation": splits.VALIDATION_FRACTION}
    lacking = {name: request.fractions.get(name, share) for name, share in defaults.items() if name not in data.splits}
    wanted = {name: share for name, share in lacking.items() if name not in skipped}
    if sum(wanted.values()) >= 1:
        raise OptionError(f"validation and test together take {sum(wanted.values()):g} of train; keep it below 1")
    ends = np.cumsum([table.num_rows for table in data.splits.values()])
    parts = {
        name: np.arange(end - table.num_rows, end) for end, (name, table) in zip(ends.tolist(), data.splits.items())
    }
    parts |= {name: np.zeros(0, dtype=np.int64) for name in lacking if name in skipped}
    return {**parts, **_cut_train(data, wanted, seed, together)} if wanted else parts


def _cut_train(data: TextData, wanted: dict[str, float], seed: int, together: bool) -> dict[str, Any]:
    """Row numbers of the splits that are cut from train, and of what is left of it."""
    train, keys = data.train, data.row_keys("train")
    stratum = splits.strata(data.task, train["label"])
    single = data.task == SINGLE
    if single:
        splits.check_classes(data.source, data.columns["label"], stratum, data.labels, list(wanted))
    parts = splits.cut(keys, stratum, wanted, seed, every_stratum=single)
    moved_rows = splits.keep_texts_together(parts, keys) if together else 0
    if moved_rows:
        data.notes.append(f"{moved_rows} rows whose text stands on both sides of the cut were put on one")
    if data.task == MULTI:
        moved = splits.keep_labels_in_train(parts, splits.multi_hot(train["label"]), keys, seed)
        if moved:
            shown = listed([data.labels[label] for label in moved], 5)
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


def without_leaks(data: TextData, whole: Any, keys: splits.RowKeys, parts: dict[str, Any]) -> Any:
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
    drop = splits.leaked(train, keys.take(parts["validation"]))[0] | splits.leaked(train, keys.take(parts["test"]))[0]
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


def _take(whole: Any, rows: Any) -> Any:
    """Rows of a table; a run of neighbours is not copied."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and (rows[1:] > rows[:-1]).all():
        return whole.slice(int(rows[0]), len(rows))
    return whole.take(rows)
