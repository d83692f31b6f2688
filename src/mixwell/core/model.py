"""What has to be known of a transformers model: its config, its outputs, its modules, its modes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def first_tensor(value: Any) -> Tensor | None:
    """Return the first floating tensor of a module's output or arguments."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            if isinstance(item, Tensor) and item.is_floating_point():
                return item
    return None


def is_tuner(module: nn.Module) -> bool:
    """Tell whether a module is an adapter around another layer (PEFT): points never descend into it."""
    return isinstance(getattr(module, "base_layer", None), nn.Module)


def modules_outside_tuners(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) like `named_modules`, but do not look inside adapters; shared modules come once."""
    seen: set[int] = set()

    def walk(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        yield name, module
        if is_tuner(module):
            return
        for key, child in module.named_children():
            yield from walk(child, f"{name}.{key}" if name else key)

    yield from walk(model, "")


def base_model(model: nn.Module) -> nn.Module:
    """Return the transformers model: the model itself, or the one that an adapter wraps (PEFT)."""
    getter: Any = getattr(model, "get_base_model", None)
    return model if getter is None else getter()


def base_config(model: nn.Module) -> Any:
    """Return the transformers config of a model or of the model an adapter wraps, or None."""
    return getattr(base_model(model), "config", None)


def pad_id(model: nn.Module) -> int | None:
    """Return the id that decoder heads take for padding: that of the text part of a config with several parts."""
    config = base_config(model)
    part = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(part, "pad_token_id", None)


@contextlib.contextmanager
def training_flags(model: nn.Module, training: bool | None) -> Iterator[None]:
    """Set every module's training flag and put back each one's own afterwards; None changes nothing."""
    flags = [(module, module.training) for module in model.modules()]
    for module, own in flags:
        module.training = own if training is None else training
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def logits_of(output: Any, task: str = "sequence") -> Tensor | None:
    """Return the logits of a model's output: the entry of that name, or the first tensor that is no scalar.

    Start and end logits of question answering are stacked to (B, 2, T).

    Args:
        output: what the model returned.
        task: of the model; needed where the output is a tuple without names.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        if "logits" in output:
            return output["logits"]
        if "start_logits" in output:
            return torch.stack([output["start_logits"], output["end_logits"]], 1)
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        tensors = [item for item in output if isinstance(item, Tensor) and item.is_floating_point() and item.dim() > 0]
        if task == "span" and len(tensors) > 1:
            return torch.stack(tensors[:2], 1)
        return tensors[0] if tensors else None
    return None


def main_output(output: Any, task: str = "sequence") -> Tensor | None:
    """Return what the loss of any module is computed from: its logits by name, or the first tensor with a row each.

    Args:
        output: what the module returned.
        task: as for `logits_of`.
    """
    if isinstance(output, dict) and "logits" not in output and "start_logits" not in output:
        for name in ("scores", "sentence_embedding"):  # sentence-transformers
            if isinstance(output.get(name), Tensor):
                return output[name]
    return logits_of(output, task)


def last_token(ids: Tensor, pad: int | None) -> Tensor:
    """Return the place of each row's last token that is not padding, as transformers' decoder heads pool: (B,)."""
    if pad is None:
        return torch.full(ids.shape[:1], ids.shape[1] - 1, device=ids.device)
    return (torch.arange(ids.shape[1], device=ids.device) * (ids != pad)).argmax(1)
