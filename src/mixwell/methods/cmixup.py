"""C-Mixup: partners whose labels are near, for regression.

Yao, Wang, Zhang, Zou, Finn: C-Mixup: Improving Generalization in Regression. NeurIPS 2022, arXiv 2210.05775, eq. 6;
partners from the batch, as in the authors' code for large data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixwell.core.blend import blend
from mixwell.core.draw import Plan
from mixwell.core.method import option
from mixwell.core.step import Step
from mixwell.methods.registry import register
from mixwell.methods.sentencemix import SentenceMix
from mixwell.utils.errors import OptionError


@register
@dataclass
class CMixup(SentenceMix):
    """v <- lam v + (1 - lam) v[partner], where P(partner = j) ~ exp(-(y - y_j)^2 / (2 s^2)) for every row by itself.

    s is `bandwidth` standard deviations of the batch's labels. Classes are at distance 0 or 1. Two rows may have the
    same partner, and a row itself as partner is plain.
    """

    name = "cmixup"
    summary = "mix the sentence vector with that of a row whose label is near: for regression; lam ~ Beta(2, 2)"
    needs_labels = True
    tasks = ("sequence",)

    alpha: float = option(2.0, "shape of the Beta distribution lam is drawn from")
    draw: str = option("beta", "max_of (largest of `samples`), folded (max(l, 1-l)) or beta")
    bandwidth: float = option(1.0, "how far apart labels may be, in standard deviations of the batch's labels")

    def check(self) -> None:
        """Check the options against each other."""
        super().check()
        self.positive("bandwidth")
        if self.pairing != "random":
            raise OptionError("pairing does not go with cmixup: it draws partners by their labels")

    def draw_partners(self, step: Step, rng: torch.Generator) -> Tensor:
        """Draw a partner for every row: (B,)."""
        labels = step.labels
        assert labels is not None
        size = step.size
        if labels.is_floating_point():
            values = labels.reshape(size, -1).float()
            spread = values.var(0, unbiased=False).sum()
            distance = (values.unsqueeze(1) - values).square().sum(-1) / spread.clamp(min=1e-12)
        else:
            rows = labels.reshape(size, -1)
            distance = (rows.unsqueeze(1) != rows).any(-1).float()
        # The largest of log-probabilities with Gumbel noise is a draw; nothing comes back from the device.
        uniform = (
            torch.rand((size, size), generator=rng, device="cpu").clamp(min=1e-20).to(step.device, non_blocking=True)
        )
        return (-distance / (2 * self.bandwidth**2) - (-uniform.log()).log()).argmax(1)

    def mix(self, x: Tensor, plan: Plan, site: int, step: Step) -> Tensor:
        """Return the mixed vectors; partners are no permutation, so the general form."""
        return blend(x.index_select(0, plan.permutation.to(x.device)), x, plan.point_weights[site])
