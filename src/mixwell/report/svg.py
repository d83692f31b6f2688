"""Small pictures as inline SVG: they take their colours from the page, so both schemes work and print stays light.

Series differ in colour, in dashes and in the shape of their marks, so that no reader needs the colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

SERIES = 10  # the page has as many colours
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "12 4", "3 2", "9 3 2 3 2 3", "1 3", "14 3 3 3")


def dashes(series: int) -> str:
    """The dash pattern of a series."""
    return _DASHES[series % len(_DASHES)]


def colour(series: int) -> str:
    """The colour of a series, as the page names it."""
    return f"var(--s{series % SERIES})"


def ticks(lo: float, hi: float, most: int = 6) -> list[float]:
    """Round numbers in [lo, hi], about `most` of them."""
    if not (math.isfinite(lo) and math.isfinite(hi)) or hi <= lo:
        return [lo]
    raw = (hi - lo) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(lo / step - 1e-9)
    return [k * step for k in range(first, math.floor(hi / step + 1e-9) + 1)]


def tick_text(value: float, step: float, *, signed: bool = False) -> str:
    """A tick's number with as many decimals as its step needs."""
    places = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    if abs(step * 10**places - round(step * 10**places)) > 1e-6:
        places += 1
    value = 0.0 if abs(value) < step * 1e-6 else value
    sign = "+" if signed and value > 0 else ""
    return f"{sign}{value:.{places}f}".replace("-", "\u2212")


class Picture:
    """An SVG that is drawn piece by piece.

    Args:
        width: of the drawing, in its own units; the page scales it.
        height: likewise.
        label: what it shows, for those who cannot see it.
        kind: its classes in the page's style.
    """

    def __init__(self, width: float, height: float, label: str, kind: str = "chart") -> None:
        self.width, self.height, self.kind = width, height, kind
        self._label = label
        self._parts: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "rule", style: str = "") -> None:
        """A straight line; `kind` is a class of the page's style."""
        self._add(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"{_style(style)}/>')

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", kind: str = "", turn: float = 0) -> None:
        """Words at a place; `anchor` is start, middle or end."""
        turned = f' transform="rotate({turn:g} {x:.1f} {y:.1f})"' if turn else ""
        named = f' class="{kind}"' if kind else ""
        self._add(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}{turned}>{escape(words)}</text>')

    def rect(self, x: float, y: float, width: float, height: float, style: str, title: str = "") -> None:
        """A filled box."""
        size = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
        self._titled(f"rect {size}{_style(style)}", "rect", title)

    def path(self, points: Sequence[tuple[float, float]], series: int, title: str = "") -> None:
        """The line of a series through some points."""
        d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        style = f"fill:none;stroke:{colour(series)};stroke-width:2;stroke-linejoin:round"
        style += f";stroke-dasharray:{dashes(series)}" if dashes(series) else ""
        self._titled(f'path d="{d}"{_style(style)}', "path", title)

    def area(self, points: Sequence[tuple[float, float]], series: int) -> None:
        """A faint band of a series."""
        d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z"
        self._add(f'<path d="{d}" style="fill:{colour(series)};fill-opacity:.12;stroke:none"/>')

    def mark(self, x: float, y: float, series: int, title: str = "", size: float = 4.5, paint: str = "") -> None:
        """A point in the shape of a series."""
        paint = paint or colour(series)
        style = f"fill:{paint};stroke:var(--card);stroke-width:1"
        if series % 4 == 0:
            self._titled(f'circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}"{_style(style)}', "circle", title)
            return
        s = size * 1.15
        shapes = {
            1: [(x - s, y - s), (x + s, y - s), (x + s, y + s), (x - s, y + s)],
            2: [(x, y - s * 1.2), (x + s * 1.1, y + s * 0.8), (x - s * 1.1, y + s * 0.8)],
            3: [(x, y - s * 1.3), (x + s * 1.3, y), (x, y + s * 1.3), (x - s * 1.3, y)],
        }
        d = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in shapes[series % 4]) + "Z"
        self._titled(f'path d="{d}"{_style(style)}', "path", title)

    def markup(self) -> Markup:
        """The whole picture, for a page."""
        head = f'<svg class="{self.kind}" viewBox="0 0 {self.width:g} {self.height:g}" role="img"'
        return Markup(f'{head} aria-label="{escape(self._label)}">{"".join(self._parts)}</svg>')

    def _titled(self, head: str, tag: str, title: str) -> None:
        inside = f"><title>{escape(title)}</title></{tag}>" if title else "/>"
        self._add(f"<{head}{inside}")

    def _add(self, part: str) -> None:
        self._parts.append(part)


def _style(style: str) -> str:
    return f' style="{style}"' if style else ""


def key(series: int) -> Markup:
    """The sign of a series for a legend."""
    picture = Picture(34, 14, "")
    picture.path([(1, 7), (33, 7)], series)
    picture.mark(17, 7, series, size=4)
    return Markup(str(picture.markup()).replace('class="chart"', 'aria-hidden="true"').replace(' role="img"', ""))
