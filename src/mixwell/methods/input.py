"""Input MixUp: fill up the shorter row, then mix the embeddings.

MixUp training for NLU, section 3.5.2, eq. 4 and Appendix B.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwell.core.draw import Plan
from mixwell.core.filling import Fills
from mixwell.core.points import Point, Points
from mixwell.core.step import Step
from mixwell.methods.registry import register


@register
@dataclass
class InputMixup(Fills):
    """e <- lam e + (1 - lam) e[perm] on the embedding output, the shorter row filled up with separators."""

    name = "input"
    summary = "mix the embedding output, shorter rows filled with separators; lam ~ Beta(1, 1)"

    def sites(self, points: Points) -> list[Point]:
        """Return the embedding output, of both stacks in encoder-decoder models."""
        return list(self.pick(points, "embeddings"))

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Fill up."""
        return self.fill(step, plan)
