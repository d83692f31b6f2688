"""All metrics of a task in one call: the entry point of training and of comparisons."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixwell.metrics.calibration import adaptive_ece_of, confidence_and_correctness, ece_of
from mixwell.metrics.scores import (
    Floats,
    accuracy,
    brier,
    check_arrays,
    counts,
    f1_from_counts,
    macro_f1,
    mcc,
    nll,
    row_brier,
    row_nll,
    sigmoid,
    softmax,
)
from mixwell.metrics.selective import aurc_of, error_auroc_of, excess_aurc_of
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE
from mixwell.utils.errors import OptionError


def ranks(values: ArrayLike) -> Floats:
    """Ranks from 1 (N,), the mean rank for ties."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]


def _correlation(x: Floats, y: Floats) -> float:
    """Mean over columns of Pearson's correlation of (N, K) with (N, K); 0 for a constant column."""
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    spread = np.sqrt((x * x).sum(axis=0) * (y * y).sum(axis=0))
    return float(np.mean(np.where(spread > 0, (x * y).sum(axis=0) / np.where(spread > 0, spread, 1.0), 0.0)))


def _single(z: Floats, y: NDArray[Any], t: float, only: Collection[str] | None = None) -> dict[str, float]:
    p = softmax(z / t)
    conf, right = confidence_and_correctness(p, z, y)
    # By the model's own probabilities: a temperature hardly changes their order, and for two classes not at all.
    own = conf if t == 1.0 else softmax(z).max(axis=1)
    metrics: dict[str, Callable[[], float]] = {
        "accuracy": lambda: accuracy(z, y),
        "macro_f1": lambda: macro_f1(z, y),
        "mcc": lambda: mcc(z, y),
        "nll": lambda: nll(z / t, y),
        "brier": lambda: brier(p, y),
        "ece": lambda: ece_of(conf, right),
        "adaptive_ece": lambda: adaptive_ece_of(conf, right),
        "aurc": lambda: aurc_of(own, right),
        "excess_aurc": lambda: excess_aurc_of(own, right),
        "error_auroc": lambda: error_auroc_of(own, right),
    }
    return {name: value() for name, value in metrics.items() if only is None or name in only}


def _multi(z: Floats, y: NDArray[Any], t: float) -> dict[str, float]:
    tp, predicted, support = counts(z, y, MULTI)
    per_label = f1_from_counts(tp, predicted, support)
    p = sigmoid(z / t)
    conf, right = confidence_and_correctness(p, z, y, MULTI)
    return {
        "subset_accuracy": float(right.all(axis=1).mean()),
        "micro_f1": float(np.nan_to_num(f1_from_counts(tp.sum(), predicted.sum(), support.sum()))),
        "macro_f1": float(np.nanmean(per_label)) if np.isfinite(per_label).any() else 0.0,
        "nll": float(row_nll(z / t, y, MULTI).mean()),
        "brier": float(row_brier(p, y, MULTI).mean()),
        "ece": ece_of(conf.ravel(), right.ravel()),
    }


def _regression(z: Floats, y: NDArray[Any], t: float) -> dict[str, float]:
    return {
        "mse": float(((z - y) ** 2).mean()),
        "mae": float(np.abs(z - y).mean()),
        "pearson": _correlation(z, y),
        "spearman": _correlation(np.apply_along_axis(ranks, 0, z), np.apply_along_axis(ranks, 0, y)),
    }


def measure(
    logits: ArrayLike,
    labels: ArrayLike,
    task: str = SINGLE,
    temperature: float | None = None,
    only: Collection[str] | None = None,
) -> dict[str, float]:
    """All metrics of a task, by the names in `METRICS`.

    Args:
        logits: the model's outputs; see the top of the module for the shapes.
        labels: the labels or targets.
        task: one of `TASKS`.
        temperature: divide the logits by this for the probabilities (decisions do not change); not for
            regression.
        only: the names of the metrics wanted, to save time; None for all.

    Multi label: a label is predicted when its probability is above 0.5; ECE is over all N * C binary
    decisions, with the confidence max(p, 1 - p); NLL and Brier score are means over labels. Regression with
    several outputs: errors are means over all outputs, correlations means over the outputs' correlations,
    and the correlation of a constant is 0.
    """
    z, y = check_arrays(logits, labels, task)
    if temperature is not None:
        if task == REGRESSION:
            raise OptionError("task 'regression' has no temperature: leave it out")
        if not (np.isfinite(temperature) and temperature > 0):
            raise OptionError(f"temperature must be a number above 0, got {temperature}")
    if task == SINGLE:
        return _single(z, y, temperature or 1.0, only)
    metrics = (_multi if task == MULTI else _regression)(z, y, temperature or 1.0)
    return {name: value for name, value in metrics.items() if only is None or name in only}
