"""Text augmentation inside the batch: words are deleted, swapped or replaced; nothing is mixed, labels stay.

Wei, Zou: EDA: Easy Data Augmentation Techniques for Boosting Performance on Text Classification Tasks. EMNLP 2019. Here
on tokens, anew in every step instead of once before training. Two of EDA's four changes need what a model does not
have, a dictionary of synonyms and room for insertions: a token from elsewhere in the batch takes a place instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixwell.core.checks import check_no_prompt
from mixwell.core.draw import Plan
from mixwell.core.filling import last_real
from mixwell.core.method import Method, option
from mixwell.core.mixer import Mixer
from mixwell.core.step import Step
from mixwell.methods.registry import register
from mixwell.utils.errors import BatchError, OptionError, nearest

CHANGES = ("delete", "swap", "replace", "mask")


@register
@dataclass
class EasyDataAugmentation(Method):
    """n = max(1, rate * length) tokens of every row are deleted, moved about or replaced; each row has one change."""

    name = "eda"
    summary = "no mixing: delete, swap or replace some tokens of every row, anew in each step; labels stay"
    has_lam = False
    has_permutation = False
    tasks = ("sequence",)
    modalities = ("text",)

    rate: float = option(0.1, "share of a row's tokens that is changed, at least one")
    changes: str = option("delete,swap,replace", "one of these is drawn for each row: delete, swap, replace, mask")
    mask_token_id: int | None = option(None, "the mask token, for the change mask: tokenizer.mask_token_id")

    def check(self) -> None:
        """Check the options against each other."""
        if not 0 < self.rate <= 1:
            raise OptionError(f"rate={self.rate} must lie in (0, 1] for eda")
        for change in self.wanted:
            if change not in CHANGES:
                known = ", ".join(CHANGES)
                raise OptionError(f"changes: {change!r} is unknown{nearest(change, CHANGES)}; use some of {known}")
        if "mask" in self.wanted and self.mask_token_id is None:
            raise OptionError("the change mask needs mask_token_id= (tokenizer.mask_token_id)")

    @property
    def wanted(self) -> list[str]:
        """The changes."""
        return [change.strip() for change in self.changes.split(",")]

    @property
    def mask_id(self) -> int:
        """The mask token; -1 where none is needed."""
        return -1 if self.mask_token_id is None else self.mask_token_id

    def verify(self, mixer: Mixer) -> None:
        """Refuse models that put tokens of their own before the text."""
        check_no_prompt(self, mixer.model)

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Change the token ids, or hide tokens from attention."""
        ids, mask = step.ids, step.mask
        if mask is None:
            if "delete" in self.wanted:
                raise BatchError("eda deletes by the attention_mask: pass one with the batch, or leave delete out")
            mask = torch.ones_like(ids, dtype=torch.bool)
        # Its first and last token, and all that are like them, frame a text: [CLS] and [SEP].
        content = mask & (ids != ids.gather(1, mask.long().argmax(1, keepdim=True))) & (ids != last_real(ids, mask))
        size, length = ids.shape
        places, others = torch.rand((2, size, length), generator=rng).to(step.device, non_blocking=True)
        kind = torch.randint(len(self.wanted), (size, 1), generator=rng).to(step.device, non_blocking=True)
        count = content.sum(1, keepdim=True)
        changed = torch.minimum((count * self.rate).floor().long().clamp(min=1), count)
        order = places.masked_fill(~content, 2.0).argsort(1)  # a row's content tokens in random order, then the rest
        rank = order.argsort(1)
        chosen = rank < changed
        new = ids
        for at, change in enumerate(self.wanted):
            rows = kind == at
            if change == "delete":
                kept = step.inputs["attention_mask"]
                step.inputs["attention_mask"] = kept.masked_fill(chosen & rows, 0)
            elif change == "swap":
                new = torch.where(rows, _rotate(ids, order, torch.minimum(changed + 1, count)), new)
            else:
                put = _from_batch(ids, content, others) if change == "replace" else torch.full_like(ids, self.mask_id)
                new = torch.where(chosen & rows, put, new)
        step.inputs["input_ids"] = new
        return plan


def _rotate(ids: Tensor, order: Tensor, count: Tensor) -> Tensor:
    """Move the tokens at the first `count` (B, 1) places of `order` (B, T) each to the place before."""
    ranks = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    following = torch.where(ranks < count, (ranks + 1) % count.clamp(min=1), ranks)
    return ids.scatter(1, order, ids.gather(1, order.gather(1, following)))


def _from_batch(ids: Tensor, content: Tensor, draws: Tensor) -> Tensor:
    """Draw a content token of the batch for every place: `draws` (B, T) in [0, 1)."""
    running = content.flatten().long().cumsum(0)
    wanted = (draws.flatten() * running[-1]).floor().long() + 1
    found = torch.searchsorted(running, wanted).clamp(max=len(running) - 1)
    return ids.flatten().index_select(0, found).view_as(ids)
