"""What a model offers: its points, and the methods that fit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from mixwell.checks import check_attachable
from mixwell.errors import MixwellError
from mixwell.methods import load_all
from mixwell.mixer import Mixer
from mixwell.points import KINDS, Points, find_points


@dataclass(frozen=True)
class Inspection:
    """The points of a model, each proved to fire by a probe, and the methods it can take.

    Attributes:
        model: class name of the model.
        points: the points found, and why others were not.
        methods: method -> empty if it fits, else why not.
    """

    model: str
    points: Points
    methods: dict[str, str]

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

    def __str__(self) -> str:
        lines = [f"{self.model}: {self.points.depth} blocks, {self.points.layout}"]
        lines += [f"  {kind:<14} {count:>3}  {where}" for kind, count, where in self.rows()]
        lines.append("methods:")
        lines += [f"  {name:<14} {'fits' if not why else 'no: ' + why}" for name, why in self.methods.items()]
        return "\n".join(lines)


def inspect(model: nn.Module) -> Inspection:
    """Find the points of a model and the methods that fit, without changing it.

    Args:
        model: a transformers model, not attached and not compiled.
    """
    check_attachable(model)
    points = find_points(model)
    fits: dict[str, str] = {}
    for name, method in load_all().items():
        try:
            Mixer(model, method(), points).detach()
            fits[name] = ""
        except MixwellError as error:
            fits[name] = str(error)
    return Inspection(type(model).__name__, points, fits)
