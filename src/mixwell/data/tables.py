"""From opened rows to tables: the row ids, texts and labels of each split, and the keys by which rows are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from mixwell.data.columns import Columns, RowNumbers, TextReader, check_columns
from mixwell.data.labels import LabelCollector
from mixwell.data.readers import DatasetRows, Rows
from mixwell.data.sources import Source
from mixwell.data.splits import SPLITS, KeyMaker, RowKeys
from mixwell.data.textdata import TextData
from mixwell.metrics.tasks import REGRESSION, SINGLE
from mixwell.utils.errors import DataError

MERGED = "other"
_BATCH = 1000


def read_tables(opened: Source, columns: Columns, task: str | None, progress: Callable[[int], None] | None) -> TextData:
    """Read all splits of a source.

    Args:
        opened: the source; a split without any label is left out, which is noted there.
        columns: of the source.
        task: the task if the user gave it.
        progress: called with the rows read so far, of all splits.

    Returns:
        The data in the source's own splits, without notes and fingerprints.

    Raises:
        DataError: a row, a label or the whole cannot be used.
    """
    assert columns.label is not None
    collector = LabelCollector(columns.label, task)
    tables: dict[str, Any] = {}
    keys: dict[str, RowKeys] = {}
    done = 0

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(done)

    for split in (name for name in SPLITS if name in opened.splits):
        for rows in opened.splits[split]:
            check_columns(rows, columns)
        split_rows = _read_split(split, opened.splits[split], columns, collector, count)
        if split_rows is None:
            opened.notes.append(f"{split} split left out: none of its rows has a label")
        else:
            tables[split], keys[split] = split_rows
    name, rows_in_train = opened.splits["train"][0].name, tables["train"].num_rows
    if rows_in_train < 2:
        raise DataError(f"{name}: only {rows_in_train} row; training needs more")
    task, labels, arrays = collector.finish()
    tables = {split: table.append_column("label", arrays[split]) for split, table in tables.items()}
    if task == REGRESSION:
        target = tables["train"]["label"].to_numpy()
        if (target == target[0]).all():
            raise DataError(f"{name}: column {columns.label!r} is {target[0]:g} in all rows; there is nothing to learn")
    return TextData(tables, task, labels, "", opened.name, columns.parts(), [], {}, "", keys)


def _read_split(
    split: str, files: list[Rows], columns: Columns, collector: LabelCollector, count: Callable[[int], None]
) -> tuple[Any, RowKeys] | None:
    """The table and the keys of one split, which may be several files; its labels go to the collector.

    None when no row of a split has a label and that is to be expected of it (hub test sets).
    """
    import pyarrow as pa

    names = ["row_id", "text"] + ["text_pair"] * (columns.text_pair is not None)
    schema = pa.schema([(name, pa.string() if name == "row_id" else pa.large_string()) for name in names])
    maker, batches = KeyMaker(), []
    before = 0  # rows of the files before this one
    for rows in files:
        reader = TextReader(rows, columns)
        unlabelled, row = RowNumbers(), 0
        for records in rows.batches(_BATCH, columns.needed):
            values: dict[str, list[str | None]] = {name: [] for name in names}
            for record in records:
                row += 1
                texts = reader.take(record, row)
                if not collector.add(split, rows, row, record.get(collector.column)):
                    unlabelled.add(row)
                if texts is None:
                    continue
                try:
                    maker.add(*texts)
                except UnicodeEncodeError:
                    raise DataError(f"{rows.name}: row {row}: not valid text (a lone surrogate); mend it") from None
                for name, value in zip(names, (f"{split}:{before + row}", *texts)):
                    values[name].append(value)
            batches.append(pa.record_batch(values, schema=schema))
            count(len(records))
        if not row:
            raise DataError(f"{rows.name}: no rows; add data rows or remove the {split} data")
        reader.check()
        if unlabelled.count == row and split != "train" and isinstance(rows, DatasetRows):
            return None
        if unlabelled.count:
            raise DataError(
                f"{rows.name}: column {collector.column!r} has no label in {unlabelled}; fill these rows in or remove "
                "them"
            )
        before += row
    return pa.Table.from_batches(batches, schema), maker.finish()


def without_rare_classes(data: TextData, rare: str, opened: Source) -> TextData:
    """Drop or merge the classes that have one row in train.

    Args:
        data: the rows.
        rare: `drop` or `merge`.
        opened: where they are from; what was done is noted there.

    Raises:
        DataError: fewer than two classes are left.
    """
    import numpy as np
    import pyarrow as pa

    if data.task != SINGLE:
        return data
    few = np.bincount(data.train["label"].to_numpy(), minlength=len(data.labels)) == 1
    if not few.any():
        return data
    names = [name for name, is_rare in zip(data.labels, few) if is_rare]
    labels = [name for name, is_rare in zip(data.labels, few) if not is_rare]
    if rare == "merge" and len(names) == 1 and MERGED not in labels:
        rare = "drop"  # one row would still be a class of one row
    if rare == "merge" and MERGED not in labels:
        labels = sorted([*labels, MERGED])
    numbers = {name: number for number, name in enumerate(labels)}
    target = np.array([numbers.get(MERGED if is_rare else name, -1) for name, is_rare in zip(data.labels, few)])
    if rare == "drop":
        target[few] = -1
    tables, keys = {}, {}
    for split, table in data.splits.items():
        new = target[table["label"].to_numpy()]
        kept = np.flatnonzero(new >= 0)
        tables[split] = table.drop_columns("label").append_column("label", pa.array(new)).take(kept)
        keys[split] = data.row_keys(split).take(kept)
    if tables["train"].num_rows < 2 or len(labels) < 2:
        raise DataError(f"{opened.name}: with rare={rare} fewer than two classes are left; add rows")
    shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if names[5:] else "")
    change = "dropped" if rare == "drop" else f"merged into {MERGED!r}"
    opened.notes.append(f"classes with one row {change}: {shown}")
    return dataclasses.replace(data, splits=tables, labels=tuple(labels), _keys=keys)
