"""One method in detail, as values for `look.html.j2`; the same for a comparison and for a single run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mixwell.compare.spec import BASELINE
from mixwell.report import charts
from mixwell.report.story import Classes, Method

_LOSSES = {"train": "training loss", "validation": "validation loss", "test": "test loss"}
_MOST_MOVED = 20


def loss_views(told: Mapping[str, Method], numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """The charts of the losses over training, a line a method.

    Args:
        told: the methods by name.
        numbers: of their series.
    """
    made = []
    for kind, title in _LOSSES.items():
        series = [
            charts.Series(name, numbers[name], method.losses[kind])
            for name, method in sorted(told.items(), key=lambda each: numbers[each[0]])
            if kind in method.losses
        ]
        if series:
            picture = charts.lines(
                series, label=f"{title} over training", x_title="updates", y_title=title, marks=False, from_zero=True
            )
            made.append({"title": title.capitalize(), "picture": picture})
    return made


def method_view(method: Method, plain: Method | None, numbers: Mapping[str, int]) -> dict[str, Any]:
    """What `look.html.j2` shows of a method.

    Args:
        method: of a comparison, or the only one of a run.
        plain: plain training, to compare with; None where there is none.
        numbers: of the series.
    """
    reliability = [
        {
            "title": title,
            "error": f"{100 * found.error:.1f} %",
            "picture": charts.reliability(
                found.bins, label=f"Reliability of {method.name} {title}: calibration error {100 * found.error:.1f} %"
            ),
        }
        for title, found in (("before temperature", method.before), ("after temperature", method.after))
        if found is not None
    ]
    return {
        "name": method.name,
        "reliability": reliability,
        "classes": _classes(method, plain, numbers) if method.classes is not None else None,
        "mistakes": method.mistakes,
    }


def _classes(method: Method, plain: Method | None, numbers: Mapping[str, int]) -> dict[str, Any]:
    found = method.classes
    assert found is not None
    base = plain.classes if plain is not None else None
    rows = [
        charts.Pair(
            name, float(base.recall[at]) if base is not None else math.nan, float(found.recall[at]),
            int(found.support[at]),
        )
        for at, name in enumerate(found.names)
        if found.support[at]
    ]  # fmt: skip
    moved = sorted((pair for pair in rows if pair.plain != pair.value), key=lambda pair: -abs(pair.plain - pair.value))
    moved = sorted(moved[:_MOST_MOVED], key=lambda pair: pair.plain - pair.value)
    picture = None
    if base is not None and method.name != BASELINE and moved:
        picture = charts.dumbbells(
            moved, label=f"Share right by class, plain training and {method.name}", method=method.name,
            at=numbers[method.name],
        )  # fmt: skip
    return {
        "rows": rows,
        "against": base is not None and method.name != BASELINE,
        "picture": picture,
        "moved": len(moved),
        "matrix": _matrix(found),
    }


def _matrix(found: Classes) -> dict[str, Any]:
    """The confusion matrix in per cent of each true class, with the classes left out in one column."""
    rows = []
    for at in found.shown:
        total = max(int(found.confusion[at].sum()), 1)
        shares = [found.confusion[at, to] / total for to in found.shown]
        rest = 1 - sum(shares) if found.confusion[at].any() else 0.0  # a class without test rows
        cells = [
            {
                "count": int(found.confusion[at, to]),
                "text": f"{100 * share:.0f}" if share >= 0.005 else "",
                "weight": f"{100 * min(1.0, float(share)) ** 0.6:.0f}",
                "right": at == to,
                "dark": share > 0.55,
            }
            for to, share in zip(found.shown, shares)
        ]
        rows.append({"name": found.names[at], "cells": cells, "rest": f"{100 * rest:.0f}" if rest >= 0.005 else ""})
    return {
        "names": [found.names[at] for at in found.shown],
        "rows": rows,
        "left_out": len(found.names) - len(found.shown),
    }
