"""MIT: mix the inputs, take the outputs apart again, and compare each with its own label.

Wang, Li, Zhao, Heng, Zhang: On the Pitfall of Mixup for Uncertainty Calibration. CVPR 2023; MIT-L of the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixwell.core.blend import spread
from mixwell.core.draw import Plan
from mixwell.core.loss import Criterion
from mixwell.core.method import option
from mixwell.core.step import Step
from mixwell.methods.input import InputMixup
from mixwell.methods.registry import register
from mixwell.utils.errors import OptionError


@register
@dataclass
class MixupInferenceInTraining(InputMixup):
    """Of z = f(lam x + (1 - lam) x') and z' = f(lam x' + (1 - lam) x): logits (lam z - (1 - lam) z') / (2 lam - 1).

    They would be f(x) if f were linear, and the loss is plain, with the row's own label. Partners are mutual, so both
    mixtures are rows of one batch and one forward does; the authors draw two lam and run two forwards.
    """

    name = "mit"
    summary = "mix the embeddings, take the mixed logits apart, and train each part on its own label"
    tasks = ("sequence",)

    draw: str = option("folded", "max_of (largest of `samples`), folded (max(l, 1-l)) or beta")
    margin: float = option(0.5, "smallest 2 lam - 1: below it, taking apart would multiply what the model gets wrong")

    def check(self) -> None:
        """Check the options against each other."""
        super().check()
        if not 0 < self.margin < 1:
            raise OptionError(f"margin={self.margin} must lie between 0 and 1 for mit")
        self.need_mutual_partners("mit")

    def draw_lam(self, rng: torch.Generator) -> float:
        """Draw lam until it is far enough from 1/2."""
        for _ in range(1000):
            lam = super().draw_lam(rng)
            if abs(2 * lam - 1) >= self.margin:
                break
        return lam

    def adjust_lam(self, lam: float | Tensor) -> float | Tensor:
        """Fold lam and keep the margin."""
        values = torch.as_tensor(lam, dtype=torch.float64)
        values = torch.maximum(values, 1 - values).clamp(min=(1 + self.margin) / 2)
        return values if isinstance(lam, Tensor) else float(values)

    def loss(
        self, criterion: Criterion, logits: Tensor, labels: Tensor, plan: Plan, step: Step, items: Tensor | int | None
    ) -> Tensor:
        """Return the plain loss of the logits taken apart."""
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))  # in bf16 shares are too rough
        weight = plan.label_weight.to(wide)
        # z + (1 - lam) / (2 lam - 1) (z - z'): exact for rows that are not mixed.
        share = spread((1 - weight) / (2 * weight - 1), wide)
        apart = wide + share * (wide - wide.index_select(0, plan.permutation.to(wide.device)))
        return criterion.total(apart.to(logits.dtype), labels, items)

    def weight_of_labels(self, plan: Plan) -> Tensor:
        """Refuse: labels are not mixed, logits are taken apart."""
        raise OptionError("mit takes logits apart: use mixer.loss(logits, labels), or loss_fn= at attach")
