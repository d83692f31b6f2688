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


def panels(table: Mapping[str, Any]) -> dict[str, list[Bar]]:
    """The bars of each data set and size, from what table.json holds; those without an interval are left out."""
    bars: dict[str, list[Bar]] = {}
    if table["audit"]:
        for entry in table["audit"]:
            cost = entry["cost"]
            if entry["metric"] == "accuracy" and cost["lo"] is not None:
                bar = Bar(entry["row"], cost["mean"], cost["lo"], cost["hi"])
                bars.setdefault(f"{entry['dataset']}, {entry['size']}", []).append(bar)
        return bars
    places: dict[str, list[Any]] = {}
    for entry in table["cells"]:
        entries = places.setdefault(f"{entry['dataset']}, {entry['size']}", [])
        if not entries or entry["metric"] == entries[0]["metric"]:
            entries.append(entry)
    for place, entries in places.items():
        base = next((entry["published_value"] for entry in entries if entry["row"] == table["plain"]), None)
        for entry in entries:
            difference, own = entry["difference"], entry["published_value"]
            if difference is not None and difference["lo"] is not None:
                published = None if base is None or own is None else own - base
                bar = Bar(entry["row"], difference["mean"], difference["lo"], difference["hi"], published)
                bars.setdefault(place, []).append(bar)
    return bars


def draw(table: Mapping[str, Any]) -> dict[str, str]:
    """The pictures that there is something to show in, as SVG by name."""
    drawn = zip(NAMES, (differences(table), temperature(table)))
    return {name: picture for name, picture in drawn if picture is not None}


def differences(table: Mapping[str, Any]) -> str | None:
    """Draw the differences; None if nothing was measured with an interval."""
    places = panels(table)
    if not places:
        return None
    labels = list(dict.fromkeys(bar.label for bars in places.values() for bar in bars))
    cost = bool(table["audit"])
    with _sheet(len(places), len(labels)) as (sheet, axes, buffer):
        for axis, (place, bars) in zip(axes[0], places.items()):
            _panel(axis, place, bars, labels)
        what = "accuracy the mistake costs" if cost else f"difference to {table['plain']}"
        _caption(sheet, axes, f"{what}, points, with {100 * table['level']:g} % intervals")
    return buffer.getvalue()


def temperature(table: Mapping[str, Any]) -> str | None:
    """Draw each row's mean test loss before and after the temperature; None if there is no loss after it."""
    places: dict[str, dict[str, dict[str, float]]] = {}
    for entry in table["cells"]:
        if entry["metric"] in ("nll", "nll_after"):
            rows = places.setdefault(f"{entry['dataset']}, {entry['size']}", {})
            rows.setdefault(entry["row"], {})[entry["metric"]] = entry["mean"]
    places = {
        place: {row: losses for row, losses in rows.items() if len(losses) == 2} for place, rows in places.items()
    }
    labels = list(dict.fromkeys(row for rows in places.values() for row in rows))
    if not labels:
        return None
    with _sheet(len(places), len(labels)) as (sheet, axes, buffer):
        for axis, (place, rows) in zip(axes[0], places.items()):
            heights = [len(labels) - labels.index(row) for row in rows]
            before, after = ([losses[key] for losses in rows.values()] for key in ("nll", "nll_after"))
            axis.hlines(heights, before, after, color=GREY, linewidth=1, zorder=1)
            style = {"markerfacecolor": "none", "markeredgecolor": ORANGE}
            axis.plot(before, heights, "o", markersize=5, label="before", zorder=2, **style)
            axis.plot(after, heights, "o", color=BLUE, markersize=5, label="after the temperature", zorder=3)
            _rows(axis, place, labels)
        _caption(sheet, axes, "mean test loss, in the units of the table; to the left is better")
    return buffer.getvalue()


def _sheet(panels: int, rows: int) -> AbstractContextManager[tuple[Any, Any, io.StringIO]]:
    """A figure of panels beside each other with so many rows."""
    width, height = max(6.4, 2.2 + 2.7 * panels), 1.5 + 0.32 * rows
    return figure(width, height, ncols=panels, squeeze=False, sharey=True)


def _caption(sheet: Any, axes: Any, text: str) -> None:
    sheet.supxlabel(text, fontsize=9)
    handles, names = axes[0][0].get_legend_handles_labels()
    if len(handles) > 1:
        sheet.legend(handles, names, loc="outside upper right", ncols=2, fontsize=9)


def _rows(axis: Any, place: str, labels: Sequence[str]) -> None:
    axis.set(title=place, ylim=(0.4, len(labels) + 0.6))
    axis.set_yticks(range(len(labels), 0, -1), labels)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x")


def _panel(axis: Any, place: str, bars: Sequence[Bar], labels: Sequence[str]) -> None:
    heights = [len(labels) - labels.index(bar.label) for bar in bars]
    axis.axvline(0, color=GREY, linewidth=1, zorder=1)
    axis.hlines(heights, [bar.lo for bar in bars], [bar.hi for bar in bars], color=BLUE, linewidth=2, zorder=2)
    axis.plot([bar.mean for bar in bars], heights, "o", color=BLUE, markersize=5, label="measured here", zorder=3)
    known = [(bar.published, height) for bar, height in zip(bars, heights) if bar.published is not None]
    if known:
        axis.plot(
            *zip(*known), "D", markerfacecolor="none", markeredgecolor=ORANGE, markersize=5, label="published", zorder=3
        )
    _rows(axis, place, labels)
