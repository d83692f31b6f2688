"""Changes of token ids inside a batch, for methods that change texts instead of hidden states."""

from __future__ import annotations

import torch
from torch import Tensor

from mixwell.core.filling import last_real


def content_tokens(ids: Tensor, mask: Tensor) -> Tensor:
    """Tell the words of a text from what frames it, [CLS] and [SEP]: its first and last token, and all like them.

    Args:
        ids: (B, T).
        mask: (B, T) bool, the real tokens.

    Returns:
        (B, T) bool.
    """
    first = ids.gather(1, mask.long().argmax(1, keepdim=True))
    return mask & (ids != first) & (ids != last_real(ids, mask))


def rotate(ids: Tensor, order: Tensor, count: Tensor) -> Tensor:
    """Move the tokens at the first `count` (B, 1) places of `order` (B, T) each to the place before."""
    ranks = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    following = torch.where(ranks < count, (ranks + 1) % count.clamp(min=1), ranks)
    return ids.scatter(1, order, ids.gather(1, order.gather(1, following)))


def draw_from_batch(ids: Tensor, content: Tensor, draws: Tensor) -> Tensor:
    """Draw a content token of the batch for every place: `draws` (B, T) in [0, 1)."""
    running = content.flatten().long().cumsum(0)
    wanted = (draws.flatten() * running[-1]).floor().long() + 1
    found = torch.searchsorted(running, wanted).clamp(max=len(running) - 1)
    return ids.flatten().index_select(0, found).view_as(ids)
