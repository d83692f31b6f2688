"""Counting what was mixed."""

from __future__ import annotations

from dataclasses import dataclass

from mixwell.core.draw import Plan

NOTICEABLE = 0.99  # lam below it: at least a hundredth of a row is its partner's


@dataclass
class Counts:
    """What the training steps since attach did.

    Attributes:
        steps: training forwards.
        mixed: those in which something was mixed.
        noticeable: those with lam below 0.99, or where a method draws no single lam.
        lam_sum: sum of lam over steps that drew one.
        lam_count: how many did.
    """

    steps: int = 0
    mixed: int = 0
    noticeable: int = 0
    lam_sum: float = 0.0
    lam_count: int = 0

    def add(self, plan: Plan) -> None:
        """Count one step; reads nothing from a device."""
        self.steps += 1
        if isinstance(plan.lam, float):
            self.lam_sum += plan.lam
            self.lam_count += 1
        if plan.mixed:
            self.mixed += 1
            self.noticeable += not isinstance(plan.lam, float) or plan.lam < NOTICEABLE

    def to_dict(self) -> dict[str, int | float | None]:
        """Return the counts and the mean of lam."""
        return {
            "steps": self.steps,
            "mixed": self.mixed,
            "noticeable": self.noticeable,
            "mean_lam": self.lam_sum / self.lam_count if self.lam_count else None,
        }
