"""RegMixup: plain training, with the loss on mixed rows as a regulariser.

Pinto, Yang, Lim, Torr, Dokania: RegMixup: Mixup as a Regularizer Can Surprisingly Improve Accuracy and Out
Distribution Robustness. NeurIPS 2022; alpha as in the authors' commands for CIFAR-100 (20 for CIFAR-10).
"""

from __future__ import annotations

from dataclasses import dataclass

from mixwell.core.method import option
from mixwell.methods.input import InputMixup
from mixwell.methods.registry import register


@register
@dataclass
class RegMixup(InputMixup):
    """loss(x, y) + loss(lam x + (1 - lam) x[perm], mixed y), lam ~ Beta(10, 10): near 1/2, so far from the data.

    The embedding output is mixed as in `input`. `regularise=True` does the same with any other method.
    """

    name = "regmixup"
    summary = "plain loss + loss on embeddings mixed half and half; lam ~ Beta(10, 10); two forwards a step"

    alpha: float = option(10.0, "shape of the Beta distribution lam is drawn from")
    regularise: bool = option(True, "plain loss + mixed loss, by a second forward; False is `input` with this alpha")
