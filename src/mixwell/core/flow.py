"""The life of one training step, from the call of the model to the end of backward.

    opened      before the forward: inputs and labels are taken apart, the plan is drawn
    closed      after it: the mixed loss goes first in the output, or the step waits for its labels
    backward    when gradients reach its outputs, its plan is current again, for checkpoints that are recomputed

`Flow` knows which step the attached model is in; a `Step` knows its own `State`. Hooks call nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixwell.core.checks import adapters, forward_names
from mixwell.core.hooks import BackwardHook, LossHook
from mixwell.core.loss import Criterion, check_labels
from mixwell.core.model import base_config, logits_of, training_flags
from mixwell.core.own_loss import OwnLoss
from mixwell.core.planning import draw_plan, plain_plan
from mixwell.core.step import State, Step
from mixwell.utils.errors import AttachError, BatchError, LabelsNotMixedError, UnsupportedModelError

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer


class Flow:
    """The steps of one attached model, one after the other.

    Attributes:
        steps: training forwards so far.
        forward: the step whose forward is running.
        backward: the step that backward is in.
        own_loss: the check that the loss we mix is the model's own.
    """

    def __init__(self, mixer: Mixer) -> None:
        self.mixer = mixer
        self.steps = 0
        self.forward: Step | None = None
        self.backward: Step | None = None
        self.own_loss = OwnLoss(mixer)
        self._waiting: weakref.WeakSet[Step] = weakref.WeakSet()
        self._latest: Step | None = None  # the latest that waits for its labels, also if nothing else holds it
        self._unmixed = False  # a forward that is not mixed is running
        self._plain_calls = 0  # how many `plain_model` blocks we are in
        self._warned = False
        self._names = forward_names(mixer.model)
        self._adapters = adapters(mixer.model)
        self._encoder_decoder = bool(getattr(base_config(mixer.model), "is_encoder_decoder", False))

    # --- before the forward ---

    def open(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Begin a step: return the arguments to call the model with, or None to leave them alone."""
        if self._plain_calls:
            return None
        mixer = self.mixer
        self.forward = self._latest = None  # a forward that was interrupted left its own
        if getattr(module, "_is_replica", False):
            raise AttachError("nn.DataParallel cannot be mixed; use DistributedDataParallel or one device")
        self._unmixed = not mixer.pinned.in_eval and not (mixer.model.training and torch.is_grad_enabled())
        if self._unmixed:
            return None
        if adapters(mixer.model) != self._adapters:
            raise AttachError(
                "PEFT adapters were added or removed after attach; call mixer.detach(), then get_peft_model, then "
                "attach to the model it returns"
            )
        step = self._new_step({**dict(zip(self._names, args)), **kwargs})
        unmixed = Step(mixer, dict(step.inputs), step.labels, step.items, training=step.training)
        step.plan = mixer.last = draw_plan(mixer, step)
        if mixer.model.training:
            self.steps += 1
        if mixer.method.regularise and not step.plan.plain:
            # RegMixup: this forward is plain, and its step carries the mixed one that follows.
            unmixed.plan, unmixed.second = plain_plan(mixer, unmixed, step.plan.seed), step
            step = unmixed
        step.state = State.FORWARD
        self.forward = step
        return (), step.inputs

    def _new_step(self, inputs: dict[str, Any]) -> Step:
        """Take labels and `num_items_in_batch` out of the inputs of a forward."""
        mixer = self.mixer
        items = inputs.pop("num_items_in_batch", None)
        labels = self._take_labels(inputs)
        if labels is not None and self._encoder_decoder and "use_cache" in self._names:
            # T5 and BART turn their cache off where they are given labels, which they are not any more.
            inputs.setdefault("use_cache", False)
        step = Step(mixer, inputs, labels, items, training=mixer.model.training)
        if labels is not None:
            check_labels(labels, step.size)
            self.own_loss.check(step, labels)
        elif mixer.method.needs_labels:
            raise BatchError(
                f"method {mixer.method.name!r} needs the labels before the forward: call the model with labels=, and "
                f"do not use Trainer's label_smoothing_factor or compute_loss_func (attach(..., label_smoothing=...))"
            )
        return step

    def _take_labels(self, inputs: dict[str, Any]) -> Tensor | None:
        """Take the labels out of the inputs; start and end positions become (B, 2)."""
        if self.mixer.points.task != "span":
            return inputs.pop("labels", None)
        parts = [inputs.pop(name, None) for name in ("start_positions", "end_positions")]
        return None if parts[0] is None or parts[1] is None else torch.stack([p.view(-1) for p in parts], 1)

    # --- after the forward ---

    def close(self, output: Any) -> Any:
        """End a forward: return the output with the mixed loss, or let the step wait for its labels."""
        if self._plain_calls:
            return None
        step, self.forward, self._unmixed = self.forward, None, False
        if step is None or output is None:
            self._warn_if_trained_in_eval(output)
            return None
        self._check_reached(step)
        if step.second is not None:
            step.mixed_logits = self._second_forward(step.second)
        logits = logits_of(output, self.mixer.points.task)
        if logits is None:
            raise UnsupportedModelError(f"{type(self.mixer.model).__name__} returns no logits")
        step.remember(logits)
        for tensor in tensors_of(output):
            if tensor.requires_grad:
                tensor.register_hook(BackwardHook(self, step))
        if step.labels is not None:
            return _with_loss(output, self.mixed_loss(step, logits, step.labels, step.items))
        step.state = State.AWAITING_LABELS
        self._waiting.add(step)
        self._latest = step
        return output

    def _check_reached(self, step: Step) -> None:
        """Raise if a point was not reached: labels would be mixed without the features."""
        mixer = self.mixer
        assert step.plan is not None
        if not step.plan.plain and step.fired != len(mixer.sites):
            raise UnsupportedModelError(
                f"{step.fired} of {len(mixer.sites)} points of {mixer.method.name!r} were reached in this forward of "
                f"{type(mixer.model).__name__}: were modules replaced after attach, is layer drop on (set it to 0), or "
                f"was the model compiled before attach (attach first)?"
            )

    def _second_forward(self, step: Step) -> Tensor:
        """RegMixup: run the mixed forward after the plain one."""
        self.forward, step.state = step, State.FORWARD
        self._plain_calls += 1
        try:
            with torch.compiler.set_stance("force_eager"):
                logits = logits_of(self.mixer.model(**step.inputs), self.mixer.points.task)
        finally:
            self.forward = None
            self._plain_calls -= 1
        assert logits is not None
        self._check_reached(step)
        if logits.requires_grad:
            logits.register_hook(BackwardHook(self, step))
        return logits

    def _warn_if_trained_in_eval(self, output: Any) -> None:
        """Warn if training begins in eval mode, as from_pretrained leaves a model: a backward before any mixed step."""
        model = self.mixer.model
        if self.steps or self._warned or model.training or not torch.is_grad_enabled() or not self.mixer.method.mixes:
            return

        def warn(gradient: Tensor) -> None:
            if not self._warned and not self.steps:
                self._warned = True
                warnings.warn(
                    f"{type(model).__name__} is in eval mode, so nothing was mixed in this step; call model.train() "
                    f"before training",
                    stacklevel=2,
                )

        for tensor in tensors_of(output):
            if tensor.requires_grad:
                tensor.register_hook(warn)

    # --- the loss ---

    def waiting_for(self, logits: Tensor) -> Step | None:
        """Return the step whose labels are still to come and that made these logits, or None.

        Raises:
            LabelsNotMixedError: it cannot be told which step made them, or none waits.
        """
        waiting = list(self._waiting)
        own = [step for step in waiting if step.made(logits)]
        in_training = self.mixer.model.training and logits.requires_grad
        if not own and in_training:
            own = waiting  # logits that were cast or reshaped
        if len(own) > 1:
            raise LabelsNotMixedError(
                f"{len(own)} forwards wait for their labels and these logits are none of theirs; pass the logits as "
                f"the model returned them"
            )
        if not own and in_training:
            raise LabelsNotMixedError(
                "no forward waits for its labels: the loss of these logits was computed already, or they were not "
                "made by a training forward of the attached model"
            )
        return own[0] if own else None

    def mixed_loss(self, step: Step, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        """Compute the loss that the plan of a step asks for."""
        self.own_loss.check(step, labels)
        self._waiting.discard(step)
        self._latest = None
        criterion = self.mixer.criterion(logits, labels)
        loss = self._loss_of(step, criterion, logits, labels, items)
        parts = [step]
        if step.second is not None:
            assert step.mixed_logits is not None
            loss = loss + self._loss_of(step.second, criterion, step.mixed_logits, labels, items)
            step.mixed_logits = None
            parts.append(step.second)
        watched = loss.requires_grad and step.training
        for part in parts:
            part.state = State.LOSS_COMPUTED if watched else State.LOSS_REACHED
        if watched:
            loss.register_hook(LossHook(parts))
        return loss

    def _loss_of(
        self, step: Step, criterion: Criterion, logits: Tensor, labels: Tensor, items: Tensor | int | None
    ) -> Tensor:
        plan = step.plan
        assert plan is not None
        if plan.plain:
            return criterion.total(logits, labels, items)
        return self.mixer.method.loss(criterion, logits, labels, plan, step, items)

    # --- backward, and calls of parts of the model ---

    def enter_backward(self, step: Step) -> None:
        """Make a step current again while backward goes through it."""
        self.backward = step
        torch.autograd.Variable._execution_engine.queue_callback(self.leave_backward)

    def leave_backward(self) -> None:
        """Let go of what backward needed."""
        if self.backward is not None:
            self.backward.scratch.clear()
            self.backward = None

    def step_at(self, module: nn.Module) -> tuple[Step | None, bool]:
        """Return the step that a module is called in, and whether backward is recomputing it."""
        if self.forward is not None:
            return self.forward, False
        if self._unmixed:
            return None, False
        if self.backward is not None and torch._C._current_graph_task_id() != -1:
            return self.backward, True
        if module.training and torch.is_grad_enabled():
            raise AttachError(
                f"{type(module).__name__} was called in training outside a forward of the attached "
                f"{type(self.mixer.model).__name__}; call the attached model itself, or detach first"
            )
        return None, False

    @property
    def in_plain_call(self) -> bool:
        """Whether the model is being run as if it were not attached."""
        return self._plain_calls > 0

    @contextlib.contextmanager
    def plain_model(self, training: bool | None = False) -> Iterator[None]:
        """Run the model as if it were neither attached nor compiled.

        Args:
            training: the mode to run in; None leaves every module as it is.
        """
        self._plain_calls += 1
        before = self.forward, self._unmixed
        self.forward, self._unmixed = None, True
        try:
            with training_flags(self.mixer.model, training), torch.compiler.set_stance("force_eager"):
                yield
        finally:
            self._plain_calls -= 1
            self.forward, self._unmixed = before
            # Weights cast without gradients must not serve the forward that follows in the same autocast.
            torch.clear_autocast_cache()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles are of a mixer that is detached."""
        return {**self.__dict__, "forward": None, "backward": None, "_latest": None, "_waiting": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._waiting = weakref.WeakSet()


def _with_loss(output: Any, loss: Tensor) -> Any:
    """Return the output with the loss first."""
    if isinstance(output, Tensor):
        return (loss, output)
    if isinstance(output, tuple):
        return (loss, *output)
    rest = {key: value for key, value in output.items() if key != "loss"}
    kind: Any = type(output) if dataclasses.is_dataclass(output) else dict
    return kind(loss=loss, **rest)


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
