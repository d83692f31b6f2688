"""Nonlinear Mixup: a weight of its own for every feature.

Guo: Nonlinear Mixup: Out-of-Manifold Data Augmentation for Text Classification, AAAI 2020. The paper's text was not
to be had; what is known of it comes from papers that use it. Ours: the gate G ~ Beta(alpha, alpha) for every element,
the label weight as the mean of G over a row, and the learned label policy, w = sum_d softmax(theta)_d G_d with theta
learned by plain gradient steps.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixwell.errors import OptionError
from mixwell.loss import Criterion
from mixwell.methods.base import Method, lerp, option, partner, register
from mixwell.plan import Plan, sample_beta
from mixwell.points import Point, Points
from mixwell.step import Step

if TYPE_CHECKING:
    from mixwell.mixer import Mixer


@register
@dataclass
class NonlinearMixup(Method):
    """v <- G v + (1 - G) v[perm], G ~ Beta(1, 1) for every element; label weight = mean of G over the row.

    Over 384 features that mean is close to 1/2 in every row: half of each label goes to the partner.
    """

    name = "nonlinear"
    tasks = ("sequence",)
    summary = "mix the sentence vector with a random weight for every feature; labels get about one half"

    alpha: float = option(1.0, "shape of the Beta distribution each weight is drawn from")
    point: str = option("sentence", "sentence or embeddings")
    label_policy: str = option("mean", "label weight: mean of the gate, or learned (a weight a feature, see docs)")
    policy_lr: float = option(0.1, "step size of the learned label policy")
    theta: Tensor | None = field(default=None, init=False, repr=False)

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

    def prove(self, mixer: Mixer) -> None:
        """Refuse images at the embeddings: how many patches there are is known only inside the model."""
        if self.point == "embeddings":
            if mixer.points.modality == "image":
                raise OptionError("point='embeddings' needs a model that reads texts; use point='sentence'")
            self.check_masked_embeddings(mixer)

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

    def loss(
        self,
        criterion: Criterion,
        logits: Tensor,
        labels: Tensor,
        plan: Plan,
        step: Step,
        items: Tensor | int | None,
    ) -> Tensor:
        """Weigh the labels by the mean of the gate, or by the learned policy."""
        if self.label_policy == "learned":
            gate = plan.extra["gate"]
            importance = torch.softmax(self._learn(gate), 0)
            # Rows without a partner have a gate of ones: their weight is one whatever was learned.
            learned = 1 - ((1 - gate) * importance).sum(1)
            plan = dataclasses.replace(plan, label_weight=learned)
        return super().loss(criterion, logits, labels, plan, step, items)

    @property
    def learns(self) -> bool:
        """The label policy may."""
        return self.label_policy == "learned"

    def state(self) -> dict[str, Tensor]:
        """Return theta, and the gradient that its next step takes."""
        found = {} if self.theta is None else {"theta": self.theta.detach(), "theta_grad": self.theta.grad}
        return {name: value.clone() for name, value in found.items() if value is not None}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take theta and its gradient."""
        self.theta = state["theta"].clone().requires_grad_(True) if "theta" in state else None
        if self.theta is not None and "theta_grad" in state:
            self.theta.grad = state["theta_grad"].clone()

    def _learn(self, gate: Tensor) -> Tensor:
        """Return theta after a gradient step with what the last backward left."""
        if self.theta is None:
            self.theta = torch.zeros(gate.shape[1], dtype=gate.dtype, device=gate.device, requires_grad=True)
        elif self.theta.device != gate.device:  # loaded
            self.load_state({name: value.to(gate.device) for name, value in self.state().items()})
        if self.theta.grad is not None:
            with torch.no_grad():
                # By direction only, so that loss scaling does not scale the step.
                # An overflow under loss scaling is a step that the optimiser leaves out too.
                step = torch.nn.functional.normalize(self.theta.grad, dim=0)
                self.theta -= self.policy_lr * torch.nan_to_num(step, 0.0, 0.0, 0.0)
                self.theta.grad = None
        return self.theta
