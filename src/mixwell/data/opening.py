"""Which reader a file has, by its suffix."""

from __future__ import annotations

from pathlib import Path

from mixwell.data.encoding import check_file
from mixwell.data.excel import ExcelRows
from mixwell.data.readers import CsvRows, JsonRows, ParquetRows, Rows
from mixwell.utils.errors import DataError

SUFFIXES: dict[str, type[CsvRows] | type[JsonRows] | type[ParquetRows] | type[ExcelRows]] = {
    ".csv": CsvRows,
    ".tsv": CsvRows,
    ".tab": CsvRows,
    ".jsonl": JsonRows,
    ".ndjson": JsonRows,
    ".json": JsonRows,
    ".parquet": ParquetRows,
    ".xlsx": ExcelRows,
}


def data_suffix(path: Path) -> str:
    """The suffix that tells the format (`.gz` left off), or an empty string when it is not one we read."""
    suffix = Path(path.name.casefold().removesuffix(".gz")).suffix
    return suffix if suffix in SUFFIXES else ""


def open_rows(path: Path) -> Rows:
    """Open one data file by its suffix.

    Raises:
        DataError: the file is missing, empty, unreadable or of an unknown format.
    """
    check_file(path)
    suffix = data_suffix(path)
    if not suffix:
        known = ", ".join(SUFFIXES)
        raise DataError(f"{path}: unknown format; name the file with one of {known} (text formats also .gz)")
    return SUFFIXES[suffix](path)
