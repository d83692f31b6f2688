"""Spans of tokens by saliency: the least and the most salient window of a row, and putting one in the other's place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spans:
    """Chosen spans: start in A, start in B and length, each (B,); length 0 where nothing is replaced."""

    start_a: Tensor
    start_b: Tensor
    length: Tensor


def saliency(gradient: Tensor) -> Tensor:
    """Return the RMS over features of the gradient, divided by the row's maximum: (B, T, d) -> (B, T)."""
    size = gradient.to(widest(gradient)).pow(2).mean(-1).sqrt()  # running sums need the digits
    return size / size.amax(1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)


def widest(tensor: Tensor) -> torch.dtype:
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
