"""What a run leaves to read: table.json, table.md, figures and a page; all can be made again from the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixwell.papers import figures, packs, pictures, results, tables
from mixwell.papers.markdown import markdown
from mixwell.papers.protocols import get
from mixwell.papers.run_file import FIGURE, PACKED, read_run
from mixwell.report.export import export
from mixwell.utils.errors import RunError
from mixwell.utils.files import write_json, write_text

PAGE = "report.html"


def write(folder: str | Path, level: float = 0.95) -> dict[str, Any]:
    """Make the tables of a run's folder, or of a pack, from its records; returns what table.json holds.

    Raises:
        RunError: the folder is neither.
    """
    path = Path(folder)
    if read_run(path)["records"] == FIGURE:
        return figures.draw(path)
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
        write_text(path / PAGE, export(summary, "html", title=f"{experiment.name}: {table['title']}", texts=False))
    elif measured.run_json["records"] != PACKED:
        (path / PAGE).unlink(missing_ok=True)  # of records that were fewer or others
    return table


def pack(folder: str | Path, target: str | Path, *, add: bool = False) -> Path:
    """Write the compact results of a run and the tables made of them to a folder for committing.

    Args:
        folder: of the run.
        target: the folder to write to.
        add: keep what is packed there, as `packs.pack` says; the page of the part is then one more file.
    """
    source, path = Path(folder), Path(target)
    run = read_run(source)
    packs.check_target(path, run)
    if run["records"] == FIGURE:
        if add:
            raise RunError(f"--add: {source} is a figure, which has no parts; leave --add out")
        return figures.pack(source, path)
    pages = dict(results.read(path).run_json.get("pages", {})) if add else {}
    added = {name: (page, (source / name).read_text(encoding="utf-8")) for name, page in _pages(source).items()}
    packs.pack(source, path, add=add)
    write(path)
    for name, (page, text) in added.items():
        name = f"report-{'-'.join(page['datasets'])}.html" if add else name
        write_text(path / name, text)
        pages[name] = page
    _keep_pages(path, pages)
    return path


def _pages(source: Path) -> dict[str, Any]:
    """The pages of a run or of a pack: file name to data sets and number of trainings.

    A pack has too little to make one: they come from the whole records.
    """
    measured = results.read(source)
    pages = measured.run_json.get("pages")
    if pages is None:
        parts = list(dict.fromkeys(run.dataset for run in measured.runs))
        pages = {PAGE: {"datasets": parts, "cells": len(measured.runs)}}
    return {name: page for name, page in pages.items() if (source / name).is_file()}


def _keep_pages(path: Path, pages: Mapping[str, Any]) -> None:
    """Remove the pages of a pack that are of fewer trainings than its tables, and note the others."""
    measured = results.read(path)
    sizes = Counter(run.dataset for run in measured.runs)
    kept = {name: page for name, page in pages.items() if page["cells"] == sum(sizes[key] for key in page["datasets"])}
    for file in path.glob("report*.html"):
        if file.name not in kept:
            file.unlink()
    write_json(path / "run.json", {**measured.run_json, "pages": kept})
