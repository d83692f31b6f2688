"""The baselines of AMPLIFY with the label mistake of the published code, to measure what it costs.

In embed_mixup.py, sent_mixup.py and Tmix.py of github.com/kiwi-lilo/AMPLIFY (commit a63fb3d) the features are mixed by
one random permutation and the labels by another, so that a row's second label is hardly ever that of the row that was
mixed in. The methods here do the same: features, lam and all other draws are those of the correct method; the labels
get a permutation from a stream of their own. They are hidden: known by name, so that workers can build them, but in no
list.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixwell.core.draw import Plan, draw_permutation, generator
from mixwell.core.loss import Criterion, mixed_loss
from mixwell.core.method import DrawsLam
from mixwell.core.step import Step
from mixwell.methods.embedmix import EmbedMix
from mixwell.methods.registry import register
from mixwell.methods.sentencemix import SentenceMix
from mixwell.methods.tmix import TMix

PREFIX = "audit-"
_STREAM = 0x1ABE1


def faulty(method: str, fault: str | None) -> str:
    """The name of a method with a fault; None is the correct one."""
    return method if fault is None else PREFIX + method


class _OtherLabels(DrawsLam):
    hidden = True

    def loss(
        self,
        criterion: Criterion,
        logits: Tensor,
        labels: Tensor,
        plan: Plan,
        step: Step,
        items: Tensor | int | None,
    ) -> Tensor:
        """Weigh the labels by lam with those of rows that were not mixed in."""
        rng = generator(plan.seed, _STREAM)
        other = draw_permutation("random", labels.shape[0], rng, device=labels.device)
        # The published code gives lam to every row, also to one that the features' permutation leaves in its place.
        lam = torch.as_tensor(plan.lam, dtype=plan.label_weight.dtype).to(labels.device, non_blocking=True)
        return mixed_loss(criterion, logits, labels, other, lam.expand(labels.shape[0]), items)


@register
@dataclass
class AuditEmbedMix(_OtherLabels, EmbedMix):
    """EmbedMix with the published label mistake."""

    name = "audit-embedmix"
    summary = "embedmix with the published label mistake; for the audit only"


@register
@dataclass
class AuditSentenceMix(_OtherLabels, SentenceMix):
    """SentenceMix with the published label mistake."""

    name = "audit-sentencemix"
    summary = "sentencemix with the published label mistake; for the audit only"


@register
@dataclass
class AuditTMix(_OtherLabels, TMix):
    """TMix with the published label mistake."""

    name = "audit-tmix"
    summary = "tmix with the published label mistake; for the audit only"
