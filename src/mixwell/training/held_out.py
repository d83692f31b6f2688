"""What a candidate says about rows it was not trained on, and what follows: its temperature, and which one to keep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.metrics.scores import accuracy, row_nll
from mixwell.metrics.tasks import REGRESSION, SINGLE
from mixwell.metrics.temperature import MAX_TEMPERATURE, MIN_TEMPERATURE, fit_temperature
from mixwell.training.folds import seen_elsewhere

# Fewer held-out rows than this say nothing about a temperature.
LEAST_ROWS = 10
PARTS = 5


@dataclass(frozen=True)
class HeldOut:
    """The outputs of one candidate for held-out rows.

    Attributes:
        split: `out_of_fold` or `validation`.
        logits: (N, C), before any temperature.
        labels: (N,), or (N, C) for multi-label.
        task: of the data.
        parts: (N,) the fold of each row; for a validation split, parts of it.
    """

    split: str
    logits: NDArray[Any]
    labels: NDArray[Any]
    task: str
    parts: NDArray[Any]

    @property
    def accuracy(self) -> float | None:
        """Share of right rows; None without single classes."""
        return accuracy(self.logits, self.labels) if self.task == SINGLE else None

    def right(self) -> NDArray[Any]:
        """(N,) whether each row is right."""
        return np.asarray(self.logits.argmax(axis=1) == self.labels, dtype=float)

    def known(self) -> NDArray[Any]:
        """(N,) rows whose class the model was trained on; out of fold, one that no other fold has was not."""
        if self.split != "out_of_fold":
            return np.ones(len(self.labels), dtype=bool)
        return np.asarray(seen_elsewhere(self.labels, self.parts, self.task))

    def losses(self, temperature: float = 1.0) -> NDArray[Any]:
        """(N,) loss of each row: NLL, or the squared error for regression."""
        if self.task == REGRESSION:
            return np.asarray((self.logits[:, 0] - self.labels) ** 2)
        return row_nll(self.logits / temperature, self.labels, self.task)

    def scaled_losses(self) -> NDArray[Any]:
        """(N,) loss of each row after a temperature that was fitted on the other parts."""
        if self.task == REGRESSION:
            return self.losses()
        known = self.known()
        made = self.losses()
        for part in np.unique(self.parts):
            out = self.parts == part
            rest = ~out & known
            if rest.any():
                t = _bounded(fit_temperature(self.logits[rest], self.labels[rest], self.task))
                made[out] = row_nll(self.logits[out] / t, self.labels[out], self.task)
        return made

    def best_loss(self) -> float:
        """Mean loss of the known rows after the temperature that fits them best."""
        known = self.known()
        if self.task == REGRESSION:
            return float(self.losses().mean())
        return float(self.losses(fit_temperature(self.logits[known], self.labels[known], self.task))[known].mean())

    def careful_loss(self) -> float:
        """Mean loss of the known rows plus its standard error, after the temperature that would be applied.

        Candidates that are sure of themselves differ by luck on a few rows: one of them is the best of several. The
        standard error is large where a loss hangs on few rows. A temperature at its limit would make all alike,
        so that it counts as none.
        """
        temperature = self.temperature()[0] or 1.0
        losses = self.losses(1.0 if temperature >= MAX_TEMPERATURE else temperature)[self.known()]
        return float(losses.mean()) + standard_error(losses)

    def temperature(self) -> tuple[float | None, str | None]:
        """The temperature, and what to say of it; 1 unless it lowers the loss of held-out parts beyond noise."""
        if self.task == REGRESSION:
            return None, None
        known = self.known()
        rows = int(known.sum())
        if rows < LEAST_ROWS:
            return 1.0, f"no temperature: {rows} held-out rows are too few to fit one"
        fitted = fit_temperature(self.logits[known], self.labels[known], self.task)
        gain = (self.losses() - self.scaled_losses())[known]
        mean, error = float(gain.mean()), standard_error(gain)
        if fitted >= MAX_TEMPERATURE:
            return fitted, "the model has learned next to nothing: the best temperature is the highest allowed"
        if fitted <= MIN_TEMPERATURE or mean <= error:
            return 1.0, (
                f"no temperature: the best one, {fitted:.2f}, changes the held-out loss by {-mean:+.3f} (standard "
                f"error {error:.3f}), which is not beyond noise"
            )
        return fitted, None


def _bounded(temperature: float) -> float:
    return 1.0 if temperature <= MIN_TEMPERATURE else temperature


def standard_error(values: NDArray[Any]) -> float:
    """Of the mean."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.inf


def validation_parts(rows: int) -> NDArray[Any]:
    """(N,) parts of a validation split, to fit a temperature on some and try it on the others."""
    return np.random.default_rng(20_261_117).permutation(np.arange(rows) % PARTS)


def best_epoch(logits: Any, held: HeldOut) -> int:
    """The epoch, from 1, whose outputs have the lowest held-out loss after a temperature.

    Args:
        logits: (E, N, C) of all epochs.
        held: labels and parts; its own logits are not looked at.
    """
    losses = [float(at_epoch(held, each).scaled_losses().mean()) for each in logits]
    return int(np.argmin(losses)) + 1


def at_epoch(held: HeldOut, logits: Any) -> HeldOut:
    """The same rows with other logits."""
    return HeldOut(held.split, np.asarray(logits, dtype=np.float64), held.labels, held.task, held.parts)


def probe_is_better(tuned: HeldOut, probe: HeldOut) -> bool:
    """Whether held-out rows favour the probe over a tuned candidate.

    By the loss after a temperature: beyond one standard error, or at all where the probe is also more often right.
    """
    difference = tuned.scaled_losses() - probe.scaled_losses()
    mean = float(difference.mean())
    if mean > standard_error(difference):
        return True
    return tuned.task == SINGLE and mean > 0 and tuned.right().mean() < probe.right().mean()


def fine_tuning_is_better(tuned: HeldOut, probe: HeldOut) -> bool:
    """Whether held-out rows show fine-tuning to be better than the probe, rather than lucky.

    By the loss after a temperature, beyond one standard error; where it is lower by less, by the accuracy beyond one.
    The burden is on fine-tuning because its epoch is the best of several on these very rows.
    """
    gain = probe.scaled_losses() - tuned.scaled_losses()
    mean = float(gain.mean())
    if mean > standard_error(gain):
        return True
    if tuned.task != SINGLE or mean <= 0:
        return False
    right = tuned.right() - probe.right()
    return float(right.mean()) > standard_error(right)
