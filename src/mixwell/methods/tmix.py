"""TMix: mix the output of one block, drawn each step.

Chen, Yang, Yang: MixText, arXiv 2004.12239, as AMPLIFY's baseline (section 4.2: blocks 7, 9 and 12 of 12).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mixwell.core.method import DrawsLam, option, pick_layers
from mixwell.core.points import Point, Points
from mixwell.methods.registry import register


def scaled_layers(depth: int) -> list[int]:
    """Return blocks 6, 8 and 11 of 12 (from 0), moved to the same relative depth of `depth` blocks."""
    return sorted({-(-block * depth // 12) - 1 for block in (7, 9, 12)})


@register
@dataclass
class TMix(DrawsLam):
    """h_k <- lam h_k + (1 - lam) h_k[perm] for one block k drawn from `layers`; each row keeps its own mask."""

    name = "tmix"
    summary = "mix the output of one block, drawn each step from the upper half"
    has_layer = True

    layers: Sequence[int] | None = option(None, "blocks to draw from, from 0; None is 6, 8, 11 of 12, scaled")

    def sites(self, points: Points) -> list[Point]:
        """Return the blocks to draw from."""
        blocks = self.pick(points, "block")
        return [blocks[i] for i in pick_layers(self.layers, len(blocks), scaled_layers(len(blocks)), "layers")]

    def draw_layer(self, rng: torch.Generator, count: int) -> int:
        """Draw one of the blocks."""
        return int(torch.randint(count, (), generator=rng))
