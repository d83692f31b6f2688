"""The hooks: the other half of the mixer, called by torch where the model is called.

They are callables of this module, so that a copy or a pickle of the model can do without them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixwell.core.model import base_model
from mixwell.core.points import Point
from mixwell.core.step import State, Step, first_input, replace_input
from mixwell.utils.errors import AttachError, LabelsNotMixedError

if TYPE_CHECKING:
    from mixwell.core.draw import Plan
    from mixwell.core.flow import Flow
    from mixwell.core.mixer import Mixer

_WAY_OUT = (
    "give the labels to the model (model(**batch) with labels=), or compute the loss with mixer.loss(logits, labels), "
    "mixer.mixed(loss_fn, outputs, targets) or Trainer(compute_loss_func=mixer.compute_loss). Trainer's "
    "label_smoothing_factor takes the labels away: use attach(..., label_smoothing=...) instead"
)


# Hooks find their mixer here: torch.compile takes the sizes of tensors that it reaches through a module for fixed, and
# would compile the model again for every new length of a batch.
_MIXERS: dict[int, weakref.ref[Mixer]] = {}
_numbers = itertools.count()


def enter(mixer: Mixer) -> int:
    """Make a mixer known to its hooks; return its number."""
    number = next(_numbers)
    _MIXERS[number] = weakref.ref(mixer)
    weakref.finalize(mixer, _MIXERS.pop, number)
    return number


# What a hook becomes in a copy of the model: something of the standard library that does nothing whatever it is called
# with, so that a saved model is loaded without mixwell.
inert = contextlib.nullcontext().__exit__


def is_inert(hook: Any) -> bool:
    """Tell whether a hook is what a copy of a model kept of one of ours."""
    return getattr(hook, "__func__", None) is contextlib.nullcontext.__exit__


# Numbers of hooks that nobody else's get: in a copy, another hook of the same number would inherit its flags.
_hook_numbers = itertools.count(int.from_bytes(os.urandom(5), "big") << 20 | 1 << 60)


@contextlib.contextmanager
def own_number() -> Iterator[None]:
    """Let torch give the next hook one of our numbers."""
    handles = torch.utils.hooks.RemovableHandle
    before, handles.next_id = handles.next_id, next(_hook_numbers)
    try:
        yield
    finally:
        handles.next_id = before


class Hook:
    """A hook that copies and pickles of the model do not carry along."""

    def __init__(self, mixer: Mixer) -> None:
        self._kept = mixer
        self._mixer_number = mixer.number

    @property
    def mixer(self) -> Mixer:
        """The mixer, alive as long as one of its hooks is."""
        mixer = _MIXERS[self._mixer_number]()
        assert mixer is not None
        return mixer

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return inert

    def __reduce__(self) -> tuple[Any, tuple[Any, str]]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Before(Hook):
    """Opens a forward of the attached model."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        return self.mixer.flow.open(module, args, kwargs)


class After(Hook):
    """Closes a forward of the attached model."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        return self.mixer.flow.close(output)


class WordIds(Hook):
    """Looks up other words than the ids that the model counts its positions by."""

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        step = self.mixer.flow.forward
        if step is None or "word_ids" not in step.scratch:
            return None
        return (step.scratch["word_ids"], *args[1:]), kwargs


class Guard(Hook):
    """Raises where a part of the model is called in training outside a forward of the whole."""

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.mixer.flow.step_at(module)


class BlockInput(Hook):
    """Keeps a pre-norm block's input for the hook on its attention."""

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        step, _ = self.mixer.flow.step_at(module)
        if step is not None:
            step.scratch[module] = first_input(args, kwargs)


class PointHook(Hook):
    """Mixes at one module: its output, its input, or its output plus the block's input."""

    def __init__(self, mixer: Mixer, turns: dict[int, tuple[int, Point]], calls: int) -> None:
        super().__init__(mixer)
        self.turns = turns
        self.calls = calls
        self.how = next(iter(turns.values()))[1].how

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any = None) -> Any:
        mixer = self.mixer
        step, recomputing = mixer.flow.step_at(module)
        if step is None:
            return None
        plan = step.plan
        assert plan is not None
        if plan.plain:
            return None
        turn = 0
        if self.calls > 1:
            if recomputing:
                raise AttachError(
                    f"{type(module).__name__} is shared by {self.calls} blocks; gradient checkpointing cannot tell "
                    f"which one it recomputes. Turn checkpointing off for this model"
                )
            turn = step.turns.get(self, 0)
            step.turns[self] = turn + 1
            if turn not in self.turns:
                return None
        number, point = self.turns[turn]
        if not recomputing:
            step.fired += 1
        # A compiled graph must not depend on what was drawn: there, points not chosen mix with weight 1.
        compiling = torch.compiler.is_compiling()
        entered = step.scratch.get(point.block)
        if entered is not None and not compiling:
            del step.scratch[point.block]  # the tensor's own graph may lead back to the step
        if not compiling and not plan.active[number]:
            return None
        if self.how == "input":
            x = first_input(args, kwargs)
            return replace_input(args, kwargs, _mix(mixer, x, plan, number, step))
        if self.how == "last":
            x = first_input(args, kwargs)
            rows, last = torch.arange(x.shape[0], device=x.device), step.last
            mixed = mixer.method.mix(x[rows, last], plan, number, step)
            return replace_input(args, kwargs, x.index_put((rows, last), mixed.to(x.dtype)))
        x = _part(output, point)
        if self.how == "residual":
            assert entered is not None
            stream = x + entered
            mixed = x + (_mix(mixer, stream, plan, number, step) - stream)
        else:
            mixed = _mix(mixer, x, plan, number, step)
        if isinstance(output, dict):
            return {**output, point.key: mixed}
        return mixed if isinstance(output, Tensor) else (mixed, *output[1:])


def _part(output: Any, point: Point) -> Tensor:
    """Return the tensor to mix of a module's output."""
    if isinstance(output, Tensor):
        return output
    return output[point.key] if isinstance(output, dict) else output[0]


def _mix(mixer: Mixer, x: Tensor, plan: Plan, number: int, step: Step) -> Tensor:
    """Mix a tensor at one site along its batch axis."""
    axis, rows = mixer.sites[number].axis, plan.permutation.shape[0]
    if x.shape[axis] != rows:
        plan = step.plan_of_choices(x.shape[axis])
    if axis == 0:
        return mixer.method.mix(x, plan, number, step)
    return mixer.method.mix(x.transpose(0, axis), plan, number, step).transpose(0, axis)


class LossHook:
    """Notes that backward came through the mixed loss of a forward (of RegMixup: of both)."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps

    def __call__(self, gradient: Tensor) -> None:
        for step in self.steps:
            step.state = State.LOSS_REACHED


class BackwardHook:
    """Makes a forward's step current again when backward reaches its outputs, and sees that its loss was used."""

    def __init__(self, flow: Flow, step: Step) -> None:
        self.flow = flow
        self.step = step

    def __call__(self, gradient: Tensor) -> None:
        mixer, state = self.flow.mixer, self.step.state
        if state is not State.LOSS_REACHED:
            computed = state is State.LOSS_COMPUTED
            how = "backward does not come from out.loss" if computed else "the loss does not mix its labels"
            raise LabelsNotMixedError(f"the forward was mixed by {mixer.method.name!r} but {how}; {_WAY_OUT}")
        if not mixer.attached and getattr(base_model(mixer.model), "is_gradient_checkpointing", False):
            raise AttachError("gradient checkpointing recomputes the forward in backward: call backward before detach")
        if self.step.around:
            self.flow.warn_of_other_loss()
        self.flow.enter_backward(self.step)
