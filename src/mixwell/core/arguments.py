"""How a model is called: which of its arguments are the tokens, the mask and the batch.

Models of transformers are called by the names that all of them share. Any other module is learnt from an example of the
user's: a tensor, a tuple of positional arguments, or a dict of named ones.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mixwell.core.model import base_model
from mixwell.utils.errors import OptionError

IDS, MASK = "input_ids", "attention_mask"
_NO_IDS = re.compile(r"mask|type|segment|position|label|target", re.IGNORECASE)
_MASK = re.compile(r"mask|padding", re.IGNORECASE)
_PADDING = re.compile(r"pad", re.IGNORECASE)

Path = tuple[Any, ...]  # of a leaf in the arguments: number or name, then the keys inside


class Inputs(dict[str, Any]):
    """The arguments of one call by name, which a method may replace before the model sees them.

    Attributes:
        anchor: the name of the tensor that carries the batch; empty for the names of transformers.
        axis: its batch axis.
    """

    anchor = ""
    axis = 0

    def copy(self) -> Inputs:
        """Return a copy whose entries can be replaced."""
        return Inputs(self)

    def take(self, name: str) -> Any:
        """Take an argument out, so that the model does not see it; None if it is not there."""
        return self.pop(name, None)

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and named arguments to call the model with."""
        return (), self


class ShapedInputs(Inputs):
    """Inputs of a module with arguments of its own: keeps their shape, and gives them back in it."""

    def __init__(self, values: Mapping[str, Any], form: Form, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(values)
        self.form, self._args, self._kwargs = form, args, kwargs
        self.anchor, self.axis = form.anchor, form.axis
        self._mask = self.get(MASK)

    def copy(self) -> Inputs:
        """Return a copy whose entries can be replaced."""
        twin = ShapedInputs(self, self.form, self._args, self._kwargs)
        twin._mask, twin.axis = self._mask, self.axis
        return twin

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments in the form they came in."""
        return self._rebuilt(self._args, ()), self._rebuilt(self._kwargs, ())

    def take(self, name: str) -> Any:
        """Take an argument out; those that follow it by position are then given by name."""
        value = self.pop(name, None)
        self._kwargs = {key: item for key, item in self._kwargs.items() if key != name}
        names = self.form.names
        if name in names[: len(self._args)]:
            place = names.index(name)
            self._kwargs |= dict(zip(names[place + 1 :], self._args[place + 1 :]))
            self._args = self._args[:place]
        return value

    def _rebuilt(self, value: Any, path: Path) -> Any:
        if isinstance(value, Mapping):
            return {key: self._rebuilt(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(self._rebuilt(item, (*path, key)) for key, item in enumerate(value))
        name = self.form.name_of(path)
        if name not in self:
            return value
        if name != MASK or not self.form.inverted:
            return self[name]
        return value if self[name] is self._mask else (~self[name].bool()).to(value.dtype)


@dataclass(frozen=True)
class Form:
    """What the arguments of a module stand for.

    Attributes:
        names: of its positional arguments.
        ids: where the token ids lie, if there are any.
        mask: where the mask lies.
        inverted: the mask is true at padding, not at tokens.
        anchor: the name of the tensor that carries the batch.
        axis: its batch axis.
    """

    names: tuple[str, ...]
    ids: Path | None = None
    mask: Path | None = None
    inverted: bool = False
    anchor: str = ""
    axis: int = 0

    def place(self, path: Path) -> Path:
        """Return a path that is the same whether an argument is given by position or by name."""
        if isinstance(path[0], int) and path[0] < len(self.names):
            return (self.names[path[0]], *path[1:])
        return path

    def name_of(self, path: Path) -> str:
        """Return the name of a leaf: that of its role, else its path."""
        path = self.place(path)
        if path in (self.ids, self.mask):
            return IDS if path == self.ids else MASK
        return ".".join(map(str, path))

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ShapedInputs:
        """Return the arguments of one call by name."""
        values = {self.name_of(path): value for path, value in leaves(args, kwargs)}
        if self.inverted and isinstance(values.get(MASK), Tensor):
            values[MASK] = ~values[MASK].bool()
        return ShapedInputs(values, self, args, kwargs)


def leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Path, Any]]:
    """Return all values in the arguments of a call with their paths."""
    matches: list[tuple[Path, Any]] = []

    def walk(value: Any, path: Path) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                walk(item, (*path, key))
        elif isinstance(value, (tuple, list)):
            for key, item in enumerate(value):
                walk(item, (*path, key))
        else:
            matches.append((path, value))

    walk(args, ())
    walk(kwargs, ())
    return matches


def forward_names(model: nn.Module) -> list[str]:
    """Return the names of the positional arguments: the wrapper's own, or those of the model it passes them on to."""
    for module in (model, base_model(model)):
        parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
        if names := [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]:
            return names
    return []


def takes_labels(model: nn.Module) -> bool:
    """Tell whether a forward has an argument `labels` that can be left out."""
    labels = inspect.signature(type(model).forward).parameters.get("labels")
    return labels is not None and labels.default is not labels.empty


def as_arguments(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Turn an example into the arguments of a call, on the model's device.

    A dict is named arguments where the forward takes them, else one argument; a tuple or list is positional ones.
    """
    parameter = next(model.parameters(), None)
    if parameter is not None:
        example = _moved(example, parameter.device)
    if isinstance(example, Mapping):
        values = {key: value for key, value in example.items() if key != "labels" or not takes_labels(model)}
        parameters = list(inspect.signature(type(model).forward).parameters.values())[1:]
        named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        needed = {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty}
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if named & values.keys() or (open_ended and not needed):
            return (), values
        return (values,), {}
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    if isinstance(example, Tensor):
        return (example,), {}
    raise OptionError(
        f"example={type(example).__name__} must be what the model is called with: a tensor, a tuple of positional "
        f"arguments, or a dict of named ones"
    )


def find_form(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mask: str | None) -> Form:
    """Find out what the arguments of a call stand for.

    Args:
        model: the module.
        args: positional arguments of the example.
        kwargs: named ones.
        mask: the name of the mask, with `~` before it if it is true at padding and its name does not say so; None looks
            for one.
    """
    form = Form(tuple(forward_names(model)))
    tensors = [
        (form.place(path), value)
        for path, value in leaves(args, kwargs)
        if isinstance(value, Tensor) and value.dim() > 0
    ]
    if not tensors:
        raise OptionError("example= holds no tensor: pass what the model is called with")
    ids = next((path for path, _ in tensors if path[-1] == IDS), None) or next(
        (path for path, value in tensors if _is_ids(value) and not _NO_IDS.search(form.name_of(path))), None
    )
    form = replace(form, ids=ids)
    main = next((value for path, value in tensors if path == ids), None)
    if main is None:
        main = next((value for _, value in tensors if value.is_floating_point()), tensors[0][1])
    anchor = next(form.name_of(path) for path, value in tensors if value is main)
    where = _find_mask(form, tensors, main, mask)
    inverted = where is not None and bool(_PADDING.search(form.name_of(where)) or (mask or "").startswith("~"))
    return replace(form, mask=where, inverted=inverted, anchor=anchor)


def _find_mask(form: Form, tensors: list[tuple[Path, Tensor]], main: Tensor, mask: str | None) -> Path | None:
    """Return where the mask lies: the one that is named, else the only one that looks like it."""
    names = {path: ".".join(map(str, path)) for path, _ in tensors}
    if mask is not None:
        wanted = mask.removeprefix("~")
        matches = [path for path, name in names.items() if wanted in (name, str(path[-1]))]
        if not matches:
            raise OptionError(f"mask={mask!r} is none of the arguments in example=: {', '.join(names.values())}")
        return matches[0]
    if main.dim() < 2:
        return None
    shapes = (main.shape[:2], main.shape[:2][::-1], *(() if main.is_floating_point() else (main.shape,)))
    matches = [
        path
        for path, value in tensors
        if _MASK.search(str(names[path])) and value.shape in shapes and not value.is_floating_point()
    ]
    if len(matches) > 1:
        exact = [path for path in matches if path[-1] == MASK]
        if not exact:
            raise OptionError(
                f"example= has several masks ({', '.join(names[path] for path in matches)}); name the one of padding "
                f"with mask=, or mask='~name' if it is true at padding"
            )
        matches = exact
    return matches[0] if matches else None


def _is_ids(value: Tensor) -> bool:
    return value.dim() in (2, 3) and not value.is_floating_point() and value.dtype is not torch.bool


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_moved(item, device) for item in value)
    return value
