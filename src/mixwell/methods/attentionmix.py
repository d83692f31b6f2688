"""AttentionMix: mix embeddings token by token, by how much attention each token gets.

Lewy, Mandziuk: AttentionMix, arXiv 2309.11104. The paper fixes relevance taken from an attention head or from the mean
over a layer's heads as the mixing ratio of word embeddings. How relevance becomes a ratio, r / (r + r[perm]), and the
label weight, its mean over real tokens, are our reading: only a summary of the paper was available. Mixing the output
of a block (`after`) is what the paper leaves open.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixwell.core.checks import check_no_prompt
from mixwell.core.draw import Plan
from mixwell.core.method import Method, option, pick_layers
from mixwell.core.passes import attention_weights
from mixwell.core.points import Point, Points
from mixwell.core.step import Step
from mixwell.methods.registry import register
from mixwell.utils.errors import OptionError

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer


def relevance(attention: Tensor, mask: Tensor, head: int | None) -> Tensor:
    """Return the attention each token gets: the mean over real queries, 0 on padding.

    Args:
        attention: (B, H, T, T), weights over keys (last axis) for each query.
        mask: (B, T) bool.
        head: one head, or None for the mean over heads.

    Returns:
        (B, T)
    """
    weights = attention.mean(1) if head is None else attention[:, head]
    queries = mask.to(weights.dtype)
    weights = weights.masked_fill(~mask.unsqueeze(-1), 0.0)  # of padding they may be NaN
    received = torch.einsum("bq,bqk->bk", queries, weights) / queries.sum(1, keepdim=True).clamp(min=1)
    return received * queries


@register
@dataclass
class AttentionMix(Method):
    """e[t] <- q[t] e[t] + (1 - q[t]) e[perm][t], q = r / (r + r[perm]), r the attention a token gets in one block."""

    name = "attentionmix"
    summary = "mix embeddings token by token, by the attention each token gets in an early block"
    has_lam = False
    searchable = ("block", "head")

    block: int = option(0, "the block whose attention is read, from 0")
    head: int | None = option(None, "one head of that block; None is the mean over its heads")
    after: int | None = option(None, "mix the output of this block, from 0, instead of the embeddings")

    def sites(self, points: Points) -> list[Point]:
        """Return the embedding output, or the output of one block."""
        blocks = self.pick(points, "block")
        pick_layers([self.block], len(blocks), [], "block")
        if self.after is not None:
            pick_layers([self.after], len(blocks), [], "after")
            if blocks[self.after].stack != blocks[self.block].stack:
                raise OptionError(f"after={self.after} and block={self.block} lie in different stacks of the model")
            return [blocks[self.after]]
        # In an encoder-decoder model, the embeddings of the stack whose attention is read.
        return [point for point in points.get("embeddings") if point.stack == blocks[self.block].stack][:1]

    def verify(self, mixer: Mixer) -> None:
        """See the weights once, and that the head exists."""
        check_no_prompt(self, mixer.model)
        mixer.check_masked_embeddings()
        probe = Step(mixer, mixer.points.inputs.copy())
        heads = attention_weights(probe, self.block).shape[1]
        if self.head is not None and not 0 <= self.head < heads:
            raise OptionError(f"head={self.head} is not one of 0..{heads - 1} (they count from 0)")

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Read the attention, and attend to the partner's tokens too."""
        attention = attention_weights(step, self.block)
        mask = step.mask
        if mask is None:
            mask = torch.ones(attention.shape[0], attention.shape[-1], dtype=torch.bool, device=step.device)
        own = relevance(attention, mask, self.head).to(plan.label_weight.dtype)
        other = own.index_select(0, plan.permutation)
        real = mask
        if plan.shift is not None and plan.shift_mask is not None:
            other = other.gather(1, plan.shift) * plan.shift_mask
        else:
            real = mask | mask.index_select(0, plan.permutation)
        both = own + other
        ratio = torch.where(both > 0, own / both.clamp(min=torch.finfo(both.dtype).tiny), torch.ones_like(own))
        alone = plan.permutation == torch.arange(step.size, device=step.device)
        ratio = torch.where(alone.unsqueeze(1), torch.ones_like(ratio), ratio)
        weight = (ratio * real).sum(1) / real.sum(1).clamp(min=1)
        alone = alone | ~real.any(1)  # rows of padding only: there is nothing to mix
        weight = torch.where(alone, torch.ones_like(weight), weight)
        plan = dataclasses.replace(plan, token_weights=ratio, label_weight=weight, point_weights=weight.unsqueeze(0))
        step.attend_partner(plan)
        return plan
