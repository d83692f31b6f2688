"""Nonlinear Mixup: a weight of its own for every feature.

Guo: Nonlinear Mixup: Out-of-Manifold Data Augmentation for Text Classification, AAAI 2020. The paper's text was not
available; what is known of it comes from papers that use it. Ours: the gate G ~ Beta(alpha, alpha) for every element,
the label weight as the mean of G over a row, and the learned label policy, w = sum_d softmax(theta)_d G_d with theta
learned by plain gradient steps.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixwell.core.blend import lerp, partner
from mixwell.core.draw import Plan, sample_beta
from mixwell.core.label_policy import LearnsLabels
from mixwell.core.method import option
from mixwell.core.points import Point, Points
from mixwell.core.step import Step
from mixwell.methods.registry import register
from mixwell.utils.errors import OptionError

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer


@register
@dataclass
class NonlinearMixup(LearnsLabels):
    """v <- G v + (1 - G) v[perm], G ~ Beta(1, 1) for every element; label weight = mean of G over the row.

    Over 384 features that mean is close to 1/2 in every row: half of each label goes to the partner.
    """

    name = "nonlinear"
    tasks = ("sequence",)
    summary = "mix the sentence vector with a random weight for every feature; labels get about one half"

    alpha: float = option(1.0, "shape of the Beta distribution each weight is drawn from")
    point: str = option("sentence", "sentence or embeddings")

    def check(self) -> None:
        """Check the options against each other."""
        self.positive("alpha", "policy_lr")
        self.choice("point", ("sentence", "embeddings"))
        self.choice("label_policy", ("mean", "learned"))
        if self.label_policy == "learned" and self.point != "sentence":
            raise OptionError("label_policy='learned' needs point='sentence'")

    def sites(self, points: Points) -> list[Point]:
        """Return the sentence vector or the embedding output."""
        return list(points.get(self.point)[:1])

    def verify(self, mixer: Mixer) -> None:
        """Refuse images at the embeddings: how many patches there are is known only inside the model."""
        if self.point == "embeddings":
            if mixer.points.modality == "image":
                raise OptionError("point='embeddings' needs a model that reads texts; use point='sentence'")
            mixer.check_masked_embeddings()

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Draw the gate: 1 for rows without a partner, all lam if lam is pinned."""
        width, size = step.mixer.sites[0].width, step.size
        shape = (size, width) if self.point == "sentence" else (size, step.length, width)
        dtype, device = plan.label_weight.dtype, step.device
        if plan.lam is None:
            gate = sample_beta(self.alpha, shape, rng).to(dtype).to(device, non_blocking=True)
        else:
            gate = plan.label_weight.reshape(-1, *[1] * (len(shape) - 1)).expand(shape)
        alone = plan.permutation == torch.arange(size, device=device)
        gate = torch.where(alone.reshape(-1, *[1] * (len(shape) - 1)), torch.ones_like(gate), gate)
        if self.point == "embeddings" and plan.shift_mask is not None:  # nothing to mix with
            gate = torch.where(plan.shift_mask.unsqueeze(-1), gate, torch.ones_like(gate))
        if self.point == "sentence":
            weight = gate.mean(1)
        else:
            mask = step.mask
            real = torch.ones(shape[:2], dtype=torch.bool, device=device) if mask is None else mask
            if not step.mixer.sites[0].causal:
                real = real | real.index_select(0, plan.permutation)
            weight = (gate.mean(2) * real).sum(1) / real.sum(1)
        weight = torch.where(alone, torch.ones_like(weight), weight)
        plan = dataclasses.replace(plan, label_weight=weight, point_weights=weight.unsqueeze(0), extra={"gate": gate})
        if self.point == "embeddings":
            step.attend_partner(plan)
        return plan

    def mix(self, x: Tensor, plan: Plan, site: int, step: Step) -> Tensor:
        """Return G x + (1 - G) x[perm]."""
        return lerp(partner(x, plan, step.mixer.sites[site].causal), x, plan.extra["gate"].to(x.device))

    def weight_of_labels(self, plan: Plan) -> Tensor:
        """Weigh the labels by the mean of the gate, or by the learned policy."""
        if self.label_policy != "learned":
            return plan.label_weight
        gate = plan.extra["gate"]
        importance = torch.softmax(self.policy.learn(gate, self.policy_lr), 0)
        # Rows without a partner have a gate of ones: their weight is one whatever was learned.
        return 1 - ((1 - gate) * importance).sum(1)
