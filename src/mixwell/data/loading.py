"""`load`: from a file, folder, saved data set or hub id to `TextData`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import DataError, OptionError, nearest
from ..files import home
from .columns import TASKS, Columns, TextReader, check_columns, find_columns, rows_listed
from .labels import Encoded, LabelCollector
from .readers import DatasetRows, Rows, open_rows
from .sources import Source, open_source
from .splits import (
    SPLITS,
    TEST_FRACTION,
    VALIDATION_FRACTION,
    KeyMaker,
    RowKeys,
    check_classes,
    check_fraction,
    check_seed,
    cut,
    keep_labels_in_train,
    keep_texts_together,
    leaked,
    multi_hot,
    strata,
)
from .textdata import TextData, class_members, fingerprint, make_text_data, read_splits

_BATCH = 1000
NOTHING = "none"
RARE = ("error", "drop", "merge")
MERGED = "other"


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
    """Load labelled texts and split them.

    Sources: a CSV, TSV or JSON-lines file (each also `.gz`), a Parquet file; a folder with such files named
        train,
    validation (or dev, val, valid) and test; a folder written by `datasets.save_to_disk`; a hub id
    `owner/name` or `owner/name:config`.

    Columns that are not named are found by well-known names, else by their values (see `find_columns`).
    Records with `tokens`, `head` and `tail` become texts with entity markers (see `relation_text`).

    Splits that the source lacks are cut from train, stratified by label: 10 % validation and 20 % test of
    train's rows. A folder with train and test thus has validation cut from train; one with train and
    validation has test cut from train. The cut depends on the texts and `split_seed` only, not on the order
    of the rows. Nothing is cut by itself from fewer than `hold_out_from` rows.

    Labels may be texts, whole numbers or booleans. Lists (in CSV: cells that are all JSON lists) make a
    multi-label task; with `task="multi_label"` cells such as `a|b` or `a;b` do too. Floats need
    `task="regression"`.

    Args:
        source: the data.
        text: the text column.
        text_pair: the column of the second text.
        label: the label column.
        task: `single_label`, `multi_label` or `regression`; None to tell by the labels.
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
    if task is not None and task not in TASKS:
        raise OptionError(f"task must be one of {', '.join(TASKS)}, got {task!r}{nearest(str(task), TASKS)}")
    check_seed(split_seed, "split_seed")
    if rare not in RARE:
        raise OptionError(f"rare must be one of {', '.join(RARE)}, got {rare!r}{nearest(str(rare), RARE)}")
    asked = {"test": test, "validation": validation}
    nothing = {name for name, value in asked.items() if value == NOTHING}
    fractions = {
        name: check_fraction(value, name, whole=False)
        for name, value in asked.items()
        if value is not None and not isinstance(value, (str, os.PathLike))
    }
    opened = open_source(source)
    for name in nothing & opened.splits.keys():
        del opened.splits[name]
        opened.notes.append(f"{name} data of {opened.name} left aside, as asked")
    for name, value in (("validation", validation), ("test", test)):
        if isinstance(value, (str, os.PathLike)) and name not in nothing:
            rows = open_rows(home(value))
            opened.splits[name] = [rows]
            opened.notes += [*rows.notes, f"{name} data from {rows.name}"]
    columns = find_columns(opened.splits["train"][0], text=text, text_pair=text_pair, label=label, task=task)
    tables, keys, encoded = _read(opened, columns, task, progress)
    first = opened.splits["train"][0]
    if rare != "error":
        tables, keys, encoded = _without_rare(tables, keys, encoded, rare, opened)
    if label is None and not first.typed and columns.label in encoded.labels:
        raise DataError(
            f"{first.name}: the first line is read as the header, but its {columns.label!r} is a label of other rows; "
            f"put a line with the columns' names on top, or name the label column with --label if this is one"
        )
    for name in fractions:
        if name in tables:
            raise OptionError(f"{name}={fractions[name]}: {opened.name} has {name} data of its own; leave {name} out")
        if splits_file is not None:
            raise OptionError(f"{name}={fractions[name]} does not go with splits_file, which already has the splits")
    data = TextData(
        splits=tables,
        task=encoded.task,
        labels=encoded.labels,
        fingerprint="",
        source=opened.name,
        columns=columns.parts(),
        notes=[*opened.notes, *columns.notes],
        leaks={},
        source_fingerprint=fingerprint(encoded.task, encoded.labels, tables, keys),
        _keys=keys,
    )
    whole, all_keys = _joined(tables, keys)
    if splits_file is not None:
        ids = {row: at for at, row in enumerate(whole["row_id"].to_pylist())}
        parts = read_splits(Path(splits_file), data.source_fingerprint, ids)
        data.notes.append(f"splits from {splits_file}")
    else:
        few = len(keys["train"]) < hold_out_from and "validation" not in {*tables, *fractions}
        skipped = nothing | ({"validation", "test"} - fractions.keys() if few else set())
        parts = _parts(data, fractions, split_seed, skipped, keep_together)
    _check_seen(data, whole, parts, {name: rows[0].name for name, rows in opened.splits.items() if len(rows) == 1})
    if drop_leaks:
        _drop_leaks(data, whole, all_keys, parts)
    return make_text_data(
        {name: _take(whole, rows) for name, rows in parts.items()},
        {name: all_keys.take(rows) for name, rows in parts.items()},
        data,
    )


def _read(
    opened: Source, columns: Columns, task: str | None, progress: Callable[[int], None] | None
) -> tuple[dict[str, Any], dict[str, RowKeys], Encoded]:
    """Read all source splits: tables with row_id, text, text_pair and label, and the rows' keys."""
    assert columns.label is not None
    labels = LabelCollector(columns.label, task)
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
        read = _read_split(split, opened.splits[split], columns, labels, count)
        if read is None:
            opened.notes.append(f"{split} split left out: none of its rows has a label")
        else:
            tables[split], keys[split] = read
    rows_in_train = tables["train"].num_rows
    if rows_in_train < 2:
        raise DataError(f"{opened.splits['train'][0].name}: only {rows_in_train} row; training needs more")
    encoded = labels.finish()
    for split in tables:
        tables[split] = tables[split].append_column("label", encoded.arrays[split])
    if encoded.task == "regression":
        target = tables["train"]["label"].to_numpy()
        if (target == target[0]).all():
            name = opened.splits["train"][0].name
            raise DataError(f"{name}: column {columns.label!r} is {target[0]:g} in all rows; there is nothing to learn")
    return tables, keys, encoded


def _without_rare(
    tables: dict[str, Any], keys: dict[str, RowKeys], encoded: Encoded, rare: str, opened: Source
) -> tuple[dict[str, Any], dict[str, RowKeys], Encoded]:
    """Drop or merge the classes that have one row in train."""
    import numpy as np
    import pyarrow as pa

    if encoded.task != "single_label":
        return tables, keys, encoded
    counts = np.bincount(tables["train"]["label"].to_numpy(), minlength=len(encoded.labels))
    few = counts == 1
    if not few.any():
        return tables, keys, encoded
    names = [name for name, is_rare in zip(encoded.labels, few) if is_rare]
    labels = [name for name, is_rare in zip(encoded.labels, few) if not is_rare]
    if rare == "merge" and len(names) == 1 and MERGED not in labels:
        rare = "drop"  # one row would still be a class of one row
    if rare == "merge" and MERGED not in labels:
        labels = sorted([*labels, MERGED])
    numbers = {name: at for at, name in enumerate(labels)}
    target = np.array([numbers.get(MERGED if is_rare else name, -1) for name, is_rare in zip(encoded.labels, few)])
    if rare == "drop":
        target[few] = -1
    for split, table in tables.items():
        new = target[table["label"].to_numpy()]
        kept = np.flatnonzero(new >= 0)
        at = table.column_names.index("label")
        tables[split] = table.set_column(at, "label", pa.array(new)).take(kept)
        keys[split] = keys[split].take(kept)
    if tables["train"].num_rows < 2 or len(labels) < 2:
        raise DataError(f"{opened.name}: with rare={rare} fewer than two classes are left; add rows")
    shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if names[5:] else "")
    done = "dropped" if rare == "drop" else f"merged into {MERGED!r}"
    opened.notes.append(f"classes with one row {done}: {shown}")
    return tables, keys, Encoded(encoded.task, tuple(labels), {})


def _read_split(
    split: str, group: list[Rows], columns: Columns, labels: LabelCollector, count: Callable[[int], None]
) -> tuple[Any, RowKeys] | None:
    """One split as a table; its labels go to `labels`. None when it has none at all (hub test sets)."""
    import pyarrow as pa

    fields = [("row_id", pa.string()), ("text", pa.large_string())]
    if columns.text_pair is not None:
        fields.append(("text_pair", pa.large_string()))
    schema = pa.schema(fields)
    label_name = labels.column
    maker = KeyMaker()
    batches = []
    before = 0
    for rows in group:
        reader = TextReader(rows, columns)
        unlabelled: list[int] = []
        missing = row = 0
        for records in rows.batches(_BATCH, columns.needed):
            made: dict[str, list[str]] = {name: [] for name in schema.names}
            for record in records:
                row += 1
                texts = reader.take(record, row)
                if not labels.add(split, rows, row, record.get(label_name)):
                    missing += 1
                    if len(unlabelled) < 5:
                        unlabelled.append(row)
                if texts is None:
                    continue
                try:
                    maker.add(*texts)
                except UnicodeEncodeError:
                    raise DataError(f"{rows.name}: row {row}: not valid text (a lone surrogate); mend it") from None
                made["row_id"].append(f"{split}:{before + row}")
                made["text"].append(texts[0])
                if texts[1] is not None:
                    made["text_pair"].append(texts[1])
            batches.append(pa.record_batch([pa.array(made[f.name], f.type) for f in schema], schema=schema))
            count(len(records))
        if not row:
            raise DataError(f"{rows.name}: no rows; add data rows or remove the {split} data")
        reader.check()
        if missing == row and split != "train" and isinstance(rows, DatasetRows):
            return None
        if missing:
            raise DataError(
                f"{rows.name}: column {label_name!r} has no label in {rows_listed(unlabelled, missing)}; "
                "fill these rows in or remove them"
            )
        before += row
    return pa.Table.from_batches(batches, schema), maker.finish()


def _joined(tables: dict[str, Any], keys: dict[str, RowKeys]) -> tuple[Any, RowKeys]:
    import numpy as np
    import pyarrow as pa

    exact = np.concatenate([keys[name].exact for name in tables])
    return pa.concat_tables(tables.values()), RowKeys(exact, np.concatenate([keys[name].folded for name in tables]))


def _parts(data: TextData, fractions: dict[str, float], seed: int, skipped: set[str], together: bool) -> dict[str, Any]:
    """Row numbers (in the joined table) of each split; what the source lacks is cut from train, or left empty."""
    import numpy as np

    defaults = {"test": TEST_FRACTION, "validation": VALIDATION_FRACTION}
    lacking = {name: fractions.get(name, share) for name, share in defaults.items() if name not in data.splits}
    wanted = {name: share for name, share in lacking.items() if name not in skipped}
    if sum(wanted.values()) >= 1:
        raise OptionError(f"validation and test together take {sum(wanted.values()):g} of train; keep it below 1")
    parts: dict[str, Any] = {}
    start = 0
    for name, table in data.splits.items():
        parts[name] = np.arange(start, start + table.num_rows)
        start += table.num_rows
    parts |= {name: np.zeros(0, dtype=np.int64) for name in lacking if name in skipped}
    if not wanted:
        return parts
    train, keys = data.splits["train"], data._keys["train"]
    stratum = strata(data.task, train["label"])
    single = data.task == "single_label"
    if single:
        check_classes(data.source, data.columns["label"], stratum, data.labels, list(wanted))
    found = cut(keys, stratum, wanted, seed, each=single)
    moved_rows = keep_texts_together(found, keys) if together else 0
    if moved_rows:
        data.notes.append(f"{moved_rows} rows whose text stands on both sides of the cut were put on one")
    if data.task == "multi_label":
        moved = keep_labels_in_train(found, multi_hot(train["label"]), keys, seed)
        if moved:
            shown = ", ".join(data.labels[at] for at in moved[:5]) + (" ..." if len(moved) > 5 else "")
            data.notes.append(f"rare labels kept in train: {len(moved)} ({shown})")
    for name in (*wanted, "train"):
        if not len(found[name]):
            raise DataError(
                f"{data.source}: {train.num_rows} rows are too few to cut {' and '.join(wanted)} from; add rows"
            )
    shown = " and ".join(f"{name} ({len(found[name])} rows)" for name in wanted)
    way = "at random" if data.task == "regression" else "by label"
    data.notes.append(f"cut from train {way}, seed {seed}: {shown}")
    return {**parts, **found}


def _take(whole: Any, rows: Any) -> Any:
    """Rows of a table; a run of neighbours is not copied."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and (rows[1:] > rows[:-1]).all():
        return whole.slice(int(rows[0]), len(rows))
    return whole.take(rows)


def _check_seen(data: TextData, whole: Any, parts: dict[str, Any], files: dict[str, str]) -> None:
    """Raise a `DataError` for a label of validation or test that train does not have.

    Args:
        data: the data, for names.
        whole: all rows.
        parts: which rows are in which split.
        files: the file of each split of the source that is one file.
    """
    if data.task == "regression":
        return
    label = whole["label"]
    members = {
        name: class_members(data.task, label.take(rows), len(data.labels))[: len(data.labels)]
        for name, rows in parts.items()
    }
    for name in ("validation", "test"):
        strange = [at for at in range(len(data.labels)) if len(members[name][at]) and not len(members["train"][at])]
        if strange:
            at = strange[0]
            row = whole["row_id"][int(parts[name][members[name][at][0]])].as_py()
            more = f" (nor are {len(strange) - 1} more labels)" if strange[1:] else ""
            split, _, number = row.partition(":")
            where = f"{files[split]}: row {number}" if split in files else f"{data.source}: row {row}"
            raise DataError(
                f"{where}, column {data.columns['label']!r}: label {data.labels[at]!r} of "
                f"{name} is not in train{more}; add train rows with it, or mend or remove the {name} rows"
            )


def _drop_leaks(data: TextData, whole: Any, keys: RowKeys, parts: dict[str, Any]) -> None:
    """Remove the train rows whose text is in validation or test."""
    train = keys.take(parts["train"])
    drop = leaked(train, keys.take(parts["validation"]))[0] | leaked(train, keys.take(parts["test"]))[0]
    if not drop.any():
        return
    kept = parts["train"][~drop]
    if not len(kept):
        raise DataError(f"{data.source}: all train rows are also in validation or test; nothing is left to train on")
    if data.task != "regression":
        size = len(data.labels)
        label = whole["label"]
        was, now = (class_members(data.task, label.take(rows), size) for rows in (parts["train"], kept))
        gone = [data.labels[at] for at in range(size) if len(was[at]) and not len(now[at])]
        if gone:
            raise DataError(
                f"{data.source}: drop_leaks would remove every train row of label {gone[0]!r}; add rows of "
                "it or load without drop_leaks"
            )
    parts["train"] = kept
    data.notes.append(f"dropped {int(drop.sum())} train rows whose text is also in validation or test")
