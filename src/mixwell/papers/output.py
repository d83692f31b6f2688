"""What a run leaves to read: table.json, table.md, figures and a page; all can be made again from the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mixwell.papers import figures, pictures, results, tables
from mixwell.papers.markdown import markdown
from mixwell.papers.protocols import get
from mixwell.papers.run_file import FIGURE, PACKED, read_run
from mixwell.report.compare import page
from mixwell.utils.files import write_json, write_text
from mixwell.utils.records import reading

PAGE = "report.html"


def write(folder: str | Path, level: float = 0.95) -> dict[str, Any]:
    """Make the tables of a run's folder, or of a pack, from its records; returns what table.json holds.

    Raises:
        RunError: the folder is neither.
    """
    path = Path(folder)
    if read_run(path)["records"] == FIGURE:
        return figures.draw(path)
    with reading(path, "bring it back as it was, or run it again"):
        measured = results.read(path)
        table = tables.build(measured, level)
    write_json(path / "table.json", table)
    experiment = get(table["experiment"])
    if experiment.curve is not None and measured.runs:
        write_text(path / "figure.svg", figures.curves(measured, experiment))
    drawn = pictures.draw(table)
    for name, picture in drawn.items():
        write_text(path / name, picture)
    write_text(path / "table.md", markdown(table, {name: pictures.NAMES[name] for name in drawn}))
    summary = results.summary(path, level)
    if summary is not None:
        write_text(path / PAGE, page(summary, title=f"{experiment.name}: {table['title']}", texts=False))
    elif measured.run_json["records"] != PACKED:
        (path / PAGE).unlink(missing_ok=True)  # of records that were fewer or others
    return table
