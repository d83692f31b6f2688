"""What is committed under docs/results: tables that their records give again, and neither texts nor paths."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mixwell.papers import output, pictures

RESULTS = Path(__file__).parents[2] / "docs" / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/run.json"))


def test_there_are_some() -> None:
    assert FOLDERS


def same(one: Any, two: Any) -> bool:
    """Whether two JSON values are equal, numbers within the rounding of seven digits."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(value, two[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float) and isinstance(two, float):
        return math.isclose(one, two, rel_tol=2e-6, abs_tol=1e-12)
    return bool(one == two)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_tables_regenerate_from_the_records(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    made = [name for name in ("table.md", "table.json", "figure.svg", *pictures.NAMES) if (folder / name).is_file()]
    for name in made:
        (copy / name).unlink()
    output.write(copy)
    assert "table.md" in made
    for name in made:
        now, then = (copy / name).read_text(), (folder / name).read_text()
        if name == "table.json":  # seven digits, the last of which another processor may round otherwise
            assert same(json.loads(now), json.loads(then)), f"{name}: run `mixwell paper table {folder}`"
        else:
            assert now == then, f"{name}: run `mixwell paper table {folder}`"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_nothing_private(folder: Path) -> None:
    for file in folder.iterdir():
        if file.suffix in (".md", ".json", ".jsonl", ".html"):
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.<])/(?:home|root|tmp|work|Users|data)/", text), file
    if (folder / "cells.jsonl").is_file():
        for line in (folder / "cells.jsonl").read_text().splitlines():
            assert set(json.loads(line)) == {"key", "identity", "result", "outputs"}


# --- docs/results.md -------------------------------------------------------------------------------------------------

PAGE = RESULTS.parent / "results.md"
MARK = re.compile(r"<!-- (table|audit|last|plane) ([\w-]+) ([\w,-]+) ([\w%]+) -->\n((?:\|.*\n)*)")
WORDS = {
    "No mixup": "plain training", "Base": "plain training", "Ours": "AMPLIFY, as published",
    "1, folded": "1, folded (ours)", "1, consistent": "1, `consistent=True` (ours)",
    "AMPLIFY, consistent": "AMPLIFY, `consistent=True`", "AMPLIFY, padding kept": 'AMPLIFY, `padding="keep"`',
}  # fmt: skip


def number(value: float, digits: int, sign: str = "") -> str:
    return f"{value:{sign}.{digits}f}"


def difference(found: dict[str, float] | None, digits: int = 1) -> str:
    if found is None:
        return ""
    return (
        f"{number(found['mean'], digits, '+')} [{number(found['lo'], digits, '+')}, {number(found['hi'], digits, '+')}]"
    )


def table(made: dict[str, Any], dataset: str, size: str) -> str:
    """A data set of a table as results.md has it: plain training, then the others by their mean."""
    columns: dict[str, dict[str, Any]] = {}
    for cell in made["cells"]:
        if (cell["dataset"], cell["size"]) == (dataset, size) and "derived" not in cell:
            columns.setdefault(cell["row"], {})[cell["metric"]] = cell
    main = next(iter(next(iter(columns.values()))))
    rows = sorted(columns, key=lambda row: (row != made["plain"], -columns[row][main]["mean"]))
    lines = [
        f"| method | {main} % | difference | verdict | NLL | after T | ECE % | after T |",
        "|---|---:|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = columns[row]
        first = cells[main]
        marks = {key: {"better": " +", "worse": " -"}.get((cells[key]["difference"] or {}).get("verdict"), "")
                 for key in cells}  # fmt: skip
        parts = [
            WORDS.get(row, row),
            f"{number(first['mean'], 1)} ± {number(first['sd'], 1)}",
            difference(first["difference"]),
            (first["difference"] or {}).get("verdict", ""),
            *(number(cells[key]["mean"] / 100, 3) + marks[key] for key in ("nll", "nll_after")),
            *(number(cells[key]["mean"], 1) + marks[key] for key in ("ece", "ece_after")),
        ]
        lines.append("| " + " | ".join(parts).replace("|  |", "| |").replace("|  |", "| |") + " |")
    return "\n".join(lines) + "\n"


def audit(made: dict[str, Any], datasets: list[str], size: str) -> str:
    """The costs of the label mistake as results.md has them."""
    lines = ["| data | baseline | accuracy, points | NLL | ECE, points |", "|---|---|---|---|---|"]
    costs = {(each["dataset"], each["row"], each["metric"]): each for each in made["audit"] if each["size"] == size}
    rows = list(dict.fromkeys(row for _, row, _ in costs))
    for dataset in datasets:
        key = f"mean of {len(datasets) - 1}" if dataset == "mean" else dataset
        for row in rows:
            parts = []
            for metric, digits in (("accuracy", 1), ("nll", 3), ("ece", 1)):
                entry = costs[key, row, metric]
                cost = {name: entry["cost"][name] / (100 if metric == "nll" else 1) for name in ("mean", "lo", "hi")}
                shown = {"costs": " (shown)", "helps": " (shown)"}.get(entry["verdict"], "")
                parts.append(difference(cost, digits) + shown)
            lines.append(f"| {dataset} | {row} | " + " | ".join(parts) + " |")
    return "\n".join(lines) + "\n"


def last(made: dict[str, Any], places: list[str], size: str) -> str:
    """Validation losses of the last epoch, with differences to plain training."""
    lines = ["| method | " + " | ".join(f"{place} | difference" for place in places) + " |"]
    lines.append("|---|" + "---:|---|" * len(places))
    columns: dict[str, dict[str, Any]] = {}
    for cell in made["cells"]:
        if (cell["metric"], cell["size"]) == ("nll_last", size):
            columns.setdefault(cell["row"], {})[cell["dataset"]] = cell
    for row in sorted(columns, key=lambda row: -columns[row][places[0]]["mean"]):
        parts = [WORDS.get(row, row)]
        for place in places:
            cell = columns[row][place]
            gap = cell["difference"] and {key: cell["difference"][key] / 100 for key in ("mean", "lo", "hi")}
            shown = " (shown)" if (cell["difference"] or {}).get("verdict") in ("better", "worse") else ""
            parts += [f"{cell['mean'] / 100:.2f} ± {cell['sd'] / 100:.2f}", difference(gap, 2) + shown]
        lines.append("| " + " | ".join(parts).replace("|  |", "| |") + " |")
    return "\n".join(lines).replace("|  |", "| |") + "\n"


PLANE = (
    "plain training",
    "as in the equations: a weight for every feature, negative dot product",
    "a weight for every feature, cross-entropy (the default of `batchmixup`)",
    "a weight a row, cross-entropy, ten points",
    "a weight a row, cross-entropy, 400 points (the authors' code)",
)


def plane(made: dict[str, Any]) -> str:
    """BatchMixup's picture in numbers."""
    lines = ["| form | accuracy % | difference |", "|---|---:|---|"]
    accuracy = {row: 100 * np.array(values) for row, values in made["numbers"]["accuracy"].items()}
    base = next(iter(accuracy.values()))
    for words, values in zip(PLANE, accuracy.values(), strict=True):
        gap = values - base
        half = stats.t.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / np.sqrt(len(gap))
        found = {"mean": gap.mean(), "lo": gap.mean() - half, "hi": gap.mean() + half}
        shown = "| |" if values is base else f"| {difference(found)} |"
        lines.append(f"| {words} | {values.mean():.1f} ± {values.std(ddof=1):.1f} {shown}")
    return "\n".join(lines) + "\n"


KINDS = {"audit": audit, "last": last}


def test_the_page_has_the_numbers_of_the_tables() -> None:
    """Every table of results.md behind a mark is what its pack gives."""
    found = MARK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(found) >= 3
    for kind, name, what, size, text in found:
        if kind == "plane":
            wanted = plane(json.loads((RESULTS / name / "figure.json").read_text()))
        else:
            made = json.loads((RESULTS / name / "table.json").read_text())
            wanted = table(made, what, size) if kind == "table" else KINDS[kind](made, what.split(","), size)
        assert text == wanted, f"<!-- {kind} {name} {what} {size} -->: should be\n{wanted}"
