"""Excel workbooks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mixwell.data.encoding import check_file, one_line
from mixwell.data.readers import Record, Rows, check_unique, in_batches
from mixwell.utils.errors import DataError


class ExcelRows(Rows):
    """The first sheet of an Excel workbook, whose first row names the columns; needs the extra `excel`."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), typed=True)
        self.path = path
        with self._sheet() as (sheet, others):
            header = next(sheet.iter_rows(values_only=True), ())
        self.columns = [str(name or "").strip() or f"column_{number}" for number, name in enumerate(header, 1)]
        check_unique(self.columns, self.name)
        if others:
            self.notes.append(f"{path.name}: sheet {sheet.title!r} is read, {others} more left aside")

    @contextlib.contextmanager
    def _sheet(self) -> Iterator[Any]:
        """The sheet, and how many more there are."""
        try:
            import openpyxl
        except ImportError as error:
            raise DataError(f"{self.path}: Excel files need `pip install mixwell[excel]`") from error
        check_file(self.path)
        try:
            book = openpyxl.load_workbook(self.path, read_only=True, data_only=True)
        except Exception as error:  # zip, XML and key errors of a damaged file
            raise DataError(f"{self.path}: not readable as Excel ({one_line(error)}); save it again") from error
        try:
            yield book.worksheets[0], len(book.worksheets) - 1
        finally:
            book.close()

    def batches(self, size: int, columns: list[str] | None = None) -> Iterator[list[Record]]:
        """See `Rows.batches`. Rows without any value are passed over; dates become texts."""
        with self._sheet() as (sheet, _):
            values = itertools.islice(sheet.iter_rows(values_only=True), 1, None)
            records = (self._record(row) for row in values if any(cell is not None for cell in row))
            yield from in_batches(records, size)

    def _record(self, row: tuple[Any, ...]) -> Record:
        return {name: cell.isoformat() if hasattr(cell, "isoformat") else cell for name, cell in zip(self.columns, row)}
