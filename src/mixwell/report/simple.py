"""One self-contained page about a comparison: conclusions, leaderboards and plots, with no network.

`prepare` makes plain values of a summary; the template only lays them out.
"""

from __future__ import annotations

import base64
import math
from typing import Any

from mixwell.compare import export
from mixwell.compare.statistics import BETTER, CALIBRATION, PRIMARY, WORSE, metric_info
from mixwell.compare.summary import Group, Summary
from mixwell.report.plots import BLUE, GREEN, GREY, ORANGE, figure

TEMPLATE = "compare.html.j2"


def page(summary: Summary) -> str:
    """The page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mixwell", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(TEMPLATE).render(**prepare(summary)) + "\n"


def prepare(summary: Summary) -> dict[str, Any]:
    """What the template shows, as plain values."""
    from mixwell._version import __version__

    return {
        "version": __version__,
        "notes": list(summary.notes),
        "groups": [_prepared(group) for group in summary.groups],
    }


def _prepared(group: Group) -> dict[str, Any]:
    ready = group.comparison is not None
    return {
        "title": group.title,
        "sentences": list(group.sentences),
        "about": export.about(group),
        "footnote": export.footnote(group),
        "header": export.header(group) if ready else [],
        "rows": export.leaderboard(group),
        "failures": export.failures(group),
        "plots": [
            {
                "alt": f"Difference to plain training in {metric_info(name).title}",
                "source": _embedded(differences(group, name)),
            }
            for name in (PRIMARY[group.spec.task], CALIBRATION.get(group.spec.task, ""))
            if group.comparison is not None and name in group.comparison.metrics and len(group.comparison.methods) > 1
        ],
    }  # fmt: skip


def _embedded(svg: str) -> str:
    """An SVG as the source of an image, where it can neither run scripts nor clash with others."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def differences(group: Group, metric: str) -> str:
    """Each method's difference to plain training with its interval, as SVG.

    Args:
        group: a comparison.
        metric: of it.
    """
    chosen = group.comparison
    assert chosen is not None
    shown = [(name, chosen.row(name, metric).difference) for name in group.methods if name in chosen.methods]
    found = [(name, each) for name, each in shown if each is not None][::-1]
    colours = {BETTER: GREEN, WORSE: ORANGE}
    with figure(7.0, 1.1 + 0.34 * len(found)) as (_, axes, buffer):
        axes.axvline(0, color=GREY, linewidth=1)
        for at, (_, each) in enumerate(found):
            colour = colours.get(each.verdict, BLUE)
            if math.isfinite(each.lo) and math.isfinite(each.hi):
                axes.plot([each.lo, each.hi], [at, at], color=colour, linewidth=2, solid_capstyle="round")
            axes.plot([each.mean], [at], "o", color=colour, markersize=6)
        # Names are the user's: no mathematics in them.
        axes.set_yticks(range(len(found)), [name.replace("$", r"\$") for name, _ in found])
        info = metric_info(metric)
        better = "right" if info.higher_is_better else "left"
        axes.set_title(f"{info.title}: difference to plain training ({better} is better)")
        axes.set_ylim(-0.6, len(found) - 0.4)
        axes.grid(axis="x")
    return buffer.getvalue()
