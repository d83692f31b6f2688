"""The charts of the pages, from plain numbers to inline SVG, and the same charts as files of their own.

Charts take their colours from the page, so both schemes work and print stays light. Series differ in colour, in dashes
and in the shape of their marks, so that no reader needs the colours.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

from markupsafe import Markup, escape

from mixwell.metrics.calibration import Bin
from mixwell.report.drawing import Picture, colour, tick_text, ticks
from mixwell.report.page import package_text

VERDICTS, SHAPES = {"better": "var(--good)", "worse": "var(--bad)"}, {"better": 2, "worse": 3}
_WIDTHS = {"chart wide": 560.0, "chart narrow": 340.0}  # letters of a scaled-down drawing are too small on a phone
P = ParamSpec("P")


def key(series: int) -> Markup:
    """The sign of a series for a legend."""
    picture = Picture(34, 14, "")
    picture.curve([(1, 7), (33, 7)], series)
    picture.mark(17, 7, series, size=4)
    return Markup(str(picture.markup()).replace('class="chart"', 'aria-hidden="true"').replace(' role="img"', ""))


def as_file(charts: Sequence[tuple[str, Markup]]) -> str:
    """Charts beside each other under their titles, as an SVG that needs no page: with the page's light colours."""
    style = package_text("page.css")
    colours = dict(re.findall(r"(--\w+): light-dark\((#\w+)", style))
    rules = " ".join(re.findall(r"^svg .*", style, re.MULTILINE))
    parts, left, height = "", 10.0, 0.0
    for title, chart in charts:
        drawing, size = str(chart).split("</svg>")[0], re.search(r'viewBox="0 0 (\S+) (\S+)"', chart)
        assert size is not None
        parts += f'<text x="{left:g}" y="20" class="strong">{escape(title)}</text>'
        parts += drawing.replace("<svg ", f'<svg x="{left:g}" y="32" width="{size[1]}" height="{size[2]}" ') + "</svg>"
        left, height = left + float(size[1]) + 20, max(height, float(size[2]) + 40)
    head = f'xmlns="http://www.w3.org/2000/svg" width="{left:g}" height="{height:g}"'
    text = f'<svg {head}><style>{rules}</style><rect width="100%" height="100%" fill="#ffffff"/>{parts}</svg>\n'
    return re.sub(r"var\((--\w+)\)", lambda name: colours[name[1]], text)


def _for_both_widths(draw: Callable[Concatenate[str, float, P], Markup]) -> Callable[P, Markup]:
    """Make a drawing for screens and one for phones of a function; the page shows the one that fits."""

    @functools.wraps(draw)
    def both(*args: P.args, **options: P.kwargs) -> Markup:
        return Markup("").join(draw(kind, width, *args, **options) for kind, width in _WIDTHS.items())

    return both


# --- charts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForestRow:
    """A row of a forest plot; ends may be NaN. The outer ones are of the adjusted interval, which the verdict has.

    `dots` are seeds with their own differences. One that is `aside` has no part in the range of the axis: where it lies
    beyond, its value stands at the edge.
    """

    name: str
    mean: float
    lo: float
    hi: float
    verdict: str
    words: str
    outer_lo: float = math.nan
    outer_hi: float = math.nan
    dots: tuple[tuple[int, float], ...] = ()
    aside: bool = False


def _beyond(drawing: Picture, edge: float, y: float, row: ForestRow) -> None:
    """The value of a row that lies beyond the axis, at that edge."""
    words = f"\u25c2 {row.mean:+.3g}" if edge < drawing.width / 2 else f"{row.mean:+.3g} \u25b8"
    drawing.text(edge, y + 4.5, words, anchor="start" if edge < drawing.width / 2 else "end", kind="soft")


@_for_both_widths
def forest(
    kind: str, width: float, rows: Sequence[ForestRow], *, label: str, better: str, zero: float = 0.0, unit: str = ""
) -> Markup:
    """Differences with their intervals, one row each.

    Args:
        kind: classes of the drawing.
        width: of the drawing.
        rows: from top to bottom.
        label: what the picture shows.
        better: `right` or `left`.
        zero: where there is no difference.
        unit: after the title of the axis.
    """
    # On a phone each name stands above its bar.
    above = width < 400
    side, step, top = 0.0 if above else _side([row.name for row in rows], 210), 44.0 if above else 28.0, 26.0
    height = top + step * len(rows) + 44
    scaled = [row for row in rows if not row.aside] or rows
    values = [v for row in scaled for v in (row.mean, row.lo, row.hi, row.outer_lo, row.outer_hi)]
    low, high = _span([*values, *(value for row in scaled for _, value in row.dots), zero])
    drawing = Picture(width, height, label, kind)
    left, right = side + (10 if above else 12), width - 14

    def x(value: float) -> float:
        return left + (min(max(value, low), high) - low) / (high - low) * (right - left)

    bottom = top + step * len(rows)
    marks = ticks(low, high, 4 if above else 6)
    for value in marks:
        drawing.line(x(value), top, x(value), bottom)
        gap = marks[1] - marks[0] if len(marks) > 1 else 1.0
        drawing.text(x(value), bottom + 17, tick_text(value, gap, signed=zero == 0), anchor="middle", kind="soft")
    drawing.line(x(zero), top - 4, x(zero), bottom, "zero")
    arrow = "better \u2192" if better == "right" else "\u2190 better"
    beside, anchor = (6, "start") if better == "right" else (-6, "end")
    drawing.text(x(zero) + beside, top - 8, arrow, anchor=anchor, kind="soft")
    unit = f"difference to plain training{unit}" if zero == 0 else unit
    drawing.text((left + right) / 2, bottom + 36, unit, anchor="middle", kind="soft")
    for number, row in enumerate(rows):
        y = top + step * (number + (0.68 if above else 0.5))
        paint = VERDICTS.get(row.verdict, "var(--s1)")
        bold = "strong" if row.verdict in VERDICTS else ""
        if above:
            drawing.text(0, y - 12, shorten(row.name, 44), kind=bold)
        else:
            drawing.text(side, y + 4.5, shorten(row.name, 26 if bold else 30), anchor="end", kind=bold)
        if not low <= row.mean <= high:
            _beyond(drawing, left if row.mean < low else right, y, row)
            continue
        if math.isfinite(row.outer_lo) and math.isfinite(row.outer_hi):
            pale = f"stroke:{paint};stroke-width:7;opacity:0.25"
            drawing.line(x(row.outer_lo), y, x(row.outer_hi), y, "", pale)
        for place, (seed, value) in enumerate(row.dots):  # apart, so that equal ones can be told
            style, words = "fill:var(--soft);fill-opacity:.55", f"{row.name}, seed {seed}: {value:+.3g}"
            drawing.add(
                "circle", cx=x(value), cy=y + (place % 3 - 1) * 5, r=2.6, class_="seed", style=style, title=words
            )
        if math.isfinite(row.lo) and math.isfinite(row.hi):
            for end in (row.lo, row.hi):
                drawing.line(x(end), y - 5, x(end), y + 5, "", f"stroke:{paint};stroke-width:2")
            drawing.line(x(row.lo), y, x(row.hi), y, "", f"stroke:{paint};stroke-width:2.5")
        # The shape shows the verdict too: a triangle, a diamond, a circle.
        drawing.mark(x(row.mean), y, SHAPES.get(row.verdict, 0), f"{row.name}: {row.words}", 5.5, paint)
    return drawing.markup()


@dataclass(frozen=True)
class Series:
    """A line of a line chart.

    Attributes:
        name: of it.
        number: decides its colour, dashes and shape.
        points: x, y, lo and hi; lo and hi may be NaN.
    """

    name: str
    number: int
    points: Sequence[tuple[float, float, float, float]]


@_for_both_widths
def lines(
    kind: str, width: float, series: Sequence[Series], *, label: str, x_title: str, y_title: str, log: bool = False,
    marks: bool = True, whole: bool = False, from_zero: bool = False,
) -> Markup:  # fmt: skip
    """Lines over a number.

    Args:
        kind: classes of the drawing.
        width: of the drawing.
        series: what is drawn.
        label: what the picture shows.
        x_title: under the axis.
        y_title: above the axis.
        log: each doubling of x takes the same width.
        marks: mark the points.
        whole: ticks of x are the x values themselves.
        from_zero: y begins at 0.
    """
    width = min(width, 520.0)
    height, left, right, top, bottom = 0.3 * width + 144, 46.0, 14.0, 28.0, 46.0
    drawing = Picture(width, height, label, kind)
    xs = sorted({p[0] for line in series for p in line.points})
    ys = [v for line in series for p in line.points for v in p[1:]] + ([0.0] if from_zero else [])
    low, high = _span(ys, from_zero=from_zero)
    scale = (lambda v: math.log(v)) if log and xs and xs[0] > 0 else float
    first, last = (scale(xs[0]), scale(xs[-1])) if xs else (0.0, 1.0)
    wide = (last - first) or 1.0

    def x(value: float) -> float:
        return left + ((scale(value) - first) / wide if last > first else 0.5) * (width - left - right)

    def y(value: float) -> float:
        return height - bottom - (value - low) / (high - low) * (height - top - bottom)

    marked = ticks(low, high, 5)
    gap = marked[1] - marked[0] if len(marked) > 1 else 1.0
    for value in marked:
        drawing.line(left, y(value), width - right, y(value))
        drawing.text(left - 8, y(value) + 4, tick_text(value, gap), anchor="end", kind="soft")
    across = xs if whole else ticks(xs[0], xs[-1], 6) if xs else []
    step = across[1] - across[0] if len(across) > 1 else 1.0
    for value in across:
        words = f"{value:g}" if whole else tick_text(value, step)
        drawing.text(x(value), height - bottom + 18, words, anchor="middle", kind="soft")
    drawing.line(left, height - bottom, width - right, height - bottom, "axis")
    drawing.text((left + width - right) / 2, height - 8, x_title, anchor="middle", kind="soft")
    drawing.text(0, 14, y_title, kind="soft")
    for line in series:
        band = [p for p in line.points if math.isfinite(p[2]) and math.isfinite(p[3])]
        if len(band) > 1:
            edge = [(x(p[0]), y(p[3])) for p in band] + [(x(p[0]), y(p[2])) for p in band[::-1]]
            drawing.path(edge, f"fill:{colour(line.number)};fill-opacity:.12;stroke:none")
        drawing.curve([(x(p[0]), y(p[1])) for p in line.points], line.number, line.name)
        for p in line.points if marks else line.points[-1:]:
            drawing.mark(x(p[0]), y(p[1]), line.number, f"{line.name}: {p[1]:.4g} at {p[0]:g}", 4)
    return drawing.markup()


def reliability(bins: Sequence[Bin], *, label: str) -> Markup:
    """How often predictions of a confidence are right, and below it how many there are.

    Args:
        bins: of `calibration.reliability_bins`.
        label: what the picture shows.
    """
    size, left, top, gap, under = 300.0, 46.0, 10.0, 26.0, 44.0
    drawing = Picture(left + size + 16, top + size + gap + under + 38, label, "chart square")
    total = sum(one.count for one in bins) or 1

    def x(value: float) -> float:
        return left + size * value

    def y(value: float) -> float:
        return top + size * (1 - value)

    for value in (0, 0.25, 0.5, 0.75, 1):
        drawing.line(left, y(value), left + size, y(value))
        drawing.text(left - 7, y(value) + 4, f"{100 * value:g}%", anchor="end", kind="soft")
        drawing.text(x(value), top + size + gap + under + 16, f"{100 * value:g}%", anchor="middle", kind="soft")
    drawing.text(x(0.5), top + size + gap + under + 34, "confidence", anchor="middle", kind="soft")
    floor, most = top + size + gap + under, max((one.count for one in bins), default=1) or 1
    for one in bins:
        if not one.count:
            continue
        wide = size * (one.hi - one.lo) - 2
        words = (
            f"{one.count} predictions with a confidence of {100 * one.confidence:.0f} % on average: "
            f"{100 * one.accuracy:.0f} % right"
        )
        drawing.rect(x(one.lo) + 1, y(one.accuracy), wide, size * one.accuracy, "fill:var(--bar)", words)
        # What was claimed, and the gap to what is true.
        middle, claimed = x((one.lo + one.hi) / 2), y(one.confidence)
        drawing.line(middle, claimed, middle, y(one.accuracy), "", "stroke:var(--s2);stroke-width:2")
        drawing.line(x(one.lo) + 1, claimed, x(one.lo) + 1 + wide, claimed, "", "stroke:var(--s2);stroke-width:3.5")
        tall = under * one.count / most
        drawing.rect(x(one.lo) + 1, floor - tall, wide, tall, "fill:var(--soft)", f"{100 * one.count / total:.0f} %")
    drawing.line(x(0), y(0), x(1), y(1), "zero")
    drawing.line(left, top + size, left + size, top + size, "axis")
    drawing.line(left, floor, left + size, floor, "axis")
    drawing.text(left - 7, floor - under + 10, "rows", anchor="end", kind="soft")
    return drawing.markup()


@dataclass(frozen=True)
class ClassChange:
    """A class in a dumbbell chart: the share right with plain training and with a method."""

    name: str
    plain: float
    value: float
    rows: int


@_for_both_widths
def dumbbells(kind: str, width: float, rows: Sequence[ClassChange], *, label: str, method: str, number: int) -> Markup:
    """For each class, how the share right moves from plain training to a method."""
    longest = 26 if width > 400 else 16
    side, step, top = _side([shorten(row.name, longest) for row in rows], 190), 22.0, 8.0
    drawing = Picture(width, top + step * len(rows) + 26, label, kind)
    left, right = side + 14, width - 20
    bottom = top + step * len(rows)

    def x(value: float) -> float:
        return left + value * (right - left)

    for value in (0, 0.25, 0.5, 0.75, 1):
        drawing.line(x(value), top, x(value), bottom)
        drawing.text(x(value), bottom + 17, f"{100 * value:g}%", anchor="middle", kind="soft")
    for place, row in enumerate(rows):
        y = top + step * (place + 0.5)
        paint = "var(--good)" if row.value > row.plain else "var(--bad)"
        drawing.text(side, y + 4.5, shorten(row.name, longest), anchor="end")
        drawing.line(x(row.plain), y, x(row.value), y, "", f"stroke:{paint};stroke-width:3")
        words = f"{row.name} ({row.rows} test rows): plain {100 * row.plain:.1f} %, {method} {100 * row.value:.1f} %"
        drawing.mark(x(row.plain), y, 0, words, 4)
        # Never a circle, which plain training has.
        drawing.mark(x(row.value), y, number if number % 4 else number + 1, words, 4.5, colour(number or 1))
    return drawing.markup()


def shorten(words: str, most: int = 30) -> str:
    """Words of at most so many signs."""
    return words if len(words) <= most else words[: most - 1] + "\u2026"


def _side(names: Sequence[str], most: float) -> float:
    """Room for names at the left."""
    return min(most, max([40.0, *(7.9 * len(shorten(name)) for name in names)]))


def _span(values: Sequence[float], *, from_zero: bool = False) -> tuple[float, float]:
    """The range of an axis: all finite values with a margin."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return (low if from_zero and low == 0 else low - margin), high + margin
