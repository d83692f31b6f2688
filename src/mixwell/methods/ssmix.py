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

from mixwell.errors import OptionError
from mixwell.methods.base import Method, option, register
from mixwell.methods.manifold import last_real, one_separator
from mixwell.plan import Plan
from mixwell.points import Point, Points
from mixwell.step import Step

if TYPE_CHECKING:
    from mixwell.mixer import Mixer


@dataclass(frozen=True)
class Spans:
    """Chosen spans: start in A, start in B and length, each (B,); length 0 where nothing is replaced."""

    start_a: Tensor
    start_b: Tensor
    length: Tensor


def saliency(gradient: Tensor) -> Tensor:
    """Return the RMS over features of the gradient, divided by the row's maximum: (B, T, d) -> (B, T)."""
    size = gradient.to(_wide(gradient)).pow(2).mean(-1).sqrt()  # running sums need the digits
    return size / size.amax(1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)


def _wide(tensor: Tensor) -> torch.dtype:
    """float64 where the device has it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def choose_spans(scores: Tensor, inside_a: Tensor, inside_b: Tensor, permutation: Tensor, wanted: Tensor) -> Spans:
    """Choose the least salient span of A and the most salient span of B of the same length; ties go to the first.

    Args:
        scores: (B, T), saliency.
        inside_a: (B, T) bool, the content tokens of one segment of each row.
        inside_b: (B, T) bool, those of the partners, already permuted.
        permutation: (B,).
        wanted: (B,), window lengths before the cut to what B has.

    Returns:
        The spans.
    """
    length_a, length_b = inside_a.sum(1), inside_b.sum(1)
    length = torch.minimum(wanted, length_b).clamp(min=1)
    length = torch.where((length_a > 0) & (length_b > 0) & (wanted > 0), torch.minimum(length, length_a), 0)
    start_a, fits_a = _best(scores, inside_a, length, least=True)
    start_b, fits_b = _best(scores.index_select(0, permutation), inside_b, length, least=False)
    return Spans(start_a, start_b, torch.where(fits_a & fits_b, length, 0))


def _best(scores: Tensor, inside: Tensor, length: Tensor, *, least: bool) -> tuple[Tensor, Tensor]:
    """Return the start of the window of `length` content tokens with the least or greatest sum, and if one fits."""
    width = scores.shape[1]
    starts = torch.arange(width, device=scores.device).expand_as(scores)
    ends = (starts + length.unsqueeze(1)).clamp(max=width)
    sums = torch.nn.functional.pad((scores * inside).cumsum(1), (1, 0))
    held = torch.nn.functional.pad(inside.long().cumsum(1), (1, 0))
    total = sums.gather(1, ends) - sums.gather(1, starts)
    whole = held.gather(1, ends) - held.gather(1, starts) == length.unsqueeze(1)
    # Windows of one value differ by rounding in the running sum only; 12 digits tell equal ones apart from unequal.
    total = total.mul(1e12).round()
    bad = torch.inf if least else -torch.inf
    whole = whole & inside
    total = torch.where(whole, total, bad)
    return (total.argmin(1) if least else total.argmax(1)), whole.any(1)


def splice(ids: Tensor, permutation: Tensor, spans: Spans) -> Tensor:
    """Return the ids with each row's span replaced by its partner's: (B, T)."""
    width = ids.shape[1]
    places = torch.arange(width, device=ids.device).expand_as(ids)
    offset = places - spans.start_a.unsqueeze(1)
    inside = (offset >= 0) & (offset < spans.length.unsqueeze(1))
    source = (offset + spans.start_b.unsqueeze(1)).clamp(0, width - 1)
    return torch.where(inside, ids.index_select(0, permutation).gather(1, source), ids)


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

    def prove(self, mixer: Mixer) -> None:
        """Without CLS and SEP around a text, the special ids must be named."""
        if self.special_ids is None and any(p.causal for p in mixer.points.get("embeddings")):
            raise OptionError(
                f"{type(mixer.model).__name__} puts no fixed tokens around a text; pass special_ids= (the ids of bos, "
                f"eos and pad that its tokenizer adds)"
            )

    def content(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return (B, T) bool: real tokens that are not special."""
        if self.special_ids is not None:
            special = torch.isin(ids, torch.tensor(list(self.special_ids), device=ids.device))
        else:
            first = ids.gather(1, mask.long().argmax(1, keepdim=True))
            special = (ids == first) | (ids == last_real(ids, mask))
        return mask & ~special

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Find the spans and replace them in the token ids."""
        ids, mask, perm = step.ids, step.mask, plan.permutation
        if mask is None:
            mask = torch.ones_like(ids, dtype=torch.bool)
        scores = saliency(step.embedding_gradient())
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
            return (length.to(_wide(length)) * self.fraction).floor().long().clamp(min=1)
        kept = plan.label_weight.to(_wide(length))
        return torch.where(kept < 1, (length * (1 - kept)).round().long().clamp(min=1), 0)
