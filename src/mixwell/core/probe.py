"""The probe: a forward of a few made-up tokens, or of the user's example, whose module calls are recorded."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mixwell.core.arguments import Form, Inputs, ShapedInputs
from mixwell.core.model import (
    base_config,
    base_model,
    first_tensor,
    main_output,
    modules_outside_tuners,
    training_flags,
)  # fmt: skip
from mixwell.utils.errors import AttachError, UnsupportedModelError


@dataclass
class Call:
    """One call of a module: what went in and came out, and when it began and ended."""

    name: str
    module: nn.Module
    input: Tensor | None
    output: Tensor | None = None
    single: bool = False  # whether the output is one tensor
    key: str = ""  # where in the output the tensor lies, if that is a dict
    enter: int = 0
    leave: int = 0


def probe_inputs(model: nn.Module, rows: int = 2, length: int = 8, last: int = 0) -> dict[str, Tensor]:
    """Make up a small valid batch: token ids, or pixels for a model that reads images.

    Args:
        model: the model; its config gives the vocabulary and the special ids.
        rows: B.
        length: T.
        last: added to the last word before the end, to see what depends on it.

    Returns:
        input_ids (B, T) and attention_mask (B, T), or pixel_values (B, C, H, W).
    """
    config = base_config(model)
    if config is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no transformers config, so no probe can be made up; pass a batch of yours, "
            f"attach(model, method, example=batch): a tensor, a tuple of positional arguments or a dict of named ones"
        )
    parameter = next(model.parameters())
    if parameter.device.type == "meta":
        raise AttachError("the model's weights are on the meta device; load them before attach")
    if getattr(base_model(model), "main_input_name", "input_ids") == "pixel_values":
        vision = getattr(config, "vision_config", config)
        if not hasattr(vision, "image_size") or not hasattr(vision, "num_channels"):
            raise UnsupportedModelError(
                f"the config of {type(model).__name__} does not say how large its images are, so no probe can be made"
            )
        side = vision.image_size
        height, width = (side, side) if isinstance(side, int) else side
        count = rows * vision.num_channels * height * width
        pixels = torch.linspace(-1, 1, count).view(rows, vision.num_channels, height, width)
        return {"pixel_values": pixels.to(parameter)}
    vocabulary = int(getattr(config, "vocab_size", None) or getattr(config.get_text_config(), "vocab_size", None) or 0)
    if vocabulary < 8:
        raise UnsupportedModelError(f"{type(model).__name__} has no vocabulary in its config, and reads no images")
    special = {getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "decoder_start")}
    words = [word for word in range(vocabulary) if word not in special][: rows * length + 2]
    ids = torch.tensor([[words[(row * length + place) % len(words)] for place in range(length)] for row in range(rows)])
    ids[:, -2] = words[(words.index(int(ids[0, -2])) + last) % len(words)]
    eos = getattr(config, "eos_token_id", None)
    if isinstance(eos, int) and 0 <= eos < vocabulary:
        ids[:, -1] = eos  # encoder-decoder classifiers pool there
    ids = ids.to(parameter.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class Probe:
    """One recorded forward of a model, in eval mode.

    Attributes:
        model: the model.
        inputs: what it was run on.
        calls: the calls of its modules, in order.
        output: what it returned.
        shaped: whether the inputs are the user's example.
    """

    def __init__(self, model: nn.Module, inputs: Inputs | None = None) -> None:
        self.model = model
        self.shaped = inputs is not None
        self.inputs = Inputs(probe_inputs(model)) if inputs is None else inputs
        self.calls, self.output = trace_calls(model, self.inputs)
        self._fewer: dict[int, Call] = {}
        if self.shaped:
            self._find_batch()

    @property
    def form(self) -> Form | None:
        """How the module is called; None for the names of transformers."""
        if not isinstance(self.inputs, ShapedInputs):
            return None
        return replace(self.inputs.form, axis=self.inputs.axis)

    @property
    def modality(self) -> str:
        """What the model reads."""
        if not self.shaped:
            return "image" if "pixel_values" in self.inputs else "text"
        if "input_ids" in self.inputs:
            return "text"
        return "image" if self.inputs[self.inputs.anchor].dim() == 4 else "features"

    @property
    def choices(self) -> bool:
        """Whether a row is several texts to choose from."""
        return self.shaped and "input_ids" in self.inputs and self.inputs["input_ids"].dim() == 3

    def trained(self) -> list[Call]:
        """Return the calls of a forward in training mode."""
        return trace_calls(self.model, self.inputs, training=True)[0]

    def with_other_end(self) -> dict[int, Call] | None:
        """Return the calls, by when they began, of a forward with another last word; None if there are no words."""
        if not self.shaped:
            other = probe_inputs(self.model, last=1)
            if "input_ids" not in other:
                return None
            return {call.enter: call for call in trace_calls(self.model, Inputs(other))[0]}
        inputs, x = self.inputs.copy(), self.inputs[self.inputs.anchor]
        rows = x.movedim(self.inputs.axis, 0)
        if rows.dim() not in (2, 3) or (rows.dim() == 2 and rows.is_floating_point()):
            return None
        places = torch.arange(rows.shape[1], device=x.device).expand(rows.shape[:2])
        mask = self.inputs.get("attention_mask")
        if isinstance(mask, Tensor) and mask.shape == rows.shape[:2]:
            places = places * mask.bool()
        ends = places.max(1).values
        changed, every = rows.clone(), torch.arange(len(rows), device=x.device)
        changed[every, ends] = rows[every, ends - 1] if rows.is_floating_point() else rows[every, 0]
        if rows.is_floating_point():
            changed[every, ends] += 1
        inputs[inputs.anchor] = changed.movedim(0, inputs.axis)
        return {call.enter: call for call in trace_calls(self.model, inputs)[0]}

    def makes_output(self, call: Call) -> bool:
        """Tell whether the output depends on what a module gives."""
        before = main_output(self.output)
        handle = call.module.register_forward_hook(lambda module, args, output: output + 1)
        try:
            after = main_output(trace_calls(self.model, self.inputs)[1])
        finally:
            handle.remove()
        return before is not None and after is not None and not torch.equal(before, after)

    def axis(self, call: Call, what: str = "output") -> int | None:
        """Return the batch axis of what a module reads or gives; None if it has none."""
        if not self.shaped:
            return 0
        fewer = self._fewer.get(call.enter)
        a, b = getattr(call, what), None if fewer is None else getattr(fewer, what)
        if a is None or b is None or a.dim() != b.dim():
            return None
        different = [axis for axis in range(a.dim()) if a.shape[axis] != b.shape[axis]]
        return different[0] if len(different) == 1 else None

    def _find_batch(self) -> None:
        """Find the batch axis of the inputs: with a row less, the output must have a row less."""
        given = self.inputs.axis
        before = main_output(self.output)
        if before is None:
            raise UnsupportedModelError(f"{type(self.model).__name__} returns no tensor of numbers in its forward")
        for axis in (0, 1) if given < 0 else (given,):
            self.inputs.axis = axis
            fewer = _one_row_less(self.inputs)
            if fewer is None:
                continue
            try:
                calls, output = trace_calls(self.model, fewer)
            except UnsupportedModelError:
                continue
            after = main_output(output)
            if after is not None and _lost_a_row(before, after, self.inputs[self.inputs.anchor].shape[axis]):
                self._fewer = {call.enter: call for call in calls}
                self._check_attention(axis)
                return
        self.inputs.axis = max(given, 0)
        raise UnsupportedModelError(
            f"it is unclear which axis of {self.inputs.anchor!r}, {tuple(self.inputs[self.inputs.anchor].shape)}, is "
            f"the batch: leaving out a row of the example does not leave out one of the output. Pass an example of at "
            f"least two rows, and batch_dim= if the batch is not the first axis"
        )

    def _check_attention(self, axis: int) -> None:
        for call in self.calls:
            if isinstance(call.module, nn.MultiheadAttention) and call.input is not None and call.input.dim() == 3:
                wanted = 0 if call.module.batch_first else 1
                if self.axis(call, "input") != wanted:
                    raise UnsupportedModelError(
                        f"{call.name!r} reads its batch at axis {wanted} (batch_first={call.module.batch_first}), but "
                        f"with batch_dim={axis} its rows lie elsewhere; pass batch_dim={1 - axis}, or an example of "
                        f"the shape that the model is trained on"
                    )


def _one_row_less(inputs: Inputs) -> Inputs | None:
    anchor = inputs[inputs.anchor]
    if anchor.dim() <= inputs.axis or (rows := anchor.shape[inputs.axis]) < 2:
        return None
    fewer = inputs.copy()
    for name, value in inputs.items():
        if not isinstance(value, Tensor):
            continue
        axes = [axis for axis in range(min(value.dim(), 2)) if value.shape[axis] == rows]
        axis = inputs.axis if name == inputs.anchor else next(iter(axes), None)
        if axis is not None:
            fewer[name] = value.narrow(axis, 0, rows - 1)
    return fewer


def _lost_a_row(before: Tensor, after: Tensor, rows: int) -> bool:
    """Tell whether one axis of an output shrank with the batch, and no other."""
    if before.dim() != after.dim():
        return False
    different = [(a, b) for a, b in zip(before.shape, after.shape) if a != b]
    return len(different) == 1 and different[0][0] * (rows - 1) == different[0][1] * rows


def trace_calls(model: nn.Module, inputs: Inputs, training: bool = False) -> tuple[list[Call], Any]:
    """Run the model once, its random state untouched, and record every module's calls in order."""
    calls: list[Call] = []
    open_calls: list[Call] = []
    clock = itertools.count()
    handles = []
    for name, module in modules_outside_tuners(model):
        if not name:
            continue

        def enter(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            value = first_tensor(args)
            open_calls.append(Call(name, module, first_tensor(kwargs) if value is None else value, enter=next(clock)))

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            call = open_calls.pop()
            call.output, call.leave = first_tensor(output), next(clock)
            call.single = call.output is output
            if isinstance(output, dict) and type(output) is dict:
                call.output = main_output(output)
                call.key = next((key for key, value in output.items() if value is call.output), "")
            calls.append(call)

        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, with_kwargs=True))
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()] if training else []
    try:
        # By name, since a task is told by the names of what comes out.
        shaped = bool(inputs.anchor)
        named = {} if shaped or getattr(base_config(model), "return_dict", True) else {"return_dict": True}
        args, kwargs = inputs.call()
        with torch.random.fork_rng(devices=devices), training_flags(model, training), torch.no_grad():
            output = model(*args, **kwargs, **named)
    except Exception as error:
        way_out = (
            "the example must be what the model is called with: a tensor, a tuple of positional arguments or a dict of "
            "named ones"
            if inputs.anchor
            else "a model that does not run on input_ids and attention_mask, or on pixel_values, needs a batch of "
            "yours: attach(model, method, example=batch)"
        )
        raise UnsupportedModelError(
            f"the probe of {type(model).__name__} failed "
            f"({type(error).__name__}: {(str(error) or '-').splitlines()[0]}); {way_out}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
        for buffer, before in buffers:
            if not torch.equal(buffer, before):  # running statistics
                buffer.copy_(before)
    return sorted(calls, key=lambda call: call.enter), output
