"""A label weight that is learned: one number per feature, by plain gradient steps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mixwell.core.method import Method, T, option


class LabelPolicy:
    """theta (d,): w = sum_d softmax(theta)_d G_d is the weight of a row's own label.

    Attributes:
        theta: (d,), None before the first step.
    """

    def __init__(self) -> None:
        self.theta: Tensor | None = None

    def state(self) -> dict[str, Tensor]:
        """Return theta, and the gradient that its next step takes."""
        values = {} if self.theta is None else {"theta": self.theta.detach(), "theta_grad": self.theta.grad}
        return {name: value.clone() for name, value in values.items() if value is not None}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take theta and its gradient."""
        self.theta = state["theta"].clone().requires_grad_(True) if "theta" in state else None
        if self.theta is not None and "theta_grad" in state:
            self.theta.grad = state["theta_grad"].clone()

    def learn(self, gate: Tensor, rate: float) -> Tensor:
        """Return theta after a gradient step with what the last backward left.

        Args:
            gate: (B, d), for size, type and device.
            rate: the size of the step.
        """
        if self.theta is None:
            self.theta = torch.zeros(gate.shape[1], dtype=gate.dtype, device=gate.device, requires_grad=True)
        elif self.theta.device != gate.device:  # loaded
            self.load_state({name: value.to(gate.device) for name, value in self.state().items()})
        if self.theta.grad is not None:
            with torch.no_grad():
                # By direction only, so that loss scaling does not scale the step.
                # An overflow under loss scaling is a step that the optimiser leaves out too.
                step = torch.nn.functional.normalize(self.theta.grad, dim=0)
                self.theta -= rate * torch.nan_to_num(step, 0.0, 0.0, 0.0)
                self.theta.grad = None
        return self.theta


@dataclass
class LearnsLabels(Method):
    """A method whose label weight may be learned."""

    label_policy: str = option("mean", "label weight: mean of the gate, or learned (a weight per feature, see docs)")
    policy_lr: float = option(0.1, "step size of the learned label policy")
    policy: LabelPolicy = field(default_factory=LabelPolicy, init=False, repr=False, compare=False)

    def for_mixer(self: T) -> T:
        """Return a copy with a label policy of its own."""
        return dataclasses.replace(self)

    @property
    def learns(self) -> bool:
        """The label policy may."""
        return self.label_policy == "learned"

    def state(self) -> dict[str, Tensor]:
        """Return what the label policy learned."""
        return self.policy.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take what the label policy learned."""
        self.policy.load_state(state)
