"""Streaming rows for prediction on files larger than memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mixwell.data.columns import Columns, TextReader, find_columns
from mixwell.data.readers import LineRows, Record, Rows, in_batches, open_rows
from mixwell.utils.errors import DataError, OptionError
from mixwell.utils.files import home
from mixwell.utils.options import check_whole

ON_EMPTY = ("error", "skip")


class _GivenRows(Rows):
    """Texts or records that the caller has at hand: strings, lines of an open text file, or dicts."""

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__(str(getattr(items, "name", "texts")), typed=True)
        self._items = self._decoded(items)
        self._first = [self._record(item, 1) for item in itertools.islice(self._items, 1)]
        self.columns = list(self._first[0]) if self._first else ["text"]

    def _decoded(self, items: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from items
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.name}: not UTF-8 ({error.reason}); name the file instead, whose encoding is detected"
            ) from error

    def _record(self, item: Any, row: int) -> Record:
        if isinstance(item, str):
            return {"text": item.rstrip("\r\n")}
        if isinstance(item, dict):
            return item
        raise DataError(f"{self.name}: row {row} is a {type(item).__name__}, expected a text or a record (dict)")

    def head(self) -> list[Record]:
        """The first row only: what comes later may not be there yet."""
        return self._first

    def batches(self, size: int, columns: list[str] | None = None) -> Iterator[list[Record]]:
        """See `Rows.batches`; can be gone through once."""
        numbered = (self._record(item, row) for row, item in enumerate(self._items, 2))
        return in_batches(itertools.chain(self._first, numbered), size)


def iter_rows(
    source: str | os.PathLike[str] | Iterable[str] | Iterable[Record],
    *,
    text: str | None = None,
    text_pair: str | None = None,
    known: Mapping[str, str | None] | None = None,
    pairs: bool | None = None,
    batch_size: int = 256,
    on_empty: str = "error",
    note: Callable[[str], None] | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a file in batches, without labels and without holding the file.

    Args:
        source: the path of a CSV, TSV, JSON-lines (each also `.gz`) or Parquet file, or of a `.txt` file with
            one text per line; or an iterable of texts or records (an open text file, `sys.stdin`, a list).
        text: the text column; found as in `load` when None.
        text_pair: the column of the second text.
        known: `TextData.columns` of the training data, taken where nothing is named and the source has them.
        pairs: whether pairs are wanted; None to decide by the columns.
        batch_size: rows in a batch.
        on_empty: `error` for a row without text, or `skip`; the numbers of skipped rows are noted at the end.
        note: called with what was guessed about a file.

    Yields:
        Lists of dicts with `row` (counted from 1), `text`, `text_pair` (for pairs only), `record`, the row as the
        source has it, and `others`, its columns that are none of the texts.

    Raises:
        DataError: the source or a row cannot be used. Rows before the batch at fault have been yielded then.
    """
    check_whole(batch_size, "batch_size", 1)
    if on_empty not in ON_EMPTY:
        raise OptionError(f"on_empty must be one of {', '.join(ON_EMPTY)}, got {on_empty!r}")
    rows: Rows
    if isinstance(source, (str, os.PathLike)):
        path = home(source)
        plain = path.name.casefold().removesuffix(".gz").endswith(".txt")
        rows = LineRows(path) if plain else open_rows(path)
    else:
        rows = _GivenRows(source)
    if not rows.columns:
        raise DataError(f"{rows.name}: no rows; there is nothing to predict")
    trained_on = {part: name for part, name in (known or {}).items() if name in rows.columns}
    if "head" not in (known or {}):  # relation records are recognised by all their columns
        text = trained_on.get("text") if text is None else text
        if text_pair is None and pairs is not False:
            text_pair = trained_on.get("text_pair")
    columns = find_columns(rows, text=text, text_pair=text_pair, want_label=False)
    if pairs and columns.text_pair is None:
        raise OptionError("this model was trained on pairs of texts: name the second column with --text-pair")
    if pairs is False and columns.text_pair is not None:
        columns = Columns(columns.text, notes=(f"columns found: text = {columns.text!r}",))
    if note is not None and not isinstance(rows, _GivenRows):
        for sentence in (*rows.notes, *columns.notes):
            note(sentence)
    # Checked here, so that a fault shows at the call and not at the first batch.
    return _stream(rows, columns, batch_size, on_empty == "skip", note)


def _stream(
    rows: Rows, columns: Columns, batch_size: int, skip: bool, note: Callable[[str], None] | None
) -> Iterator[list[dict[str, Any]]]:
    row = 0
    reader = TextReader(rows, columns)
    for records in rows.batches(batch_size):
        batch: list[dict[str, Any]] = []
        for record in records:
            row += 1
            texts = reader.take(record, row)
            if texts is None:
                continue
            try:
                "".join(part for part in texts if part).encode()
            except UnicodeEncodeError:
                raise DataError(f"{rows.name}: row {row}: not valid text (a lone surrogate); mend it") from None
            pair = {} if texts[1] is None else {"text_pair": texts[1]}
            others = {str(name): value for name, value in record.items() if name not in columns.needed}
            if not {"text", "text_pair"}.isdisjoint(others):
                # Other columns have the names that the texts would get: then all keep their own.
                others = {str(name): value for name, value in record.items()}
            batch.append({"row": row, "text": texts[0], **pair, "record": record, "others": others})
        if not skip:
            reader.check()
        yield batch
    if note is not None and (missing := reader.missing()):
        note(f"skipped: {missing}")
