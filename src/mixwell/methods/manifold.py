"""Manifold MixUp: fill up the shorter row, then mix embeddings, one block's output, or the sentence vector.

MixUp training for NLU, section 3.5.3, eq. 4 and Appendix B.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mixwell.core.draw import Plan
from mixwell.core.filling import Fills
from mixwell.core.method import option, pick_layers
from mixwell.core.points import Point, Points
from mixwell.core.step import Step
from mixwell.methods.registry import register


@register
@dataclass
class ManifoldMixup(Fills):
    """One point k of S drawn each step: 0 the embeddings, 1..L the output of block k, L + 1 the sentence vector."""

    name = "manifold"
    summary = "mix at one point drawn each step: embeddings, a block's output or the sentence vector; lam ~ Beta(1, 1)"
    has_layer = True

    layers: Sequence[int] | None = option(None, "S, the points to draw from: 0, 1..L, L+1; None is all of them")

    def sites(self, points: Points) -> list[Point]:
        """Return the points to draw from."""
        blocks = self.pick(points, "block")
        vectors = points.get("sentence") if self.layers is None else points.found.get("sentence", ())
        # The embeddings are one choice, in encoder-decoder models of both stacks, as in `input`.
        every = [self.pick(points, "embeddings"), *((point,) for point in (*blocks, *vectors))]
        return [point for k in pick_layers(self.layers, len(every), range(len(every)), "layers") for point in every[k]]

    def layer_of(self, site: Point, points: Points) -> int:
        """Return the number in S of a site: blocks count from 1, the sentence vector comes last."""
        if site.kind == "sentence":
            return len(self.pick(points, "block")) + 1
        return 0 if site.kind == "embeddings" else site.index + 1

    def draw_layer(self, rng: torch.Generator, count: int) -> int:
        """Draw one of the points."""
        return int(torch.randint(count, (), generator=rng))

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Fill up, except for the sentence vector."""
        if plan.layer != len(self.pick(step.mixer.points, "block")) + 1:
            return self.fill(step, plan)
        # What the hooks read is there whichever point is drawn, or a compiled model would be compiled once more.
        if step.mask is not None and self.padding == "none":
            return dataclasses.replace(plan, token_mask=torch.ones_like(step.mask))
        if step.mask is not None and self.padding == "pad":
            step.scratch["word_ids"] = step.ids.clone()
        return plan
