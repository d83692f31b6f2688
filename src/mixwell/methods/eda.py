"""Text augmentation inside the batch: words are deleted, swapped or replaced; nothing is mixed, labels stay.

Wei, Zou: EDA: Easy Data Augmentation Techniques for Boosting Performance on Text Classification Tasks. EMNLP 2019. Here
on tokens, anew in every step instead of once before training. Two of EDA's four changes need what a model does not
have, a dictionary of synonyms and room for insertions: a token from elsewhere in the batch takes a place instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwell.core.checks import check_no_prompt
from mixwell.core.draw import Plan
from mixwell.core.method import Method, option
from mixwell.core.mixer import Mixer
from mixwell.core.model import base_config
from mixwell.core.step import Step
from mixwell.core.tokens import content_tokens, draw_from_batch, rotate
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
        if isinstance(self.changes, (list, tuple)):
            self.changes = ",".join(map(str, self.changes))
        if not isinstance(self.changes, str):
            raise OptionError(f"changes={self.changes!r} must be a text such as 'delete,swap' for eda")
        if self.mask_token_id is not None and self.mask_token_id < 0:
            raise OptionError(f"mask_token_id={self.mask_token_id} must be at least 0 for eda")
        if not 0 < self.rate <= 1:
            raise OptionError(f"rate={self.rate} must lie in (0, 1] for eda")
        for change in self.wanted:
            if change not in CHANGES:
                raise OptionError(f"changes: {change!r} is unknown{nearest(change, CHANGES)}; use some of {CHANGES}")
        if "mask" in self.wanted and self.mask_token_id is None:
            raise OptionError("the change mask needs mask_token_id= (tokenizer.mask_token_id)")

    @property
    def wanted(self) -> list[str]:
        """The changes."""
        return [change.strip() for change in self.changes.split(",")]

    def verify(self, mixer: Mixer) -> None:
        """Refuse models that put tokens of their own before the text, or read it twice."""
        check_no_prompt(self, mixer.model)
        if "delete" in self.wanted and getattr(base_config(mixer.model), "is_encoder_decoder", False):
            raise OptionError(
                f"{type(mixer.model).__name__} reads a text a second time, in its decoder, where nothing is hidden; "
                f"use changes='swap,replace'"
            )

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Change the token ids, or hide tokens from attention."""
        ids, mask = step.ids, step.mask
        if mask is None:
            if "delete" in self.wanted:
                raise BatchError("eda deletes by the attention_mask: pass one with the batch, or leave delete out")
            mask = torch.ones_like(ids, dtype=torch.bool)
        content = content_tokens(ids, mask)
        size, length = ids.shape
        places, others = torch.rand((2, size, length), generator=rng, device="cpu").to(step.device, non_blocking=True)
        kind = torch.randint(len(self.wanted), (size, 1), generator=rng, device="cpu").to(
            step.device, non_blocking=True
        )
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
                new = torch.where(rows, rotate(ids, order, torch.minimum(changed + 1, count)), new)
            else:
                put = draw_from_batch(ids, content, others)
                put = put if change == "replace" else torch.full_like(ids, self.mask_token_id or 0)
                new = torch.where(chosen & rows, put, new)
        step.inputs["input_ids"] = new
        return plan
