"""The pair loss: texts of one class are pulled together, others pushed apart.

The cosine loss of SetFit (Tunstall et al. 2022), over all pairs of a batch instead of single drawn pairs. Alone it
tunes an encoder for a logistic regression (`contrastive`); beside the cross-entropy it makes more of few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def pair_loss(features: Any, labels: Any) -> Any:
    """Mean of (cosine - 1)^2 over the pairs of one class plus mean of cosine^2 over the others.

    Args:
        features: (B, H).
        labels: (B,).
    """
    import torch

    unit = torch.nn.functional.normalize(features, dim=-1)
    cosine = unit @ unit.T
    same = labels[:, None] == labels[None, :]
    others = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    loss = cosine[~same].square().mean() if (~same).any() else cosine.sum() * 0
    if (same & others).any():
        loss = loss + (1 - cosine[same & others]).square().mean()
    return loss


@contextmanager
def pair_loss_beside(model: Any, mixer: Any, weight: float | None) -> Iterator[Callable[..., Any] | None]:
    """Give Trainer a loss: the mixer's own plus `weight` times the pair loss of the vectors that the head reads.

    Args:
        model: a `PooledForSequenceClassification` with single labels.
        mixer: attached to it, with a method that mixes nothing.
        weight: of the pair loss; without one, Trainer's own way is kept.
    """
    if not weight:
        yield None
        return
    read: list[Any] = []

    def remember(module: Any, inputs: Any) -> None:
        if model.training:
            read[:] = inputs[:1]

    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        total = mixer.compute_loss(outputs, labels, num_items_in_batch)
        if not model.training:
            return total
        features = read.pop()
        # Trainer counts the rows of all batches that make up one update.
        share = 1.0 if num_items_in_batch is None else len(labels) / num_items_in_batch
        return total + weight * share * pair_loss(features, labels.to(features.device))

    handle = model.classifier.register_forward_pre_hook(remember)
    try:
        yield loss
    finally:
        handle.remove()
