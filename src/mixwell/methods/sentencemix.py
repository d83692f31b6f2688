"""SentenceMix and CLS MixUp: mix the sentence vector before the last linear layer.

Guo, Mao, Zhang: Augmenting Data with Mixup for Sentence Classification (senMixup), arXiv 1905.08941; MixUp training for
NLU, section 3.5.1 (eq. 3) for the preset `cls`.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixwell.core.method import DrawsLam, option
from mixwell.core.points import Point, Points
from mixwell.methods.registry import register


@register
@dataclass
class SentenceMix(DrawsLam):
    """v <- lam v + (1 - lam) v[perm], v the input of the linear layer that makes the logits, after dropout."""

    name = "sentencemix"
    summary = "mix the sentence vector before the last linear layer; lam = max(l, 1-l), l ~ Beta(0.2, 0.2)"

    def sites(self, points: Points) -> list[Point]:
        """Return the input of the last linear layer."""
        return list(points.get("sentence"))


@register
@dataclass
class ClsMixup(SentenceMix):
    """The same point with lam ~ Beta(1, 1), as in the NLU paper."""

    name = "cls"
    summary = "sentencemix with lam ~ Beta(1, 1), the NLU paper's CLS MixUp"

    alpha: float = option(1.0, "shape of the Beta distribution lam is drawn from")
    draw: str = option("beta", "max_of (largest of `samples`), folded (max(l, 1-l)) or beta")
