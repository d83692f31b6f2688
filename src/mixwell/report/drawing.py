"""Drawing by hand: an SVG piece by piece, in the colours of the page, and round numbers for its axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

SERIES = 10  # the page has as many colours
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "12 4", "3 2", "9 3 2 3 2 3", "1 3", "14 3 3 3")


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

    def add(self, tag: str, *, words: str = "", title: str = "", **attributes: float | str) -> None:
        """An element; numbers have one digit behind the point, empty attributes are left out."""
        values = {name: value if isinstance(value, str) else f"{value:.1f}" for name, value in attributes.items()}
        head = "".join(f' {name.rstrip("_").replace("_", "-")}="{value}"' for name, value in values.items() if value)
        inside = f"<title>{escape(title)}</title>" if title else escape(words)
        self._parts.append(f"<{tag}{head}>{inside}</{tag}>")

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "rule", style: str = "") -> None:
        """A straight line; `kind` is a class of the page's style."""
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind, style=style)

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> None:
        """Words at a place; `anchor` is start, middle or end."""
        self.add("text", x=x, y=y, text_anchor=anchor, class_=kind, words=words)

    def rect(self, x: float, y: float, width: float, height: float, style: str, title: str = "") -> None:
        """A filled box."""
        self.add("rect", x=x, y=y, width=max(width, 0), height=max(height, 0), style=style, title=title)

    def path(self, points: Sequence[tuple[float, float]], style: str, title: str = "", end: str = "Z") -> None:
        """A line through some points, closed by default."""
        self.add("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + end, style=style, title=title)

    def curve(self, points: Sequence[tuple[float, float]], series: int, title: str = "") -> None:
        """The line of a series."""
        dashes = _DASHES[series % len(_DASHES)]
        style = f"fill:none;stroke:{colour(series)};stroke-width:2;stroke-linejoin:round"
        self.path(points, style + (f";stroke-dasharray:{dashes}" if dashes else ""), title, end="")

    def mark(self, x: float, y: float, series: int, title: str = "", size: float = 4.5, paint: str = "") -> None:
        """A point in the shape of a series."""
        style = f"fill:{paint or colour(series)};stroke:var(--card);stroke-width:1"
        s = size * 1.15
        shapes = {
            1: [(x - s, y - s), (x + s, y - s), (x + s, y + s), (x - s, y + s)],
            2: [(x, y - s * 1.2), (x + s * 1.1, y + s * 0.8), (x - s * 1.1, y + s * 0.8)],
            3: [(x, y - s * 1.3), (x + s * 1.3, y), (x, y + s * 1.3), (x - s * 1.3, y)],
        }
        if series % 4:
            self.path(shapes[series % 4], style, title)
        else:
            self.add("circle", cx=x, cy=y, r=size, style=style, title=title)

    def markup(self) -> Markup:
        """The whole picture, for a page."""
        head = f'<svg class="{self.kind}" viewBox="0 0 {self.width:g} {self.height:g}" role="img"'
        return Markup(f'{head} aria-label="{escape(self._label)}">{"".join(self._parts)}</svg>')
