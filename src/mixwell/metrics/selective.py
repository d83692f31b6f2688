"""Selective prediction: how well the confidence of a model tells its right answers from its wrong ones.

A model that may abstain answers the rows it is surest of first. Its risk at a coverage of k rows is the share of
mistakes among the k surest. Only the order of the confidences counts, so a method cannot gain by being bolder or more
timid than another. Rows of equal confidence count as one block whose mistakes are spread evenly, so that the order of
the rows cannot matter.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixwell.metrics.scores import Floats

NO_INFORMATION = 0.5  # the AUROC where there are no mistakes to detect, or nothing else


@lru_cache(maxsize=8)
def harmonic(largest: int) -> Floats:
    """(largest + 1,) the sums 1 + 1/2 + ... + 1/k for k from 0 on."""
    return np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, largest + 1))])


def risk_weight(mass: NDArray[np.int64], total: NDArray[np.int64]) -> Floats:
    """How much the `mass` surest of `total` rows add to the sum of all risks, were they all wrong.

    A mistake at rank i is in the risk of every coverage from i on, so it adds 1/i + ... + 1/n; the sum of that over the
    ranks 1 to w has the closed form w (1 + H(n) - H(w)) with the harmonic numbers H.
    """
    table = harmonic(int(np.max(total)))
    return np.asarray(mass * (1.0 + table[total] - table[mass]))


def _blocks(confidence: ArrayLike, right: ArrayLike) -> tuple[NDArray[np.int64], Floats]:
    """Rows and mistakes of each block of equal confidence, the surest first."""
    conf, wrong = np.asarray(confidence, dtype=np.float64), 1.0 - np.asarray(right, dtype=np.float64)
    _, group = np.unique(-conf, return_inverse=True)
    rows: NDArray[np.int64] = np.bincount(group).astype(np.int64)
    return rows, np.asarray(np.bincount(group, weights=wrong), dtype=np.float64)


def aurc_of(confidence: ArrayLike, right: ArrayLike) -> float:
    """Area under the risk-coverage curve: the mean risk over the coverages 1/N, 2/N, ..., 1; lower is better.

    Args:
        confidence: (N,) of each answer.
        right: (N,) of 0 and 1.
    """
    rows, wrong = _blocks(confidence, right)
    total = int(rows.sum())
    upto = np.concatenate([[0], np.cumsum(rows)])
    weights = np.diff(risk_weight(upto, np.full_like(upto, total)))
    return float((wrong / rows * weights).sum() / total)


def excess_aurc_of(confidence: ArrayLike, right: ArrayLike) -> float:
    """The AURC above that of a perfect order of the same answers, with all mistakes last; 0 is perfect."""
    ok = np.asarray(right, dtype=np.float64)
    total, answered = len(ok), np.asarray([round(ok.sum())])
    perfect = 1.0 - float(risk_weight(answered, np.asarray([total]))[0]) / total
    return max(aurc_of(confidence, right) - perfect, 0.0)


def error_auroc_of(confidence: ArrayLike, right: ArrayLike) -> float:
    """The probability that a right answer has more confidence than a wrong one; ties count half.

    0.5 if all answers are right, or all wrong: there is nothing to tell apart.
    """
    rows, wrong = _blocks(confidence, right)
    good = rows - wrong
    pairs = float(wrong.sum() * good.sum())
    if not pairs:
        return NO_INFORMATION
    above = np.cumsum(good) - good / 2
    return float((wrong * above).sum() / pairs)


def auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """The probability that a row of the first kind (N,) has a higher score than one of the second (M,)."""
    a, b = np.asarray(inside, dtype=np.float64), np.asarray(outside, dtype=np.float64)
    return error_auroc_of(np.concatenate([a, b]), np.concatenate([np.ones(len(a)), np.zeros(len(b))]))


def false_accept_rate(inside: ArrayLike, outside: ArrayLike, coverage: float = 0.95) -> float:
    """The share of foreign rows that are accepted where the threshold accepts a share of the own ones.

    Args:
        inside: (N,) confidences for rows of the kind the model was trained on.
        outside: (M,) confidences for foreign rows.
        coverage: the share of own rows to be accepted; the threshold is the highest that does.
    """
    own = np.sort(np.asarray(inside, dtype=np.float64))[::-1]
    threshold = own[int(np.ceil(coverage * len(own) - 1e-9)) - 1]
    return float(np.mean(np.asarray(outside, dtype=np.float64) >= threshold))
