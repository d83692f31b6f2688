"""The charts of the pages, from plain numbers to inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mixwell.calibration import Bin
from mixwell.report.svg import Picture, colour, tick_text, ticks

VERDICTS = {"better": "var(--good)", "worse": "var(--bad)"}


@dataclass(frozen=True)
class Interval:
    """A line of a forest plot; `lo` and `hi` may be NaN."""

    name: str
    mean: float
    lo: float
    hi: float
    verdict: str
    words: str


_WIDTHS = {"chart wide": 560.0, "chart narrow": 340.0}  # letters of a scaled-down drawing are too small on a phone


def _twice(draw: Callable[[str, float], Markup]) -> Markup:
    """A drawing for screens and one for phones; the page shows the one that fits."""
    return Markup("").join(draw(kind, width) for kind, width in _WIDTHS.items())


def forest(rows: Sequence[Interval], *, label: str, better: str, zero: float = 0.0, unit: str = "") -> Markup:
    """Differences with their intervals, a line each.

    Args:
        rows: from top to bottom.
        label: what the picture shows.
        better: `right` or `left`.
        zero: where there is no difference.
        unit: behind the title of the axis.
    """
    return _twice(lambda kind, width: _forest(rows, label, better, zero, unit, kind, width))


def _forest(
    rows: Sequence[Interval], label: str, better: str, zero: float, unit: str, kind: str, width: float
) -> Markup:
    # On a phone each name stands above its bar.
    above = width < 400
    side, step, top = 0.0 if above else _side([row.name for row in rows], 210), 44.0 if above else 28.0, 26.0
    height = top + step * len(rows) + 44
    low, high = _span([each for row in rows for each in (row.mean, row.lo, row.hi)] + [zero])
    made = Picture(width, height, label, kind)
    left, right = side + (10 if above else 12), width - 14

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (right - left)

    bottom = top + step * len(rows)
    marks = ticks(low, high, 4 if above else 6)
    for value in marks:
        made.line(x(value), top, x(value), bottom)
        gap = marks[1] - marks[0] if len(marks) > 1 else 1.0
        made.text(x(value), bottom + 17, tick_text(value, gap, signed=zero == 0), anchor="middle", kind="soft")
    made.line(x(zero), top - 4, x(zero), bottom, "zero")
    arrow = "better \u2192" if better == "right" else "\u2190 better"
    made.text(x(zero) + (6 if better == "right" else -6), top - 8, arrow,
              anchor="start" if better == "right" else "end", kind="soft")  # fmt: skip
    made.text((left + right) / 2, bottom + 36, f"difference to plain training{unit}" if zero == 0 else unit,
              anchor="middle", kind="soft")  # fmt: skip
    for at, row in enumerate(rows):
        y = top + step * (at + (0.68 if above else 0.5))
        paint = VERDICTS.get(row.verdict, "var(--s1)")
        bold = "strong" if row.verdict in VERDICTS else ""
        if above:
            made.text(0, y - 12, _short(row.name, 44), kind=bold)
        else:
            made.text(side, y + 4.5, _short(row.name), anchor="end", kind=bold)
        if math.isfinite(row.lo) and math.isfinite(row.hi):
            for end in (row.lo, row.hi):
                made.line(x(end), y - 5, x(end), y + 5, "", f"stroke:{paint};stroke-width:2")
            made.line(x(row.lo), y, x(row.hi), y, "", f"stroke:{paint};stroke-width:2.5")
        # The shape tells the verdict too: a triangle, a diamond, a circle.
        shape = {"better": 2, "worse": 3}.get(row.verdict, 0)
        made.mark(x(row.mean), y, shape, f"{row.name}: {row.words}", 5.5, paint)
    return made.markup()


@dataclass(frozen=True)
class Series:
    """A line of a line chart.

    Attributes:
        name: of it.
        at: its number, which gives colour, dashes and shape.
        points: x, y, lo and hi; lo and hi may be NaN.
    """

    name: str
    at: int
    points: Sequence[tuple[float, float, float, float]]


def lines(
    series: Sequence[Series], *, label: str, x_title: str, y_title: str, log: bool = False, marks: bool = True,
    whole: bool = False, from_zero: bool = False,
) -> Markup:  # fmt: skip
    """Lines over a number.

    Args:
        series: what is drawn.
        label: what the picture shows.
        x_title: under the axis.
        y_title: above the axis.
        log: each doubling of x takes the same width.
        marks: mark the points.
        whole: ticks of x are the x values themselves.
        from_zero: y begins at 0.
    """
    return _twice(
        lambda kind, width: _lines(series, label, x_title, y_title, kind, width, log, marks, whole, from_zero)
    )


def _lines(
    series: Sequence[Series], label: str, x_title: str, y_title: str, kind: str, width: float, log: bool, marks: bool,
    whole: bool, from_zero: bool,
) -> Markup:  # fmt: skip
    width = min(width, 520.0)
    height, left, right, top, bottom = 0.3 * width + 144, 46.0, 14.0, 28.0, 46.0
    made = Picture(width, height, label, kind)
    xs = sorted({p[0] for each in series for p in each.points})
    ys = [v for each in series for p in each.points for v in p[1:]] + ([0.0] if from_zero else [])
    low, high = _span(ys, from_zero=from_zero)
    scale = (lambda v: math.log(v)) if log and xs and xs[0] > 0 else float
    first, last = (scale(xs[0]), scale(xs[-1])) if xs else (0.0, 1.0)
    wide = (last - first) or 1.0

    def x(value: float) -> float:
        return left + ((scale(value) - first) / wide if last > first else 0.5) * (width - left - right)

    def y(value: float) -> float:
        return height - bottom - (value - low) / (high - low) * (height - top - bottom)

    found = ticks(low, high, 5)
    gap = found[1] - found[0] if len(found) > 1 else 1.0
    for value in found:
        made.line(left, y(value), width - right, y(value))
        made.text(left - 8, y(value) + 4, tick_text(value, gap), anchor="end", kind="soft")
    across = xs if whole else ticks(xs[0], xs[-1], 6) if xs else []
    step = across[1] - across[0] if len(across) > 1 else 1.0
    for value in across:
        words = f"{value:g}" if whole else tick_text(value, step)
        made.text(x(value), height - bottom + 18, words, anchor="middle", kind="soft")
    made.line(left, height - bottom, width - right, height - bottom, "axis")
    made.text((left + width - right) / 2, height - 8, x_title, anchor="middle", kind="soft")
    made.text(0, 14, y_title, kind="soft")
    for each in series:
        band = [p for p in each.points if math.isfinite(p[2]) and math.isfinite(p[3])]
        if len(band) > 1:
            made.area([(x(p[0]), y(p[3])) for p in band] + [(x(p[0]), y(p[2])) for p in band[::-1]], each.at)
        made.path([(x(p[0]), y(p[1])) for p in each.points], each.at, each.name)
        for p in each.points if marks else each.points[-1:]:
            made.mark(x(p[0]), y(p[1]), each.at, f"{each.name}: {p[1]:.4g} at {p[0]:g}", 4)
    return made.markup()


def reliability(bins: Sequence[Bin], *, label: str) -> Markup:
    """How often predictions of a confidence are right, and below how many there are.

    Args:
        bins: of `calibration.reliability_bins`.
        label: what the picture shows.
    """
    size, left, top, gap, under = 300.0, 46.0, 10.0, 26.0, 44.0
    made = Picture(left + size + 16, top + size + gap + under + 38, label, "chart square")
    total = sum(each.count for each in bins) or 1

    def x(value: float) -> float:
        return left + size * value

    def y(value: float) -> float:
        return top + size * (1 - value)

    for value in (0, 0.25, 0.5, 0.75, 1):
        made.line(left, y(value), left + size, y(value))
        made.text(left - 7, y(value) + 4, f"{100 * value:g}%", anchor="end", kind="soft")
        made.text(x(value), top + size + gap + under + 16, f"{100 * value:g}%", anchor="middle", kind="soft")
    made.text(x(0.5), top + size + gap + under + 34, "confidence", anchor="middle", kind="soft")
    floor, most = top + size + gap + under, max((each.count for each in bins), default=1) or 1
    for each in bins:
        if not each.count:
            continue
        wide = size * (each.hi - each.lo) - 2
        words = (
            f"{each.count} predictions with a confidence of {100 * each.confidence:.0f} % on average: "
            f"{100 * each.accuracy:.0f} % right"
        )
        made.rect(x(each.lo) + 1, y(each.accuracy), wide, size * each.accuracy, "fill:var(--bar)", words)
        # What was claimed, and the gap to what is true.
        middle, claimed = x((each.lo + each.hi) / 2), y(each.confidence)
        made.line(middle, claimed, middle, y(each.accuracy), "", "stroke:var(--s2);stroke-width:2")
        made.line(x(each.lo) + 1, claimed, x(each.lo) + 1 + wide, claimed, "", "stroke:var(--s2);stroke-width:3.5")
        tall = under * each.count / most
        made.rect(x(each.lo) + 1, floor - tall, wide, tall, "fill:var(--soft)", f"{100 * each.count / total:.0f} %")
    made.line(x(0), y(0), x(1), y(1), "zero")
    made.line(left, top + size, left + size, top + size, "axis")
    made.line(left, floor, left + size, floor, "axis")
    made.text(left - 7, floor - under + 10, "rows", anchor="end", kind="soft")
    return made.markup()


@dataclass(frozen=True)
class Pair:
    """A class in a dumbbell chart: the share right with plain training and with a method."""

    name: str
    plain: float
    value: float
    rows: int


def dumbbells(rows: Sequence[Pair], *, label: str, method: str, at: int) -> Markup:
    """For each class, how the share right moves from plain training to a method."""
    return _twice(lambda kind, width: _dumbbells(rows, label, method, at, kind, width))


def _dumbbells(rows: Sequence[Pair], label: str, method: str, at: int, kind: str, width: float) -> Markup:
    longest = 26 if width > 400 else 16
    side, step, top = _side([_short(row.name, longest) for row in rows], 190), 22.0, 8.0
    made = Picture(width, top + step * len(rows) + 26, label, kind)
    left, right = side + 14, width - 20
    bottom = top + step * len(rows)

    def x(value: float) -> float:
        return left + value * (right - left)

    for value in (0, 0.25, 0.5, 0.75, 1):
        made.line(x(value), top, x(value), bottom)
        made.text(x(value), bottom + 17, f"{100 * value:g}%", anchor="middle", kind="soft")
    for place, row in enumerate(rows):
        y = top + step * (place + 0.5)
        paint = "var(--good)" if row.value > row.plain else "var(--bad)"
        made.text(side, y + 4.5, _short(row.name, longest), anchor="end")
        made.line(x(row.plain), y, x(row.value), y, "", f"stroke:{paint};stroke-width:3")
        words = f"{row.name} ({row.rows} test rows): plain {100 * row.plain:.1f} %, {method} {100 * row.value:.1f} %"
        made.mark(x(row.plain), y, 0, words, 4)
        # Never a circle, which plain training has.
        made.mark(x(row.value), y, at if at % 4 else at + 1, words, 4.5, colour(at or 1))
    return made.markup()


def _short(words: str, most: int = 30) -> str:
    return words if len(words) <= most else words[: most - 1] + "\u2026"


def _side(names: Sequence[str], most: float) -> float:
    """Room for names at the left."""
    return min(most, max([40.0, *(7.1 * len(_short(name)) for name in names)]))


def _span(values: Sequence[float], *, from_zero: bool = False) -> tuple[float, float]:
    """The range of an axis: all finite values with some air."""
    found = [each for each in values if math.isfinite(each)] or [0.0, 1.0]
    low, high = min(found), max(found)
    air = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return (low if from_zero and low == 0 else low - air), high + air
