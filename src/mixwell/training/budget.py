"""`--budget`: the ways to train that method auto may try, and how many of them a budget allows."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from mixwell.training.settings import TrainSettings
from mixwell.utils.errors import OptionError


@dataclass(frozen=True)
class Way:
    """A way to train.

    Attributes:
        name: for the user, and of its folder.
        method: of `mixwell.methods()`.
        options: of the method.
        label_smoothing: share of each label that is spread over all classes.
    """

    name: str
    method: str = "none"
    options: dict[str, Any] = field(default_factory=dict)
    label_smoothing: float = 0.0

    def settings(self, base: TrainSettings) -> TrainSettings:
        """Those of the run, with this way to train; mixed rows have no one class, so no pair loss."""
        return dataclasses.replace(
            base, method=self.method, method_options=self.options, label_smoothing=self.label_smoothing,
            pair_loss=base.pair_loss if self.method == "none" else 0.0,
        )  # fmt: skip


PLAIN = Way("plain")
# The most promising first: a small budget tries the first ones only.
WAYS = (
    PLAIN,
    Way("manifold", "manifold"),
    Way("amplify", "amplify", {"consistent": True, "strength": "strong"}),
    Way("label smoothing", label_smoothing=0.1),
)


@dataclass(frozen=True)
class BudgetPlan:
    """How a budget is spent.

    Attributes:
        folds: how many there are.
        tried: candidates that are trained on the first fold.
        kept: the most of them that go on to the other folds.
    """

    folds: int
    tried: int
    kept: int

    @property
    def most(self) -> float:
        """The most that it costs, in trainings on all rows; the last training is one."""
        return (self.tried + self.kept * (self.folds - 1)) * _share(self.folds) + 1


def _share(folds: int) -> float:
    """The rows that a fold's training has, as a share of all."""
    return (folds - 1) / folds


def plan(budget: float, folds: int, candidates: int = len(WAYS)) -> BudgetPlan:
    """The most candidates that a budget allows, two of them or more on all folds where it can.

    Raises:
        OptionError: it is not enough for two candidates on one fold and the better one on the others.
    """
    plans = [BudgetPlan(folds, tried, kept) for tried in range(2, candidates + 1) for kept in range(1, tried + 1)]
    within = [each for each in plans if each.most <= budget + 1e-9]
    if not within:
        least = min(each.most for each in plans)
        raise OptionError(
            f"budget={budget:g}: two ways to train on {folds} folds and a final training cost up to {least:.1f} plain "
            f"trainings; give at least {math.ceil(least)}, or leave the budget out"
        )
    return max(within, key=lambda each: (min(each.kept, 2), each.tried, each.kept))


@dataclass(frozen=True)
class AutoOptions:
    """What `auto` takes as a method of a comparison.

    Attributes:
        budget: the most that it may cost, in plain trainings.
    """

    budget: float = 12.0
