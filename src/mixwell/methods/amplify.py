"""AMPLIFY: mix what attention returns, in every block.

Yang, Zhang, Xiong, Xiang: AMPLIFY: Attention-based Mixup for Performance Improvement and Label Smoothing in
Transformer. arXiv 2309.12689. Equations 5 to 8.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mixwell.core.draw import Plan
from mixwell.core.method import DrawsLam, option, pick_layers
from mixwell.core.points import Point, Points
from mixwell.core.step import Step
from mixwell.methods.registry import register
from mixwell.utils.errors import OptionError


@register
@dataclass
class Amplify(DrawsLam):
    """h <- lam h + (1 - lam) h[perm] after the attention of each block; lam = the largest of 5 draws of Beta(.1, .1).

    The same lam and perm in every block. lam is below 0.99 in 15 % of steps only; `mixer.stats()` counts them. Mixing
    the stream in all L blocks compounds: a row keeps about lam ** L of itself while its label keeps lam.
    `consistent=True` draws mutual pairs and uses the weight (1 + (2 lam - 1) ** (1 / K)) / 2 in each of K mixed blocks,
    whose compound is lam.
    """

    name = "amplify"
    summary = "mix the attention output of every block; lam = max of 5 Beta draws: noticeable in 15 % of steps"
    alternatives = ({"site": "attention_raw"},)
    searchable = ("layers",)

    alpha: float = option(0.1, "shape of the Beta distribution lam is drawn from")
    draw: str = option("max_of", "max_of (largest of `samples`), folded (max(l, 1-l)) or beta")
    layers: Sequence[int] | None = option(None, "blocks to mix in, counted from 0; None is all")
    site: str = option("attention", "attention (the stream, residual and norm included) or attention_raw (projection)")
    padding: str = option("mix", "mix, or keep: where the partner has padding a row keeps its own value")
    consistent: bool = option(False, "weights a block whose compound over all blocks is the label's lam")

    def check(self) -> None:
        """Check the options against each other."""
        self.choice("site", ("attention", "attention_raw"))
        self.choice("padding", ("mix", "keep"))
        if self.consistent:
            if self.site == "attention_raw":
                raise OptionError(
                    "consistent=True needs site='attention': the raw projection leaves the residual unmixed, so there "
                    "is no compound weight to correct"
                )
            self.need_mutual_partners("consistent=True")

    def sites(self, points: Points) -> list[Point]:
        """Return one point a mixed block."""
        found = self.pick(points, self.site)
        return [found[i] for i in pick_layers(self.layers, len(found), range(len(found)), "layers")]

    def adjust_lam(self, lam: float | Tensor) -> float | Tensor:
        """Fold lam for `consistent`: the root below needs lam >= 1/2."""
        if not self.consistent:
            return lam
        return torch.maximum(lam, 1 - lam) if isinstance(lam, Tensor) else max(lam, 1.0 - lam)

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Spread lam over the blocks (`consistent`) and spare padding (`padding='keep'`)."""
        if self.consistent:
            stacks = [point.stack for point in step.mixer.sites]
            blocks = torch.tensor([stacks.count(stack) for stack in stacks]).to(plan.point_weights)
            share = (1 + (2 * plan.point_weights - 1) ** (1 / blocks).unsqueeze(1)) / 2
            plan = dataclasses.replace(plan, point_weights=share)
        if self.padding == "keep" and step.mask is not None:
            plan = dataclasses.replace(plan, token_mask=step.mask.index_select(0, plan.permutation))
        return plan
