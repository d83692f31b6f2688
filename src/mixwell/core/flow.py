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

from mixwell.core.arguments import Inputs, forward_names, takes_labels
from mixwell.core.checks import adapters
from mixwell.core.compat import in_training_step
from mixwell.core.draw import take_seed
from mixwell.core.hooks import BackwardHook
from mixwell.core.loss import check_labels
from mixwell.core.losses import Losses
from mixwell.core.model import base_config, main_output, training_flags
from mixwell.core.outputs import LabelsNotMixedWarning, hand_out, paid, tensors_of
from mixwell.core.own_loss import OwnLoss
from mixwell.core.planning import draw_plan, plain_plan
from mixwell.core.step import State, Step
from mixwell.core.tracked import tracked
from mixwell.utils.errors import AttachError, BatchError, UnsupportedModelError

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer


class Flow:
    """The steps of one attached model, one after the other.

    Attributes:
        steps: training forwards so far.
        forward: the step whose forward is running.
        backward: the step that backward is in.
        own_loss: the check that the loss we mix is the model's own.
        losses: the mixed losses.
    """

    def __init__(self, mixer: Mixer) -> None:
        self.mixer = mixer
        self.steps = 0
        self.forward: Step | None = None
        self.backward: Step | None = None
        self.own_loss = OwnLoss(mixer)
        self.losses = Losses(self)
        self._waiting: weakref.WeakSet[Step] = weakref.WeakSet()
        self._latest: Step | None = None  # the latest that waits for its labels, also if nothing else holds it
        self._recent: weakref.ref[Step] | None = None  # the last training forward, if no other came after it
        self._unmixed = False  # a forward that is not mixed is running
        self._plain_calls = 0  # how many `plain_model` blocks we are in
        self._warned: set[str] = set()
        self._seed: int | None = None  # of all forwards inside `same_seed`, once the first has drawn it
        self._sharing = False
        self._names = forward_names(mixer.model)
        self._takes_labels = mixer.points.form is None or takes_labels(mixer.model)
        self._adapters = adapters(mixer.model)
        self._encoder_decoder = bool(getattr(base_config(mixer.model), "is_encoder_decoder", False))

    def logits(self, output: Any) -> Tensor | None:
        """Return what the loss is computed from."""
        return main_output(output, self.mixer.points.task)

    # --- before the forward ---

    def open(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Begin a step: return the arguments to call the model with, or None to leave them alone."""
        if self._plain_calls:
            return None
        mixer = self.mixer
        self.forward = self._latest = self._recent = None  # a forward that was interrupted left its own
        if getattr(module, "_is_replica", False):
            raise AttachError("nn.DataParallel cannot be mixed; use DistributedDataParallel or one device")
        on = mixer.pinned.in_eval or (mixer.model.training and torch.is_grad_enabled())
        self._unmixed = not (on and mixer.enabled)
        if self._unmixed:
            return None
        if adapters(mixer.model) != self._adapters:
            raise AttachError(
                "PEFT adapters were added or removed after attach; call mixer.detach(), then get_peft_model, then "
                "attach to the model it returns"
            )
        step = self._new_step(self._inputs(args, kwargs))
        unmixed = Step(mixer, step.inputs.copy(), step.labels, step.items, training=step.training)
        step.plan = mixer.last = draw_plan(mixer, step)
        if mixer.model.training:
            self.steps += 1
            mixer.counts.add(step.plan)
        if mixer.method.regularise and not step.plan.plain:
            # RegMixup: this forward is plain, and its step carries the mixed one that follows.
            unmixed.plan, unmixed.second = plain_plan(mixer, unmixed, step.plan.seed), step
            step = unmixed
        step.state = State.FORWARD
        self.forward = step
        return step.inputs.call()

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """Return the arguments of a forward by name."""
        form = self.mixer.points.form
        return Inputs({**dict(zip(self._names, args)), **kwargs}) if form is None else form.inputs(args, kwargs)

    def _new_step(self, inputs: Inputs) -> Step:
        """Take labels and `num_items_in_batch` out of the inputs of a forward."""
        mixer = self.mixer
        items = inputs.take("num_items_in_batch") if self._takes_labels else None
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

    def _take_labels(self, inputs: Inputs) -> Tensor | None:
        """Take the labels out of the inputs; start and end positions become (B, 2)."""
        if not self._takes_labels:
            return None
        if self.mixer.points.task != "span":
            return inputs.take("labels")
        parts = [inputs.take(name) for name in ("start_positions", "end_positions")]
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
        logits = self.logits(output)
        if logits is None:
            raise UnsupportedModelError(f"{type(self.mixer.model).__name__} returns no logits")
        output = hand_out(output, step, lambda tensor: tensor.register_hook(BackwardHook(self, step)))
        self._recent = weakref.ref(step)
        if step.labels is not None:
            for tensor in tensors_of(output if self.mixer.points.task == "span" else self.logits(output)):
                paid(tensor)
            return _with_loss(output, self.losses.of_step(step, logits, step.labels, step.items))
        step.state = State.AWAITING_LABELS
        self._waiting.add(step)
        self._latest = step
        return tracked(output, self, step) if self.mixer.auto_loss else output

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
                logits = self.logits(step.call())
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
        if self.steps or "eval" in self._warned or model.training or not self.mixer.method.mixes:
            return
        if not torch.is_grad_enabled():
            return
        if in_training_step():
            raise AttachError(
                f"{type(model).__name__} is in eval mode in a training_step of Lightning, so nothing would be mixed: "
                f"from_pretrained gives models in eval mode, and Lightning leaves them so. Call model.train() before "
                f"trainer.fit"
            )

        def warn(gradient: Tensor) -> None:
            if not self.steps:
                self._warn_once(
                    "eval",
                    f"{type(model).__name__} is in eval mode, so nothing was mixed in this step; call model.train() "
                    f"before training",
                    UserWarning,
                )

        for tensor in tensors_of(output):
            if tensor.requires_grad:
                tensor.register_hook(warn)

    def warn_of_other_loss(self) -> None:
        """Warn that a loss went around the mixer."""
        self._warn_once(
            "around",
            f"a loss besides the mixed one reaches the outputs of a forward that was mixed by "
            f"{self.mixer.method.name!r}: labels in it are not mixed. Compute it with mixer.mixed(loss_fn, outputs, "
            f"targets); a penalty without targets with mixer.mixed(loss_fn, outputs)",
            LabelsNotMixedWarning,
        )

    def _warn_once(self, what: str, message: str, category: type[Warning]) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(message, category, stacklevel=3)

    # --- which steps still need a loss ---

    @property
    def waiting(self) -> list[Step]:
        """The steps whose labels are still to come."""
        return list(self._waiting)

    @property
    def recent(self) -> Step | None:
        """The last training forward, if its outputs are still there and no other forward came after it."""
        return None if self._recent is None else self._recent()

    def settle(self, step: Step) -> None:
        """Note that a step has a loss."""
        self._waiting.discard(step)
        self._latest = None

    def seed(self) -> int:
        """Take a seed from torch's generator; inside `same_seed` the first one serves all."""
        seed = take_seed()
        if not self._sharing:
            return seed
        self._seed = seed if self._seed is None else self._seed
        return self._seed

    @contextlib.contextmanager
    def same_seed(self) -> Iterator[None]:
        """Let all forwards inside share what the first one draws."""
        before = self._sharing, self._seed
        self._sharing, self._seed = True, None
        try:
            yield
        finally:
            self._sharing, self._seed = before

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
        if self._unmixed or not self.mixer.enabled:
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
        return {**self.__dict__, "forward": None, "backward": None, "_latest": None, "_recent": None, "_waiting": None}

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
