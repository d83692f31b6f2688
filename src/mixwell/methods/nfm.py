"""Noisy Feature Mixup: Manifold MixUp whose mixed features get additive and multiplicative noise.

Lim, Erichson, Utrera, Xu, Mahoney: Noisy Feature Mixup. ICLR 2022, arXiv 2110.02180; the noise as in the authors' code.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from mixwell.core.blend import spread
from mixwell.core.draw import Plan, generator
from mixwell.core.method import option
from mixwell.core.noise import noise
from mixwell.core.points import Point, Points
from mixwell.core.step import Step
from mixwell.methods.manifold import ManifoldMixup
from mixwell.methods.registry import register
from mixwell.utils.errors import OptionError

_STREAM = 21


@register
@dataclass
class NoisyFeatureMixup(ManifoldMixup):
    """h <- (1 + m U) (lam h + (1 - lam) h[perm]) + a N at one point drawn each step; U uniform in [-1, 1], N normal.

    m = mult_noise b and a = add_noise b', with b, b' ~ Beta(2, 5) drawn each step. Rows that mix nothing get no noise.
    """

    name = "nfm"
    summary = "manifold, and noise on what is mixed: added and multiplied, for every feature"

    add_noise: float = option(0.4, "how strong the added normal noise can be")
    mult_noise: float = option(0.2, "how strong the multiplied uniform noise can be")

    def check(self) -> None:
        """Check the options against each other."""
        super().check()
        for name in ("add_noise", "mult_noise"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name}={getattr(self, name)} must be at least 0 for nfm")

    def sites(self, points: Points) -> list[Point]:
        """Return the points to draw from; without `layers` the embeddings and all blocks, as in the paper."""
        if self.layers is not None:
            return super().sites(points)
        return [*self.pick(points, "embeddings"), *self.pick(points, "block")]

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Fill up; draw how strong the noise is, and a seed for it."""
        plan = super().prepare(step, plan, rng)
        own = generator(plan.seed, _STREAM)
        # Beta(2, 5) is the second smallest of six uniform numbers.
        share = torch.rand((2, 6), generator=own, dtype=torch.float64, device="cpu").sort(1).values[:, 1]
        level = (share * torch.tensor([self.add_noise, self.mult_noise], device="cpu")).to(plan.label_weight.dtype)
        seed = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=own)
        return dataclasses.replace(
            plan, extra={**plan.extra, "level": level.to(step.device, non_blocking=True), "seed": seed}
        )

    def mix(self, x: Tensor, plan: Plan, site: int, step: Step) -> Tensor:
        """Return the mixed features with noise."""
        mixed = super().mix(x, plan, site, step)
        normal, uniform = noise(mixed, plan.extra["seed"] + site)
        # Points that are not drawn have weight 1 in all rows.
        level = plan.extra["level"].to(x.device) * spread(plan.point_weights[site].to(x.device) < 1, x).unsqueeze(-1)
        return (mixed * (1 + level[..., 1] * (2 * uniform - 1)) + level[..., 0] * normal).to(x.dtype)
