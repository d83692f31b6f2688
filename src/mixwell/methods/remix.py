"""Remix: mix the inputs as usual, but let the rarer class have the label.

Chou, Chang, Pan, Wei, Juan: Remix: Rebalanced Mixup. ECCV Workshops 2020, arXiv 2007.03943, eq. 4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixwell.core.draw import Plan
from mixwell.core.method import option
from mixwell.core.step import Step
from mixwell.methods.input import InputMixup
from mixwell.methods.registry import register
from mixwell.utils.errors import BatchError, OptionError

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer


@register
@dataclass
class Remix(InputMixup):
    """The label's weight is lam, but 0 where n / n' >= kappa and lam < tau, 1 where n' / n >= kappa and 1 - lam < tau.

    n and n' are the numbers of training rows of a row's class and of its partner's.
    """

    name = "remix"
    summary = "input mixing whose label goes to the much rarer class of the two"
    one_weight = False
    needs_labels = True
    tasks = ("sequence",)

    kappa: float = option(3.0, "how many times rarer a class must be to get the whole label")
    tau: float = option(0.5, "the larger class loses its label only where its own part is below this")
    counts: Sequence[int] | None = option(None, "training rows of each class; None counts the labels as they come")

    def check(self) -> None:
        """Check the options against each other."""
        super().check()
        if self.kappa < 1:
            raise OptionError(f"kappa={self.kappa} must be at least 1 for remix")
        if not 0 <= self.tau <= 1:
            raise OptionError(f"tau={self.tau} must lie between 0 and 1")
        if self.counts is not None:
            self.counts = [int(count) for count in self.counts]
            if min(self.counts, default=0) < 1:
                raise OptionError("counts must be at least 1 for every class for remix")
        self._seen = None if self.counts is None else torch.tensor(self.counts, device="cpu")

    def verify(self, mixer: Mixer) -> None:
        """Refuse counts of other classes than the model has."""
        super().verify(mixer)
        if self.counts is not None and len(self.counts) != mixer.points.classes:
            raise OptionError(
                f"counts has {len(self.counts)} numbers but the model has {mixer.points.classes} classes; give one each"
            )

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Fill up; weigh the labels by the sizes of their classes."""
        plan = super().prepare(step, plan, rng)
        seen = self._count(step)
        labels = step.labels
        assert labels is not None
        size = seen[labels.clamp(min=0)].to(plan.label_weight.dtype)
        ratio = size / size.index_select(0, plan.permutation)
        lam = plan.label_weight
        weight = torch.where((ratio >= self.kappa) & (lam < self.tau), 0.0, lam)
        weight = torch.where((ratio <= 1 / self.kappa) & (1 - lam < self.tau), 1.0, weight)
        unlabelled = labels < 0
        weight = torch.where(unlabelled | unlabelled.index_select(0, plan.permutation), lam, weight)
        return dataclasses.replace(plan, label_weight=weight)

    def _count(self, step: Step) -> Tensor:
        """Return (C,), how many rows of each class there are."""
        labels, classes = step.labels, step.mixer.points.classes
        if labels is None or labels.dim() != 1 or labels.is_floating_point():
            raise BatchError("remix needs one class number per row as label; use method 'input' for other labels")
        if self.counts is not None:
            assert self._seen is not None
            self._seen = self._seen.to(step.device)
            return self._seen
        if self._seen is None:
            self._seen = torch.zeros(classes, dtype=torch.long, device=step.device)
        known = (labels >= 0).long()
        self._seen = self._seen.to(step.device).index_add(0, labels.clamp(min=0), known)
        return self._seen

    @property
    def learns(self) -> bool:
        """Whether it counts labels as they come."""
        return self.counts is None

    def state(self) -> dict[str, Tensor]:
        """Return the labels counted so far."""
        return {} if self._seen is None or self.counts is not None else {"seen": self._seen}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take what `state` returned."""
        if "seen" in state:
            self._seen = state["seen"]
