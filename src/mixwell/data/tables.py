"""From opened rows to tables: the row ids, texts and labels of each split, and the keys by which rows are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mixwell.data.columns import Columns, TextReader, check_columns, rows_listed
from mixwell.data.labels import Encoded, LabelCollector
from mixwell.data.readers import DatasetRows, Rows
from mixwell.data.sources import Source
from mixwell.data.splits import SPLITS, KeyMaker, RowKeys
from mixwell.metrics.tasks import REGRESSION, SINGLE
from mixwell.utils.errors import DataError

MERGED = "other"
_BATCH = 1000


@dataclass
class SourceTables:
    """All rows of a source, in its own splits.

    Attributes:
        tables: per split a `pyarrow.Table` with row_id, text, text_pair (for pairs only) and label.
        keys: per split the keys of its rows.
        task: given, or recognised by the labels.
        labels: the class names; empty for regression.
    """

    tables: dict[str, Any]
    keys: dict[str, RowKeys]
    task: str
    labels: tuple[str, ...]

    def joined(self) -> tuple[Any, RowKeys]:
        """All rows as one table, and their keys."""
        import numpy as np
        import pyarrow as pa

        keys = [self.keys[name] for name in self.tables]
        exact, folded = (np.concatenate([getattr(part, name) for part in keys]) for name in ("exact", "folded"))
        return pa.concat_tables(self.tables.values()), RowKeys(exact, folded)


def read_tables(
    opened: Source, columns: Columns, task: str | None, progress: Callable[[int], None] | None
) -> SourceTables:
    """Read all splits of a source.

    Args:
        opened: the source; a split without any label is left out, which is noted there.
        columns: of the source.
        task: the task if the user gave it.
        progress: called with the rows read so far, of all splits.

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

    for split in SPLITS:
        if split not in opened.splits:
            continue
        for rows in opened.splits[split]:
            check_columns(rows, columns)
        split_rows = _SplitReader(split, columns, collector, count).read(opened.splits[split])
        if split_rows is None:
            opened.notes.append(f"{split} split left out: none of its rows has a label")
        else:
            tables[split], keys[split] = split_rows
    name, rows_in_train = opened.splits["train"][0].name, tables["train"].num_rows
    if rows_in_train < 2:
        raise DataError(f"{name}: only {rows_in_train} row; training needs more")
    encoded = collector.finish()
    for split in tables:
        tables[split] = tables[split].append_column("label", encoded.arrays[split])
    _check_targets(encoded, tables["train"], name, columns.label)
    return SourceTables(tables, keys, encoded.task, encoded.labels)


def _check_targets(encoded: Encoded, train: Any, name: str, column: str) -> None:
    """Raise a `DataError` if all targets of a regression are the same."""
    if encoded.task != REGRESSION:
        return
    target = train["label"].to_numpy()
    if (target == target[0]).all():
        raise DataError(f"{name}: column {column!r} is {target[0]:g} in all rows; there is nothing to learn")


class _SplitReader:
    """Reads one split of a source, which may be several files, into a table; its labels go to the collector."""

    def __init__(self, split: str, columns: Columns, collector: LabelCollector, count: Callable[[int], None]) -> None:
        import pyarrow as pa

        self.split, self.columns, self.collector, self.count = split, columns, collector, count
        fields = [("row_id", pa.string()), ("text", pa.large_string())]
        if columns.text_pair is not None:
            fields.append(("text_pair", pa.large_string()))
        self.schema = pa.schema(fields)
        self.maker = KeyMaker()
        self.batches: list[Any] = []
        self.before = 0  # rows of the files before this one

    def read(self, group: list[Rows]) -> tuple[Any, RowKeys] | None:
        """The table and the keys of all files; None when a split has no label at all (hub test sets)."""
        import pyarrow as pa

        for rows in group:
            if not self._read_file(rows):
                return None
        return pa.Table.from_batches(self.batches, self.schema), self.maker.finish()

    def _read_file(self, rows: Rows) -> bool:
        """Read one file; False if none of its rows has a label and that is to be expected of it."""
        reader = TextReader(rows, self.columns)
        unlabelled: list[int] = []  # the first ones, for the message
        missing = row = 0
        for records in rows.batches(_BATCH, self.columns.needed):
            values: dict[str, list[str]] = {name: [] for name in self.schema.names}
            for record in records:
                row += 1
                texts = reader.take(record, row)
                if not self.collector.add(self.split, rows, row, record.get(self.collector.column)):
                    missing += 1
                    if len(unlabelled) < 5:
                        unlabelled.append(row)
                if texts is not None:
                    self._keep(rows, row, texts, values)
            self._add_batch(values)
            self.count(len(records))
        if not row:
            raise DataError(f"{rows.name}: no rows; add data rows or remove the {self.split} data")
        reader.check()
        if missing == row and self.split != "train" and isinstance(rows, DatasetRows):
            return False
        if missing:
            raise DataError(
                f"{rows.name}: column {self.collector.column!r} has no label in {rows_listed(unlabelled, missing)}; "
                "fill these rows in or remove them"
            )
        self.before += row
        return True

    def _keep(self, rows: Rows, row: int, texts: tuple[str, str | None], values: dict[str, list[str]]) -> None:
        try:
            self.maker.add(*texts)
        except UnicodeEncodeError:
            raise DataError(f"{rows.name}: row {row}: not valid text (a lone surrogate); mend it") from None
        values["row_id"].append(f"{self.split}:{self.before + row}")
        values["text"].append(texts[0])
        if texts[1] is not None:
            values["text_pair"].append(texts[1])

    def _add_batch(self, values: dict[str, list[str]]) -> None:
        import pyarrow as pa

        arrays = [pa.array(values[field.name], field.type) for field in self.schema]
        self.batches.append(pa.record_batch(arrays, schema=self.schema))


def without_rare_classes(source: SourceTables, rare: str, opened: Source) -> SourceTables:
    """Drop or merge the classes that have one row in train.

    Args:
        source: the rows.
        rare: `drop` or `merge`.
        opened: where they are from; what was done is noted there.

    Raises:
        DataError: fewer than two classes are left.
    """
    import numpy as np
    import pyarrow as pa

    if source.task != SINGLE:
        return source
    counts = np.bincount(source.tables["train"]["label"].to_numpy(), minlength=len(source.labels))
    few = counts == 1
    if not few.any():
        return source
    names = [name for name, is_rare in zip(source.labels, few) if is_rare]
    labels = [name for name, is_rare in zip(source.labels, few) if not is_rare]
    if rare == "merge" and len(names) == 1 and MERGED not in labels:
        rare = "drop"  # one row would still be a class of one row
    if rare == "merge" and MERGED not in labels:
        labels = sorted([*labels, MERGED])
    numbers = {name: number for number, name in enumerate(labels)}
    target = np.array([numbers.get(MERGED if is_rare else name, -1) for name, is_rare in zip(source.labels, few)])
    if rare == "drop":
        target[few] = -1
    tables, keys = {}, {}
    for split, table in source.tables.items():
        new = target[table["label"].to_numpy()]
        kept = np.flatnonzero(new >= 0)
        column = table.column_names.index("label")
        tables[split] = table.set_column(column, "label", pa.array(new)).take(kept)
        keys[split] = source.keys[split].take(kept)
    if tables["train"].num_rows < 2 or len(labels) < 2:
        raise DataError(f"{opened.name}: with rare={rare} fewer than two classes are left; add rows")
    shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if names[5:] else "")
    change = "dropped" if rare == "drop" else f"merged into {MERGED!r}"
    opened.notes.append(f"classes with one row {change}: {shown}")
    return SourceTables(tables, keys, source.task, tuple(labels))
