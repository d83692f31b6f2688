"""A comparison in any format: a page, or one of the tables of `compare.tables`."""

from __future__ import annotations

from pathlib import Path

from mixwell.compare import tables
from mixwell.compare.summary import Summary
from mixwell.report.compare import page
from mixwell.utils.errors import OptionError, nearest

FORMATS = ("md", "csv", "json", "latex", "html")
_SUFFIXES = {".md": "md", ".csv": "csv", ".json": "json", ".tex": "latex", ".html": "html", ".htm": "html"}


def choose_format(format: str | None, output: str | None) -> str:
    """The requested format, or that of a file's name; a page otherwise.

    Raises:
        OptionError: it is unknown.
    """
    if format is None:
        return _SUFFIXES.get(Path(output).suffix.lower(), "md") if output else "html"
    if format not in FORMATS:
        raise OptionError(f"format {format!r} is unknown{nearest(format, FORMATS)}; use one of {', '.join(FORMATS)}")
    return format


def export(summary: Summary, format: str, *, title: str = "Comparison", texts: bool = True) -> str:
    """The summary as a text of one of the `FORMATS`.

    Args:
        summary: of the records.
        format: one of the `FORMATS`.
        title: of the page.
        texts: show texts of test rows in the page.
    """
    return page(summary, title=title, texts=texts) if format == "html" else tables.export(summary, format)
