"""A plan: everything random in one training step, drawn once and never changed.

One 63-bit seed is taken from torch's CPU generator for every training forward, whatever the method; all else comes
from a private generator seeded with it. So dropout sees the same stream under every method, and a restored random
state repeats the draws. Draws are made on the CPU and sent to the model's device: nothing comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mixwell.utils.errors import BatchError, OptionError, nearest

_GOLDEN = 0x9E3779B97F4A7C15
_SEED_SPAN = 1 << 63

PAIRINGS = ("random", "pairs", "length", "label")


@dataclass(frozen=True)
class Plan:
    """One draw.

    Attributes:
        seed: seed of the private generator, process rank folded in.
        permutation: (B,) long; row i is mixed with row `permutation[i]`.
        lam: the drawn weight of a row's own part: a number, (B,) values, or None for methods without one.
        layer: the drawn block or point, None where nothing is drawn.
        point_weights: (P, B); weight of a row's own part at each point of the method, 1 at points not chosen.
        active: for each point, whether it mixes at all; known on the host, so that eager mode can skip it.
        label_weight: (B,), the weight of a row's own label; (n, B) for batchmixup.
        token_mask: (B, T) bool, where tokens are mixed at points with a token axis; None is everywhere.
        shift: (B, T) long, at causal points the partner's position for each position of a row; None is the same one.
        shift_mask: (B, T) bool, where the partner has a token there.
        token_weights: (B, T) weights that stand in for `point_weights` at points with a token axis, or None.
        extra: further draws of a method by name (nonlinear's `gate`, batchmixup's `policy`).
        plain: nothing is mixed in this step.
    """

    seed: int
    permutation: Tensor
    lam: float | Tensor | None
    layer: int | None
    point_weights: Tensor
    active: tuple[bool, ...]
    label_weight: Tensor
    token_mask: Tensor | None = None
    shift: Tensor | None = None
    shift_mask: Tensor | None = None
    token_weights: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    plain: bool = False

    @property
    def mixed(self) -> bool:
        """Whether rows were mixed in this step: not where it is plain, nor where lam is so near 1 that it rounds to it.

        Known without a look at a device; a permutation that leaves every row in its place counts as mixed.
        """
        return not self.plain and (not isinstance(self.lam, float) or not self.active or any(self.active))


def take_seed() -> int:
    """Take one 63-bit seed from torch's CPU generator and fold in the process rank."""
    seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        seed = (seed + torch.distributed.get_rank() * _GOLDEN) % _SEED_SPAN
    return seed


def generator(seed: int, stream: int = 0) -> torch.Generator:
    """Return a private CPU generator for one seed; `stream` separates draws that must not share numbers."""
    mixed = (seed + stream * _GOLDEN) % _SEED_SPAN
    return torch.Generator("cpu").manual_seed(mixed ^ (mixed >> 32))  # the generator uses the low 32 bits only


# --- lam -----------------------------------------------------------------------------------------------------------


def sample_beta(alpha: float, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Draw Beta(alpha, alpha) in float64.

    Works in log space: for alpha = 0.1 a gamma variate underflows often enough for g1 / (g1 + g2) to be 0 / 0.

    Args:
        alpha: the shape parameter, > 0.
        shape: the shape of the result.
        rng: the private generator.

    Returns:
        Values in [0, 1] of shape `shape`.
    """
    if alpha == 1.0:
        return torch.rand(shape, generator=rng, dtype=torch.float64, device="cpu")
    # Gamma(a) = Gamma(a + 1) * U ** (1 / a)
    boosted = torch._standard_gamma(
        torch.full((2, *shape), alpha + 1.0, dtype=torch.float64, device="cpu"), generator=rng
    )
    uniform = torch.rand((2, *shape), generator=rng, dtype=torch.float64, device="cpu")
    log_gamma = boosted.log() + uniform.log() / alpha
    return torch.sigmoid(log_gamma[0] - log_gamma[1])


def draw_max_of(alpha: float, samples: int, rng: torch.Generator) -> float:
    """AMPLIFY, eq. 5: the largest of `samples` draws of Beta(alpha, alpha)."""
    return float(sample_beta(alpha, (samples,), rng).max())


def draw_folded(alpha: float, rng: torch.Generator) -> float:
    """AMPLIFY, eq. 9: l ~ Beta(alpha, alpha), max(l, 1 - l)."""
    lam = float(sample_beta(alpha, (1,), rng))
    return max(lam, 1.0 - lam)


def draw_beta(alpha: float, rng: torch.Generator) -> float:
    """Draw l ~ Beta(alpha, alpha), as in mixup."""
    return float(sample_beta(alpha, (1,), rng))


def draw_lam(rule: str, alpha: float, samples: int, rng: torch.Generator) -> float:
    """Draw lam by the rule `max_of`, `folded` or `beta`."""
    if rule == "max_of":
        return draw_max_of(alpha, samples, rng)
    if rule == "folded":
        return draw_folded(alpha, rng)
    return draw_beta(alpha, rng)


DRAWS = ("max_of", "folded", "beta")


def check_draw(rule: str) -> None:
    """Raise for an unknown draw rule."""
    if rule not in DRAWS:
        raise OptionError(f"draw={rule!r} is unknown{nearest(rule, DRAWS)}; use one of {', '.join(DRAWS)}")


# --- partners ------------------------------------------------------------------------------------------------------


def draw_permutation(
    pairing: str,
    size: int,
    rng: torch.Generator,
    *,
    device: torch.device,
    lengths: Tensor | None = None,
    labels: Tensor | None = None,
    classes: int = 0,
) -> Tensor:
    """Draw who is mixed with whom.

    Args:
        pairing: `random`; `pairs` (its own inverse); `length` (pairs of similar length); `label` (a partner of
            another label wherever one is left).
        size: B, the number of rows.
        rng: the private generator.
        device: where the result is wanted.
        lengths: (B,) real tokens of each row, for `length`.
        labels: (B,) class numbers, for `label`.
        classes: the number of classes, for `label`.

    Returns:
        (B,) long, a permutation of 0..B-1.
    """
    if pairing == "random":
        return torch.randperm(size, generator=rng, device="cpu").to(device, non_blocking=True)
    if pairing == "pairs":
        return _couple(torch.randperm(size, generator=rng, device="cpu")).to(device, non_blocking=True)
    noise = torch.rand(size, generator=rng, device="cpu").to(device, non_blocking=True)
    if pairing == "length":
        if lengths is None:
            raise BatchError("pairing='length' needs an attention_mask in the batch to read the lengths from")
        # Noise below one token breaks ties at random and leaves the order of lengths alone.
        order = torch.argsort(lengths.to(noise.dtype) + noise)
        # In an odd batch one row of an even rank stays alone, so that the others still meet their neighbours.
        alone = 2 * int(torch.randint((size + 1) // 2, (), generator=rng, device="cpu")) if size % 2 else size
        return _couple(torch.cat([order[:alone], order[alone + 1 :], order[alone : alone + 1]]))
    if labels is None:
        raise BatchError("pairing='label' needs the labels in the batch: call the model with labels=")
    if labels.dim() != 1 or labels.is_floating_point():
        raise BatchError(
            f"pairing='label' needs one class number a row, shape (B,), but the labels have shape "
            f"{tuple(labels.shape)} and type {labels.dtype}; use pairing='random'"
        )
    rank = torch.rand(max(classes, 1), generator=rng, device="cpu").to(device, non_blocking=True)
    spread = torch.rand((), generator=rng, device="cpu").to(device, non_blocking=True)
    labels = labels.clamp(0, max(classes - 1, 0))
    # Sort rows into runs of one label (in random label order) and shift by at least the longest run: a run then meets
    # only other labels as long as it is no longer than half of the batch.
    members = torch.nn.functional.one_hot(labels, max(classes, 1))
    longest = members.sum(0).max()
    by_label = torch.argsort(noise)
    by_label = by_label[torch.argsort(rank[labels[by_label]], stable=True)]
    room = (size - 2 * longest + 1).clamp(min=1)
    shift = (longest + (spread * room).long().clamp(max=room - 1)).clamp(max=size - 1)
    places = torch.arange(size, device=device)
    permutation = torch.empty_like(by_label)
    permutation[by_label] = by_label[(places + shift) % size]
    return permutation


def mutual_pairing(pairing: str, why: str) -> str:
    """Return a pairing whose partners are each other's; raise where the one asked for cannot be: `why` needs it."""
    if pairing == "label":
        raise OptionError(f"{why} needs mutual partners: use pairing='pairs' or 'length'")
    return "pairs" if pairing == "random" else pairing


def _couple(order: Tensor) -> Tensor:
    """Pair neighbours in `order`; the odd one out is its own partner."""
    permutation = torch.arange(order.numel(), device=order.device)
    even = order.numel() // 2 * 2
    first, second = order[0:even:2], order[1:even:2]
    permutation[first] = second
    permutation[second] = first
    return permutation


def check_permutation(permutation: Tensor, size: int, mutual: str = "") -> None:
    """Raise unless a pinned permutation is one of 0..size-1 (looks at values only if they are on the host).

    Args:
        permutation: (B,).
        size: the number of rows, B.
        mutual: what needs a permutation that is its own inverse, if anything does.
    """
    if permutation.shape != (size,):
        raise BatchError(
            f"the pinned permutation has shape {tuple(permutation.shape)} but the batch has {size} rows; "
            f"pin a permutation of 0..{size - 1}"
        )
    if permutation.device.type == "cpu" and not torch.equal(
        permutation.sort().values, torch.arange(size, dtype=permutation.dtype)
    ):
        raise BatchError(f"the pinned permutation {permutation.tolist()} is not a permutation of 0..{size - 1}")
    if mutual and permutation.device.type == "cpu" and not torch.equal(permutation[permutation], torch.arange(size)):
        raise BatchError(
            f"{mutual} needs mutual partners, but in the pinned permutation {permutation.tolist()} some rows' partners "
            f"have another one; pin one that is its own inverse"
        )
