"""From the page of a run to the comparison of the same data, and back: folders that stand beside each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mixwell.compare.records import Records
from mixwell.compare.summary import Summary
from mixwell.utils.errors import MixwellError
from mixwell.utils.records import parse_json

PAGE = "report.html"
MOST = 8  # folders that are looked into


def comparisons_beside(folder: Path, data: str, place: Path | None = None) -> list[tuple[str, str]]:
    """Comparisons of the same data beside the folder of a run: name and address of each page.

    Args:
        folder: of the run.
        data: where its data came from.
        place: the folder that the page with the links is written to; None for `folder`.
    """
    linked = []
    for other in _beside(folder, "cells"):
        records = Records(other)
        try:
            names = records.names()
            same = bool(names) and _same(records.read_spec(names[0]).source.data, data)
        except (MixwellError, OSError, ValueError, KeyError):
            continue  # damaged, or of another version
        if same and (other / PAGE).exists():
            linked.append((other.name, _address(other, place or folder)))
    return linked


def runs_beside(summary: Summary, place: Path | None = None) -> list[tuple[str, str]]:
    """Runs of `mixwell train` on the same data beside the folder of a comparison: name and address of each page.

    Args:
        summary: of the comparison.
        place: the folder that the page with the links is written to; None for that of the records.
    """
    records = [record for group in summary.groups for record in group.records]
    if not records:
        return []
    folder, sources = records[0].path.parent.parent, {record.spec.source.data for record in records}
    linked = []
    for other in _beside(folder, "run.json"):
        try:
            record: Any = parse_json((other / "run.json").read_text(encoding="utf-8"))
            same = any(_same(source, str(record["data"]["source"])) for source in sources)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if same and (other / PAGE).exists():
            linked.append((other.name, _address(other, place or folder)))
    return linked


def _beside(folder: Path, name: str) -> Iterator[Path]:
    """The newest folders beside one that hold an entry of that name."""
    try:
        others = [other for other in folder.resolve().parent.iterdir() if other.name != folder.resolve().name]
        marked = [other for other in others if (other / name).exists()]
        yield from sorted(marked, key=lambda other: (-(other / name).stat().st_mtime, other.name))[:MOST]
    except OSError:
        return


def _same(one: str, other: str) -> bool:
    """Whether two names of data mean the same file or folder."""
    return one == other or Path(one).expanduser().resolve() == Path(other).expanduser().resolve()


def _address(other: Path, place: Path) -> str:
    """The address of a folder's page, from the folder `place`."""
    return Path(os.path.relpath(other / PAGE, place.resolve())).as_posix()
