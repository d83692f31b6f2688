"""Answering only when sure, and telling texts of other kinds apart: pure functions of confidences and logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixwell.metrics.scores import Floats
from mixwell.metrics.tasks import MULTI, SINGLE

# A share of right answers among fewer rows than this says nothing.
LEAST_ANSWERS = 10
MOST_POINTS = 200


@dataclass(frozen=True)
class Point:
    """What a threshold does on held-out rows.

    Attributes:
        threshold: rows with at least this confidence are answered.
        coverage: the share of rows that are.
        precision: the share of them that is right.
    """

    threshold: float
    coverage: float
    precision: float


def frontier(confidence: ArrayLike, right: ArrayLike) -> list[Point]:
    """The thresholds worth choosing, from the one that answers most rows to the most precise one.

    Each is more precise than all that answer more rows. There are at most `MOST_POINTS`; none with fewer than
    `LEAST_ANSWERS` rows.

    Args:
        confidence: (N,) the probability of what would be answered.
        right: (N,) whether that is right.
    """
    conf, ok = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.float64)
    order = np.argsort(-conf, kind="stable")
    conf, hits = conf[order], np.cumsum(ok[order])
    # Rows of equal confidence are answered together.
    ends = np.flatnonzero(np.append(conf[:-1] != conf[1:], len(conf) > 0))
    ends = ends[ends + 1 >= LEAST_ANSWERS]
    points: list[Point] = []
    best = -1.0
    for end in ends[::-1]:
        precision = float(hits[end] / (end + 1))
        if precision > best:
            best = precision
            points.append(Point(float(conf[end]), float((end + 1) / len(conf)), precision))
    if len(points) > MOST_POINTS:
        points = [points[at] for at in np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)]
    return points


def choose_point(points: list[Point], wanted: float) -> Point | None:
    """The point of a `frontier` that answers most rows with at least the wanted precision; None if none does."""
    return next((point for point in points if point.precision >= wanted), None)


def crossed(confidence: ArrayLike, right: ArrayLike, parts: ArrayLike, wanted: float) -> tuple[float, float | None]:
    """Coverage and precision when each part's threshold was chosen on the other parts; None without an answer.

    A threshold looks a little too good on the rows that chose it; this does not.

    Args:
        confidence: (N,).
        right: (N,).
        parts: (N,) the part of each row.
        wanted: the precision.
    """
    conf, ok, part = np.asarray(confidence), np.asarray(right, dtype=np.float64), np.asarray(parts)
    answered = np.zeros(len(conf), dtype=bool)
    for each in np.unique(part):
        out = part == each
        point = choose_point(frontier(conf[~out], ok[~out]), wanted)
        if point is not None:
            answered[out] = conf[out] >= point.threshold
    return float(answered.mean()), float(ok[answered].mean()) if answered.any() else None


def confidences(probabilities: ArrayLike, task: str = SINGLE) -> Floats:
    """(N,) the probability of what is predicted; for multi label of the whole set, labels taken as independent."""
    p = np.asarray(probabilities, dtype=np.float64)
    return np.prod(np.maximum(p, 1 - p), axis=1) if task == MULTI else p.max(axis=1)


def energy(logits: ArrayLike, task: str = SINGLE) -> Floats:
    """(N,) the energy of each row, higher for texts unlike the training rows.

    One label: -log sum exp(logits) (Liu et al. 2020). Multi label: the sum of -log(1 + exp(logit)) over the labels
    (Wang et al. 2021).
    """
    z = np.asarray(logits, dtype=np.float64)
    if task == MULTI:
        return -np.logaddexp(0, z).sum(axis=1)
    return -np.logaddexp.reduce(z, axis=1)


def auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """How well a score tells two kinds of rows apart: the chance that one from outside has the higher; ties count half.

    Args:
        inside: (N,) scores of rows of the model's own kind.
        outside: (M,) scores of rows of other kinds.
    """
    low: NDArray[Any] = np.sort(np.asarray(inside, dtype=np.float64))
    high = np.asarray(outside, dtype=np.float64)
    below = np.searchsorted(low, high, side="left") + np.searchsorted(low, high, side="right")
    return float(below.mean() / 2 / len(low))
