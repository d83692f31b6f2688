"""The probe: a forward of a few made-up tokens whose module calls are recorded."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mixwell.core.model import base_config, base_model, first_tensor, modules_outside_tuners, training_flags
from mixwell.utils.errors import AttachError, UnsupportedModelError


@dataclass
class Call:
    """One call of a module: what went in and came out, and when it began and ended."""

    name: str
    module: nn.Module
    input: Tensor | None
    output: Tensor | None = None
    single: bool = False  # whether the output is one tensor
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
            f"{type(model).__name__} has no transformers config, so no probe can be made; attach to the transformers "
            f"model inside it"
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


def trace_calls(model: nn.Module, inputs: dict[str, Tensor], training: bool = False) -> tuple[list[Call], Any]:
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
            calls.append(call)

        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, with_kwargs=True))
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()] if training else []
    try:
        # By name, since a task is told by the names of what comes out.
        named = {} if getattr(base_config(model), "return_dict", True) else {"return_dict": True}
        with torch.random.fork_rng(devices=devices), training_flags(model, training), torch.no_grad():
            output = model(**inputs, **named)
    except Exception as error:
        raise UnsupportedModelError(
            f"the probe of {type(model).__name__} failed "
            f"({type(error).__name__}: {(str(error) or '-').splitlines()[0]}); "
            f"only models that run on input_ids and attention_mask, or on pixel_values, can be mixed"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
        for buffer, before in buffers:
            if not torch.equal(buffer, before):  # running statistics
                buffer.copy_(before)
    return sorted(calls, key=lambda call: call.enter), output
