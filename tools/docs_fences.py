"""What fenced blocks of the docs become on the site, without a script or a request: flow charts and formulas.

The same blocks are drawn by GitHub, which knows `mermaid` and `math` by itself. Of mermaid only what the docs use is
understood: `flowchart TD`, boxes `A["text"]`, questions `A{"text"}`, arrows `-->`, `-.->` and `-->|answer|`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from typing import Any

from latex2mathml.converter import convert

LETTER, LINE, PAD = 6.3, 18.0, 13.0  # of 13 px text
GAP_X, GAP_Y = 28.0, 44.0
NODE = re.compile(r'\s*(\w+)(?:([\[{(])"(.*?)"[\]})])?')
ARROW = re.compile(r"\s*(-->|-\.->)(?:\|([^|]*)\|)?")


@dataclass
class Box:
    """A box of a chart: its lines, and where it stands."""

    lines: list[str] = field(default_factory=list)
    question: bool = False
    layer: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        """The width that its longest line needs."""
        return max(len(line) for line in self.lines) * LETTER + 2 * PAD

    @property
    def height(self) -> float:
        """The height of all lines."""
        return len(self.lines) * LINE + 2 * PAD - 6


@dataclass(frozen=True)
class Edge:
    """An arrow between two boxes, by name."""

    start: str
    end: str
    label: str
    dotted: bool


def formula(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """A formula in TeX as MathML, which browsers draw themselves; each line is a formula of its own."""
    lines = [convert(line, display="block") for line in source.strip().splitlines() if line.strip()]
    return f'<div class="{css_class}">{"".join(lines)}</div>'


def flowchart(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """A mermaid flow chart as SVG in the colours of the page."""
    boxes, edges = parse(source)
    _place(boxes, edges)
    width = max(box.x + box.width for box in boxes.values()) + 1
    height = max(box.y + box.height for box in boxes.values()) + 1
    parts = [_edge(edge, boxes) for edge in edges] + [_box(box) for box in boxes.values()]
    words = escape("; ".join(_sentence(edge, boxes) for edge in edges), quote=True)
    arrow = (
        '<marker id="chart-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z"/></marker>'
    )
    return (
        f'<div class="{css_class}" tabindex="0"><svg role="img" aria-label="{words}" viewBox="-1 -1 {width + 2:.0f} '
        f'{height + 2:.0f}" width="{width + 2:.0f}" height="{height + 2:.0f}">'
        f"<defs>{arrow}</defs>{''.join(parts)}</svg></div>"
    )


def parse(source: str) -> tuple[dict[str, Box], list[Edge]]:
    """Read the boxes and arrows of a chart."""
    boxes: dict[str, Box] = {}
    edges: list[Edge] = []
    for line in source.strip().splitlines():
        text = line.strip()
        if not text or text.startswith("flowchart"):
            continue
        name, text = _node(text, boxes)
        while text:
            arrow = ARROW.match(text)
            if arrow is None:
                raise ValueError(f"flow chart: cannot read {line.strip()!r}")
            other, text = _node(text[arrow.end() :], boxes)
            edges.append(Edge(name, other, (arrow[2] or "").strip('" '), arrow[1] == "-.->"))
            name = other
    missing = [name for name, box in boxes.items() if not box.lines]
    if missing:
        raise ValueError(f"flow chart: no text for {', '.join(missing)}")
    return boxes, edges


def _node(text: str, boxes: dict[str, Box]) -> tuple[str, str]:
    match = NODE.match(text)
    if match is None:
        raise ValueError(f"flow chart: cannot read {text!r}")
    box = boxes.setdefault(match[1], Box())
    if match[3]:
        box.lines = re.split(r"<br\s*/?>", match[3])
        box.question = match[2] == "{"
    return match[1], text[match.end() :].strip()


def _place(boxes: dict[str, Box], edges: list[Edge]) -> None:
    """Give each box a layer below all that lead to it, and a place in its layer."""
    for _ in boxes:
        for edge in edges:
            boxes[edge.end].layer = max(boxes[edge.end].layer, boxes[edge.start].layer + 1)
    layers: dict[int, list[Box]] = {}
    for box in boxes.values():
        layers.setdefault(box.layer, []).append(box)
    widths = {key: sum(box.width for box in row) + GAP_X * (len(row) - 1) for key, row in layers.items()}
    y = 0.0
    for key in sorted(layers):
        x = (max(widths.values()) - widths[key]) / 2
        for box in layers[key]:
            box.x, box.y = x, y
            x += box.width + GAP_X
        y += max(box.height for box in layers[key]) + GAP_Y


def _edge(edge: Edge, boxes: dict[str, Box]) -> str:
    start, end = boxes[edge.start], boxes[edge.end]
    x1, y1 = start.x + start.width / 2, start.y + start.height
    x2, y2 = end.x + end.width / 2, end.y
    middle = y2 - GAP_Y / 2
    dash = ' stroke-dasharray="4 4"' if edge.dotted else ""
    path = f'<path class="edge" d="M{x1:.1f} {y1:.1f}V{middle:.1f}H{x2:.1f}V{y2 - 1:.1f}"{dash}/>'
    if not edge.label:
        return path
    return path + f'<text class="answer" x="{x2 + 7:.1f}" y="{y2 - 8:.1f}">{escape(edge.label)}</text>'


def _box(box: Box) -> str:
    kind = "question" if box.question else "box"
    size = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    x, y = box.x + box.width / 2, box.y + PAD + 9
    lines = "".join(
        f'<text class="{"strong" if at == 0 else "weak"}" x="{x:.1f}" y="{y + at * LINE:.1f}">{escape(line)}</text>'
        for at, line in enumerate(box.lines)
    )
    return f'<g class="{kind}"><rect {size} rx="{box.height / 2 if box.question else 6:.1f}"/>{lines}</g>'


def _sentence(edge: Edge, boxes: dict[str, Box]) -> str:
    label = f" ({edge.label})" if edge.label else ""
    return f"{' '.join(boxes[edge.start].lines)}{label} to {' '.join(boxes[edge.end].lines)}"
