"""The probe: a logistic regression on the frozen features of an encoder.

It takes seconds, needs no tuning, and is what a sensible person would use instead of fine-tuning. Here it is a method
of its own, the baseline of every run, and where the head of a fine-tuned model starts from (Kumar et al. 2022: a head
that starts at random distorts the features before it has learned anything).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from mixwell.metrics.scores import row_nll
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE
from mixwell.training.held_out import HeldOut
from mixwell.training.modeling_pooled import pool
from mixwell.training.predict import outputs

Floats = NDArray[np.float64]
# Inverse strengths of the penalty that cross-validation chooses among, ascending: each fit starts from the last one.
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# The logit of a class that a fold has no training row of, below the others of its row.
ABSENT = 4.0


@dataclass
class Probe:
    """A fitted probe: the outputs of a row with the features x are `weight @ x + bias`.

    Attributes:
        weight: (C, H).
        bias: (C,).
        strength: the chosen inverse strength of the penalty.
        held_out: (N, C) the outputs for each training row of a probe that did not see it; None without folds.
        start_scale: of `humble_scale`: what a head that starts as the probe multiplies it with.
    """

    weight: Floats
    bias: Floats
    strength: float
    held_out: Floats | None = None
    start_scale: float = 1.0

    def outputs(self, x: Any) -> Floats:
        """Logits, or values for regression, (N, C)."""
        return np.asarray(x, dtype=np.float64) @ self.weight.T + self.bias


# Problems of this size only lose by threads (77 classes, 616 rows: 7.1 instead of 0.6 CPU seconds on two busy cores),
# and with one the result does not depend on the machine's number of cores.
one_thread = threadpool_limits.wrap(limits=1, user_api="blas")


@one_thread
def fit_probe(x: Any, y: Any, task: str, classes: int, folds: Any = None, strength: float | None = None) -> Probe:
    """Fit a probe; the strength of its penalty is chosen on held-out folds, by `HeldOut.careful_loss`.

    Args:
        x: (N, H) features.
        y: (N,) classes, (N, C) of 0 and 1 for multi-label, (N,) values for regression.
        task: of the data.
        classes: C; 1 for regression.
        folds: (N,) the fold that holds each row out; None needs `strength`.
        strength: a fixed one.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y)
    held: dict[float, Floats] = {}
    if folds is not None:
        tried = STRENGTHS if strength is None else (strength,)
        held = _held_out(x, y, task, classes, np.asarray(folds), tried)
        strength = best_strength(
            {s: HeldOut("out_of_fold", outputs, y, task, np.asarray(folds)) for s, outputs in held.items()}
        )
    if strength is None:
        raise ValueError("fit_probe needs folds or a strength")
    path = [each for each in STRENGTHS if each < strength] + [strength]
    *_, (weight, bias) = _fits(x, y, task, classes, path[-2:])
    fitted = Probe(weight, bias, strength, held.get(strength))
    if folds is not None:
        fitted.start_scale = humble_scale(fitted, x, y, task, folds)
    return fitted


def _held_out(x: Any, y: Any, task: str, classes: int, folds: Any, strengths: Sequence[float]) -> dict[float, Floats]:
    """For each strength the outputs (N, C) for rows that the fit did not see."""
    held = {strength: np.zeros((len(x), classes)) for strength in strengths}
    for fold in np.unique(folds):
        out = folds == fold
        for strength, values in outputs_by_strength(x[~out], y[~out], x[out], task, classes, strengths).items():
            held[strength][out] = values
    return held


@one_thread
def outputs_by_strength(
    x: Any, y: Any, others: Any, task: str, classes: int, strengths: Sequence[float] = STRENGTHS
) -> dict[float, Floats]:
    """For each strength the outputs (M, C) for other rows (M, H) of a probe that was fitted on x (N, H) and y."""
    fits = _fits(x, y, task, classes, strengths)
    return {strength: others @ weight.T + bias for strength, (weight, bias) in zip(strengths, fits)}


def best_strength(held: dict[float, HeldOut]) -> float:
    """The strength whose held-out rows have the lowest careful loss."""
    return min(held, key=lambda strength: held[strength].careful_loss())


def _fits(x: Any, y: Any, task: str, classes: int, strengths: Sequence[float]) -> Iterator[tuple[Floats, Floats]]:
    """Weight (C, H) and bias (C,) for each strength, ascending, with a row for classes that these rows lack too."""
    # The mean is taken off, so that the penalty acts on what differs between texts; it goes into the bias.
    centre = x.mean(axis=0)
    z = x - centre
    model = LogisticRegression(max_iter=300, warm_start=True)
    for strength in strengths:
        if task == REGRESSION:
            ridge = Ridge(alpha=1.0 / strength).fit(z, y)
            weight, bias = ridge.coef_.reshape(1, -1), np.asarray(ridge.intercept_).reshape(1)
        elif task == MULTI:
            parts = [_one_label(z, y[:, at] > 0.5, strength) for at in range(classes)]
            weight, bias = np.stack([part for part, _ in parts]), np.array([offset for _, offset in parts])
        else:
            weight, bias = fit_single(model.set_params(C=strength), z, y, classes)
        yield weight, bias - weight @ centre


def fit_single(model: Any, z: Any, y: Any, classes: int, shares: Any = None) -> tuple[Floats, Floats]:
    """Weight (C, H) and bias (C,) of a logistic regression, with a row for classes that these rows lack too.

    Args:
        model: the regression.
        z: (N, H) features.
        y: (N,) classes.
        classes: C.
        shares: (N,) how much each row counts; None for all alike.
    """
    weight, bias, seen = np.zeros((classes, z.shape[1])), np.zeros(classes), np.unique(y)
    if len(seen) > 1:
        _quiet(model, z, y, shares)
        found, offset = model.coef_, model.intercept_
        if len(seen) == 2:  # scikit-learn gives one row: that of the second class
            found, offset = np.concatenate([-found, found]) / 2, np.concatenate([-offset, offset]) / 2
        weight[seen], bias[seen] = found, offset
    bias[np.setdiff1d(np.arange(classes), seen)] = (bias[seen].min() if len(seen) else 0.0) - ABSENT
    return weight, bias


def _one_label(z: Any, yes: Any, strength: float) -> tuple[Floats, float]:
    """Weight (H,) and bias of one label of several."""
    if yes.all() or not yes.any():
        share = (yes.sum() + 0.5) / (len(yes) + 1)
        return np.zeros(z.shape[1]), float(np.log(share / (1 - share)))
    fitted = _quiet(LogisticRegression(C=strength, max_iter=500), z, yes)
    return fitted.coef_[0], float(fitted.intercept_[0])


def _quiet(estimator: Any, x: Any, y: Any, shares: Any = None) -> Any:
    """Fit without warnings: an optimum that is nearly reached is good enough here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(x, y, sample_weight=shares)


def features(model: Any, tokenizer: Any, rows: Any, batch_size: int = 64) -> NDArray[np.float32]:
    """The pooled vectors (N, H) of tokenised rows, in eval mode.

    For a classifier with the head of its architecture they are the mean over the tokens of its encoder.
    """

    def pooled(batch: Any) -> Any:
        if hasattr(model, "features"):
            return model.features(**batch)[0]
        body = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
        return pool(body(**batch, return_dict=True)[0], batch.get("attention_mask"), "mean")

    return outputs(model, tokenizer, rows, pooled, batch_size=batch_size)


def guess_rate(y: Any, task: str) -> float | None:
    """The accuracy of always guessing the most frequent class; None without single classes."""
    if task != SINGLE:
        return None
    return float(np.bincount(np.asarray(y)).max() / len(y))


def put_into(layer: Any, probe: Probe, scale: float = 1.0) -> None:
    """Make a linear layer (C, H) the probe, with its outputs times a scale."""
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(scale * probe.weight))
        layer.bias.copy_(torch.as_tensor(scale * probe.bias))


def humble_scale(probe: Probe, x: Any, y: Any, task: str, folds: Any) -> float:
    """The factor, at most 1, at which the probe is as sure on its training rows as it is right on held-out ones.

    A probe on few rows separates them all: a head that starts there has a training loss near 0, and the encoder under
    it is taught nothing. Scaled down so that the training loss is the held-out one, it keeps the direction and leaves
    something to learn.
    """
    if task == REGRESSION or probe.held_out is None:
        return 1.0
    goal = HeldOut("out_of_fold", probe.held_out, np.asarray(y), task, np.asarray(folds)).best_loss()
    logits = probe.outputs(x)
    low, high = 0.0, 1.0
    if float(row_nll(logits, y, task).mean()) >= goal:
        return 1.0
    for _ in range(40):
        middle = (low + high) / 2
        # The loss falls as the scale grows, as long as the rows are mostly right.
        if float(row_nll(middle * logits, y, task).mean()) > goal:
            low = middle
        else:
            high = middle
    return high
