"""EmbedMix: mix the embeddings.

Guo, Mao, Zhang: Augmenting Data with Mixup for Sentence Classification (wordMixup), arXiv 1905.08941, as AMPLIFY's
baseline (section 4.2, eq. 9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mixwell.core.draw import Plan
from mixwell.core.method import DrawsLam
from mixwell.core.points import Point, Points
from mixwell.core.step import Step
from mixwell.methods.registry import register

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer


@register
@dataclass
class EmbedMix(DrawsLam):
    """e <- lam e + (1 - lam) e[perm] on the whole embedding output; each row attends where either row has tokens."""

    name = "embedmix"
    summary = "mix the embedding output (word + position + segment); lam = max(l, 1-l), l ~ Beta(0.2, 0.2)"

    def sites(self, points: Points) -> list[Point]:
        """Return the embedding output."""
        return list(self.pick(points, "embeddings"))

    def verify(self, mixer: Mixer) -> None:
        """See to it that partners are mutual where they must be."""
        mixer.check_masked_embeddings()

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Attend to the partner's tokens too."""
        step.attend_partner(plan)
        return plan
