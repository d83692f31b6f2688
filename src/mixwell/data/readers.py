"""Row sources: one class per format, all giving batches of records so that no file is held as a whole."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from mixwell.data.encoding import check_file, detect, explained, one_line, open_text
from mixwell.utils.errors import DataError
from mixwell.utils.records import parse_json

Record = dict[str, Any]

DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
_SAMPLE = 200
_LONGEST_FIELD = 1 << 26  # characters; a few bytes of gzip can stand for more than the memory holds


class Rows:
    """Rows of one file or table, read in batches.

    Attributes:
        name: what error messages call the source.
        columns: the column names (for JSON lines: those of the first rows).
        typed: False when every value is a string (CSV, TSV, plain text).
        class_names: for columns of class numbers, the name of each number.
        notes: what the user should know about how the source was read.
    """

    def __init__(self, name: str, *, typed: bool) -> None:
        self.name = name
        self.typed = typed
        self.columns: list[str] = []
        self.class_names: dict[str, list[str]] = {}
        self.notes: list[str] = []

    def batches(self, size: int, columns: list[str] | None = None) -> Iterator[list[Record]]:
        """Yield the rows in order, `size` at a time.

        Args:
            size: rows in a batch (the last may have fewer).
            columns: the columns wanted, where leaving out the others saves work; None for all.
        """
        raise NotImplementedError

    def head(self) -> list[Record]:
        """The first rows, to recognise the types of columns."""
        return next(self.batches(_SAMPLE), [])


def bounded_lines(stream: TextIO, name: object) -> Iterator[str]:
    """The lines of a text; raises `DataError` for one that is too long to be held in memory several times over."""
    number = 0
    while line := stream.readline(_LONGEST_FIELD + 1):
        number += 1
        if len(line) > _LONGEST_FIELD:
            raise DataError(f"{name}: line {number} has more than {_LONGEST_FIELD:,} characters; cut it into rows")
        yield line


def in_batches(records: Iterator[Record], size: int) -> Iterator[list[Record]]:
    """Records `size` at a time; the last batch may have fewer."""
    while batch := list(itertools.islice(records, size)):
        yield batch


class TextFileRows(Rows):
    """A text file, plain or gzip, in the encoding that its bytes show."""

    newline: str | None = None  # as in `open`; the csv module wants the empty string

    def __init__(self, path: Path, *, typed: bool) -> None:
        super().__init__(str(path), typed=typed)
        self.path = path
        self.encoding, note = detect(path)
        self.notes += [note] if note else []

    def _open(self) -> contextlib.AbstractContextManager[TextIO]:
        return open_text(self.path, self.encoding, self.newline)

    def _records(self, stream: TextIO) -> Iterator[Record]:
        raise NotImplementedError

    def batches(self, size: int, columns: list[str] | None = None) -> Iterator[list[Record]]:
        """See `Rows.batches`. A row that cannot be read raises a `DataError`."""
        with self._open() as stream:
            yield from in_batches(self._records(stream), size)


class CsvRows(TextFileRows):
    """CSV or TSV with a header line, plain or gzip.

    The delimiter is one of `,` tab `;` `|`: the one that cuts the header in two or more and fits the first
    rows best. Quotes follow RFC 4180. In tab-separated files quotes are taken as plain characters when that
    gives every line as many fields as the header and reading them as quotes would fail or swallow lines (the
    GLUE files).
    """

    newline = ""

    def __init__(self, path: Path) -> None:
        super().__init__(path, typed=False)
        csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
        self.quoted = True
        self.delimiter = self._find_delimiter()
        if self.delimiter == "\t" and self._quotes_are_plain():
            self.quoted = False
            self.notes.append(f"{path.name}: quotes read as plain characters")
        if self.delimiter != ("\t" if _is_tsv(path) else ","):
            self.notes.append(f"{path.name}: fields separated by {DELIMITERS[self.delimiter]}")
        with self._open() as stream:
            _, header = next(self._lines(stream), (1, []))
        # Spreadsheets and pandas leave the heading of an index column empty.
        self.columns = [name.strip() or f"column_{number}" for number, name in enumerate(header, 1)]
        if len(set(self.columns)) < len(self.columns):
            twice = next(name for name in self.columns if self.columns.count(name) > 1)
            raise DataError(f"{path}: the header has column {twice!r} more than once; rename one of them")

    def _reader(self, stream: TextIO, delimiter: str, quoted: bool, strict: bool = True) -> Any:
        quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
        quotechar = '"' if quoted else None
        lines = bounded_lines(stream, self.path)
        return csv.reader(lines, delimiter=delimiter, quoting=quoting, quotechar=quotechar, strict=strict)  # type: ignore[arg-type]

    def _find_delimiter(self) -> str:
        order = sorted(DELIMITERS, key=lambda mark: mark != "\t") if _is_tsv(self.path) else list(DELIMITERS)

        def fit(mark: str) -> float:
            """The share of the first rows with as many fields as the header, or -1 if that is not cut in two."""
            counts: list[int] = []
            with self._open() as stream, contextlib.suppress(csv.Error):
                rows = itertools.islice(self._reader(stream, mark, True, strict=False), _SAMPLE)
                counts.extend(len(fields) for fields in rows if fields)
            return counts.count(counts[0]) / len(counts) if counts and counts[0] > 1 else -1

        return max(order, key=fit)

    def _quotes_are_plain(self) -> bool:
        def rows(quoted: bool) -> int:
            """Rows read this way, or -1 when they do not fit the header."""
            count, width = 0, None
            with self._open() as stream:
                try:
                    for fields in self._reader(stream, "\t", quoted):
                        if fields:
                            width = width or len(fields)
                            if len(fields) != width:
                                return -1
                            count += 1
                except csv.Error:
                    return -1
            return count

        plain = rows(False)
        return plain >= 0 and rows(True) != plain

    def _lines(self, stream: TextIO) -> Iterator[tuple[int, list[str]]]:
        """Yield (first line number, fields) of every row that is not blank, the header included."""
        reader = self._reader(stream, self.delimiter, self.quoted)
        row, line = 0, 1
        while True:
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                which = f"row {row} (line {line})" if row else f"the header (line {line})"
                if "larger than" in str(error):
                    raise DataError(f"{self.path}: {which} has a field over {_LONGEST_FIELD} characters") from error
                reason = "text after a closing quote" if "expected after" in str(error) else "a quote is not closed"
                advice = "close the quote, or double a quote that belongs to the text"
                raise DataError(f"{self.path}: {which} is badly quoted ({reason}); {advice}") from error
            if fields:
                yield line, fields
                row += 1
            line = reader.line_num + 1

    def _records(self, stream: TextIO) -> Iterator[Record]:
        width = len(self.columns)
        for row, (line, fields) in enumerate(itertools.islice(self._lines(stream), 1, None), 1):
            if len(fields) != width:
                raise DataError(
                    f"{self.path}: row {row} (line {line}) has {len(fields)} fields, expected {width} as "
                    f"in the header; quote a text with a {DELIMITERS[self.delimiter]} or a line break in it"
                )
            yield dict(zip(self.columns, fields))


def _is_tsv(path: Path) -> bool:
    return path.name.casefold().removesuffix(".gz").endswith((".tsv", ".tab"))


# A piece of a JSON array that is read at once, and the most characters of one record in it.
_PIECE, _LONGEST = 1 << 16, 1 << 26
_SPACE = re.compile(r"\s*")


class JsonRows(TextFileRows):
    """JSON lines, one object per line (blank lines are passed over), or one array of objects; plain or gzip."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, typed=True)
        self.columns = list(dict.fromkeys(key for record in self.head() for key in record))

    def _records(self, stream: TextIO) -> Iterator[Record]:
        first = stream.read(1)
        while first.isspace():
            first = stream.read(1)
        stream.seek(0)
        if first == "[":
            yield from self._array(stream)
            return
        for number, line in enumerate(bounded_lines(stream, self.path), 1):
            if line.strip():
                try:
                    record = parse_json(line)
                except ValueError as error:
                    place = f"column {error.colno}: " if isinstance(error, json.JSONDecodeError) else ""
                    reason = place + str(getattr(error, "msg", error))
                    raise DataError(f"{self.path}: line {number} is not valid JSON ({reason}); mend it") from error
                yield self._checked(record, f"line {number}")

    def _checked(self, record: Any, where: str) -> Record:
        if not isinstance(record, dict):
            what = "a JSON array" if isinstance(record, list) else f"{type(record).__name__} {record!r:.40}"
            raise DataError(
                f"{self.path}: {where} is {what}, expected an object; write one {{...}} per line, or an array of them"
            )
        return record

    def _array(self, stream: TextIO) -> Iterator[Record]:
        """The objects of an array, piece by piece."""
        decoder, number = json.JSONDecoder(), 0
        text, position = stream.read(_PIECE).lstrip()[1:], 0
        while True:
            position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
            sign = text[position : position + 1]
            if sign == "]":
                if text[position + 1 :].strip() or stream.read(_PIECE).strip():
                    raise DataError(f"{self.path}: there is more after the JSON array; remove it")
                return
            if sign and number and sign != ",":
                raise DataError(f"{self.path}: no comma after record {number} of the JSON array; mend it")
            start = _SPACE.match(text, position + 1 if number and sign else position).end()  # type: ignore[union-attr]
            fault = "it ends inside the array"
            try:
                record, end = decoder.raw_decode(text, start) if sign else (None, -1)
            except (ValueError, RecursionError) as error:
                end, fault = -1, str(getattr(error, "msg", error))
            if end < 0 or (end == len(text) and not isinstance(record, dict)):  # a number may go on in the next piece
                more = stream.read(max(_PIECE, len(text) - position)) if len(text) - position < _LONGEST else ""
                if not more:
                    raise DataError(f"{self.path}: record {number + 1} of the JSON array cannot be read ({fault})")
                text, position = text[position:] + more, 0
                continue
            number, position = number + 1, end
            yield self._checked(record, f"record {number}")


class LineRows(TextFileRows):
    """Plain text: each line is the value of the one column `text`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, typed=False)
        self.columns = ["text"]

    def _records(self, stream: TextIO) -> Iterator[Record]:
        return ({"text": line.rstrip("\n")} for line in bounded_lines(stream, self.path))


class ParquetRows(Rows):
    """A Parquet file; class names that the datasets library stored with it are used."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), typed=True)
        self.path = path
        check_file(path)
        with self._open() as file:
            schema = file.schema_arrow
        self.columns = list(schema.names)
        check_unique(self.columns, self.name)
        stored = (schema.metadata or {}).get(b"huggingface")
        if stored:
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                self.class_names = class_names(parse_json(stored)["info"]["features"])

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with explained(self.path):
            try:
                with pq.ParquetFile(self.path) as file:
                    yield file
            except (pa.ArrowException, OSError) as error:
                if getattr(error, "errno", None) is not None:  # the file system's, not the format's
                    raise
                reason = one_line(error)
                raise DataError(f"{self.path}: not readable as Parquet ({reason}); write the file again") from error

    def batches(self, size: int, columns: list[str] | None = None) -> Iterator[list[Record]]:
        """See `Rows.batches`."""
        with self._open() as file:
            for batch in file.iter_batches(batch_size=size, columns=columns):
                yield batch.to_pylist()


class DatasetRows(Rows):
    """One split of a data set of the datasets library, saved on disk or from the hub."""

    def __init__(self, dataset: Any, name: str) -> None:
        super().__init__(name, typed=True)
        self.dataset = dataset
        self.columns = list(dataset.column_names)
        self.class_names = class_names(dataset.features.to_dict())

    def batches(self, size: int, columns: list[str] | None = None) -> Iterator[list[Record]]:
        """See `Rows.batches`."""
        dataset = self.dataset if columns is None else self.dataset.select_columns(columns)
        for table in dataset.with_format("arrow").iter(batch_size=size):
            yield table.to_pylist()


def check_unique(columns: list[str], name: str) -> None:
    """Raise a `DataError` if two columns have one name."""
    if len(set(columns)) < len(columns):
        twice = next(column for column in columns if columns.count(column) > 1)
        raise DataError(f"{name}: column {twice!r} occurs more than once; rename one of them")


def class_names(features: dict[str, Any]) -> dict[str, list[str]]:
    """The names of class numbers, from the datasets library's description of the columns."""
    names: dict[str, list[str]] = {}
    for column, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else feature
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" and inner.get("names"):
            names[column] = list(inner["names"])
    return names
