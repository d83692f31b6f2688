"""Temperature scaling."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mixwell.metrics.scores import check_arrays, check_task, row_nll, sigmoid, softmax
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE
from mixwell.utils.errors import OptionError

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0


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
