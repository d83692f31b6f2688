"""Plain training, attached: the baseline that shares everything else with the methods."""

from __future__ import annotations

from dataclasses import dataclass

from mixwell.core.method import Method
from mixwell.methods.registry import register


@register
@dataclass
class NoMixing(Method):
    """Mix nothing; take the same seed from torch's generator and normalise the loss the same way."""

    name = "none"
    summary = "plain training, with the same random stream and loss normalisation as the methods"
    mixes = False
    has_lam = False
    has_permutation = False
