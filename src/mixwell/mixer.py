"""Attach a method to a model, and the life of a plan through one step.

top-level pre-hook: draw the plan, let the method edit masks or ids -> hooks at the method's points mix -> top-level
hook: mixed loss first in the output, and the plan tied to the outputs, so that backward finds it again.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mixwell._version import __version__
from mixwell.checks import MIXERS, adapters, check_attachable, check_task, forward_names
from mixwell.errors import (
    AttachError,
    BatchError,
    OptionError,
    UnpaidLossError,
    UnsupportedModelError,
)
from mixwell.hooks import After, Backward, Before, BlockInput, Guard, Hook, PointHook, Reached, WordIds, enter
from mixwell.loss import HALF, Criterion, check_labels, check_reproduces, task_kind
from mixwell.methods import Method, build
from mixwell.plan import Plan, check_permutation, draw_permutation, generator, take_seed
from mixwell.points import Point, Points, base_config, find_points, logits_of, probe_inputs, training_flags
from mixwell.step import Payment, Step


def attach(model: nn.Module, method: str | Method, **options: Any) -> Mixer:
    """Make a model train with mixup.

    Args:
        model: a transformers model with a classification head, on any device, not compiled yet.
        method: a name of `mixwell.methods()`, or a method object.
        **options: the method's options; an unknown one is an error.

    Returns:
        The mixer: also a context manager that detaches at its end.

    Example:
        >>> mixer = mixwell.attach(model, "amplify", alpha=0.1, samples=5)
        >>> model(**batch).loss.backward()  # the mixed loss
    """
    chosen = build(method, options)
    check_attachable(model)
    return Mixer(model, chosen, find_points(model))


class Mixer:
    """A method attached to a model. Made by `attach`."""

    def __init__(self, model: nn.Module, method: Method, points: Points) -> None:
        self.model = model
        self.number = enter(self)
        self.method = copy.copy(method)  # what a method learns belongs to one mixer
        method = self.method
        self.points = points
        check_task(method, points, model)
        self.sites: list[Point] = method.sites(points)
        # The user's number of each site; sites with the same one (the embeddings of two stacks) are drawn together.
        self._layers = [method.layer_of(i, self.sites) if method.has_layer else None for i in range(len(self.sites))]
        self.last: Plan | None = None
        self.progress: float | None = None
        self.attached = False
        self._steps = 0
        self._forward: Step | None = None
        self._waiting: Step | None = None  # the latest forward without labels, also if nothing else holds it
        self._backward: Step | None = None
        self._off = False
        self._told = False
        self._depth = 0
        self._pin: _Pin | None = None
        self._unpaid: weakref.WeakSet[Step] = weakref.WeakSet()
        self._loss_checked = method.loss_fn is not None
        self._wide = False
        self.checked: set[str] = set()
        self._handles: list[Any] = []
        self._names = forward_names(model)
        self._encoder_decoder = bool(getattr(base_config(model), "is_encoder_decoder", False))
        self._adapters = adapters(model)
        self._install()
        try:
            method.prove(self)
        except BaseException:
            self.detach()
            raise

    # --- attach and detach ---

    def _install(self) -> None:
        # Else torch.compile would take the graph of a block without hooks for that of one that has some.
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        # A module can be hooked before and after: GPT-2's first block reads the embeddings and is a block itself.
        by_module: dict[tuple[nn.Module, str], dict[int, tuple[int, Point]]] = {}
        for number, point in enumerate(self.sites):
            by_module.setdefault((point.module, point.how), {})[point.call] = (number, point)
        for (module, _), turns in by_module.items():
            hook = PointHook(self, turns, self.points.calls.get(module, 1))
            # First in line, so that transformers' own capture hooks record what was mixed.
            before = hook.how in ("input", "last")
            self._hook(module.register_forward_pre_hook if before else module.register_forward_hook, hook, prepend=True)
        for block in {point.block for point in self.sites if point.how == "residual"}:
            assert block is not None
            self._hook(block.register_forward_pre_hook, BlockInput(self))
        if self.method.mixes and not self.sites:
            # Nothing else would notice a call that goes around the attached model's hooks.
            self._hook(self.points.get("block")[0].module.register_forward_pre_hook, Guard(self))
        if self.points.words is not None:
            self._hook(self.points.words.register_forward_pre_hook, WordIds(self))
        self._hook(self.model.register_forward_pre_hook, Before(self))
        self._hook(self.model.register_forward_hook, After(self), always_call=True)
        self.attached = True
        MIXERS.add(self)

    def _hook(self, register: Any, hook: Hook, **how: Any) -> None:
        handle = register(hook, with_kwargs=True, **how)
        hook.number = handle.id
        self._handles.append(handle)

    def detach(self) -> nn.Module:
        """Take all hooks off and return the model, which is bit for bit what it was."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.attached = False
        self._forward = self._backward = None
        return self.model

    def __enter__(self) -> Mixer:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles are detached."""
        gone = dict.fromkeys(("_forward", "_backward", "_waiting", "_pin", "last"))
        return {**self.__dict__, **gone, "_unpaid": None, "_handles": [], "attached": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._unpaid = weakref.WeakSet()

    def __repr__(self) -> str:
        state = "attached to" if self.attached else "detached from"
        return f"<mixwell.Mixer {self.method.name!r} {state} {type(self.model).__name__}, {len(self.sites)} points>"

    # --- the draw ---

    @property
    def layers(self) -> list[int]:
        """The numbers that a method with `has_layer` draws from; else empty."""
        return list(dict.fromkeys(layer for layer in self._layers if layer is not None))

    @contextlib.contextmanager
    def pin(
        self,
        lam: float | Tensor | None = None,
        permutation: Tensor | list[int] | None = None,
        layer: int | None = None,
        in_eval: bool = False,
    ) -> Iterator[Mixer]:
        """Fix the draw of all forwards inside; what is not given stays as an outer pin has it, or random.

        Args:
            lam: the weight of a row's own part, in [0, 1]: one number or (B,) values.
            permutation: (B,), row i meets row permutation[i].
            layer: the block (tmix) or point (manifold) that is drawn.
            in_eval: mix in eval mode and without gradients too, for pictures.
        """
        method = self.method
        if lam is not None:
            if not method.has_lam:
                raise OptionError(f"method {method.name!r} draws no lam, so none can be pinned")
            values = torch.as_tensor(lam, dtype=torch.float64)
            if values.dim() > 1 or not bool(((values >= 0) & (values <= 1)).all()):
                raise OptionError(f"lam={lam} must be one number or (B,) values in [0, 1]")
            lam = float(values) if values.dim() == 0 else values
        if permutation is not None:
            if not method.has_permutation:
                raise OptionError(f"method {method.name!r} mixes the whole batch: no permutation can be pinned")
            permutation = torch.as_tensor(permutation, dtype=torch.long)
        if layer is not None:
            if not method.has_layer:
                raise OptionError(f"method {method.name!r} draws no layer, so none can be pinned")
            if layer not in self._layers:
                raise OptionError(f"layer={layer} is not one of this mixer's layers {self.layers}")
        before = self._pin or _Pin()
        self._pin = _Pin(
            before.lam if lam is None else lam,
            before.permutation if permutation is None else permutation,
            before.layer if layer is None else layer,
            before.in_eval or in_eval,
        )
        try:
            yield self
        finally:
            self._pin = before

    def _draw(self, step: Step) -> Plan:
        """Draw the plan of one step; takes one seed from torch's generator whatever the method."""
        method, pin, size = self.method, self._pin or _Pin(), step.size
        if pin.permutation is not None:
            check_permutation(pin.permutation, size, method.mutual)
        if isinstance(pin.lam, Tensor) and pin.lam.shape != (size,):
            raise BatchError(f"the pinned lam has shape {tuple(pin.lam.shape)} but the batch has {size} rows")
        mixing = self._mixing_now()
        # Pinned eval forwards (pictures) must not move the random state.
        seed = take_seed() if self.model.training else 0
        if size < 2 or not mixing or not method.mixes:
            return self._trivial(step, seed)
        device, dtype = step.device, self._weight_dtype()
        ones = torch.ones(max(len(self.sites), 1), size, dtype=dtype, device=device)
        rows = torch.arange(size, device=device)
        rng = generator(seed)
        lam = method.draw_lam(rng) if pin.lam is None else pin.lam
        if lam is not None:
            lam = method.adjust_lam(lam)
        layer = pin.layer
        if layer is None and (drawn := method.draw_layer(rng, len(self.layers))) is not None:
            layer = self.layers[drawn]
        if not method.has_permutation:
            permutation = rows
        elif pin.permutation is not None:
            permutation = pin.permutation.to(device)
        else:
            permutation = draw_permutation(
                method.pairing, size, rng, device=device, classes=self._classes(),
                lengths=None if step.mask is None else step.mask.sum(1), labels=step.labels,
            )  # fmt: skip
        weight = torch.as_tensor(1.0 if lam is None else lam, dtype=torch.float64).to(dtype)
        weight = weight.to(device, non_blocking=True).expand(size)
        # A row that is its own partner keeps weight 1: the same value, and gradients exact to the bit.
        weight = torch.where(permutation == rows, ones[0], weight)
        # AMPLIFY's lam rounds to 1 in two of five steps: nothing to do at its points then.
        alone = isinstance(lam, float) and bool(torch.tensor(lam, dtype=dtype) == 1)
        active = tuple(not alone and (layer is None or own == layer) for own in self._layers)
        points = torch.stack([weight if mixed else ones[0] for mixed in active]) if active else ones
        shift, shift_mask = self._shift(step, permutation)
        plan = Plan(seed, permutation, lam, layer, points, active, weight, shift=shift, shift_mask=shift_mask)
        return method.prepare(step, plan, rng)

    def _trivial(self, step: Step, seed: int) -> Plan:
        """Return the plan that mixes nothing."""
        ones = torch.ones(max(len(self.sites), 1), step.size, dtype=self._weight_dtype(), device=step.device)
        rows = torch.arange(step.size, device=step.device)
        return Plan(seed, rows, None, None, ones, (False,) * len(self.sites), ones[0], trivial=True)

    def _shift(self, step: Step, permutation: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Line partners up at their last tokens, for points in causal stacks: (B, T) places and where they are real."""
        if not any(point.causal for point in self.sites):
            return None, None
        if self.points.task != "sequence":
            # Labels have places of their own: tokens meet at theirs, where the partner has one.
            return None, None if step.mask is None else step.mask.index_select(0, permutation)
        last = step.last
        other = last.index_select(0, permutation)
        places = torch.arange(step.length, device=step.device) + (other - last).unsqueeze(1)
        real = (places >= 0) & (places <= other.unsqueeze(1))
        places = places.clamp(0, step.length - 1)
        mask = step.mask
        if mask is not None:
            real = real & mask.index_select(0, permutation).gather(1, places)
        return places, real

    def _mixing_now(self) -> bool:
        """Tell whether mixing is on at this point of training."""
        start, stop = self.method.start, self.method.stop
        if start == 0.0 and stop == 1.0:
            return True
        progress = self.progress
        if progress is None and self.method.total_steps is not None:
            progress = self._steps / self.method.total_steps
        if progress is None:
            raise OptionError(
                f"start={start}, stop={stop} need to know how far training is: pass total_steps=, set mixer.progress "
                f"(0 to 1), or add mixer.callback() to Trainer's callbacks"
            )
        return start <= progress and (progress < stop or stop == 1.0)

    def _weight_dtype(self) -> torch.dtype:
        parameter = next(self.model.parameters(), None)
        return torch.float64 if parameter is not None and parameter.dtype == torch.float64 else torch.float32

    def _classes(self) -> int:
        return int(getattr(base_config(self.model), "num_labels", 0) or 0)

    # --- the life of a step ---

    def _before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._depth:
            return None
        self._forward = self._waiting = None  # a forward that was interrupted left its own
        if getattr(module, "_is_replica", False):
            raise AttachError("nn.DataParallel cannot be mixed; use DistributedDataParallel or one device")
        pinned_eval = self._pin is not None and self._pin.in_eval
        if not pinned_eval and not (self.model.training and torch.is_grad_enabled()):
            self._off = True
            return None
        self._off = False
        if adapters(self.model) != self._adapters:
            raise AttachError(
                "PEFT adapters were added or removed after attach; call mixer.detach(), then get_peft_model, then "
                "attach to the model it returns"
            )
        inputs = {**dict(zip(self._names, args)), **kwargs}
        items = inputs.pop("num_items_in_batch", None)
        labels = self._take_labels(inputs)
        if labels is not None and self._encoder_decoder and "use_cache" in self._names:
            # T5 and BART turn their cache off where they are given labels, which they are not any more.
            inputs.setdefault("use_cache", False)
        step = Step(self, inputs, labels, items)
        if labels is not None:
            check_labels(labels, step.size)
            self._check_loss(step, labels)
        elif self.method.needs_labels:
            raise BatchError(
                f"method {self.method.name!r} needs the labels before the forward: call the model with labels=, and "
                f"do not use Trainer's label_smoothing_factor or compute_loss_func (attach(..., label_smoothing=...))"
            )
        plain = Step(self, dict(inputs), labels, items)
        step.plan = self.last = self._draw(step)
        step.training = plain.training = self.model.training
        if self.model.training:
            self._steps += 1
        if self.method.regularise and not step.plan.trivial:
            # RegMixup: this forward is plain, and its step carries the mixed one that follows.
            plain.plan, plain.second = self._trivial(plain, step.plan.seed), step
            step = plain
        self._forward = step
        return (), step.inputs

    def _take_labels(self, inputs: dict[str, Any]) -> Tensor | None:
        """Take the labels out of the inputs; start and end positions become (B, 2)."""
        if self.points.task != "span":
            return inputs.pop("labels", None)
        parts = [inputs.pop(name, None) for name in ("start_positions", "end_positions")]
        return None if parts[0] is None or parts[1] is None else torch.stack([p.view(-1) for p in parts], 1)

    def _logits(self, output: Any) -> Tensor | None:
        return logits_of(output, self.points.task)

    def _give_labels(self, labels: Tensor) -> dict[str, Tensor]:
        """Return the labels as the model takes them."""
        if self.points.task != "span":
            return {"labels": labels}
        return {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}

    def _after(self, output: Any) -> Any:
        if self._depth:
            return None
        step, self._forward, self._off = self._forward, None, False
        if step is None or output is None:
            self._watch_eval(output)
            return None
        plan = step.plan
        assert plan is not None
        logits = self._logits(output)
        self._check_fired(step)
        if step.second is not None:
            step.mixed_logits = self._second_forward(step.second)
        if logits is None:
            raise UnsupportedModelError(f"{type(self.model).__name__} returns no logits")
        step.remember(logits)
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(Backward(self, step))
        if step.labels is not None:
            return _with_loss(output, self._pay(step, logits, step.labels, step.items))
        self._unpaid.add(step)
        self._waiting = step
        return output

    def _watch_eval(self, output: Any) -> None:
        """Warn if training begins in eval mode, as from_pretrained leaves a model: a backward before any mixed step."""
        if self._steps or self._told or self.model.training or not torch.is_grad_enabled() or not self.method.mixes:
            return

        def tell(gradient: Tensor) -> None:
            if not self._told and not self._steps:
                self._told = True
                warnings.warn(
                    f"{type(self.model).__name__} is in eval mode, so nothing was mixed in this step; call "
                    f"model.train() before training",
                    stacklevel=2,
                )

        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(tell)

    def _check_fired(self, step: Step) -> None:
        """Raise if a point was not reached: labels would be mixed without the features."""
        assert step.plan is not None
        if not step.plan.trivial and step.fired != len(self.sites):
            raise UnsupportedModelError(
                f"{step.fired} of {len(self.sites)} points of {self.method.name!r} were reached in this forward of "
                f"{type(self.model).__name__}: were modules replaced after attach, is layer drop on (set it to 0), or "
                f"was the model compiled before attach (attach first)?"
            )

    def _second_forward(self, step: Step) -> Tensor:
        """RegMixup: run the mixed forward after the plain one."""
        self._forward, self._depth = step, self._depth + 1
        try:
            with torch.compiler.set_stance("force_eager"):
                logits = self._logits(self.model(**step.inputs))
        finally:
            self._forward, self._depth = None, self._depth - 1
        assert logits is not None
        self._check_fired(step)
        if logits.requires_grad:
            logits.register_hook(Backward(self, step))
        return logits

    def _pay(self, step: Step, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        """Compute the loss that the plan of `step` asks for."""
        self._check_loss(step, labels)
        self._unpaid.discard(step)
        self._waiting = None
        criterion = self.criterion(logits, labels)
        loss = self._loss_of(step, criterion, logits, labels, items)
        if step.second is not None:
            assert step.mixed_logits is not None
            loss = loss + self._loss_of(step.second, criterion, step.mixed_logits, labels, items)
            step.mixed_logits = None
        step.payment = Payment(reached=not (loss.requires_grad and step.training))
        if step.second is not None:
            step.second.payment = step.payment
        if not step.payment.reached:
            loss.register_hook(Reached(step.payment))
        return loss

    def _loss_of(
        self, step: Step, criterion: Criterion, logits: Tensor, labels: Tensor, items: Tensor | int | None
    ) -> Tensor:
        plan = step.plan
        assert plan is not None
        if plan.trivial:
            return criterion.total(logits, labels, items)
        return self.method.loss(criterion, logits, labels, plan, step, items)

    def _check_loss(self, step: Step, labels: Tensor) -> None:
        """Once: the plain loss we mix must be the model's own, with what it adds in training."""
        if self._loss_checked:
            return
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        devices = sorted({p.device.index or 0 for p in self.model.parameters() if p.device.type == "cuda"})
        with self.quiet(training=None), torch.no_grad():
            with torch.random.fork_rng(devices=devices):
                output = self.model(**step.inputs, **self._give_labels(labels))
            with torch.random.fork_rng(devices=devices):
                alone = self._logits(self.model(**step.inputs))
            for buffer, before in buffers:
                if not torch.equal(buffer, before):  # running statistics; copying marks a buffer as changed
                    buffer.copy_(before)
        logits = self._logits(output)
        if logits is None:
            raise UnsupportedModelError(f"{type(self.model).__name__} returns no logits")
        # DeBERTa flattens the logits of a regression, but only where it is given labels.
        flat = torch.zeros(0) if alone is None else alone.flatten()
        if flat.numel() != logits.numel() or not torch.allclose(flat, logits.flatten(), rtol=1e-3, equal_nan=True):
            raise UnsupportedModelError(
                f"the logits of {type(self.model).__name__} depend on the labels it is given (a decoder that reads "
                f"them?) or on random numbers of its own, so that labels cannot be taken out and mixed"
            )
        own = output.get("loss") if hasattr(output, "get") else next((t for t in output if t.dim() == 0), None)
        # Some models compute their loss in float32 from logits of low precision.
        self._wide = own is not None and own.dtype == torch.float32 and logits.dtype in HALF
        plain = Criterion(self._kind(logits, labels), wide=self._wide)
        check_reproduces(plain.total(logits, labels), own, type(self.model).__name__)
        # The mean over no label at all is no number, and proves nothing.
        self._loss_checked = bool(own is not None and own.isfinite())

    @contextlib.contextmanager
    def quiet(self, training: bool | None = False) -> Iterator[None]:
        """Run the model as if it were neither attached nor compiled.

        Args:
            training: the mode to run in; None leaves every module as it is.
        """
        self._depth += 1
        forward, self._forward, off, self._off = self._forward, None, self._off, True
        try:
            with training_flags(self.model, training), torch.compiler.set_stance("force_eager"):
                yield
        finally:
            self._depth -= 1
            self._forward, self._off = forward, off
            # Weights cast without gradients must not serve the forward that follows in the same autocast.
            torch.clear_autocast_cache()

    def _end_backward(self) -> None:
        """Let go of what backward needed."""
        if self._backward is not None:
            self._backward.scratch.clear()
            self._backward = None

    def step_at(self, module: nn.Module) -> tuple[Step | None, bool]:
        """Return the step a point's hook belongs to now, and whether backward is recomputing it."""
        if self._forward is not None:
            return self._forward, False
        if self._off:
            return None, False
        if self._backward is not None and torch._C._current_graph_task_id() != -1:
            return self._backward, True
        if module.training and torch.is_grad_enabled():
            raise AttachError(
                f"{type(module).__name__} was called in training outside a forward of the attached "
                f"{type(self.model).__name__}; call the attached model itself, or detach first"
            )
        return None, False

    # --- losses ---

    def criterion(self, logits: Tensor, labels: Tensor) -> Criterion:
        """Return the per-row loss for these logits and labels."""
        method = self.method
        if method.loss_fn is not None:
            return Criterion("custom", function=method.loss_fn)
        kind = self._kind(logits, labels)
        if kind in ("regression", "span") and (method.class_weights is not None or method.label_smoothing):
            raise OptionError(f"class_weights and label_smoothing do not go with {kind} tasks")
        weights = None
        if method.class_weights is not None:
            if len(method.class_weights) != logits.shape[-1]:
                raise OptionError(
                    f"class_weights has {len(method.class_weights)} values but the model has {logits.shape[-1]} classes"
                )
            weights = torch.tensor(method.class_weights, device=logits.device)
        return Criterion(kind, weights, method.label_smoothing, wide=self._wide)

    def _kind(self, logits: Tensor, labels: Tensor) -> str:
        task = self.points.task
        return task if task != "sequence" else task_kind(base_config(self.model), logits, labels)

    def loss(self, logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the loss of a forward that was not given the labels: mixed in training, plain otherwise.

        Args:
            logits: the logits that the forward returned.
            labels: (B, ...), in the order of the batch.
            num_items_in_batch: what to normalise by, as Trainer gives it.
        """
        waiting = list(self._unpaid)
        own = [step for step in waiting if step.made(logits)]
        if not own and self.model.training and logits.requires_grad:
            own = waiting  # logits that were cast or reshaped
        if len(own) > 1:
            raise UnpaidLossError(
                f"{len(own)} forwards wait for their labels and these logits are none of theirs; pass the logits as "
                f"the model returned them"
            )
        if own:
            check_labels(labels, own[0].size)
            return self._pay(own[0], logits, labels, num_items_in_batch)
        if self.model.training and logits.requires_grad:
            raise UnpaidLossError(
                "no forward waits for its labels: these logits were paid for already, or were not made by a training "
                "forward of the attached model"
            )
        return self.criterion(logits, labels).total(logits, labels, num_items_in_batch)

    def compute_loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the loss for `Trainer(compute_loss_func=mixer.compute_loss)`."""
        logits = self._logits(outputs)
        if logits is None:
            raise BatchError("the outputs hold no logits")
        return self.loss(logits, labels, num_items_in_batch)

    # --- reporting ---

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain values, with the version of mixwell."""
        return {"mixwell_version": __version__, "method": self.method.name, "options": self.method.options()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a resumed run needs besides the random state: the count of steps, and what the method learned."""
        return {"steps": torch.tensor(self._steps), **self.method.state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a `state_dict` of a mixer with the same method."""
        state = dict(state)
        self._steps = int(state.pop("steps"))
        self.method.load_state(state)

    def callback(self) -> Any:
        """Return a TrainerCallback that tells the mixer how far training is and logs the last lam."""
        from mixwell.callback import make_callback

        return make_callback(self)


@dataclasses.dataclass(frozen=True)
class _Pin:
    lam: float | Tensor | None = None
    permutation: Tensor | None = None
    layer: int | None = None
    in_eval: bool = False


def _with_loss(output: Any, loss: Tensor) -> Any:
    """Return the output with the loss first."""
    if isinstance(output, Tensor):
        return (loss, output)
    if isinstance(output, tuple):
        return (loss, *output)
    rest = {key: value for key, value in output.items() if key != "loss"}
    kind: Any = type(output) if dataclasses.is_dataclass(output) else dict
    return kind(loss=loss, **rest)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def probe_step(mixer: Mixer) -> Step:
    """Return a step of made-up tokens, for methods that prove a pass at attach time."""
    return Step(mixer, dict(probe_inputs(mixer.model)))
