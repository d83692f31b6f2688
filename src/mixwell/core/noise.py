"""Noise of a tensor's shape that a seed determines, wherever the tensor lies, also in a compiled model.

An operation of its own: a compiler keeps it as one call, takes the seed as a value that may change, and a checkpoint
that is recomputed draws the same numbers again.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SCHEMA = "(Tensor like, Tensor seed) -> (Tensor, Tensor)"


@torch.library.custom_op("mixwell::noise", mutates_args=(), schema=_SCHEMA)
def _noise(like: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    rng = torch.Generator(like.device).manual_seed(int(seed))
    normal = torch.randn(like.shape, generator=rng, device=like.device)
    return normal, torch.rand(like.shape, generator=rng, device=like.device)


@_noise.register_fake
def _(like: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    shape = like.shape
    return like.new_empty(shape, dtype=torch.float32), like.new_empty(shape, dtype=torch.float32)


def noise(like: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Return N(0, 1) and uniform [0, 1) numbers in float32, both of the shape of `like`.

    Args:
        like: any tensor.
        seed: one whole number on the CPU.
    """
    normal, uniform = torch.ops.mixwell.noise(like.detach(), seed)
    return normal, uniform
