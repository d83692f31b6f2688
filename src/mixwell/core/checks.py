"""What is checked before a method is attached to a model."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mixwell.core.arguments import takes_labels
from mixwell.core.hooks import is_inert
from mixwell.core.method import Method
from mixwell.core.model import base_model
from mixwell.core.points import Points
from mixwell.utils.errors import AttachError, UnsupportedModelError

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer

MIXERS: weakref.WeakSet[Mixer] = weakref.WeakSet()  # all there are


def check_attachable(model: Any, again: bool = False) -> None:
    """Raise if a model cannot be attached to; remove what a copy of an attached model kept of its hooks.

    Args:
        model: to attach to.
        again: it may have a mixer, which will be replaced.

    Raises:
        AttachError: it is wrapped, compiled, or has a mixer in it or around it.
    """
    if isinstance(model, str):
        raise AttachError(
            f"{model!r} is a name: attach needs the model itself, such as "
            f"AutoModelForSequenceClassification.from_pretrained(...); mixwell.train takes names (model='minilm')"
        )
    if not isinstance(model, nn.Module):
        raise AttachError(
            f"{type(model).__name__} is no torch module: attach to the module in it that is trained, and whose "
            f"forward is called"
        )
    if isinstance(model, nn.DataParallel):
        raise AttachError(
            "nn.DataParallel copies the model in every forward and cannot be mixed; use DistributedDataParallel "
            "(torchrun or accelerate launch), or one device"
        )
    if (getattr(model, "tp_size", None) or 1) > 1:
        raise AttachError(
            "a tensor-parallel model cannot be mixed: its processes share each batch but would draw partners of their "
            "own; use data parallelism (DDP, FSDP)"
        )
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise AttachError("attach to the model before it is wrapped in DistributedDataParallel (or to model.module)")
    fsdp = sys.modules.get("torch.distributed.fsdp")  # a second to import; not there: nothing is sharded
    if fsdp is not None and any(
        isinstance(module, (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)) for module in model.modules()
    ):
        raise AttachError("the model is sharded already; attach first, then fully_shard (or FullyShardedDataParallel)")
    if any(
        isinstance(module, torch._dynamo.eval_frame.OptimizedModule)
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    ):
        raise AttachError("the model is compiled already and would ignore the hooks; attach first, then torch.compile")
    _check_mixers(model, again)
    _remove_inert(model)


def _check_mixers(model: nn.Module, again: bool) -> None:
    """Raise if a mixer is attached to the model, to a part of it, or to what it is a part of."""
    inside = set(map(id, model.modules()))
    for other in list(MIXERS):
        if not other.attached:
            continue
        if other.model is model:
            if again:
                continue
            raise AttachError(
                f"the model already has {other.method.name!r} attached; call its detach() first, or use the mixer "
                f"you have"
            )
        if id(other.model) in inside:
            raise AttachError(
                f"a part of this model ({type(other.model).__name__}) has {other.method.name!r} attached; detach it, "
                f"then attach to the whole model (with PEFT: attach after get_peft_model)"
            )
        if any(module is model for module in other.model.modules()):
            raise AttachError(
                f"this model is a part of {type(other.model).__name__}, which has {other.method.name!r} attached; only "
                f"the outermost model is attached"
            )


def _remove_inert(model: nn.Module) -> None:
    """Remove what a copy of an attached model kept of its hooks."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if is_inert(hook)]:
                del hooks[key]  # left in a copy of an attached model
                for flags in (
                    module._forward_hooks_with_kwargs,
                    module._forward_hooks_always_called,
                    module._forward_pre_hooks_with_kwargs,
                ):
                    flags.pop(key, None)


def check_task(method: Method, points: Points, model: nn.Module) -> None:
    """Raise if a method cannot serve what the model is for."""
    what = {"sequence": "one label per row", "token": "one label per token", "span": "start and end positions"}
    if points.task not in method.tasks:
        raise UnsupportedModelError(
            f"method {method.name!r} needs {what[method.tasks[0]]}, but {type(model).__name__} predicts "
            f"{what[points.task]}; mixwell.inspect(model) lists the methods that fit"
        )
    if method.needs_labels and points.form is not None and not takes_labels(model):
        raise UnsupportedModelError(
            f"method {method.name!r} needs the labels before the forward, but the forward of {type(model).__name__} "
            f"has no argument labels= that can be left out; use another method"
        )
    reads = "image" if points.modality == "features" else points.modality
    if reads not in method.modalities:
        raise UnsupportedModelError(
            f"method {method.name!r} works on {' and '.join(method.modalities)}, but {type(model).__name__} reads "
            f"{points.modality}s"
        )


def check_no_prompt(method: Method, model: nn.Module) -> None:
    """Raise if an adapter puts tokens of its own before the text, for methods that deal with tokens one by one."""
    configs = getattr(model, "peft_config", None)
    for name, config in configs.items() if isinstance(configs, dict) else ():
        if getattr(config, "is_prompt_learning", False):
            raise UnsupportedModelError(
                f"method {method.name!r} reads the tokens of a text one by one, and the adapter {name!r} (prompt "
                f"tuning) puts tokens of its own before them; use another method, or LoRA"
            )


def adapters(model: nn.Module) -> list[str]:
    """Return the names of the PEFT adapters in a model; PEFT leaves them on the model it changes."""
    return list(getattr(base_model(model), "peft_config", None) or ())
