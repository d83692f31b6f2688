"""Blending a row with its partner: the arithmetic that all methods share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mixwell.core.draw import Plan
from mixwell.core.loss import HALF, IGNORE
from mixwell.utils.errors import BatchError


def mix(x: Tensor, permutation: Tensor, weight: Tensor) -> Tensor:
    """Return lerp(x[perm], x, weight).

    Exact where the weight is 1, forward and backward.

    Args:
        x: (B, ...).
        permutation: (B,).
        weight: (B,) or (B, T), the share of a row's own part.
    """
    permutation, weight = permutation.to(x.device), weight.to(x.device)
    # Compilers fuse the plain operations, and low precision needs copies anyway.
    if torch.compiler.is_compiling() or x.dtype in HALF:
        return blend(x.index_select(0, permutation), x, weight)
    mixed: Tensor = _Mix.apply(x, permutation, spread(weight.to(x.dtype), x))  # type: ignore[no-untyped-call]
    return mixed


class _Mix(torch.autograd.Function):
    """`blend` of rows with rows of the same tensor, to the bit, with fewer copies of it forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, permutation: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(permutation, weight)
        return x.index_select(0, permutation).lerp_(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        permutation, weight = ctx.saved_tensors
        rows = torch.arange(len(permutation), device=permutation.device)
        inverse = torch.empty_like(permutation).scatter_(0, permutation, rows)
        given = gradient.index_select(0, inverse).mul_((1 - weight).index_select(0, inverse))
        return given.add_(gradient * weight), None, None


def blend(other: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return lerp(other, x, weight), the weight (B,) or (B, T) spread over the remaining axes.

    Low precision is mixed in float32: in bfloat16 every weight above 0.998 would be 1.
    """
    return lerp(other, x, spread(weight.to(x.device), x))


def spread(weight: Tensor, x: Tensor) -> Tensor:
    """Return a weight with as many axes as x."""
    return weight.reshape(weight.shape + (1,) * (x.dim() - weight.dim()))


def lerp(other: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return weight x + (1 - weight) other, exact where the weight is 1; low precision through float32."""
    if x.dtype in HALF:
        return torch.lerp(other.float(), x.float(), weight.float()).to(x.dtype)
    return torch.lerp(other, x, weight.to(x.dtype))


def partner(x: Tensor, plan: Plan, causal: bool) -> Tensor:
    """Return x[perm]; in causal stacks moved along the token axis, so that last tokens lie on each other."""
    other = x.index_select(0, plan.permutation.to(x.device))
    if causal and plan.shift is not None and x.dim() == 3:
        return other.gather(1, plan.shift.to(x.device).unsqueeze(-1).expand_as(other))
    return other


def token_weight(x: Tensor, plan: Plan, site: int, causal: bool = False) -> Tensor:
    """Return the weight at a site: (B,), or (B, T) where the plan has weights or a mask for tokens."""
    weight = plan.point_weights[site]
    if x.dim() < 3:
        return weight
    mask = plan.shift_mask if causal and plan.shift_mask is not None else plan.token_mask
    tokens = mask if plan.token_weights is None else plan.token_weights
    if tokens is None:
        return weight
    if tokens.shape[1] != x.shape[1]:
        raise BatchError(
            f"the model works on {x.shape[1]} positions but the attention_mask has {tokens.shape[1]}: "
            f"token-wise mixing cannot line them up"
        )
    if plan.token_weights is not None:
        return tokens
    return torch.where(tokens, weight.unsqueeze(1), torch.ones_like(weight).unsqueeze(1))


def labelled(share: Tensor, labels: Tensor) -> Tensor:
    """Rows without a label give their share to the others: (n, B) or (n, B, d), labels (B,)."""
    share = share * spread(labels != IGNORE, share[0])
    return share / share.sum(1, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)


def compose(share: Tensor, x: Tensor) -> Tensor:
    """Return sum over the batch of share * x: share (n, B, d) or (n, B), x (B, d) -> (n, d)."""
    return torch.einsum("nbd,bd->nd", share, x) if share.dim() == 3 else share @ x


def dot_loss(points: Tensor, share: Tensor, head: Any, labels: Tensor) -> Tensor:
    """Return the mean of -x.y over new points x and label vectors y mixed by the same shares.

    Args:
        points: (n, d).
        share: (n, B, d) or (n, B).
        head: the linear layer whose rows are the label vectors.
        labels: (B,).
    """
    vectors = getattr(head, "base_layer", head).weight[labels.clamp(min=0)]
    share = labelled(share, labels).to(vectors.dtype)
    return -(points * compose(share, vectors)).sum(1).mean()
