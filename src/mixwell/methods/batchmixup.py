"""BatchMixup: new points from the whole mini-batch.

Yin, Wang, Qu, Xiong: BatchMixup: Improving Training by Interpolating Hidden States of the Entire Mini-batch.
Equations 3 and 4.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from mixwell.core.blend import compose, dot_loss, labelled
from mixwell.core.draw import Plan, sample_beta
from mixwell.core.loss import IGNORE, Criterion
from mixwell.core.method import Method, option
from mixwell.core.points import Point, Points
from mixwell.core.step import Step
from mixwell.methods.registry import register
from mixwell.utils.errors import OptionError

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer


@register
@dataclass
class BatchMixup(Method):
    """x_i = sum over the batch of softmax_over_batch(M_i) * X, M_i (B, d) ~ Beta(1, 1); labels by the same policy.

    The softmax of numbers in [0, 1] is nearly flat: at B = 32 the new points have about 7 % of the batch's spread
    around its mean. `temperature` below 1 widens it.
    """

    name = "batchmixup"
    tasks = ("sequence",)
    summary = "make new sentence vectors from the whole batch by random weights for every feature"
    has_lam = False
    has_permutation = False
    aliases: ClassVar[dict[str, str]] = {"loss": "loss_form", "n": "points"}

    alpha: float = option(1.0, "shape of the Beta distribution the policy is drawn from")
    points: int | None = option(
        None, "how many new points (n) replace the batch; None: as many as rows, 400 with weights='sample'"
    )
    loss_form: str = option("cross_entropy", "cross_entropy, or dot: the paper's -x.y, which has no lower bound")
    weights: str = option("element", "element (a weight a feature), or sample (a weight a row, the authors' code)")
    temperature: float = option(1.0, "divides the policy before the softmax; below 1 the points spread wider")

    def check(self) -> None:
        """Check the options against each other."""
        self.positive("alpha", "temperature")
        self.choice("loss_form", ("cross_entropy", "dot"))
        self.choice("weights", ("element", "sample"))
        if self.points is not None and self.points < 1:
            raise OptionError(f"points={self.points} must be at least 1")
        if self.pairing != "random":
            raise OptionError("pairing does not go with batchmixup: it mixes the whole batch")
        if self.loss_form == "dot" and (self.label_smoothing or self.class_weights is not None or self.loss_fn):
            raise OptionError("loss_form='dot' takes no label_smoothing, class_weights or loss_fn")

    def sites(self, points: Points) -> list[Point]:
        """Return the sentence vector."""
        return list(points.get("sentence"))

    def verify(self, mixer: Mixer) -> None:
        """Refuse heads that score every token, if there are to be more points than rows."""
        if self.points is not None and self.sites(mixer.points)[0].how == "last":
            raise OptionError("points= does not go with a head that scores every token; leave it out")

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Draw the policy M: (n, B, d), or (n, B) with a weight a row."""
        shape: tuple[int, ...] = (self._count(step), step.size)
        if self.weights == "element":
            shape = (*shape, step.mixer.sites[0].width)
        policy = sample_beta(self.alpha, shape, rng).to(plan.label_weight.dtype).to(step.device, non_blocking=True)
        share = torch.softmax(policy / self.temperature, dim=1)
        weight = share.mean(2) if self.weights == "element" else share
        return dataclasses.replace(plan, label_weight=weight, extra={"policy": policy, "share": share})

    def _count(self, step: Step) -> int:
        """Return n: as asked; else as many as rows, or 400 as in the authors' code, where the head allows it."""
        if self.points is not None:
            return self.points
        return 400 if self.weights == "sample" and step.mixer.sites[0].how == "input" else step.size

    def mix(self, x: Tensor, plan: Plan, site: int, step: Step) -> Tensor:
        """Return the n new points, (n, d)."""
        step.scratch["points"] = compose(plan.extra["share"].to(x.dtype), x)
        return step.scratch["points"]

    def loss(
        self, criterion: Criterion, logits: Tensor, labels: Tensor, plan: Plan, step: Step, items: Tensor | int | None
    ) -> Tensor:
        """Return the mean over the new points of the weighted cross-entropy, or of -x.y."""
        if self.loss_form == "dot":
            if criterion.kind != "single_label":
                raise OptionError("loss_form='dot' needs single-label classification")
            loss = dot_loss(step.scratch["points"], plan.extra["share"], step.mixer.sites[0].module, labels)
            loss = loss + 0.0 * logits.sum()  # the head's bias takes part: DDP waits for every gradient
        else:
            table = criterion.table(logits, labels)
            weight = plan.label_weight.to(table.dtype)
            if criterion.kind == "single_label":
                weight = labelled(weight, labels)
            loss = (weight * table).sum(1).mean()
        if items is None:
            return loss
        return loss * (labels != IGNORE).sum() / items
