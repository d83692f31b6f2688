"""Calibration: reliability bins and expected calibration errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mixwell.metrics.scores import Floats, Ints
from mixwell.metrics.tasks import MULTI, SINGLE

BINS = 15


@dataclass(frozen=True)
class Bin:
    """One bar of a reliability diagram over the confidences in (lo, hi]; an empty bin has NaN means."""

    lo: float
    hi: float
    count: int
    confidence: float
    accuracy: float


def bin_index(confidence: ArrayLike, bins: int = BINS) -> Ints:
    """Number of the equal-width bin (lo, hi] of each confidence; 0.0 goes into the first bin."""
    edges = np.arange(bins + 1) / bins  # each k/bins correctly rounded, so that 0.2 is on the edge 3/15
    return np.clip(np.searchsorted(edges, np.asarray(confidence), side="left") - 1, 0, bins - 1)


def reliability_bins(probs: ArrayLike, labels: ArrayLike, bins: int = BINS) -> list[Bin]:
    """The bars of a reliability diagram: equal-width bins over the largest probability of each row."""
    conf, right = confidence_and_correctness(probs, probs, labels)
    where = bin_index(conf, bins)
    out = []
    for b in range(bins):
        inside = where == b
        n = int(inside.sum())
        means = (float(conf[inside].mean()), float(right[inside].mean())) if n else (np.nan, np.nan)
        out.append(Bin(b / bins, (b + 1) / bins, n, *means))
    return out


def ece(probs: ArrayLike, labels: ArrayLike, bins: int = BINS) -> float:
    """Expected calibration error over equal-width bins (lo, hi].

    The confidence of a row is its largest probability; 1.0 falls in the last bin and 0.0 in the first.
    The result is the mean over rows of |accuracy - confidence| of the row's bin, in [0, 1].
    """
    return ece_of(*confidence_and_correctness(probs, probs, labels), bins)


def ece_of(confidence: ArrayLike, right: ArrayLike, bins: int = BINS) -> float:
    """`ece` from confidences (N,) and 0/1 (N,) directly."""
    conf, ok = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.float64)
    gaps = np.bincount(bin_index(conf, bins), weights=ok - conf, minlength=bins)
    return float(min(np.abs(gaps).sum() / len(conf), 1.0))


def adaptive_ece(probs: ArrayLike, labels: ArrayLike, bins: int = BINS) -> float:
    """Expected calibration error over bins of equal mass (N / bins rows each).

    So that the order of the rows cannot matter, rows of equal confidence count as one block, spread evenly,
    and a block on a boundary is shared between its two bins in proportion.
    """
    return adaptive_ece_of(*confidence_and_correctness(probs, probs, labels), bins)


def adaptive_ece_of(confidence: ArrayLike, right: ArrayLike, bins: int = BINS) -> float:
    """`adaptive_ece` from confidences (N,) and 0/1 (N,) directly."""
    conf, ok = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.float64)
    _, group = np.unique(conf, return_inverse=True)
    mass = np.concatenate([[0.0], np.cumsum(np.bincount(group))])
    gap = np.concatenate([[0.0], np.cumsum(np.bincount(group, weights=ok - conf))])
    at = np.interp(np.arange(bins + 1) * (len(conf) / bins), mass, gap)
    return float(min(np.abs(np.diff(at)).sum() / len(conf), 1.0))


def confidence_and_correctness(
    probs: ArrayLike, logits: ArrayLike, labels: ArrayLike, task: str = SINGLE
) -> tuple[Floats, Floats]:
    """Confidence and rightness (0 or 1) of every decision, (N,) or for multi label (N, C).

    What is decided comes from the logits: two large ones may round to equal probabilities.
    """
    p, z, y = np.asarray(probs, dtype=np.float64), np.asarray(logits), np.asarray(labels)
    if task == MULTI:
        return np.maximum(p, 1 - p), ((z > 0) == (y == 1)).astype(np.float64)
    return p.max(axis=1), (z.argmax(axis=1) == y).astype(np.float64)
