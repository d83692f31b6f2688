"""Draw the pictures of the README and the docs, each for light and for dark pages: `python tools/pictures.py`.

All numbers come from the repository: the options of the methods, docs/benchmarks.md, docs/reference/architectures.md,
benchmarks/records and the packs under docs/results. A test draws them again and compares them with what is committed,
to the byte.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
THEMES = {
    "light": {
        "ink": "#1d2433", "muted": "#5b6577", "rule": "#cdd3dd", "panel": "#f2f4f8", "one": "#4f46c9", "two": "#c2410c",
        "three": "#0f766e", "on": "#ffffff", "tint": "#e6e4fb",
    },
    "dark": {
        "ink": "#e7eaf1", "muted": "#a3adbf", "rule": "#434c5e", "panel": "#232a38", "one": "#a79fff", "two": "#ff9d5c",
        "three": "#4fd1c0", "on": "#12151d", "tint": "#332f5c",
    },
}  # fmt: skip
Theme = dict[str, str]

# Where the methods mix, from left to right: a place of the drawing, how it is named, and the methods.
PLACES: dict[str, tuple[str, ...]] = {
    "ids": ("ssmix", "eda"),
    "embeddings": ("embedmix", "input", "attentionmix", "manifold", "regmixup", "nfm", "mit", "remix"),
    "attention": ("amplify",),
    "block": ("tmix", "manifold", "nfm"),
    "sentence": ("sentencemix", "cls", "nonlinear", "batchmixup", "manifold", "cmixup"),
}


class Drawing:
    """An SVG in the colours of one theme."""

    def __init__(self, width: int, height: int, title: str, theme: Theme) -> None:
        self.width, self.height, self.title, self.theme = width, height, title, theme
        self.parts: list[str] = []

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1.5, dash: str = "") -> None:
        """A line through some points."""
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{self.theme[colour]}" stroke-width="{width:g}"{dashed}/>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, edge: str = "", radius: float = 5,
        dash: str = "",
    ) -> None:  # fmt: skip
        """A box, filled and perhaps framed."""
        frame = f' stroke="{self.theme[edge]}" stroke-width="1.3"' if edge else ""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        inside = self.theme.get(fill, fill)
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0):.1f}" rx="{radius:g}" '
            f'fill="{inside}"{frame}{dashed}/>'
        )

    def dot(self, x: float, y: float, radius: float, fill: str, edge: str = "") -> None:
        """A filled circle."""
        frame = f' stroke="{self.theme[edge]}" stroke-width="1.5"' if edge else ""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{self.theme[fill]}"{frame}/>')

    def text(
        self, x: float, y: float, words: str, colour: str = "ink", size: float = 13, anchor: str = "middle",
        weight: int = 400, turn: float = 0,
    ) -> None:  # fmt: skip
        """Words at a place."""
        turned = f' transform="rotate({turn:g} {x:.1f} {y:.1f})"' if turn else ""
        bold = f' font-weight="{weight}"' if weight != 400 else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" '
            f'fill="{self.theme[colour]}"{bold}{turned}>{escape(words)}</text>'
        )

    def svg(self) -> str:
        """The whole file."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="{FONT}" role="img"><title>{escape(self.title)}</title>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


# --- where each method mixes -----------------------------------------------------------------------------------------


def mixing(theme: Theme, only: str = "") -> str:
    """Two rows on their way through a model, and where methods mix them.

    Args:
        theme: the colours.
        only: one method; empty for all.
    """
    alone = only == "eda"  # which has no partner, and no place among those that mix
    active = {
        place: [name for name in names if only == name or (not only and name != "eda")]
        for place, names in PLACES.items()
    }
    tall = max(len(names) for names in active.values())
    top = 44 + 25 * tall
    what = f"Where {only} {'changes a text' if alone else 'mixes'}" if only else "Where each method mixes"
    low = top + (88 if alone else 178)
    draw = Drawing(940, low + 10, f"{what} in a Transformer: a row, its partner, and the points between them", theme)
    rows = (top + 30, top + 118)
    for y, name, colour in ((rows[0], "a row", "one"), (rows[1], "its partner", "two"))[: 1 if alone else 2]:
        draw.line([(22, y), (905, y)], colour, 2)
        draw.text(14, y - 26 if y == rows[0] else y + 34, name, colour, 13, "start", 600)
        _parts(draw, y, named=alone or y == rows[1])
    labels = {
        "eda": "nothing is mixed, and labels stay",
        "mit": "logits are taken apart again, and each row keeps its label",
        "remix": "labels are mixed by the same weight, or go to the much rarer class",
    }
    draw.text(905, low, labels.get(only, "labels are mixed by the same weight"), "muted", 12.5, "end")
    spots = {"ids": (86,), "embeddings": (204,), "attention": (320, 558), "block": (434, 672), "sentence": (800,)}
    for place, names in active.items():
        for x in spots[place] if names else ():
            drawn = place == "block" or only in ("manifold", "nfm")  # one of them, drawn each step
            if not alone:
                draw.line([(x, rows[0]), (x, rows[1])], "ink", 1.6, "4 4" if drawn else "")
                draw.dot(x, rows[1], 4.5, "two")
            draw.dot(x, rows[0], 8, "on", "ink")
            draw.text(x, rows[0] + 4.5, "~" if alone else "+", "ink", 14, weight=700)
        if names:
            _chips(draw, spots[place], names, rows[0] - (34 if place == "block" else 24))
    return draw.svg()


def _parts(draw: Drawing, y: float, *, named: bool) -> None:
    """The model's parts on the line of one row."""
    parts = ((32, 40, "ids"), (106, 84, "embeddings"), (688, 98, "sentence vector"), (826, 70, "classifier"))
    for x, width, words in parts:
        draw.box(x, y - 15, width, 30, "panel", "rule")
        draw.text(x + width / 2, y + 4.5, words, "ink", 11.5)
    for x, name in ((222, "block 1"), (460, "block L")):
        draw.box(x, y - 25, 200, 50, "none", "rule", 8, "3 3")
        for left, width, words in ((x + 8, 72, "attention"), (x + 112, 82, "feed-forward")):
            draw.box(left, y - 15, width, 30, "panel", "rule")
            draw.text(left + width / 2, y + 4.5, words, "ink", 11.5)
        if named:
            draw.text(x + 100, y + 41, name, "muted", 11.5)
    draw.text(452, y - 5, "...", "muted", 15)


def _chips(draw: Drawing, spots: Sequence[int], names: Sequence[str], bottom: float) -> None:
    """The names of methods above their points."""
    middle = 372.0 if "amplify" in names else sum(spots) / len(spots)
    high = bottom - 25 * len(names)
    if len(spots) > 1:
        low, level = bottom + (16 if len(names) > 1 or names[0] == "tmix" else 6), bottom - 4
        draw.line([(spots[0], low), (spots[0], level), (spots[1], level), (spots[1], low)], "muted")
    for at, name in enumerate(names):
        width = 7.8 * len(name) + 20
        y = high + 25 * at - 6
        draw.box(middle - width / 2, y, width, 21, "tint", "", 10)
        draw.text(middle, y + 15, name, "one", 13, weight=600)
    if len(spots) == 1:
        draw.line([(middle, bottom - 6), (middle, bottom + 14)], "muted")


# --- what a step costs -----------------------------------------------------------------------------------------------


def costs() -> dict[str, tuple[float, float, float]]:
    """CPU time of a step against plain training, with its interval, by method, from docs/benchmarks.md."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    section = text.partition("## What a mixed step costs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w ]+) \| [\d x]+ \| ([\d.]+) \| ([\d.]+)-([\d.]+) \|", section, re.MULTILINE)
    return {name: (float(ratio), float(low), float(high)) for name, ratio, low, high in rows}


def step_cost(theme: Theme) -> str:
    """Bars: the CPU time of a step by method."""
    rows = sorted(costs().items(), key=lambda row: row[1][0])
    draw = Drawing(760, 66 + 26 * len(rows), "CPU time of a training step by method, plain training = 1", theme)

    def place(value: float) -> float:
        return 150 + (value - 0.8) / (most - 0.8) * 550

    most = max(high for _, (_, _, high) in rows)
    bottom = 22 + 26 * len(rows)
    for value in np.arange(0.8, most, 0.2).round(1):
        draw.line([(place(value), 14), (place(value), bottom)], "ink" if value == 1.0 else "rule", 1)
        draw.text(place(value), bottom + 18, f"{value:.1f}", "muted", 12)
    for at, (name, (ratio, low, high)) in enumerate(rows):
        y = 22 + 26 * at
        draw.text(140, y + 13, name, "ink", 13, "end")
        start, end = sorted((place(1.0), place(ratio)))
        draw.box(start, y + 1, max(end - start, 1), 16, "one", "", 2)
        draw.line([(place(low), y + 9), (place(high), y + 9)], "muted", 2)
        draw.text(place(high) + 8, y + 13, f"{ratio:.2f}", "muted", 12, "start")
    draw.text(430, bottom + 38, "CPU time of a step / that of plain training, with 95 % intervals", "muted", 12.5)
    return draw.svg()


# --- how strongly methods mix ----------------------------------------------------------------------------------------


def lam_rules() -> dict[tuple[str, float, int], list[str]]:
    """The rules by which methods draw lam, with the methods that have each as their default."""
    from mixwell.core.method import DrawsLam
    from mixwell.methods.registry import load_all

    rules: dict[tuple[str, float, int], list[str]] = {}
    for name, kind in load_all().items():
        if issubclass(kind, DrawsLam) and kind.draw_lam is DrawsLam.draw_lam:  # mit draws until lam is far from 1/2
            method = kind()
            count = method.samples if method.draw == "max_of" else 1
            rules.setdefault((method.draw, float(method.alpha), count), []).append(name)
    return rules


def lam_below(rule: tuple[str, float, int], value: np.ndarray) -> np.ndarray:
    """The probability that lam is at most a value."""
    draw, alpha, count = rule
    below = beta.cdf(value, alpha, alpha)
    if draw == "max_of":
        return below**count
    if draw == "folded":
        return np.where(value < 0.5, 0.0, below - beta.cdf(1 - value, alpha, alpha))
    return below


def lam(theme: Theme) -> str:
    """How often lam falls into each twentieth, for every rule."""
    rules = lam_rules()
    draw = Drawing(900, 285 * -(-len(rules) // 3), "How often each share lam is drawn, by method", theme)
    edges = np.linspace(0, 1, 21)
    for at, (rule, names) in enumerate(sorted(rules.items(), key=lambda row: row[0][0] != "max_of")):
        top = 285 * (at // 3)
        left, width, bottom, high = 50 + 290 * (at % 3), 240, top + 225, 150
        shares = np.diff(lam_below(rule, edges))
        words = {"max_of": f"largest of {rule[2]} draws", "folded": "max(l, 1 - l)", "beta": "as drawn"}[rule[0]]
        draw.text(left + width / 2, top + 20, ", ".join(names), "one", 14, weight=600)
        draw.text(left + width / 2, top + 40, f"Beta({rule[1]:g}, {rule[1]:g}), {words}", "muted", 12.5)
        for share in (0.25, 0.5, 0.75):
            y = bottom - share * high
            draw.line([(left, y), (left + width, y)], "rule", 1)
            draw.text(left - 6, y + 4, f"{100 * share:.0f} %", "muted", 11, "end")
        for start, share in zip(edges[:-1], shares):
            draw.box(left + start * width + 1, bottom - share * high, width / 20 - 2, share * high, "one", "", 1)
        draw.line([(left, bottom), (left + width, bottom)], "ink", 1.2)
        for value in (0, 0.5, 1):
            draw.text(left + value * width, bottom + 17, f"{value:g}", "muted", 12)
        draw.text(left + width / 2, bottom + 36, "lam, the share of itself that a row keeps", "muted", 12)
    return draw.svg()


def compounding(theme: Theme) -> str:
    """What is left of a row after L blocks, for lam = 0.9: features against its label."""
    draw = Drawing(760, 330, "The share of a row that is left after L mixed blocks, lam = 0.9", theme)
    left, bottom, width, high, most, share = 60, 270, 480, 235, 12, 0.9

    def place(blocks: float, value: float) -> tuple[float, float]:
        return left + blocks / most * width, bottom - value * high

    for value in (0, 0.25, 0.5, 0.75, 1):
        draw.line([place(0, value), place(most, value)], "ink" if value == 0 else "rule", 1)
        draw.text(left - 8, place(0, value)[1] + 4, f"{value:g}", "muted", 12, "end")
    for blocks in range(0, most + 1, 2):
        draw.text(place(blocks, 0)[0], bottom + 18, str(blocks), "muted", 12)
    draw.text(left + width / 2, bottom + 40, "blocks in which the row is mixed, at lam = 0.9", "muted", 12.5)
    curves: tuple[tuple[str, str, str, Callable[[int], float]], ...] = (
        ("the label; features if consistent=True", "three", "", lambda blocks: share),
        ("features, partners are mutual", "one", "8 4", lambda blocks: (1 + (2 * share - 1) ** blocks) / 2),
        ("features, partners in long cycles", "two", "2 3", lambda blocks: share**blocks),
    )
    for name, colour, dash, value in curves:
        draw.line([place(blocks, value(blocks) if blocks else 1.0) for blocks in range(most + 1)], colour, 2.4, dash)
        x, y = place(most, value(most))
        draw.text(x + 8, y - 2, f"{value(most):.2f}", colour, 13, "start", 600)
        draw.text(x + 8, y + 14, name.partition(";")[0].partition(",")[0], colour, 12, "start")
        rest = name.partition(";")[2] or name.partition(",")[2]
        draw.text(x + 8, y + 29, rest.strip(), colour, 12, "start")
    return draw.svg()


# --- measured -------------------------------------------------------------------------------------------------------


def reliability(theme: Theme) -> str:
    """How often models are right when they are so sure: plain and mixed, SST-2 with 150 rows, no temperature."""
    draw = Drawing(640, 400, "Accuracy against confidence on SST-2, plain and mixed", theme)
    left, bottom, size = 60, 340, 310

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (x - 0.5) / 0.5 * size, bottom - (y - 0.4) / 0.6 * size

    for value in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        draw.line([place(0.5, value), place(1, value)], "rule", 1)
        draw.text(left - 8, place(0.5, value)[1] + 4, f"{100 * value:.0f} %", "muted", 12, "end")
    for value in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        draw.text(place(value, 0.4)[0], bottom + 18, f"{100 * value:.0f} %", "muted", 12)
    draw.line([place(0.5, 0.5), place(1, 1)], "muted", 1.2, "3 4")
    draw.text(left + size / 2, bottom + 42, "how sure the model is", "muted", 12.5)
    draw.text(18, bottom - size / 2, "how often it is right", "muted", 12.5, turn=-90)
    rows = (
        ("No mixup", "plain training", "two", ""),
        ("EmbedMix", "EmbedMix", "one", "8 4"),
        ("Ours", "AMPLIFY", "three", "2 3"),
    )
    for at, (row, name, colour, dash) in enumerate(rows):
        points, error, count = reliability_points("amplify-table2-small", "sst2", row)
        draw.line([place(x, y) for x, y in points], colour, 2.2, dash)
        for x, y in points:
            draw.dot(*place(x, y), 3.2, colour)
        y = 60 + 62 * at
        draw.line([(400, y), (432, y)], colour, 2.6, dash)
        draw.text(442, y + 4, name, colour, 14, "start", 600)
        draw.text(442, y + 22, f"mean gap (ECE) {100 * error:.1f} %", "muted", 12.5, "start")
        draw.text(442, y + 38, f"{count:,} answers of ten models", "muted", 12, "start")
    draw.text(400, 262, "On the dashed line a model is", "muted", 12, "start")
    draw.text(400, 278, "right as often as it says;", "muted", 12, "start")
    draw.text(400, 294, "below it, it is too sure.", "muted", 12, "start")
    return draw.svg()


def reliability_points(
    pack: str, dataset: str, row: str, bins: int = 10
) -> tuple[list[tuple[float, float]], float, int]:
    """Mean confidence and accuracy in each bin over the test rows of all seeds, the mean gap of the seeds, the answers.

    Args:
        pack: the folder under docs/results.
        dataset: of the pack.
        row: of its table.
        bins: of equal width between 1/2 and 1.
    """
    from safetensors.numpy import load_file

    folder = ROOT / "docs" / "results" / pack
    arrays = load_file(str(folder / "outputs.safetensors"))
    records = [json.loads(line) for line in (folder / "cells.jsonl").read_text(encoding="utf-8").splitlines()]
    cells = json.loads((folder / "run.json").read_text(encoding="utf-8"))["cells"]
    keys = {cell["key"] for cell in cells if (cell["dataset"], cell["row"]) == (dataset, row)}
    chosen = [record for record in records if record["key"] in keys]
    sure, right = [], []
    for record in chosen:
        sure.append(np.exp(arrays[f"{record['key']}/log_p"][1].astype(float)))
        right.append(arrays[f"{record['key']}/predicted"] == arrays[f"labels/{record['outputs']['labels']}"])
    confidence, correct = np.concatenate(sure), np.concatenate(right)
    place = np.clip(((confidence - 0.5) / 0.5 * bins).astype(int), 0, bins - 1)
    points = [
        (float(confidence[place == at].mean()), float(correct[place == at].mean()))
        for at in range(bins)
        if (place == at).sum() >= 20
    ]
    error = float(np.mean([record["result"]["test"]["before"]["ece"] for record in chosen]))
    return points, error, len(confidence)


def rival_curves() -> dict[str, dict[str, dict[float, dict[str, float]]]]:
    """Means over the seeds that all have, from benchmarks/records/rivals.jsonl: data set, rival, training rows, metric.

    Only data sets with two sizes or more that all rivals were trained on.
    """
    sys.path.append(str(ROOT / "benchmarks"))
    from rivals import recorded

    found, whole = recorded(ROOT / "benchmarks" / "records" / "rivals.jsonl")
    curves: dict[str, dict[str, dict[float, dict[str, float]]]] = {}
    for (size, data), by in sorted(found.items()):
        for rival in RIVALS if whole[size, data] else ():
            results = [by[rival][seed] for seed in sorted(whole[size, data])]
            means = {name: float(np.mean([result[name] for result in results])) for name in ("rows", "accuracy", "nll")}
            curves.setdefault(data, {}).setdefault(rival, {})[means["rows"]] = means
    return {data: by for data, by in curves.items() if len(by["mixwell"]) > 1}


RIVALS = {
    "mixwell": ("mixwell train", "one", ""),
    "setfit": ("SetFit", "three", "8 4"),
    "trainer": ("Trainer script, stock head", "two", "2 3"),
    "probe": ("logistic regression on the frozen encoder", "muted", "10 3 2 3"),
}
TITLES = {"trec": "TREC", "trec_fine": "TREC-fine", "sst2": "SST-2", "sst5": "SST-5", "banking77": "BANKING77",
          "ag_news": "AG News", "cola": "CoLA", "mrpc": "MRPC"}  # fmt: skip


def training_rows(theme: Theme) -> str:
    """Accuracy and NLL against training rows, for `mixwell train` and what people use instead."""
    curves = rival_curves()
    names = [name for name in TITLES if name in curves]
    wide, high, gap = 104, 120, 40
    width = max(860, 70 + (wide + gap) * len(names))  # the legend needs that much
    draw = Drawing(width, 2 * high + 190, "Accuracy and NLL against training rows", theme)
    for column, data in enumerate(names):
        rows = sorted(curves[data]["mixwell"])
        left = 62 + (wide + gap) * column
        draw.text(left + wide / 2, 20, TITLES[data], "ink", 14, weight=600)
        for metric, top in (("accuracy", 40), ("nll", 40 + high + 34)):
            scale = 100 if metric == "accuracy" else 1
            values = [scale * point[metric] for by in curves[data].values() for point in by.values()]
            low, most = min(values), max(values)
            room = 0.08 * (most - low)

            def place(
                x: float, y: float, rows: list[float] = rows, left: float = left, top: float = top,
                low: float = low - room, most: float = most + room,
            ) -> tuple[float, float]:  # fmt: skip
                span = np.log(rows[-1] / rows[0])
                return left + 8 + np.log(x / rows[0]) / span * (wide - 16), top + (most - y) / (most - low) * high

            draw.box(left, top, wide, high, "none", "rule", 3)
            for value in (low, most):
                shown = f"{value:.0f} %" if metric == "accuracy" else f"{value:.2f}"
                draw.text(left - 5, place(rows[0], value)[1] + 4, shown, "muted", 11, "end")
            for rival, (_, colour, dash) in reversed(RIVALS.items()):
                by = curves[data][rival]
                points = [place(x, scale * by[x][metric]) for x in sorted(by)]
                draw.line(points, colour, 2.4 if rival == "mixwell" else 1.8, dash)
                for x, y in points:
                    draw.dot(x, y, 3.4 if rival == "mixwell" else 2.6, colour)
            for x in rows if metric == "nll" else ():
                draw.text(place(x, low)[0], top + high + 16, f"{x:.0f}", "muted", 11)
    draw.text(16, 40 + high / 2, "accuracy", "muted", 12.5, turn=-90)
    draw.text(16, 74 + 1.5 * high, "NLL (less is better)", "muted", 12.5, turn=-90)
    bottom = 74 + 2 * high
    draw.text(62, bottom + 40, "training rows, means over seeds; the encoder is MiniLM for all", "muted", 12.5, "start")
    x = 62.0
    for name, colour, dash in RIVALS.values():
        draw.line([(x, bottom + 66), (x + 30, bottom + 66)], colour, 2.6, dash)
        draw.text(x + 37, bottom + 70, name, colour, 12.5, "start")
        x += 62 + 6.4 * len(name)
    return draw.svg()


# --- probes on mixed features ----------------------------------------------------------------------------------------


def profiles(method: str) -> dict[str, list[tuple[dict[str, Any], float, float]]]:
    """By data set: the places of a method, each with the mean and the standard error of its difference from plain."""
    sys.path.append(str(ROOT / "benchmarks"))
    from profiles import means

    found = means(ROOT / "benchmarks" / "records" / "profiles.jsonl")
    return {data: list(places.values()) for (name, data), places in found.items() if name == method}


def between(theme: Theme, one: str, other: str, share: float) -> str:
    """A colour on the way from one to another."""
    parts = [(int(theme[one][at : at + 2], 16), int(theme[other][at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)


def profile_heads(theme: Theme) -> str:
    """A map for each data set: the probe loss of AttentionMix by layer and head, against plain features."""
    found = profiles("attentionmix")
    blocks = 1 + max(options["block"] for places in found.values() for options, _, _ in places)
    heads = 1 + max(options["head"] or 0 for places in found.values() for options, _, _ in places)
    most = max(abs(mean) for places in found.values() for _, mean, _ in places)
    cell, left = 25, 74
    wide = left + cell * (heads + 1) + 30
    draw = Drawing(
        wide * len(found), 92 + cell * blocks + 74, "Held-out loss of probes on AttentionMix's features", theme
    )
    for column, (data, places) in enumerate(found.items()):
        x0 = wide * column + left
        draw.text(x0 + cell * (heads + 1) / 2, 20, TITLES[data], "ink", 14, weight=600)
        draw.text(x0 + cell * heads / 2, 44, "head", "muted", 12)
        for head in range(heads):
            draw.text(x0 + cell * (head + 0.5), 62, str(head), "muted", 11)
        draw.text(x0 + cell * (heads + 0.5) + 4, 62, "all", "muted", 11)
        best = min(places, key=lambda place: place[1])[0]
        for options, mean, _ in places:
            block, head = options["block"], options["head"]
            x = x0 + (cell * heads + 4 if head is None else cell * head)
            shade = between(theme, "panel", "one" if mean < 0 else "two", abs(mean) / most)
            draw.box(x + 1, 70 + cell * block, cell - 2, cell - 2, shade, "ink" if options == best else "", 3)
        for block in range(blocks):
            draw.text(x0 - 8, 70 + cell * (block + 0.65), f"block {block}", "muted", 11, "end")
    bottom = 70 + cell * blocks + 24
    steps = 60
    for at in range(steps):
        value = 2 * at / (steps - 1) - 1
        shade = between(theme, "panel", "one" if value < 0 else "two", abs(value))
        draw.box(left + 3 * at, bottom, 3.4, 12, shade, "", 0)
    for value, x in ((-most, left), (0.0, left + 1.5 * steps), (most, left + 3 * steps)):
        draw.text(x, bottom + 28, f"{value:+.3f}" if value else "0", "muted", 11)
    words = "loss of a probe on mixed features less that on plain ones, held-out rows; framed: the lowest"
    draw.text(left + 3 * steps + 24, bottom + 11, words, "muted", 12, "start")
    return draw.svg()


def profile_blocks(theme: Theme) -> str:
    """Dots for each data set: the probe loss of AMPLIFY in one block, and in the best blocks together."""
    found, other = profiles("amplify"), profiles("amplify, consistent")
    rows = max(len(places) for places in found.values())
    wide = 410
    draw = Drawing(wide * len(found), 124 + 24 * rows, "Held-out loss of probes on AMPLIFY's features", theme)
    several = [places for by in (found, other) for places in by.values()]
    ends = [mean + sign * error for places in several for _, mean, error in places for sign in (-1, 1)]
    low, most = min(*ends, 0.0), max(*ends, 0.0)
    for column, (data, places) in enumerate(found.items()):
        x0 = wide * column + 140

        def place(value: float, x0: float = x0) -> float:
            return x0 + (value - low) / (most - low) * (wide - 175)

        draw.text(x0 + (wide - 175) / 2, 20, TITLES[data], "ink", 14, weight=600)
        draw.line([(place(0), 36), (place(0), 44 + 24 * rows)], "ink", 1)
        best = min(places, key=lambda each: each[1])[0]
        beside = {tuple(options["layers"]): (mean, error) for options, mean, error in other.get(data, [])}
        for at, (options, mean, error) in enumerate(places):
            y = 54 + 24 * at
            name = "blocks " if len(options["layers"]) > 1 else "block "
            draw.text(x0 - 10, y + 4, name + " ".join(map(str, options["layers"])), "ink", 12, "end")
            if (layers := tuple(options["layers"])) in beside and len(layers) > 1:
                middle, spread = beside[layers]
                draw.line([(place(middle - spread), y + 6), (place(middle + spread), y + 6)], "three", 2)
                draw.dot(place(middle), y + 6, 3.4, "three")
            draw.line([(place(mean - error), y), (place(mean + error), y)], "one", 2)
            draw.dot(place(mean), y, 4.5 if options == best else 3.4, "one", "ink" if options == best else "")
        for value in (0.0, most):
            draw.text(place(value), 62 + 24 * rows, f"{value:+.2f}" if value else "0", "muted", 11)
    bottom = 88 + 24 * rows
    words = (
        "loss of a probe on mixed features less that on plain ones, held-out rows, with standard errors; framed: lowest"
    )
    draw.text(140, bottom, words, "muted", 12, "start")
    for x, colour, name in ((140, "one", "AMPLIFY"), (230, "three", "consistent=True, several blocks")):
        draw.dot(x + 4, bottom + 18, 3.4, colour)
        draw.text(x + 14, bottom + 22, name, colour, 12.5, "start")
    return draw.svg()


def fits() -> tuple[list[str], dict[str, list[str]]]:
    """Which method fits which architecture, from docs/reference/architectures.md: the methods, and a row for each."""
    text = (ROOT / "docs" / "reference" / "architectures.md").read_text(encoding="utf-8")
    head = next(line for line in text.splitlines() if line.startswith("| architecture |"))
    rows = {}
    for line in text.partition(head)[2].splitlines()[2:]:
        if not line.startswith("|"):
            break
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[name] = cells
    return re.findall(r"`(\w+)`", head), rows


def architectures(theme: Theme) -> str:
    """A map: architectures down, methods across, and whether they fit."""
    methods, rows = fits()
    draw = Drawing(170 + 46 * len(methods), 150 + 24 * len(rows), "Which method fits which architecture", theme)
    for at, name in enumerate(methods):
        draw.text(146 + 46 * at, 92, name, "ink", 12.5, "start", turn=-40)
    for at, (name, cells) in enumerate(rows.items()):
        y = 102 + 24 * at
        draw.text(112, y + 15, name, "ink", 13, "end")
        for column, cell in enumerate(cells):
            x = 122 + 46 * column
            draw.box(x, y, 42, 20, {"yes": "one", "opt": "tint", "no": "none"}[cell], "rule" if cell == "no" else "", 3)
            if cell != "yes":
                draw.text(x + 21, y + 14, cell, "one" if cell == "opt" else "muted", 11)
    y = 126 + 24 * len(rows)
    key = ((122, "one", "", "fits"), (200, "tint", "", "with an option"), (348, "none", "rule", "does not"))
    for x, fill, edge, words in key:
        draw.box(x, y - 12, 24, 15, fill, edge, 3)
        draw.text(x + 32, y, words, "muted", 12.5, "start")
    return draw.svg()


def mixup(theme: Theme) -> str:
    """Two rows, their mixture at lam = 0.7, and its label."""
    draw = Drawing(760, 250, "Two rows, their mixture at lam = 0.7, and its label", theme)
    first = [0.9, 0.2, 0.6, 0.4, 0.8, 0.1]
    second = [0.1, 0.8, 0.3, 0.9, 0.2, 0.6]
    share = 0.7
    mixed = [share * a + (1 - share) * b for a, b in zip(first, second)]
    rows = (("a row", first, 1.0, 30), ("its partner", second, 0.0, 100), ("mixed, lam = 0.7", mixed, share, 190))
    for name, values, label, y in rows:
        draw.text(150, y + 24, name, "ink", 13.5, "end", 600 if label == share else 400)
        for at, value in enumerate(values):
            x = 170 + 50 * at
            draw.box(x, y, 46, 36, "panel", "rule", 3)
            draw.box(x, y + 36 * (1 - value), 46, 36 * value, {1.0: "one", 0.0: "two"}.get(label, "three"), "", 3)
        left, width = 520, 200
        draw.box(left, y + 8, width * label, 20, "one", "", 2)
        draw.box(left + width * label, y + 8, width * (1 - label), 20, "two", "", 2)
    draw.text(318, 18, "features", "muted", 12.5)
    draw.text(620, 18, "label", "muted", 12.5)
    draw.line([(170, 162), (720, 162)], "rule", 1)
    draw.text(318, 244, "each feature: 0.7 of its own + 0.3 of the partner's", "muted", 12)
    draw.text(620, 244, "70 % its own class, 30 % the partner's", "muted", 12)
    return draw.svg()


def badge(theme: Theme, label: str, value: str) -> str:
    """A fact in two words, for the top of the README."""
    left, right = 14 + 6.6 * len(label), 14 + 6.6 * len(value)
    draw = Drawing(round(left + right), 22, f"{label}: {value}", theme)
    draw.box(0, 0, left + right, 22, "panel", "", 4)
    draw.box(left, 0, right, 22, "one", "", 4)
    draw.text(left / 2, 15.5, label, "ink", 12)
    draw.text(left + right / 2, 15.5, value, "on", 12, weight=600)
    return draw.svg()


def badges() -> dict[str, tuple[str, str]]:
    """What the badges say, from pyproject.toml and the docs: label and value by name."""
    about = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    least = re.search(r'^requires-python = ">=(.+)"', about, re.MULTILINE)
    survey = " ".join((ROOT / "docs" / "reference" / "architectures.md").read_text(encoding="utf-8").split())
    found = re.search(r"of \d+, (\d+) resolve and fire", survey)
    licence = re.search(r'^license = "(.+)"', about, re.MULTILINE)
    assert found and licence and least
    return {
        "badge-python": ("Python", f"{least[1]} or newer"),
        "badge-licence": ("licence", licence[1]),
        "badge-models": ("mixes", f"{found[1]} architectures"),
    }


def pictures() -> dict[str, Callable[[Theme], str]]:
    """All pictures by name."""
    from mixwell.methods.registry import load_all

    drawn: dict[str, Callable[[Theme], str]] = {
        "mixing": mixing, "mixup": mixup, "step-cost": step_cost, "lam": lam, "compounding": compounding,
        "reliability": reliability, "architectures": architectures, "training-rows": training_rows,
        "profile-heads": profile_heads, "profile-blocks": profile_blocks,
    }  # fmt: skip
    for name, words in badges().items():
        drawn[name] = lambda theme, words=words: badge(theme, *words)  # type: ignore[misc]
    for name in load_all():
        if any(name in names for names in PLACES.values()):
            drawn[f"mixing-{name}"] = lambda theme, name=name: mixing(theme, name)  # type: ignore[misc]
    return drawn


def draw_all() -> dict[str, str]:
    """The files of all pictures and themes, by name."""
    return {
        f"{name}-{theme}.svg": function(colours)
        for name, function in pictures().items()
        for theme, colours in THEMES.items()
    }


def main() -> None:
    """Write what changed."""
    FOLDER.mkdir(exist_ok=True)
    files = draw_all()
    for old in FOLDER.glob("*.svg"):
        if old.name not in files:
            old.unlink()
    for name, text in files.items():
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text(encoding="utf-8") != text:
            (FOLDER / name).write_text(text, encoding="utf-8")
            print(f"docs/pictures/{name}")


if __name__ == "__main__":
    main()
