"""The table of an experiment as a picture: differences to plain training with intervals, published ones beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixwell.report.plots import BLUE, GREY, ORANGE, figure

NAME = "differences.svg"


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


def draw(made: Mapping[str, Any]) -> str | None:
    """Draw the picture as SVG; None if nothing was measured with an interval."""
    found = panels(made)
    if not found:
        return None
    labels = list(dict.fromkeys(bar.label for bars in found.values() for bar in bars))
    cost = bool(made["audit"])
    width, height = max(6.4, 2.2 + 2.7 * len(found)), 1.5 + 0.32 * len(labels)
    with figure(width, height, ncols=len(found), squeeze=False, sharey=True) as (made_figure, axes, buffer):
        for axis, (place, bars) in zip(axes[0], found.items()):
            _panel(axis, place, bars, labels)
        what = "accuracy the mistake costs" if cost else f"difference to {made['plain']}"
        made_figure.supxlabel(f"{what}, points, with {100 * made['level']:g} % intervals", fontsize=9)
        handles, names = axes[0][0].get_legend_handles_labels()
        if len(handles) > 1:
            made_figure.legend(handles, names, loc="outside upper right", ncols=2, fontsize=9)
    return buffer.getvalue()


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
    axis.set(title=place, ylim=(0.4, len(labels) + 0.6))
    axis.set_yticks(range(len(labels), 0, -1), labels)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x")
