"""Rows that are in memory already: frames of pandas and Polars, Arrow tables, data sets of the datasets library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mixwell.data.readers import DatasetRows, Record, Rows, check_unique
from mixwell.utils.errors import DataError

FRAMES = ("pandas.DataFrame", "polars.DataFrame", "polars.LazyFrame", "pyarrow.Table")


class TableRows(Rows):
    """An Arrow table, and what becomes one without being written."""

    def __init__(self, table: Any, name: str) -> None:
        super().__init__(name, typed=True)
        self.table = table
        self.columns = list(table.column_names)
        check_unique(self.columns, name)

    def batches(self, size: int, columns: list[str] | None = None) -> Iterator[list[Record]]:
        """See `Rows.batches`."""
        table = self.table if columns is None else self.table.select(columns)
        for batch in table.to_batches(max_chunksize=size):
            if batch.num_rows:
                yield batch.to_pylist()


def frame_rows(source: Any) -> Rows | None:
    """The rows of a frame, a table or a data set; None for what is none of them.

    pandas' categories and Polars' become their values. An index of pandas is left out.

    Raises:
        DataError: a column holds what Arrow has no type for.
    """
    if isinstance(source, dict):  # columns by name, as a data set of the datasets library gives them for some rows
        split = any(hasattr(part, "column_names") for part in source.values())
        return None if split else TableRows(_from_columns(source), "columns")
    package = type(source).__module__.partition(".")[0]
    if package == "datasets" and isinstance(getattr(source, "column_names", None), list):
        return DatasetRows(source, "data set")
    if f"{package}.{type(source).__name__}" not in FRAMES:
        return None
    return TableRows(as_table(source, package), f"{package} {'table' if package == 'pyarrow' else 'frame'}")


def _from_columns(columns: dict[str, Any]) -> Any:
    import pyarrow as pa

    try:
        return pa.table({str(name): list(values) for name, values in columns.items()})
    except (pa.ArrowException, TypeError) as error:
        raise DataError(
            f"columns: {' '.join(str(error).split())}; give lists of one length, of one type each"
        ) from error


def as_table(frame: Any, package: str) -> Any:
    """An Arrow table with the columns of a frame, under their names as texts."""
    import pyarrow as pa

    if package == "pyarrow":
        return frame
    if package == "polars":
        frame = frame.collect() if hasattr(frame, "collect") else frame
        return frame.to_arrow()
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    check_unique(list(frame.columns), "pandas frame")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"pandas frame: a column has values of several types ({' '.join(str(error).split())}); write all of "
            f"them in one way"
        ) from error
