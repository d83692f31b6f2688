"""The table of an experiment as pictures.

- differences to plain training with intervals, published ones beside them;
- the test loss before and after the temperature.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from mixwell.report.plots import BLUE, GREY, ORANGE, figure

NAMES = {
    "differences.svg": "Differences with intervals",
    "temperature.svg": "Test loss before and after the temperature",
}


@dataclass(frozen=True)
class Bar:
    """One line of a panel: a measured difference with its interval, and what is published."""

    label: str
    mean: float
    lo: float
    hi: float
    published: float | None = None


def panels(made: Mapping[str, Any]) -> dict[str, list[Bar]]:
    """The bars of each data set and size, from what table.json holds; those without an interval are left out."""
    found: dict[str, list[Bar]] = {}
    if made["audit"]:
        for entry in made["audit"]:
            cost = entry["cost"]
            if entry["metric"] == "accuracy" and cost["lo"] is not None:
                bar = Bar(entry["row"], cost["mean"], cost["lo"], cost["hi"])
                found.setdefault(f"{entry['dataset']}, {entry['size']}", []).append(bar)
        return found
    first: dict[tuple[str, str], str] = {}
    plain: dict[tuple[str, str], float | None] = {}
    for cell in made["cells"]:
        place = (cell["dataset"], cell["size"])
        if cell["metric"] != first.setdefault(place, cell["metric"]):
            continue
        if cell["row"] == made["plain"]:
            plain[place] = cell["published_value"]
    for cell in made["cells"]:
        place, difference = (cell["dataset"], cell["size"]), cell["difference"]
        if cell["metric"] != first[place] or difference is None or difference["lo"] is None:
            continue
        base, own = plain.get(place), cell["published_value"]
        published = None if base is None or own is None else own - base
        bar = Bar(cell["row"], difference["mean"], difference["lo"], difference["hi"], published)
        found.setdefault(", ".join(place), []).append(bar)
    return found


def draw(made: Mapping[str, Any]) -> dict[str, str]:
    """The pictures that there is something to show in, as SVG by name."""
    found = zip(NAMES, (differences(made), temperature(made)))
    return {name: picture for name, picture in found if picture is not None}


def differences(made: Mapping[str, Any]) -> str | None:
    """Draw the differences; None if nothing was measured with an interval."""
    found = panels(made)
    if not found:
        return None
    labels = list(dict.fromkeys(bar.label for bars in found.values() for bar in bars))
    cost = bool(made["audit"])
    with _sheet(len(found), len(labels)) as (made_figure, axes, buffer):
        for axis, (place, bars) in zip(axes[0], found.items()):
            _panel(axis, place, bars, labels)
        what = "accuracy the mistake costs" if cost else f"difference to {made['plain']}"
        _caption(made_figure, axes, f"{what}, points, with {100 * made['level']:g} % intervals")
    return buffer.getvalue()


def temperature(made: Mapping[str, Any]) -> str | None:
    """Draw each row's mean test loss before and after the temperature; None if there is no loss after it."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for cell in made["cells"]:
        if cell["metric"] in ("nll", "nll_after"):
            rows = found.setdefault(f"{cell['dataset']}, {cell['size']}", {})
            rows.setdefault(cell["row"], {})[cell["metric"]] = cell["mean"]
    found = {place: {row: losses for row, losses in rows.items() if len(losses) == 2} for place, rows in found.items()}
    labels = list(dict.fromkeys(row for rows in found.values() for row in rows))
    if not labels:
        return None
    with _sheet(len(found), len(labels)) as (made_figure, axes, buffer):
        for axis, (place, rows) in zip(axes[0], found.items()):
            at = [len(labels) - labels.index(row) for row in rows]
            before, after = ([losses[key] for losses in rows.values()] for key in ("nll", "nll_after"))
            axis.hlines(at, before, after, color=GREY, linewidth=1, zorder=1)
            style = {"markerfacecolor": "none", "markeredgecolor": ORANGE}
            axis.plot(before, at, "o", markersize=5, label="before", zorder=2, **style)
            axis.plot(after, at, "o", color=BLUE, markersize=5, label="after the temperature", zorder=3)
            _rows(axis, place, labels)
        _caption(made_figure, axes, "mean test loss, in the units of the table; to the left is better")
    return buffer.getvalue()


def _sheet(panels: int, rows: int) -> AbstractContextManager[tuple[Any, Any, io.StringIO]]:
    """A figure of panels beside each other with so many rows."""
    width, height = max(6.4, 2.2 + 2.7 * panels), 1.5 + 0.32 * rows
    return figure(width, height, ncols=panels, squeeze=False, sharey=True)


def _caption(made_figure: Any, axes: Any, text: str) -> None:
    made_figure.supxlabel(text, fontsize=9)
    handles, names = axes[0][0].get_legend_handles_labels()
    if len(handles) > 1:
        made_figure.legend(handles, names, loc="outside upper right", ncols=2, fontsize=9)


def _rows(axis: Any, place: str, labels: Sequence[str]) -> None:
    axis.set(title=place, ylim=(0.4, len(labels) + 0.6))
    axis.set_yticks(range(len(labels), 0, -1), labels)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x")


def _panel(axis: Any, place: str, bars: Sequence[Bar], labels: Sequence[str]) -> None:
    places = [len(labels) - labels.index(bar.label) for bar in bars]
    axis.axvline(0, color=GREY, linewidth=1, zorder=1)
    axis.hlines(places, [bar.lo for bar in bars], [bar.hi for bar in bars], color=BLUE, linewidth=2, zorder=2)
    axis.plot([bar.mean for bar in bars], places, "o", color=BLUE, markersize=5, label="measured here", zorder=3)
    known = [(bar.published, at) for bar, at in zip(bars, places) if bar.published is not None]
    if known:
        axis.plot(
            *zip(*known), "D", markerfacecolor="none", markeredgecolor=ORANGE, markersize=5, label="published", zorder=3
        )
    _rows(axis, place, labels)
