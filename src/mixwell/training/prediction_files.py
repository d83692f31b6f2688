"""What `mixwell predict` reads and writes: texts, tables, CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from mixwell.utils.cells import harmless
from mixwell.utils.errors import DataError, OptionError
from mixwell.utils.files import atomic_path, home

FORMATS = ("table", "csv", "jsonl", "parquet")


_FILES = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".json", ".parquet", ".txt", ".xlsx", ".xls", ".arrow")


_SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".txt": "table"}


def choose_format(format: str | None, output: str | None) -> str:
    """The format to write: as asked, else by the output's name, else a table."""
    if format is not None:
        if format not in FORMATS:
            raise OptionError(f"format {format!r} is unknown; use one of {', '.join(FORMATS)}")
        chosen = format
    elif not output:
        chosen = "table"
    else:
        suffix = Path(output).suffix.lower()
        if suffix and suffix not in _SUFFIXES:
            raise OptionError(
                f"--output {output}: a file that ends in {suffix} cannot be written; name it .csv, .jsonl or .parquet, "
                f"or choose with --format"
            )
        chosen = _SUFFIXES.get(suffix, "csv")
    if chosen == "parquet" and not output:
        raise OptionError("format parquet needs a file: name it with --output")
    return chosen


def write_predictions(
    batches: Iterable[list[dict[str, Any]]],
    format: str,
    output: str | None,
    stream: TextIO,
    *,
    raw_csv: bool = False,
) -> int:
    """Write predictions as they come; a file appears when it is whole.

    Args:
        batches: from `Classifier.records`.
        format: one of `FORMATS`.
        output: the file, or None for `stream`.
        stream: where to write without a file.
        raw_csv: write texts to CSV as they are, also those that a spreadsheet would run as formulas.

    Returns:
        The number of rows.
    """
    writers: dict[str, Callable[[Iterable[list[dict[str, Any]]], TextIO], int]]
    writers = {"csv": functools.partial(_write_csv, raw=raw_csv), "jsonl": _write_jsonl, "table": _write_table}
    writer = writers.get(format)
    if output is None:
        assert writer is not None
        return writer(batches, stream)
    with atomic_path(output) as path:
        if writer is None:
            return _write_parquet(batches, path)
        with open(path, "w", encoding="utf-8", newline="") as file:
            return writer(batches, file)


def _whole(record: dict[str, Any]) -> dict[str, Any]:
    """A record in one level: the source's other columns first; what they are named ours gets `predicted_` in front."""
    others = record["columns"]
    own = {name: value for name, value in record.items() if name not in ("row", "columns")}
    if not {"text", "text_pair"}.isdisjoint(others):  # the texts are among them, under their own names
        own = {name: value for name, value in own.items() if name not in ("text", "text_pair")}
    renamed = {f"predicted_{name}" if name in others else name: value for name, value in own.items()}
    return {"row": record["row"], **{name: value for name, value in others.items() if name != "row"}, **renamed}


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """A record with one column per class; several labels joined by `|`."""
    label, chances = record["label"], record.get("probabilities", {})
    plain = {name: value for name, value in record.items() if name != "probabilities"}
    plain["label"] = "|".join(label) if isinstance(label, list) else label
    return _whole({**plain, **{f"p_{name}": value for name, value in chances.items()}})


def _write_csv(batches: Iterable[list[dict[str, Any]]], stream: TextIO, *, raw: bool) -> int:
    writer, names, count = csv.writer(stream, lineterminator="\n"), list[str](), 0
    for batch in batches:
        for record in map(_flat, batch):
            if not names:  # a later row of JSON lines may have other columns than the first
                names = list(record)
                writer.writerow(names if raw else map(harmless, names))
            cells = [record.get(name, "") for name in names]
            writer.writerow(cells if raw else map(harmless, cells))
        count += len(batch)
    return count


def _write_jsonl(batches: Iterable[list[dict[str, Any]]], stream: TextIO) -> int:
    count = 0
    for batch in batches:
        for record in batch:
            stream.write(json.dumps(_whole(record), ensure_ascii=False, default=str) + "\n")
        count += len(batch)
    return count


def _write_table(batches: Iterable[list[dict[str, Any]]], stream: TextIO) -> int:
    """Columns of fixed width, so that lines can be written as they come."""
    count = 0
    for batch in batches:
        for record in batch:
            label = record["label"]
            shown = "|".join(label) if isinstance(label, list) else label if isinstance(label, str) else f"{label:.4f}"
            if not count:
                stream.write(f"{'row':>6}  {'label':<24}  {'prob.':>6}  text\n")
            chance = record.get("probability")
            text = " ".join(record["text"].split())
            text = text if len(text) <= 60 else text[:59] + "…"
            stream.write(f"{record['row']:>6}  {shown:<24}  {'' if chance is None else f'{chance:.4f}':>6}  {text}\n")
            count += 1
    return count


def _write_parquet(batches: Iterable[list[dict[str, Any]]], path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    writer: Any = None
    try:
        for batch in filter(None, batches):
            rows = [_flat(record) for record in batch]
            try:
                if writer is None:
                    schema = pa.Table.from_pylist(rows).schema
                    # What is empty in all of the first rows may be anything later: texts hold everything.
                    kinds = [pa.string() if pa.types.is_null(field.type) else field.type for field in schema]
                    writer = pq.ParquetWriter(str(path), pa.schema(list(zip(schema.names, kinds))))
                writer.write_table(pa.Table.from_pylist(rows, writer.schema))
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise DataError(
                    f"a column of the file has values of several types ({' '.join(str(error).split())}); write csv or "
                    f"jsonl, or leave the other columns out with --only-predictions"
                ) from error
            count += len(batch)
    finally:
        if writer is not None:
            writer.close()
    return count


def open_source(given: Sequence[str]) -> Any:
    """What `mixwell predict` was given: a file, `-` for stdin, or texts.

    One word that ends as data files do is a file, so that a wrong name is an error and not a text to classify.
    """
    import sys

    if len(given) > 1:
        opened = [open_source([each]) for each in given]
        for each, what in zip(opened, given):
            if not isinstance(each, list):
                raise OptionError(f"{what!r} is a file or stdin; give one file, or several texts, but not both")
        return [text for each in opened for text in each]
    what = given[0]

    if what == "-":
        return sys.stdin
    if not what.strip():
        raise OptionError("the text is empty; give a text, a file, or - for lines of stdin")
    path = home(what)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # a text too long for a file name
        exists = False
    one_word = len(what.split()) == 1
    if exists or (one_word and path.name.casefold().removesuffix(".gz").endswith(_FILES)):
        return path
    return [what]
