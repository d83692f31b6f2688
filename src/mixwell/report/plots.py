"""Pictures of a run as SVG: reliability diagram and losses.

Colours are of Okabe and Ito's palette, which people with colour-blindness can tell apart. The same numbers give the
same file, byte for byte.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mixwell.metrics.calibration import Bin

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


def reliability(panels: Sequence[tuple[str, Sequence[Bin], float]]) -> str:
    """A reliability diagram: how often predictions of a confidence are right.

    Args:
        panels: for each panel its title, the bins of `calibration.reliability_bins` and the calibration error.

    Returns:
        The SVG.
    """
    count = len(panels)
    options: dict[str, Any] = {"nrows": 2, "ncols": count, "squeeze": False, "sharex": True, "sharey": "row"}
    with figure(4.0 * count, 4.6, height_ratios=[4, 1], **options) as (canvas, axes, buffer):
        for upper, lower, (title, bins, error) in zip(axes[0], axes[1], panels):
            full = [b for b in bins if b.count]
            total = sum(b.count for b in full) or 1
            upper.plot([0, 1], [0, 1], color=BLACK, linewidth=1, linestyle=(0, (4, 3)), label="perfect", zorder=3)
            middle, wide = [(b.lo + b.hi) / 2 for b in full], [0.92 * (b.hi - b.lo) for b in full]
            upper.bar(
                middle, [b.accuracy for b in full], width=wide,
                color=BLUE, alpha=0.85, label="share right", zorder=2,
            )  # fmt: skip
            upper.plot(
                [b.confidence for b in full], [b.accuracy for b in full], "o", color=ORANGE, markersize=4,
                label="mean confidence", zorder=4,
            )  # fmt: skip
            upper.set(xlim=(0, 1), ylim=(0, 1), title=f"{title}: ECE {error:.3f}")
            upper.grid(axis="y", zorder=0)
            lower.bar(middle, [b.count / total for b in full], width=wide, color=GREY)
            lower.set(xlabel="confidence", ylim=(0, 1))
            lower.grid(axis="y")
        axes[0][0].set_ylabel("share right")
        axes[1][0].set_ylabel("rows")
        canvas.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    return buffer.getvalue()


def losses(history: Sequence[dict[str, Any]], best_epoch: int) -> str:
    """Training and held-out loss over the epochs.

    Args:
        history: of `FitResult`.
        best_epoch: is marked.

    Returns:
        The SVG.
    """
    with figure(6.0, 3.6) as (_, axes, buffer):
        held = [(row["epoch"], row["validation"]["loss"]) for row in history if "validation" in row]
        trained = [(row["epoch"], row["train_loss"]) for row in history if row["train_loss"] is not None]
        axes.plot(*zip(*trained), color=BLUE, marker="o", markersize=3.5, label="training")
        if held:
            axes.plot(*zip(*held), color=ORANGE, marker="s", markersize=3.5, label="held out")
        axes.axvline(best_epoch, color=GREEN, linewidth=1.2, linestyle=(0, (4, 3)), label=f"kept: epoch {best_epoch}")
        axes.set(xlabel="epoch", ylabel="loss", title="Loss", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y")
        axes.legend(fontsize=9)
    return buffer.getvalue()
