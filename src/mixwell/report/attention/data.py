"""Captured attention: weights, queries and keys of every block and head, under several methods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

PLAIN = "none"


@dataclass(frozen=True)
class AttentionView:
    """The attention of the text's row under one method and lam.

    Q is the number of the text's tokens. K is Q, or the length of a longer partner where the method lets the row attend
    to the partner's tokens too.

    Attributes:
        method: its name.
        lam: the pinned weight of the text's own part; None for methods that have none.
        layer: the drawn layer, for methods that draw one.
        mixes: whether any hidden state was mixed.
        tokens: (K,) the token that was looked up at each position.
        weights: for each block (H, Q, K) float32, rows sum to 1.
        queries: for each block (H, Q, d) float32, or None where the model does not show them.
        keys: for each block (H, K, d) float32, or None.
        scale: for each block what q . k is multiplied by before the softmax, or None.
    """

    method: str
    lam: float | None
    layer: int | None
    mixes: bool
    tokens: tuple[str, ...]
    weights: tuple[np.ndarray, ...]
    queries: tuple[np.ndarray, ...] | None = None
    keys: tuple[np.ndarray, ...] | None = None
    scale: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Attention:
    """Captures of one text, its partner and several methods.

    Attributes:
        model: the model's name.
        text: the text, and the second text of a pair.
        partner: the partner's text or pair.
        tokens: (Q,) the text's tokens.
        partner_tokens: the partner's tokens.
        special: (Q,) whether a token was put in by the tokenizer ([CLS], [SEP]).
        partner_positions: for each position the partner's position that is mixed into it, or None.
        methods: the requested names, in order.
        lams: the captured weights, in descending order.
        lam: the one to begin with.
        plain: the capture without mixing.
        views: the captures by method and lam; lam is None for methods without one. Of methods that draw a layer it is
            the first of `layers`.
        layers: for methods that draw a layer, the further captures by method, lam and layer.
        neurons: whether queries and keys were captured and give the model's weights.
        trusted: whether the model's own code was allowed to run.
        notes: what a reader should know.
    """

    model: str
    text: tuple[str, ...]
    partner: tuple[str, ...]
    tokens: tuple[str, ...]
    partner_tokens: tuple[str, ...]
    special: tuple[bool, ...]
    partner_positions: tuple[int | None, ...]
    methods: tuple[str, ...]
    lams: tuple[float, ...]
    lam: float
    plain: AttentionView
    views: dict[tuple[str, float | None], AttentionView]
    neurons: bool
    trusted: bool = False
    layers: dict[tuple[str, float | None, int], AttentionView] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def heads(self) -> tuple[int, ...]:
        """How many heads each block has."""
        return tuple(block.shape[0] for block in self.plain.weights)

    def view(self, method: str, lam: float) -> AttentionView:
        """The capture of a method at a lam; methods without a lam, and plain, have only one."""
        return self.views[method, lam if (method, lam) in self.views else None]

    def layers_of(self, method: str) -> list[int]:
        """The captured layers of a method that draws one, in order; else empty."""
        first = next((view.layer for (name, _), view in self.views.items() if name == method), None)
        more = {layer for name, _, layer in self.layers if name == method}
        return [] if first is None else sorted({first, *more})

    def partner_token(self, position: int) -> str | None:
        """The partner's token that is mixed into a position, or None."""
        other = self.partner_positions[position]
        return None if other is None else self.partner_tokens[other]


def distance(view: AttentionView, plain: AttentionView) -> list[list[float]]:
    """How far a view's weights are from plain ones, for each block and head.

    The total variation distance of the two distributions over keys, half the sum of absolute differences, averaged
    over the text's tokens: 0 is the same attention, 1 means no common weight at all.
    """
    return [
        (abs(difference(own, other)).sum(-1) / 2).mean(-1).tolist() for own, other in zip(view.weights, plain.weights)
    ]


def difference(own: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """Weights minus plain weights, (..., Q, K); plain attends to nothing at positions that only the partner has."""
    import numpy as np

    wide = np.zeros_like(own)
    wide[..., : plain.shape[-1]] = plain
    return own - wide
