"""Options written as texts: `name=value` turned into values of the types that a dataclass declares."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import types
import typing
from collections.abc import Sequence
from typing import Any

from mixwell.utils.errors import OptionError, nearest
from mixwell.utils.records import parse_json

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def check_whole(value: object, name: str, least: int) -> None:
    """Raise `OptionError` unless an option is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_choice(value: object, name: str, known: Sequence[str]) -> None:
    """Raise `OptionError` unless an option is one of the known words."""
    if value not in known:
        raise OptionError(f"{name} must be one of {', '.join(known)}, got {value!r}{nearest(str(value), known)}")


def of_type(value: Any, hint: Any, name: str) -> Any:
    """Return a value that has the type of a dataclass's field, whole numbers turned into floats where it wants those.

    Args:
        value: from a file or a Python call, so already of some type.
        hint: the field's type.
        name: how a message calls it.

    Raises:
        OptionError: it has another type; texts such as "no" or "1" count as texts, never as what they say.
    """
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = tuple(typing.get_origin(kind) or kind for kind in (typing.get_args(hint) if union else (hint,)))
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds and int not in kinds:
        if abs(value) < 2**53:
            return float(value)
        raise OptionError(f"{name} is too large, got about 1e{value.bit_length() * 0.301:.0f}")
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        words = {type(None): "nothing", bool: "true or false", str: "a text", int: "a whole number", float: "a number"}
        words |= {list: "a list", dict: "a table of names and values"}
        what = " or ".join(words.get(kind, f"of type {getattr(kind, '__name__', kind)}") for kind in kinds)
        raise OptionError(f"{name} must be {what}, got {value!r}")
    return value


_HINTS: dict[Any, dict[str, Any]] = {}  # reading annotations anew for each record took a tenth of a large grid's end


def check_fields(owner: Any, apart: Sequence[str] = ()) -> None:
    """Raise `OptionError` where a field of a dataclass has a value of another type; whole numbers become floats.

    Args:
        owner: the dataclass's instance.
        apart: fields that may hold anything.
    """
    kind = type(owner)
    hints = _HINTS[kind] = _HINTS.get(kind) or typing.get_type_hints(kind)
    for field in dataclasses.fields(owner):
        if field.name not in apart:
            object.__setattr__(owner, field.name, of_type(getattr(owner, field.name), hints[field.name], field.name))


def typed_options(pairs: list[str], owner: Any, what: str) -> dict[str, Any]:
    """Turn texts `name=value` into values of the types that the fields of a dataclass have.

    Args:
        pairs: the texts.
        owner: the dataclass.
        what: how messages call a field.
    """
    fields = {f.name for f in dataclasses.fields(owner)}
    hints = typing.get_type_hints(owner)
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise OptionError(f"{what} {pair!r} must be written name=value")
        if name not in fields:
            known = f"; known: {', '.join(sorted(fields))}" if len(fields) < 40 else ""
            raise OptionError(f"{what} {name!r} is unknown{nearest(name, fields)}{known}")
        if text.strip() == "auto" and name in getattr(owner, "searchable", ()):
            values[name] = "auto"  # found on the training rows
            continue
        try:
            values[name] = typed_value(text.strip(), hints[name])
        except (ValueError, TypeError) as error:
            raise OptionError(f"{what} {name}: {text.strip()!r} is not {_says(hints[name])}") from error
    return values


def typed_value(text: str, hint: Any) -> Any:
    """Read a text as a value of a type; raise ValueError when it is none."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if type(None) in inside and text.lower() in ("none", "null", ""):
            return None
        for kind in sorted((kind for kind in inside if kind is not type(None)), key=_rank):
            with contextlib.suppress(ValueError, TypeError):
                return typed_value(text, kind)
        raise ValueError(text)
    if hint is bool:
        return _TRUTH[text.lower()] if text.lower() in _TRUTH else _fail(text)
    if hint in (int, float, str):
        return hint(text)
    if hint is dict or origin is dict:
        value = parse_json(text)
        return value if isinstance(value, dict) else _fail(text)
    if origin is not None and isinstance(origin, type) and issubclass(origin, typing.Sequence):
        return [typed_value(part.strip(), inside[0] if inside else str) for part in text.strip("[]").split(",")]
    if isinstance(hint, type) and hasattr(hint, "__members__"):
        return hint(text).value
    return _fail(text)


def _rank(kind: Any) -> int:
    """In which order the types of a union are tried: a text is anything, so it comes last."""
    order: list[Any] = [bool, int, float, list, dict, str]
    plain = typing.get_origin(kind) or kind
    return order.index(plain) if plain in order else 3


def _fail(text: str) -> Any:
    raise ValueError(text)


def _says(hint: Any) -> str:
    plain = str(getattr(hint, "__name__", hint) if not typing.get_args(hint) else hint)
    return "a value of type " + re.sub(r"\b(?:\w+\.)+", "", plain)


def number_or_text(text: str | None) -> str | float | None:
    """A share as a number, a file name as it is."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
