"""How right and how sure a model is: accuracy, F1, MCC, NLL, Brier score, calibration error, temperature.

Every function is pure and takes numpy arrays. Shapes, for N rows and C classes or labels:

- single label: logits (N, C), labels (N,) of integers in [0, C);
- multi label: logits (N, C), labels (N, C) of 0 and 1;
- regression: outputs (N,) or (N, K), targets of the same shape.

`metrics` is the one entry point that training and `mixwell compare` use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixwell.errors import DataError, OptionError, nearest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SINGLE, MULTI, REGRESSION = "single_label", "multi_label", "regression"
TASKS = (SINGLE, MULTI, REGRESSION)
BINS = 15
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0


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
    "mse": MetricInfo("mean squared error", False, (REGRESSION,)),
    "mae": MetricInfo("mean absolute error", False, (REGRESSION,)),
    "pearson": MetricInfo("Pearson correlation", True, (REGRESSION,)),
    "spearman": MetricInfo("Spearman correlation", True, (REGRESSION,)),
}


@dataclass(frozen=True)
class Bin:
    """One bar of a reliability diagram over the confidences in (lo, hi]; an empty bin has NaN means."""

    lo: float
    hi: float
    count: int
    confidence: float
    accuracy: float


# ---------------------------------------------------------------------------------------------- checks


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


# ------------------------------------------------------------------------------------- probabilities


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


# ------------------------------------------------------------------------------------- right or wrong


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


def _counts(scores: ArrayLike, labels: ArrayLike, task: str = SINGLE) -> tuple[Ints, Ints, Ints]:
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
    return float(np.nanmean(f1_from_counts(*_counts(scores, labels))))


def mcc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Multi-class Matthews correlation; 0 when it is undefined (one class only, predicted or present)."""
    return float(mcc_from_counts(*_counts(scores, labels)))


def classwise(scores: ArrayLike, labels: ArrayLike, task: str = SINGLE) -> dict[str, NDArray[Any]]:
    """Precision, recall, F1 and support per class, each (C,); 0 where a ratio is 0/0.

    Args:
        scores: (N, C) logits.
        labels: (N,), or (N, C) of 0 and 1 for multi label.
        task: single or multi label.
    """
    tp, predicted, support = _counts(scores, labels, task)
    return {
        "precision": tp / np.maximum(predicted, 1),
        "recall": tp / np.maximum(support, 1),
        "f1": np.nan_to_num(f1_from_counts(tp, predicted, support)),
        "support": support,
    }


# ------------------------------------------------------------------------------------- probabilities' worth


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


def bin_index(confidence: ArrayLike, bins: int = BINS) -> Ints:
    """Number of the equal-width bin (lo, hi] of each confidence; 0.0 goes into the first bin."""
    edges = np.arange(bins + 1) / bins  # each k/bins correctly rounded, so that 0.2 is on the edge 3/15
    return np.clip(np.searchsorted(edges, np.asarray(confidence), side="left") - 1, 0, bins - 1)


def _sure_and_right(probs: ArrayLike, labels: ArrayLike) -> tuple[Floats, Floats]:
    p = np.asarray(probs, dtype=np.float64)
    return p.max(axis=1), (p.argmax(axis=1) == np.asarray(labels)).astype(np.float64)


def reliability_bins(probs: ArrayLike, labels: ArrayLike, bins: int = BINS) -> list[Bin]:
    """The bars of a reliability diagram: equal-width bins over the largest probability of each row."""
    conf, right = _sure_and_right(probs, labels)
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
    return ece_of(*_sure_and_right(probs, labels), bins)


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
    return adaptive_ece_of(*_sure_and_right(probs, labels), bins)


def adaptive_ece_of(confidence: ArrayLike, right: ArrayLike, bins: int = BINS) -> float:
    """`adaptive_ece` from confidences (N,) and 0/1 (N,) directly."""
    conf, ok = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.float64)
    _, group = np.unique(conf, return_inverse=True)
    mass = np.concatenate([[0.0], np.cumsum(np.bincount(group))])
    gap = np.concatenate([[0.0], np.cumsum(np.bincount(group, weights=ok - conf))])
    at = np.interp(np.arange(bins + 1) * (len(conf) / bins), mass, gap)
    return float(min(np.abs(np.diff(at)).sum() / len(conf), 1.0))


# ------------------------------------------------------------------------------------- temperature


def fit_temperature(logits: ArrayLike, labels: ArrayLike, task: str = SINGLE) -> float:
    """Fit the temperature T that minimises the NLL of softmax(logits / T) (or sigmoid) on validation rows.

    The NLL is convex in 1/T, so its one minimum is found by Newton's method inside a bracket that is halved
    (in log T) whenever a step leaves it. T is kept in [0.05, 20]. When every validation row is right by a
    margin (perfectly separated data, as in tiny sets), the NLL falls all the way and 0.05, the lower bound,
    comes back; when the logits say less than nothing, 20 does. If T = 1 is at least as good, 1.0 is returned,
    so the fitted temperature never raises the NLL of the rows it was fitted on.

    Args:
        logits: (N, C) of the validation set, never of the test set.
        labels: (N,), or (N, C) of 0 and 1 for multi label.
        task: `single_label` or `multi_label`.
    """
    if check_task(task) == REGRESSION:
        raise OptionError("task 'regression' has no temperature: fit one for classification only")
    z, y = check_arrays(logits, labels, task)

    def slopes(log_t: float) -> tuple[float, float]:
        """First and second derivative of the mean NLL by b = 1 / T."""
        b = np.exp(-log_t)
        if task == MULTI:
            p = sigmoid(z * b)
            return float((z * (p - y)).mean()), float((z * z * p * (1 - p)).mean())
        p = softmax(z * b)
        mean = (p * z).sum(axis=1)
        var = (p * (z - mean[:, None]) ** 2).sum(axis=1)
        return float((mean - z[np.arange(len(z)), y]).mean()), float(var.mean())

    lo, hi = np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE)
    if slopes(lo)[0] <= 1e-12 * float(np.abs(z).max()):  # for separated rows the slope may round to 0
        best = MIN_TEMPERATURE
    elif slopes(hi)[0] > 0:
        best = MAX_TEMPERATURE
    else:
        x = 0.0
        for _ in range(100):
            g, h = slopes(x)
            if g > 0:  # too sure: a larger T is wanted
                lo = x
            else:
                hi = x
            b = np.exp(-x) - g / h if h > 0 else 0.0
            step = -np.log(b) if b > 0 else np.inf
            new = step if lo < step < hi else (lo + hi) / 2
            if g == 0.0 or abs(new - x) < 1e-10:
                break
            x = new
        best = float(np.exp(x))
    if row_nll(z / best, y, task).mean() < row_nll(z, y, task).mean():
        return best
    return 1.0


# ------------------------------------------------------------------------------------- the entry point


def sureness(probs: ArrayLike, logits: ArrayLike, labels: ArrayLike, task: str = SINGLE) -> tuple[Floats, Floats]:
    """Confidence and rightness (0 or 1) of every decision, (N,) or for multi label (N, C).

    What is decided comes from the logits: two large ones may round to equal probabilities.
    """
    p, z, y = np.asarray(probs, dtype=np.float64), np.asarray(logits), np.asarray(labels)
    if task == MULTI:
        return np.maximum(p, 1 - p), ((z > 0) == (y == 1)).astype(np.float64)
    return p.max(axis=1), (z.argmax(axis=1) == y).astype(np.float64)


def ranks(values: ArrayLike) -> Floats:
    """Ranks from 1 (N,), the mean rank for ties."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]


def _correlation(x: Floats, y: Floats) -> float:
    """Mean over columns of Pearson's correlation of (N, K) with (N, K); 0 for a constant column."""
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    spread = np.sqrt((x * x).sum(axis=0) * (y * y).sum(axis=0))
    return float(np.mean(np.where(spread > 0, (x * y).sum(axis=0) / np.where(spread > 0, spread, 1.0), 0.0)))


def _single(z: Floats, y: NDArray[Any], t: float) -> dict[str, float]:
    p = softmax(z / t)
    conf, right = sureness(p, z, y)
    return {
        "accuracy": accuracy(z, y),
        "macro_f1": macro_f1(z, y),
        "mcc": mcc(z, y),
        "nll": nll(z / t, y),
        "brier": brier(p, y),
        "ece": ece_of(conf, right),
        "adaptive_ece": adaptive_ece_of(conf, right),
    }


def _multi(z: Floats, y: NDArray[Any], t: float) -> dict[str, float]:
    yes = z > 0
    tp, predicted, support = (yes & (y == 1)).sum(axis=0), yes.sum(axis=0), y.sum(axis=0)
    per_label = f1_from_counts(tp, predicted, support)
    p = sigmoid(z / t)
    conf, right = sureness(p, z, y, MULTI)
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


_BY_TASK: dict[str, Callable[[Floats, NDArray[Any], float], dict[str, float]]] = {
    SINGLE: _single,
    MULTI: _multi,
    REGRESSION: _regression,
}


def metrics(
    logits: ArrayLike, labels: ArrayLike, task: str = SINGLE, temperature: float | None = None
) -> dict[str, float]:
    """All metrics of a task, by the names in `METRICS`.

    Args:
        logits: the model's outputs; see the top of the module for the shapes.
        labels: the labels or targets.
        task: one of `TASKS`.
        temperature: divide the logits by this for the probabilities (decisions do not change); not for
            regression.

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
    return _BY_TASK[task](z, y, temperature or 1.0)
