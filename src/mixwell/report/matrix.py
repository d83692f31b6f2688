"""The confusion matrix of a page: a table of numbers for few classes, a drawing of all of them for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mixwell.report import charts

if TYPE_CHECKING:
    from markupsafe import Markup
    from numpy.typing import NDArray

IN_ORDER = 12  # up to so many classes they keep their own order
WITH_NUMBERS = 24  # up to so many classes a cell has room for its number
MOST = 150  # the classes of a drawing; of more, those with the most mistakes


def view(names: Sequence[str], confusion: NDArray[np.int64]) -> dict[str, Any]:
    """What `method.html.j2` shows: rows of cells in per cent of each true class, or a drawing.

    Args:
        names: of the C classes.
        confusion: (C, C) rows of a class (first index) that are taken for another.
    """
    shown = order(confusion)
    dense = len(shown) > WITH_NUMBERS
    return {
        "names": [names[number] for number in shown],
        "rows": [] if dense else [_row(names, confusion, true, shown) for true in shown],
        "picture": draw(names, confusion, shown) if dense else None,
        "left_out": len(names) - len(shown),
        "clustered": len(shown) > IN_ORDER,
        "large": len(shown) > 8,
    }


def order(confusion: NDArray[np.int64]) -> list[int]:
    """The classes to show, in order: as they are, or for many those that are confused next to each other."""
    count = len(confusion)
    if count <= IN_ORDER:
        return list(range(count))
    off = confusion - np.diag(np.diag(confusion))
    chosen = np.arange(count)
    if count > MOST:
        chosen = np.sort(np.argsort(-(off.sum(axis=1) + off.sum(axis=0)), kind="stable")[:MOST])
    part = off[np.ix_(chosen, chosen)].astype(float)
    if not part.any():
        return [int(number) for number in chosen]
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    shares = part / np.maximum(confusion[chosen].sum(axis=1), 1)[:, None]
    near = shares + shares.T
    distance = near.max() - near
    np.fill_diagonal(distance, 0.0)
    leaves = leaves_list(linkage(squareform(distance, checks=False), "average", optimal_ordering=True))
    return [int(chosen[leaf]) for leaf in leaves]


def _row(names: Sequence[str], confusion: NDArray[np.int64], true: int, shown: Sequence[int]) -> dict[str, Any]:
    total = max(int(confusion[true].sum()), 1)
    cells = [
        {
            "count": int(confusion[true, predicted]),
            "text": f"{100 * share:.0f}" if (share := confusion[true, predicted] / total) >= 0.005 else "",
            "weight": f"{_weight(share):.0f}",
            "right": true == predicted,
        }
        for predicted in shown
    ]
    return {"name": names[true], "cells": cells}


def _weight(share: float) -> float:
    """How strongly a cell is coloured, in per cent: small shares can be seen too."""
    return 100 * min(1.0, float(share)) ** 0.6


def draw(names: Sequence[str], confusion: NDArray[np.int64], shown: Sequence[int]) -> Markup:
    """All classes as small squares; those without a row are left white, and the pointer shows names and numbers."""
    longest = max(len(charts.shorten(names[number], 22)) for number in shown)
    size = max(7.0, min(22.0, 900.0 / len(shown)))
    side, letters = 34 + 6.2 * longest, min(12.0, size + 1)
    edge = side + size * len(shown)
    label = f"Confusion matrix of {len(shown)} classes; the table of all classes has the share right of each"
    drawing = charts.Picture(edge + 4, edge + 4, label, "chart matrix")
    drawing.text(side + size * len(shown) / 2, 12, "predicted class", anchor="middle", kind="soft")
    drawing.add("text", x=12.0, y=side + size * len(shown) / 2, text_anchor="middle", class_="soft",
                transform=f"rotate(-90 12 {side + size * len(shown) / 2:.1f})", words="true class")  # fmt: skip
    style = f"font-size:{letters:.1f}px"
    for place, number in enumerate(shown):
        at, name = side + size * (place + 0.5), charts.shorten(names[number], 22)
        drawing.add("text", x=side - 4, y=at + letters / 3, text_anchor="end", style=style, words=name)
        drawing.add("text", x=at + letters / 3, y=side - 4, style=style, words=name,
                    transform=f"rotate(-90 {at + letters / 3:.1f} {side - 4:.1f})")  # fmt: skip
    drawing.rect(side, side, size * len(shown), size * len(shown), "fill:none;stroke:var(--line)")
    for row, true in enumerate(shown):
        total = max(int(confusion[true].sum()), 1)
        for column, predicted in enumerate(shown):
            if count := int(confusion[true, predicted]):
                paint = "var(--h1)" if true == predicted else "var(--h2)"
                words = f"{names[true]} taken for {names[predicted]}: {count} of {total}"
                opacity = f"fill:{paint};fill-opacity:{_weight(count / total) / 100:.2f}"
                drawing.rect(side + size * column, side + size * row, size - 0.5, size - 0.5, opacity, words)
    return drawing.markup()
