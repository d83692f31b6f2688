"""What the options of `mixwell attention` choose.

Texts, methods and lams can be checked before a model is loaded; view, block, head and word say what a picture shows,
and what a page shows first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mixwell.report.attention.data import Attention, distance
from mixwell.utils.errors import OptionError, UnsupportedModelError, nearest

# The four views are those of AMPLIFY's Figures 4 to 7: lines between tokens, one word, its neurons, a graph.
VIEWS = {"lines": "Lines", "word": "One word", "neurons": "Neurons", "graph": "Graph"}
THRESHOLD = 0.1
PAPER_BLOCK = 3  # the block of the paper's Figures 4 to 6, counted from 0
METHODS = ("none", "amplify", "embedmix")
LAMS = (1.0, 0.9, 0.8, 0.7, 0.5)
LAM = 0.8
PARTNER = "the parcel arrived two days late and the box was broken"  # an everyday sentence, if none is given


def parse_lams(lam: float, lams: str | Sequence[float]) -> tuple[float, ...]:
    """The weights to capture: `lam` and the listed ones, each once, descending.

    Args:
        lam: the chosen one.
        lams: numbers, or a list of them with commas.

    Raises:
        OptionError: one is no number in [0, 1].
    """
    weights = [("--lam", float(lam))]
    for item in lams.split(",") if isinstance(lams, str) else lams:
        if text := str(item).strip():
            try:
                weights.append(("--lams", float(text)))
            except ValueError:
                raise OptionError(f"--lams: {text!r} is not a number; write for example 1.0,0.8,0.5") from None
    for option, value in weights:
        if not 0 <= value <= 1:  # also refuses nan
            words = "lam is the share of itself that a text keeps and must lie between 0 and 1"
            raise OptionError(f"{option} {value:g}: {words}")
    return tuple(sorted({value for _, value in weights}, reverse=True))


def parse_methods(names: str | Sequence[str]) -> tuple[str, ...]:
    """The names of methods, each once.

    Args:
        names: names, or a list of them with commas.

    Raises:
        OptionError: one is unknown, or there is none.
    """
    from mixwell.methods import method_class  # imports torch

    parts = names.split(",") if isinstance(names, str) else names
    methods = tuple(dict.fromkeys(name.strip() for name in parts if name.strip()))
    if not methods:
        raise OptionError("--methods names no method; write for example none,amplify,embedmix")
    for name in methods:
        try:
            method_class(name)
        except OptionError as error:
            raise OptionError(f"--methods: {error}") from None
    return methods


def check_texts(
    text: str, text_b: str | None, partner: str | None, partner_b: str | None
) -> tuple[str, str | None, str | None, str | None]:
    """Return the texts as they are, or raise `OptionError` if one has no word or the first of a pair is missing."""
    named = {"TEXT": text, "TEXT_B": text_b, "--partner": partner, "--partner-b": partner_b}
    for name, value in named.items():
        if value is not None and not value.strip():
            raise OptionError(f"{name} is empty; give at least one word")
    if partner is None and partner_b is not None:
        raise OptionError("--partner-b is given without --partner: give both texts of the pair")
    return text, text_b, partner, partner_b


@dataclass(frozen=True)
class Choice:
    """What a picture shows, and what a page shows first.

    Attributes:
        view: one of `VIEWS`.
        block: from 0.
        head: from 0.
        word: the position of the chosen token.
        lam: one of the captured ones.
    """

    view: str
    block: int
    head: int
    word: int
    lam: float


def choose(
    attention: Attention,
    *,
    view: str = "lines",
    block: int | None = None,
    head: int | None = None,
    word: str | None = None,
) -> Choice:
    """Check a choice and fill in what is missing.

    Args:
        attention: the captures.
        view: one of `VIEWS`.
        block: None is the paper's fourth, or the last one of a smaller model.
        head: None is the one whose attention mixing changes most in that block.
        word: a token of the text or its position from 0; None is the longest token.

    Raises:
        OptionError: there is no such view, block, head or word.
    """
    check_view(view)
    depth = len(attention.heads)
    if block is not None and not 0 <= block < depth:
        raise OptionError(f"--block {block}: {attention.model} has blocks 0 to {depth - 1} (they count from 0)")
    chosen = min(PAPER_BLOCK, depth - 1) if block is None else block
    heads = attention.heads[chosen]
    if head is not None and not 0 <= head < heads:
        raise OptionError(f"--head {head}: block {chosen} of {attention.model} has heads 0 to {heads - 1} (from 0)")
    if head is None:
        views = [attention.view(name, attention.lam) for name in attention.methods]
        moved = [distance(one, attention.plain)[chosen] for one in views]
        head = max(range(heads), key=lambda number: sum(shares[number] for shares in moved))
    if view == "neurons" and not attention.neurons:
        raise UnsupportedModelError(
            f"--view neurons: {attention.model} does not show its queries and keys; use lines, word or graph"
        )
    return Choice(view, chosen, head, _position(attention, word), attention.lam)


def check_view(view: str) -> None:
    """Raise `OptionError` if there is no such view."""
    if view not in VIEWS:
        raise OptionError(f"--view {view!r} is unknown{nearest(view, VIEWS)}; use one of {', '.join(VIEWS)}")


def _position(attention: Attention, word: str | None) -> int:
    """The position of a word among the text's tokens."""
    tokens = attention.tokens
    positions = range(len(tokens))
    if word is None:
        content = [position for position in positions if not attention.special[position]] or list(positions)
        return max(content, key=lambda position: len(tokens[position]))
    match = [position for position in positions if tokens[position].casefold() == word.strip().casefold()]
    if match:
        return match[0]
    if word.strip().isdecimal() and int(word) in positions:
        return int(word)
    known = ", ".join(dict.fromkeys(tokens))
    raise OptionError(
        f"--word {word!r} is no token of the text{nearest(word, tokens)}; its tokens are {known} "
        f"(or give a position, 0 to {len(tokens) - 1})"
    )
