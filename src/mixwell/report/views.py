"""One method in detail, as values for `method.html.j2`; the same for a comparison and for a single run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mixwell.compare.spec import BASELINE
from mixwell.report import charts
from mixwell.report.details import Classes, MethodDetails

_LOSSES = {"train": "training loss", "validation": "validation loss", "test": "test loss"}
_MOST_MOVED = 20


def loss_views(methods: Mapping[str, MethodDetails], numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """The charts of the losses over training, one line per method.

    Args:
        methods: by name.
        numbers: of their series.
    """
    charts_of_losses = []
    for kind, title in _LOSSES.items():
        series = [
            charts.Series(name, numbers[name], method.losses[kind])
            for name, method in sorted(methods.items(), key=lambda item: numbers[item[0]])
            if kind in method.losses
        ]
        if series:
            picture = charts.lines(
                series, label=f"{title} over training", x_title="updates", y_title=title, marks=False, from_zero=True
            )
            charts_of_losses.append({"title": title.capitalize(), "picture": picture})
    return charts_of_losses


def method_view(method: MethodDetails, plain: MethodDetails | None, numbers: Mapping[str, int]) -> dict[str, Any]:
    """What `method.html.j2` shows of a method.

    Args:
        method: of a comparison, or the only one of a run.
        plain: plain training, to compare with; None where there is none.
        numbers: of the series.
    """
    reliability = [
        {
            "title": title,
            "error": f"{100 * part.error:.1f} %",
            "picture": charts.reliability(
                part.bins, label=f"Reliability of {method.name} {title}: calibration error {100 * part.error:.1f} %"
            ),
        }
        for title, part in (("before temperature", method.before), ("after temperature", method.after))
        if part is not None
    ]
    return {
        "name": method.name,
        "reliability": reliability,
        "classes": _class_view(method, plain, numbers) if method.classes is not None else None,
        "mistakes": method.mistakes,
    }


def _class_view(method: MethodDetails, plain: MethodDetails | None, numbers: Mapping[str, int]) -> dict[str, Any]:
    classes = method.classes
    assert classes is not None
    base = plain.classes if plain is not None else None
    rows = [
        charts.ClassChange(
            name, float(base.recall[number]) if base is not None else math.nan, float(classes.recall[number]),
            int(classes.support[number]),
        )
        for number, name in enumerate(classes.names)
        if classes.support[number]
    ]  # fmt: skip
    moved = sorted((row for row in rows if row.plain != row.value), key=lambda row: -abs(row.plain - row.value))
    moved = sorted(moved[:_MOST_MOVED], key=lambda row: row.plain - row.value)
    picture = None
    if base is not None and method.name != BASELINE and moved:
        picture = charts.dumbbells(
            moved, label=f"Share right by class, plain training and {method.name}", method=method.name,
            number=numbers[method.name],
        )  # fmt: skip
    return {
        "rows": rows,
        "against": base is not None and method.name != BASELINE,
        "picture": picture,
        "moved": len(moved),
        "matrix": _matrix(classes),
    }


def _matrix(classes: Classes) -> dict[str, Any]:
    """The confusion matrix in per cent of each true class, with the classes left out in one column."""
    rows = []
    for true in classes.shown:
        total = max(int(classes.confusion[true].sum()), 1)
        shares = [classes.confusion[true, predicted] / total for predicted in classes.shown]
        rest = 1 - sum(shares) if classes.confusion[true].any() else 0.0  # a class without test rows
        cells = [
            {
                "count": int(classes.confusion[true, predicted]),
                "text": f"{100 * share:.0f}" if share >= 0.005 else "",
                "weight": f"{100 * min(1.0, float(share)) ** 0.6:.0f}",
                "right": true == predicted,
                "dark": share > 0.55,
            }
            for predicted, share in zip(classes.shown, shares)
        ]
        rows.append({"name": classes.names[true], "cells": cells, "rest": f"{100 * rest:.0f}" if rest >= 0.005 else ""})
    return {
        "names": [classes.names[true] for true in classes.shown],
        "rows": rows,
        "left_out": len(classes.names) - len(classes.shown),
    }
