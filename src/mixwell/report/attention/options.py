"""The options of `mixwell attention` that can be checked before a model is loaded: texts, methods and lams."""

from __future__ import annotations

from collections.abc import Sequence

from mixwell.utils.errors import OptionError

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
    _check_lam(lam, "--lam")
    weights = {float(lam)}
    for item in lams.split(",") if isinstance(lams, str) else lams:
        if isinstance(item, str) and not item.strip():
            continue
        try:
            value = float(item)
        except ValueError:
            raise OptionError(f"--lams: {str(item).strip()!r} is not a number; write for example 1.0,0.8,0.5") from None
        _check_lam(value, "--lams")
        weights.add(value)
    return tuple(sorted(weights, reverse=True))


def _check_lam(value: float, option: str) -> None:
    if not 0 <= value <= 1:  # also refuses nan
        raise OptionError(
            f"{option} {value:g}: lam is the share of itself that a text keeps and must lie between 0 and 1"
        )


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
