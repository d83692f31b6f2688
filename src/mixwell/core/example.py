"""The user's example, for modules that are no transformers model: what to probe with, and names of points."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from mixwell.core.arguments import Inputs, as_arguments, find_form
from mixwell.core.ends import is_projection, width
from mixwell.core.points import KINDS, Point
from mixwell.core.probe import Call, Probe
from mixwell.utils.errors import OptionError, nearest


@dataclass(frozen=True)
class Example:
    """How to read an example.

    Attributes:
        mask: the name of the mask, with `~` before it if it is true at padding; None looks for one.
        batch_dim: the batch axis of the input; None finds it out.
        named: kind of point -> name of the module, or a pattern of names (`layers.*`).
    """

    mask: str | None = None
    batch_dim: int | None = None
    named: Mapping[str, str] = field(default_factory=dict)

    def inputs(self, model: nn.Module, example: Any) -> Inputs:
        """Return the example as inputs of the module."""
        if not isinstance(self.named, Mapping):
            raise OptionError("where= must be a dict: kind of point -> name of a module, or a pattern of names")
        for kind in self.named:
            if kind not in KINDS:
                raise OptionError(f"where={{{kind!r}: ...}} is unknown{nearest(kind, KINDS)}; use {', '.join(KINDS)}")
        args, kwargs = as_arguments(model, example)
        form = find_form(model, args, kwargs, self.mask)
        return replace(form, axis=-1 if self.batch_dim is None else self.batch_dim).inputs(args, kwargs)


def hint(probe: Probe, kind: str, what: str) -> str:
    """Return what to pass where a point is not found in an example; empty for models of transformers."""
    return f"; name {what} with where={{{kind!r}: 'layers.*'}}" if probe.shaped else ""


def named_calls(probe: Probe, kind: str, named: Mapping[str, str]) -> list[Call]:
    """Return the calls of the modules that the user named for a kind of point."""
    if kind not in named:
        return []
    matches = [call for call in probe.calls if fnmatch.fnmatchcase(call.name, named[kind])]
    # A star also matches dots: the blocks of `layers.*` are those of the fewest parts.
    parts = min((call.name.count(".") for call in matches), default=0)
    matches = [call for call in matches if call.name.count(".") == parts]
    if not matches:
        names = [call.name for call in probe.calls]
        raise OptionError(
            f"where={{{kind!r}: {named[kind]!r}}} names no module that a forward calls{nearest(named[kind], names)}"
        )
    return matches


def named_points(probe: Probe, kind: str, named: Mapping[str, str]) -> tuple[Point, ...]:
    """Return the points at modules that the user named: the output, or what a linear head reads."""
    points = []
    for call in named_calls(probe, kind, named):
        what = "input" if kind == "sentence" and is_projection(call.module) else "output"
        axis = probe.axis(call, what)
        if axis is None:
            raise OptionError(f"where={{{kind!r}: {named[kind]!r}}}: {call.name!r} has no batch axis")
        size = width(call.input if what == "input" else call.output)
        points.append(Point(kind, 0, call.name, call.module, what, width=size, axis=axis, key=call.key))
    return tuple(points)
