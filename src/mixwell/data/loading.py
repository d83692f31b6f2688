"""`load`: from a file, folder, saved data set or hub id to `TextData`.

Sources: a CSV, TSV or JSON-lines file (each also `.gz`), a Parquet or Excel file; rows in memory (a pandas or Polars
frame, an Arrow table, a data set of the datasets library); a folder with such files named train,
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

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mixwell.data.columns import Columns, find_columns
from mixwell.data.partition import SplitRequest, assemble, check_labels_in_train, partition, without_leaks
from mixwell.data.readers import Rows
from mixwell.data.sources import Source, open_source
from mixwell.data.splits import check_seed
from mixwell.data.tables import SourceTables, read_tables, without_rare_classes
from mixwell.data.textdata import TextData, fingerprint, read_splits
from mixwell.metrics.tasks import TASKS
from mixwell.utils.errors import DataError, OptionError, nearest

RARE = ("error", "drop", "merge")


def load(
    source: Any,
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
    _check_options(task, split_seed, rare)
    request = SplitRequest.of(validation, test)
    opened = open_source(source)
    request.apply_to(opened)
    columns = find_columns(opened.splits["train"][0], text=text, text_pair=text_pair, label=label, task=task)
    source_tables = read_tables(opened, columns, task, progress)
    if rare != "error":
        source_tables = without_rare_classes(source_tables, rare, opened)
    _check_header(opened.splits["train"][0], columns, source_tables.labels, named=label is not None)
    request.check_fractions(opened.name, source_tables.tables, splits_file)
    data = _unsplit(opened, columns, source_tables)
    whole, keys = source_tables.joined()
    if splits_file is not None:
        parts = _saved_parts(data, whole, splits_file)
    else:
        parts = partition(data, request, split_seed, hold_out_from, keep_together)
    check_labels_in_train(data, opened, whole, parts)
    if drop_leaks:
        parts["train"] = without_leaks(data, whole, keys, parts)
    return assemble(data, whole, keys, parts)


def _check_options(task: str | None, split_seed: int, rare: str) -> None:
    if task is not None and task not in TASKS:
        raise OptionError(f"task must be one of {', '.join(TASKS)}, got {task!r}{nearest(str(task), TASKS)}")
    check_seed(split_seed, "split_seed")
    if rare not in RARE:
        raise OptionError(f"rare must be one of {', '.join(RARE)}, got {rare!r}{nearest(str(rare), RARE)}")


def _check_header(rows: Rows, columns: Columns, labels: tuple[str, ...], named: bool) -> None:
    """Raise a `DataError` if the first line looks like a data row that was taken for the header."""
    if not named and not rows.typed and columns.label in labels:
        raise DataError(
            f"{rows.name}: the first line is read as the header, but its {columns.label!r} is a label of other rows; "
            f"put a line with the columns' names on top, or name the label column with --label if this is one"
        )


def _unsplit(opened: Source, columns: Columns, source: SourceTables) -> TextData:
    """The data as they stand in the source, before any cut."""
    return TextData(
        splits=source.tables,
        task=source.task,
        labels=source.labels,
        fingerprint="",
        source=opened.name,
        columns=columns.parts(),
        notes=[*opened.notes, *columns.notes],
        leaks={},
        source_fingerprint=fingerprint(source.task, source.labels, source.tables, source.keys),
        _keys=source.keys,
    )


def _saved_parts(data: TextData, whole: Any, splits_file: str | os.PathLike[str]) -> dict[str, Any]:
    """Row numbers of each split from a splits file, which is noted."""
    numbers = {row_id: number for number, row_id in enumerate(whole["row_id"].to_pylist())}
    parts = read_splits(Path(splits_file), data.source_fingerprint, numbers)
    data.notes.append(f"splits from {splits_file}")
    return parts
