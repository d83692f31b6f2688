"""SSMix: put the most salient span of one text in place of the least salient span of another.

Yoon, Kim, Park: SSMix: Saliency-Based Span Mixup for Text Classification, arXiv 2106.08062.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixwell.core.checks import check_no_prompt
from mixwell.core.draw import Plan
from mixwell.core.filling import last_real, one_separator
from mixwell.core.method import Method, option
from mixwell.core.passes import embedding_gradient
from mixwell.core.points import Point, Points
from mixwell.core.spans import choose_spans, saliency, splice, widest
from mixwell.core.step import Step
from mixwell.core.tokens import content_tokens
from mixwell.methods.registry import register
from mixwell.utils.errors import OptionError

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer


@register
@dataclass
class SSMix(Method):
    """Replace the least salient 10 % of A by the most salient span of B; label weight = 1 - span / len A.

    Saliency comes from one extra forward and backward of the unmixed batch: a step costs about 1.5 times a plain one.
    Sentence pairs are mixed segment by segment. A pinned lam sets the share of A that stays.
    """

    name = "ssmix"
    tasks = ("sequence",)
    modalities = ("text",)
    summary = "replace the least salient span of a text by its partner's most salient span (1.5 times the cost)"
    needs_labels = True

    fraction: float = option(0.1, "share of A's content tokens that is replaced")
    special_ids: Sequence[int] | None = option(
        None, "ids of CLS, SEP and PAD, which stay; None takes each row's first and last real token"
    )

    def check(self) -> None:
        """Check the options against each other."""
        if not 0 < self.fraction <= 1:
            raise OptionError(f"fraction={self.fraction} must lie in (0, 1]")

    def sites(self, points: Points) -> list[Point]:
        """Mix no hidden state, but the word embedding must be there to read saliency from."""
        points.get("embeddings")
        return []

    def verify(self, mixer: Mixer) -> None:
        """Without CLS and SEP around a text, the special ids must be named."""
        check_no_prompt(self, mixer.model)
        if self.special_ids is None and any(p.causal for p in mixer.points.get("embeddings")):
            raise OptionError(
                f"{type(mixer.model).__name__} puts no fixed tokens around a text; pass special_ids= (the ids of bos, "
                f"eos and pad that its tokenizer adds)"
            )

    def content(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return (B, T) bool: real tokens that are not special."""
        if self.special_ids is None:
            return content_tokens(ids, mask)
        return mask & ~torch.isin(ids, torch.tensor(list(self.special_ids), device=ids.device))

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Find the spans and replace them in the token ids."""
        ids, mask, perm = step.ids, step.mask, plan.permutation
        if mask is None:
            mask = torch.ones_like(ids, dtype=torch.bool)
        scores = saliency(embedding_gradient(step))
        content = self.content(ids, mask)
        if self.special_ids is None:
            last = last_real(ids, mask)
            one_separator(step, last, "special_ids= (the ids of CLS, SEP and PAD)")
            separator = ids == last
        else:
            separator = mask & ~content & (content.long().cumsum(1) > 0)
        first = separator.long().cumsum(1) == 0  # before the first separator
        new, replaced, total = ids, torch.zeros_like(perm), torch.zeros_like(perm)
        moved = perm != torch.arange(step.size, device=step.device)
        for inside in (content & first, content & ~first):
            length = inside.sum(1)
            wanted = self._window(length, plan) * moved
            spans = choose_spans(scores, inside, inside.index_select(0, perm), perm, wanted)
            # Spans are cut from the unmixed ids: segments do not overlap.
            new = torch.where(inside, splice(ids, perm, spans), new)
            replaced, total = replaced + spans.length, total + length
        step.inputs["input_ids"] = new
        weight = 1 - replaced.to(plan.label_weight.dtype) / total.clamp(min=1)
        return dataclasses.replace(plan, label_weight=weight)

    def _window(self, length: Tensor, plan: Plan) -> Tensor:
        """Return how many tokens to replace of `length`, at least one; by a pinned lam, none if it is 1."""
        if plan.lam is None:
            return (length.to(widest(length)) * self.fraction).floor().long().clamp(min=1)
        kept = plan.label_weight.to(widest(length))
        return torch.where(kept < 1, (length * (1 - kept)).round().long().clamp(min=1), 0)
