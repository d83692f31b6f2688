"""Figures by matplotlib, for pictures that are files: those of the papers and of attention.

Colours are of Okabe and Ito's palette, which people with colour-blindness can tell apart. The same numbers give the
same file, byte for byte.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BLUE, ORANGE, GREEN, GREY, BLACK = "#0072B2", "#D55E00", "#009E73", "#6B7280", "#111827"


@contextmanager
def figure(width: float, height: float, **options: Any) -> Iterator[tuple[Any, Any, io.StringIO]]:
    """Yield a figure, its axes and a buffer that holds the SVG afterwards.

    Uses no global state of pyplot, so that it works in threads and notebooks alike.

    Args:
        width: in inches.
        height: in inches.
        **options: for `Figure.subplots`.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": GREY,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "grid.color": "#E5E7EB",
        "svg.hashsalt": "mixwell",
        "svg.fonttype": "path",
        "legend.frameon": False,
    }
    buffer = io.StringIO()
    with matplotlib.rc_context(style):
        canvas = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(canvas)
        axes = canvas.subplots(**options)
        yield canvas, axes, buffer
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "mixwell"})
