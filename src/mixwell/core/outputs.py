"""What a forward gives away, and how it is known again.

A user gets each output through a view of its own. The mixer computes its losses from the tensors behind the views, so
gradient that comes through a view is of a loss that went around the mixer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from mixwell.core.step import Step


class LabelsNotMixedWarning(UserWarning):
    """A loss beside the mixed one reached the outputs of a mixed forward: its labels, if it has any, are not mixed."""


@dataclass(eq=False)
class Origin:
    """Where an output comes from.

    Attributes:
        step: the forward.
        raw: the tensor behind the view that was handed out; None if that tensor was handed out itself.
        paid: whether `Mixer.loss` was computed from it.
    """

    step: Step
    raw: Tensor | None = None
    paid: bool = False


# Not an attribute of the tensors: it would be saved with them.
_ORIGINS: Any = WeakTensorKeyDictionary()


class AroundHook:
    """Notes that gradient reaches an output from a loss that the mixer did not compute."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def __call__(self, gradient: Tensor) -> None:
        """Called by torch with the gradient of the output."""
        self.step.around = self.step.around or not self.step.trusted


def origin_of(tensor: Any) -> Origin | None:
    """Return where a tensor comes from, or None if no forward of an attached model handed it out."""
    return _ORIGINS.get(tensor) if isinstance(tensor, Tensor) else None


def hand_out(output: Any, step: Step, watch: Callable[[Tensor], None]) -> Any:
    """Return the output with views in place of its tensors, so that gradient from elsewhere is noticed.

    Args:
        output: what the model returned.
        step: the forward.
        watch: called with each tensor that has a gradient, before a view of it is taken.
    """
    seen: dict[int, Tensor] = {}
    live = step.training and step.mixer.method.mixes and step.second is None  # RegMixup's outputs are plain
    # Features of a frozen body have no gradient: a head outside would train on them without anybody noticing.
    frozen = live and not any(tensor.requires_grad for tensor in tensors_of(output))

    def give(tensor: Tensor) -> Tensor:
        if id(tensor) in seen:
            return seen[id(tensor)]
        view = tensor
        if frozen and tensor.is_floating_point():
            view = tensor.detach().requires_grad_()
            watch(view)
        elif tensor.requires_grad:
            watch(tensor)
            if live:
                view = tensor.view_as(tensor)
                view.register_hook(AroundHook(step))
        seen[id(tensor)] = view
        _ORIGINS[view] = Origin(step, None if view is tensor or frozen else tensor)
        return view

    return changed(output, give)


def paid(tensor: Tensor) -> None:
    """Note that the loss of an output was computed."""
    entry = origin_of(tensor)
    if entry is not None:
        entry.paid = True


def source(tensor: Tensor) -> Tensor:
    """Return the tensor to compute a mixed loss from: the one behind a view, unless others watch that view."""
    known = origin_of(tensor)
    if known is None:
        return tensor
    # FSDP waits for gradient at what it saw leaving the model: the loss has to go through there.
    if known.raw is None or len(tensor._backward_hooks or ()) > 1:
        known.step.trusted = True
        return tensor
    return known.raw


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in a model's output."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_of(item)


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a nested value with every tensor changed; what is no dict, tuple or list stays as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        items = {key: changed(item, change) for key, item in value.items()}
        if type(value) is dict:
            return items
        for key, item in items.items():  # the outputs of transformers: made for this forward alone
            if item is not value[key]:
                value[key] = item
        return value
    if isinstance(value, (tuple, list)):
        parts = [changed(item, change) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
