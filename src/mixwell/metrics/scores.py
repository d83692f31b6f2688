"""Scores of predictions: accuracy, F1, MCC, negative log-likelihood, Brier score; and probabilities from logits.

Every function is pure and takes numpy arrays. Shapes, for N rows and C classes or labels:

- single label: logits (N, C), labels (N,) of integers in [0, C);
- multi label: logits (N, C), labels (N, C) of 0 and 1;
- regression: outputs (N,) or (N, K), targets of the same shape.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE, TASKS
from mixwell.utils.errors import DataError, OptionError, nearest

Floats = NDArray[np.float64]


Ints = NDArray[np.int64]


class MetricInfo(NamedTuple):
    """What a metric is called and how to read it.

    Attributes:
        title: name for people.
        higher_is_better: direction.
        tasks: the tasks it belongs to.
        scaled: whether a temperature changes it (accuracy and F1 depend on the largest logit only).
    """

    title: str
    higher_is_better: bool
    tasks: tuple[str, ...]
    scaled: bool = False


METRICS: dict[str, MetricInfo] = {
    "accuracy": MetricInfo("accuracy", True, (SINGLE,)),
    "subset_accuracy": MetricInfo("subset accuracy", True, (MULTI,)),
    "micro_f1": MetricInfo("micro-F1", True, (MULTI,)),
    "macro_f1": MetricInfo("macro-F1", True, (SINGLE, MULTI)),
    "mcc": MetricInfo("Matthews correlation", True, (SINGLE,)),
    "nll": MetricInfo("negative log-likelihood", False, (SINGLE, MULTI), True),
    "brier": MetricInfo("Brier score", False, (SINGLE, MULTI), True),
    "ece": MetricInfo("calibration error (ECE)", False, (SINGLE, MULTI), True),
    "adaptive_ece": MetricInfo("adaptive calibration error", False, (SINGLE,), True),
    "aurc": MetricInfo("area under the risk-coverage curve (AURC)", False, (SINGLE,)),
    "excess_aurc": MetricInfo("excess AURC", False, (SINGLE,)),
    "error_auroc": MetricInfo("AUROC of error detection", True, (SINGLE,)),
    "mse": MetricInfo("mean squared error", False, (REGRESSION,)),
    "mae": MetricInfo("mean absolute error", False, (REGRESSION,)),
    "pearson": MetricInfo("Pearson correlation", True, (REGRESSION,)),
    "spearman": MetricInfo("Spearman correlation", True, (REGRESSION,)),
}


def check_task(task: str) -> str:
    """Return `task` if it is known, else raise `OptionError`."""
    if task not in TASKS:
        raise OptionError(f"unknown task {task!r}{nearest(task, TASKS)}: use one of {', '.join(TASKS)}")
    return task


def check_arrays(logits: ArrayLike, labels: ArrayLike, task: str = SINGLE) -> tuple[Floats, NDArray[Any]]:
    """Return (logits, labels) as arrays of the shapes the task wants, or raise `DataError`."""
    z = np.asarray(logits, dtype=np.float64)
    y = np.asarray(labels)
    if check_task(task) == REGRESSION:
        y = y.astype(np.float64)
        z, y = (v[:, None] if v.ndim == 1 else v for v in (z, y))
        if z.shape != y.shape or z.ndim != 2 or not len(z):
            raise DataError(
                f"regression needs outputs and targets of one shape (rows,) or (rows, outputs) with at least "
                f"one row; got {z.shape} and {y.shape}"
            )
        if not np.isfinite(y).all():
            raise DataError("the regression targets hold NaN or infinite values: remove those rows")
    else:
        want = (len(z),) if task == SINGLE else z.shape
        if z.ndim != 2 or y.shape != want or not y.size:
            raise DataError(
                f"{task} needs logits (rows, classes) and labels {'(rows,)' if task == SINGLE else 'alike'} "
                f"with at least one row; got {z.shape} and {y.shape}"
            )
        whole = y.astype(np.int64)
        top = z.shape[1] if task == SINGLE else 2
        if not np.array_equal(whole, y) or whole.min() < 0 or whole.max() >= top:
            raise DataError(f"the labels of a {task} task must be whole numbers from 0 to {top - 1}")
        y = whole
    bad = np.flatnonzero(~np.isfinite(z).all(axis=1))
    if len(bad):
        raise DataError(
            f"{len(bad)} of {len(z)} rows of the model's outputs hold NaN or infinite values "
            f"(first: row {bad[0]}): the training diverged; lower the learning rate"
        )
    return z, y


def log_softmax(logits: ArrayLike) -> Floats:
    """Logarithm of the softmax over the last axis, safe for large logits; same shape as `logits`."""
    z = np.asarray(logits, dtype=np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def softmax(logits: ArrayLike) -> Floats:
    """Softmax over the last axis, safe for large logits; same shape as `logits`."""
    z = np.asarray(logits, dtype=np.float64)
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def sigmoid(logits: ArrayLike) -> Floats:
    """Logistic function, safe for large logits of either sign; same shape as `logits`."""
    z = np.asarray(logits, dtype=np.float64)
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def accuracy(scores: ArrayLike, labels: ArrayLike) -> float:
    """Share of rows whose largest score (N, C) is at the label (N,); the first of equal scores counts."""
    return float(np.mean(np.argmax(np.asarray(scores), axis=1) == np.asarray(labels)))


def f1_from_counts(tp: ArrayLike, predicted: ArrayLike, support: ArrayLike) -> NDArray[Any]:
    """F1 for each class from its counts; NaN where a class is neither predicted nor present."""
    total = np.asarray(predicted, dtype=np.float64) + np.asarray(support)
    return 2.0 * np.asarray(tp) / np.where(total > 0, total, np.nan)


def mcc_from_counts(tp: ArrayLike, predicted: ArrayLike, support: ArrayLike) -> NDArray[Any]:
    """Multi-class Matthews correlation from counts (C, ...); 0 where it is undefined."""
    p, t = np.asarray(predicted, dtype=np.float64), np.asarray(support, dtype=np.float64)
    n = t.sum(axis=0)
    spread = (n**2 - (p**2).sum(axis=0)) * (n**2 - (t**2).sum(axis=0))
    cov = np.asarray(tp, dtype=np.float64).sum(axis=0) * n - (p * t).sum(axis=0)
    return np.where(spread > 0, cov / np.sqrt(np.where(spread > 0, spread, 1.0)), 0.0)


def counts(scores: ArrayLike, labels: ArrayLike, task: str = SINGLE) -> tuple[Ints, Ints, Ints]:
    """Hits, predictions and support per class, each (C,)."""
    s, y = np.asarray(scores), np.asarray(labels)
    if task == MULTI:
        chosen, there = s > 0, y > 0.5
        return (chosen & there).sum(axis=0), chosen.sum(axis=0), there.sum(axis=0)
    pred, c = s.argmax(axis=1), s.shape[1]
    hits = np.bincount(y[pred == y], minlength=c)
    return hits, np.bincount(pred, minlength=c), np.bincount(y, minlength=c)


def macro_f1(scores: ArrayLike, labels: ArrayLike) -> float:
    """Mean F1 over classes. A class absent from both labels and predictions is left out of the mean."""
    return float(np.nanmean(f1_from_counts(*counts(scores, labels))))


def mcc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Multi-class Matthews correlation; 0 when it is undefined (one class only, predicted or present)."""
    return float(mcc_from_counts(*counts(scores, labels)))


def classwise(scores: ArrayLike, labels: ArrayLike, task: str = SINGLE) -> dict[str, NDArray[Any]]:
    """Precision, recall, F1 and support per class, each (C,); 0 where a ratio is 0/0.

    Args:
        scores: (N, C) logits.
        labels: (N,), or (N, C) of 0 and 1 for multi label.
        task: single or multi label.
    """
    tp, predicted, support = counts(scores, labels, task)
    return {
        "precision": tp / np.maximum(predicted, 1),
        "recall": tp / np.maximum(support, 1),
        "f1": np.nan_to_num(f1_from_counts(tp, predicted, support)),
        "support": support,
    }


def row_nll(logits: ArrayLike, labels: ArrayLike, task: str = SINGLE) -> Floats:
    """Negative log-likelihood of each row (N,), in log space; for multi label the mean over labels."""
    z, y = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    if task == MULTI:
        return np.asarray((np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))).mean(axis=1))
    top = z.max(axis=1)
    return np.asarray(np.log(np.exp(z - top[:, None]).sum(axis=1)) + top - z[np.arange(len(z)), y])


def row_brier(probs: ArrayLike, labels: ArrayLike, task: str = SINGLE) -> Floats:
    """Brier score of each row (N,): the sum over classes, or for multi label the mean over labels."""
    p, y = np.asarray(probs, dtype=np.float64), np.asarray(labels)
    if task == MULTI:
        return np.asarray(((p - y) ** 2).mean(axis=1))
    return np.asarray((p**2).sum(axis=1) - 2 * p[np.arange(len(p)), y] + 1.0)


def nll(logits: ArrayLike, labels: ArrayLike) -> float:
    """Mean negative log-likelihood (nats) of the labels (N,) under softmax(logits (N, C)), in log space."""
    return float(row_nll(logits, labels).mean())


def brier(probs: ArrayLike, labels: ArrayLike) -> float:
    """Brier score, in Brier's own convention: squared errors summed over classes, mean over rows; 0 to 2.

    (For two classes this is twice the score that scikit-learn's binary `brier_score_loss` gives.)
    """
    return float(row_brier(probs, labels).mean())
