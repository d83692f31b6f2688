"""What trainings have measured, in the compact form that tables are made of.

That form is all that a pack holds: for every test row its class, the predicted class, and the log-probabilities of both
in half precision. Accuracy, F1, MCC, NLL and ECE can be computed from these anew, on any resample of the test rows:
what mass is left is spread evenly over the other classes. Other classes' probabilities, validation outputs and texts
are not kept. Means and standard deviations in tables are of the exact metrics; the compact outputs serve for the
intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.compare.stats.bootstrap import SeedResult
from mixwell.papers.run_file import place_title

_LEAST = 1e-3  # by how much the predicted class is ahead where half precision makes a tie


@dataclass(frozen=True)
class Outputs:
    """What a model predicts for its test rows.

    Attributes:
        labels: (N,) the rows' classes.
        predicted: (N,) the likeliest classes.
        log_p: (2, N) float16, log-probabilities of the class and of the likeliest class.
        classes: how many there are.
    """

    labels: NDArray[Any]
    predicted: NDArray[Any]
    log_p: NDArray[Any]
    classes: int

    @classmethod
    def of(cls, logits: NDArray[Any], labels: NDArray[Any]) -> Outputs:
        """The compact form of logits (N, C)."""
        wide = logits.astype(np.float64)
        wide = wide - wide.max(1, keepdims=True)
        wide = wide - np.log(np.exp(wide).sum(1, keepdims=True))
        rows, predicted = np.arange(len(labels)), logits.argmax(1)
        kind = np.uint8 if logits.shape[1] <= 256 else np.uint16
        log_p = np.stack([wide[rows, labels], wide[rows, predicted]]).clip(-6e4, 0)
        return cls(labels.astype(kind), predicted.astype(kind), log_p.astype(np.float16), int(logits.shape[1]))

    def logits(self) -> NDArray[np.float64]:
        """Logits (N, C) with these log-probabilities, the mass that is left spread evenly."""
        own, top = self.log_p.astype(np.float64)
        right = self.labels == self.predicted
        top = np.where(right, top, np.maximum(top, own + _LEAST))
        left = np.maximum(1 - np.exp(top) - np.where(right, 0, np.exp(own)), 1e-12)
        others = np.maximum(self.classes - np.where(right, 1, 2), 1)
        rest = np.minimum(np.log(left / others), top - _LEAST)
        wide = np.repeat(rest[:, None], self.classes, axis=1)
        rows = np.arange(len(own))
        wide[rows, self.labels] = own
        wide[rows, self.predicted] = top
        return wide


@dataclass(frozen=True)
class MeasuredRun:
    """One training: its place in the table, and what came of it."""

    dataset: str
    size: str
    beside: str | None
    row: str
    seed: int
    metrics: tuple[str, ...]
    key: str
    identity: Mapping[str, Any] = field(repr=False)
    result: Mapping[str, Any] = field(repr=False)
    outputs: Outputs = field(repr=False)

    @property
    def title(self) -> str:
        """Its place, in words."""
        return place_title(vars(self))

    @cached_property
    def seed_result(self) -> SeedResult:
        """For the statistics."""
        return SeedResult(self.seed, self.outputs.logits(), self.outputs.labels.astype(np.int64))

    def value(self, metric: str) -> float:
        """A test metric, as it was computed after training."""
        return float(self.result["test"]["before"][metric])

    @property
    def seconds_per_step(self) -> float:
        """Mean time of an update."""
        return float(self.result["timing"]["seconds_per_step"])

    @property
    def minutes_per_epoch(self) -> float:
        """Mean time of an epoch, evaluation left out; early stopping and `draws` are in the number of steps."""
        return self.seconds_per_step * self.result["steps"] / self.result["epochs"] / 60


@dataclass(frozen=True)
class Results:
    """All that an experiment's runs, or a pack of them, have measured.

    Attributes:
        run_json: what run.json holds.
        runs: those with a result.
        failed: place and reason of those that failed.
        missing: how many have not been trained yet.
    """

    run_json: Mapping[str, Any]
    runs: tuple[MeasuredRun, ...]
    failed: tuple[tuple[str, str], ...] = ()
    missing: int = 0
