"""What a model offers: its points, and the methods that fit."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from torch import nn

from mixwell.core.checks import MIXERS, check_attachable
from mixwell.core.layout import find_points
from mixwell.core.mixer import Mixer
from mixwell.core.points import KINDS, Points
from mixwell.methods.frameworks import example_of
from mixwell.methods.registry import load_all
from mixwell.utils.errors import MixwellError

TASKS = {"sequence": "one label per row", "token": "one label per token", "span": "question answering"}
SHORT = {"sequence": "rows", "token": "tokens", "span": "spans"}


@dataclass(frozen=True, repr=False)
class Inspection:
    """The points of a model, each proved to fire by a probe, and the methods it can take.

    Attributes:
        model: class name of the model.
        points: the points found, and why others were not.
        methods: method -> empty if it fits, else why not.
        options: method -> what it must be given to fit, for those that refuse the model with their defaults.
    """

    model: str
    points: Points
    methods: dict[str, str]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """One line about the model: what it predicts, from what, and how it is built."""
        points = self.points
        blocks = points.found.get("block", ())
        stacks = [name for name in ("encoder", "decoder") if any(each.stack == name for each in blocks)]
        built = "encoder and decoder" if len(stacks) > 1 else "causal" if any(each.causal for each in blocks) else ""
        parts = [
            TASKS[points.task],
            f"from {points.modality}{'' if points.modality == 'features' else 's'}",
            f"{points.depth} blocks",
            built,
            points.layout,
        ]
        return f"{self.model}: {', '.join(part for part in parts if part)}"

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (kind, how many, where or why not) for each kind of point."""
        rows = []
        for kind in KINDS:
            found = self.points.found.get(kind)
            if found is None:
                rows.append((kind, "-", self.points.missing[kind]))
                continue
            first, last = found[0].name, found[-1].name
            where = first if first == last else f"{first} ... {last}"
            rows.append((kind, str(len(found)), f"{where} ({found[0].how})"))
        return rows

    def fits(self, method: str) -> str:
        """Return `yes`, `no`, or the options with which a method fits."""
        if not self.methods[method]:
            return "yes"
        given = self.options.get(method, {})
        return f"with {', '.join(f'{name}={value!r}' for name, value in given.items())}" if given else "no"

    def method_rows(self) -> list[tuple[str, str, str, str]]:
        """Return (method, whether it fits, what labels it can serve, why it does not fit) for each method."""
        known = load_all()
        rows = []
        for name, why in self.methods.items():
            tasks = [SHORT[task] for task in known[name].tasks]
            tasks += ["images"] if "image" in known[name].modalities else []
            rows.append((name, self.fits(name), ", ".join(tasks), "" if name in self.options else why))
        return rows

    def __repr__(self) -> str:
        fits = [name for name in self.methods if self.fits(name) != "no"]
        return f"<{self.title}; {len(fits)} of {len(self.methods)} methods fit: {', '.join(fits)}>"

    def _repr_html_(self) -> str:
        """What notebooks show: the points and the methods as two tables."""

        def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
            lines = [f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>"]
            lines += [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
            return f"<table>{''.join(lines)}</table>"

        points = table(("point", "count", "where, or why not"), [*self.rows()])
        methods = table(("method", "fits", "serves labels of", "why not"), [*self.method_rows()])
        return f"<p><b>{escape(self.title)}</b></p>{points}{methods}"

    def __str__(self) -> str:
        lines = [self.title]
        lines += [f"  {kind:<14} {count:>3}  {where}" for kind, count, where in self.rows()]
        lines.append("methods:")
        for name, why in self.methods.items():
            said = f"no: {why}" if self.fits(name) == "no" else self.fits(name).replace("yes", "fits")
            lines.append(f"  {name:<14} {said}")
        return "\n".join(lines)


def inspect(
    model: nn.Module,
    *,
    example: Any = None,
    mask: str | None = None,
    batch_dim: int | None = None,
    where: Mapping[str, str] | None = None,
) -> Inspection:
    """Find the points of a model and the methods that fit, without changing it.

    Args:
        model: a transformers model, or any torch module with an example; not compiled; of one with a mixer a copy is
            looked at.
        example: as for `attach`, like the rest.
        mask: the name of the mask.
        batch_dim: the batch axis of the input.
        where: names of modules, by kind of point.
    """
    if any(mixer.attached and mixer.model is model for mixer in list(MIXERS)):
        model = copy.deepcopy(model)  # a copy is detached, and the mixer keeps its own
    check_attachable(model)
    example = example_of(model) if example is None else example
    how = {} if example is None else {"mask": mask, "batch_dim": batch_dim, "named": where or {}}
    return _inspection(model, find_points(model, example, **how))


def _inspection(model: nn.Module, points: Points) -> Inspection:
    fits: dict[str, str] = {}
    options: dict[str, dict[str, Any]] = {}
    for name, method in load_all().items():
        fits[name] = _refusal(model, method, {}, points)
        if fits[name]:
            found = next((given for given in method.alternatives if not _refusal(model, method, given, points)), None)
            options |= {name: found} if found else {}
    return Inspection(type(model).__name__, points, fits, options)


def _refusal(model: nn.Module, method: Any, given: dict[str, Any], points: Points) -> str:
    """Return why a method does not fit; empty if it does."""
    try:
        Mixer(model, method(**given), points).detach()
    except MixwellError as error:
        return str(error)
    return ""
