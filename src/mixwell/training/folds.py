"""Folds for cross-fitting: every row is held out once, and texts that are alike stay on one side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.metrics.tasks import SINGLE

Ints = NDArray[np.int64]


def assign_folds(texts: Any, stratum: Any, folds: int, seed: int = 0) -> Ints:
    """Give each row the number of the fold that holds it out.

    Rows of equal `texts` go into one fold, each class is spread evenly, and the sizes of folds differ as little as that
    allows. The choice depends on the texts' keys and the seed, not on the order of the rows.

    Args:
        texts: (N,) a key for each text, equal for texts that count as one (`RowKeys.folded`).
        stratum: (N,) the class of each row; zeros for none.
        folds: K, at least 2.
        seed: of the choice.

    Returns:
        (N,) numbers from 0 to K - 1.
    """
    keys, labels = np.asarray(texts), np.asarray(stratum)
    _, group = np.unique(keys, return_inverse=True)
    mixed = np.random.default_rng([seed, 20_261_117]).permutation(int(group.max()) + 1)
    # A group's class is that of its first row in the order of classes, whatever the order of the rows.
    order = np.lexsort((mixed[group], labels))
    first_place: dict[int, int] = {}
    fold = np.empty(len(keys), dtype=np.int64)
    for row in order.tolist():
        mine = int(group[row])
        if mine not in first_place:
            first_place[mine] = len(first_place) % folds
        fold[row] = first_place[mine]
    return fold


def fold_of_rows(labels: Any, keys: Any, task: str, seed: int, folds: int) -> Ints:
    """(N,) folds of training rows, as many as their texts allow; classes are spread evenly where each row has one."""
    stratum = labels if task == SINGLE else np.zeros(len(labels), dtype=np.int64)
    return assign_folds(keys, stratum, max(2, min(folds, len(np.unique(keys)))), seed)


def seen_elsewhere(y: Any, folds: Any, task: str) -> Any:
    """Which rows have a class that other folds have too: (N,) bool.

    A model that never saw a class can say nothing about it, and what it says must not decide a temperature.
    """
    known = np.ones(len(y), dtype=bool)
    if task == SINGLE:
        for fold in np.unique(folds):
            out = folds == fold
            known[out] = np.isin(y[out], y[~out])
    return known if known.any() else np.ones(len(y), dtype=bool)
