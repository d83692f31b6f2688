"""What is committed under docs/results: tables that their records give again, and neither texts nor paths."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from mixwell.papers import output

RESULTS = Path(__file__).parent.parent / "docs" / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/run.json"))


def test_there_are_some() -> None:
    assert FOLDERS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_tables_regenerate_from_the_records(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    made = [name for name in ("table.md", "table.json", "figure.svg", "differences.svg") if (folder / name).is_file()]
    for name in made:
        (copy / name).unlink()
    output.write(copy)
    assert "table.md" in made
    for name in made:
        assert (copy / name).read_text() == (folder / name).read_text(), f"{name}: run `mixwell paper table {folder}`"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_nothing_private(folder: Path) -> None:
    for file in folder.iterdir():
        if file.suffix in (".md", ".json", ".jsonl", ".html"):
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.<])/(?:home|root|tmp|work|Users|data)/", text), file
    if (folder / "cells.jsonl").is_file():
        for line in (folder / "cells.jsonl").read_text().splitlines():
            assert set(json.loads(line)) == {"key", "identity", "result", "outputs"}
