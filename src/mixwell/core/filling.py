"""Filling up the shorter row of a pair, for methods that mix tokens where one row has padding.

MixUp training for NLU, Appendix B.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixwell.core.draw import Plan
from mixwell.core.method import DrawsLam, option
from mixwell.core.model import base_config
from mixwell.core.step import Step, mixed_rows
from mixwell.utils.errors import BatchError, OptionError

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer


def last_real(values: Tensor, mask: Tensor) -> Tensor:
    """Return each row's value at its last real token, (B, 1).

    Args:
        values: (B, T).
        mask: (B, T) bool.
    """
    positions = torch.arange(mask.shape[1], device=mask.device)
    return values.gather(1, (positions * mask).argmax(1, keepdim=True))


def one_separator(step: Step, last: Tensor, option: str) -> None:
    """Raise unless rows end in one and the same token: else which one separates is anybody's guess.

    Args:
        step: the current step.
        last: (B, 1), each row's last real token.
        option: what to pass instead, for the message.
    """
    if step.first_time("separator") and bool((last != last[0]).any()):
        raise BatchError(
            f"the rows of this batch end in different tokens ({last.flatten().unique().tolist()}), so the separator is "
            f"unclear; pass {option}"
        )


@dataclass
class Fills(DrawsLam):
    """What Input and Manifold MixUp share: lam ~ Beta(1, 1) and the filling of padding."""

    alternatives = ({"padding": "none"},)

    alpha: float = option(1.0, "shape of the Beta distribution lam is drawn from")
    draw: str = option("beta", "max_of (largest of `samples`), folded (max(l, 1-l)) or beta")
    padding: str = option("sep", "what padding becomes: sep, unused, pad, or none (mix only where both rows are real)")
    extent: str = option("pair", "how far to fill: pair (the longer of the two rows) or max (all positions)")
    sep_token_id: int | None = option(None, "id of the separator; None takes each row's last real token")
    unused_token_id: int | None = option(None, "id for padding='unused' ([unused0] is 1 in BERT's vocabularies)")
    pad_token_id: int | None = option(None, "id for padding='pad'; None takes the model's")

    def check(self) -> None:
        """Check the options against each other."""
        self.choice("padding", ("sep", "unused", "pad", "none"))
        self.choice("extent", ("pair", "max"))
        if self.padding == "unused" and self.unused_token_id is None:
            raise OptionError("padding='unused' needs unused_token_id= ([unused0] is 1 in BERT's vocabularies)")

    def verify(self, mixer: Mixer) -> None:
        """Refuse models where a separator at the end would change what is pooled."""
        config = base_config(mixer.model)
        if self.padding == "none" or mixer.points.modality == "image":
            return
        if getattr(config, "is_encoder_decoder", False) or any(p.causal for p in mixer.points.get("embeddings")):
            raise OptionError(
                f"{type(mixer.model).__name__} pools its last or end-of-sequence token, which a fill would displace; "
                f"use padding='none'"
            )
        mixer.check_masked_embeddings()
        if self.padding == "pad" and self.pad_token_id is None and getattr(config, "pad_token_id", None) is None:
            raise OptionError("the model's config has no pad_token_id; pass pad_token_id=")

    def fill(self, step: Step, plan: Plan) -> Plan:
        """Turn padding into attended tokens, or restrict mixing to tokens real in both rows.

        Every padding position of a mixed row (up to the longer of the two rows, or all) becomes the fill token, with
        its own position and the segment of the row's last real token, and is attended. Where partners are not mutual a
        row is also somebody else's partner: it is filled as far as either pair reaches and attends to its own.
        """
        mask = step.mask
        if mask is None:
            return plan
        partner = mask.index_select(0, plan.permutation)
        if self.padding == "none":
            return dataclasses.replace(plan, token_mask=mask & partner)
        ids = step.ids
        rows = torch.arange(step.size, device=step.device)
        inverse = torch.empty_like(plan.permutation).scatter_(0, plan.permutation, rows)
        reach = partner if self.extent == "pair" else torch.ones_like(mask)
        attended = reach & ~mask & mixed_rows(plan).unsqueeze(1)
        taken = mask if self.extent == "pair" else torch.ones_like(mask)
        taken = (taken & mixed_rows(plan).unsqueeze(1)).index_select(0, inverse)
        filled = attended | (taken & ~mask)
        token = last_real(ids, mask)
        if self.padding == "sep" and self.sep_token_id is None:
            one_separator(step, token, "sep_token_id= (tokenizer.sep_token_id)")
        wanted = {"sep": self.sep_token_id, "unused": self.unused_token_id}.get(self.padding)
        if wanted is not None:
            token = torch.full_like(token, wanted)
        step.inputs["input_ids"] = torch.where(filled, token, ids)
        if self.padding == "pad":
            # RoBERTa counts positions by ids that are not padding: it gets to see separators, while the words that
            # are looked up stay padding.
            step.scratch["word_ids"] = torch.where(filled, torch.full_like(ids, self._pad_id(step)), ids)
        segments = step.inputs.get("token_type_ids")
        if segments is not None:
            step.inputs["token_type_ids"] = torch.where(filled, last_real(segments, mask), segments)
        step.attend(attended)
        return plan

    def _pad_id(self, step: Step) -> int:
        return self.pad_token_id if self.pad_token_id is not None else base_config(step.mixer.model).pad_token_id
