"""Extra passes over the unmixed batch that some methods need before the forward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mixwell.core.step import Step, first_input, replace_input
from mixwell.utils.errors import UnsupportedModelError


class _Enough(Exception):
    """Stops a pass that has seen what it was run for."""


def attention_weights(step: Step, block: int) -> Tensor:
    """Return the attention weights of one block on the unmixed batch, running the model only that far.

    No gradients, no dropout, random state untouched.

    Args:
        step: the step that is being opened.
        block: the block's number, from 0.

    Returns:
        (B, H, T, T), weights over keys for each query.
    """
    points = step.mixer.points
    head = points.heads[block]
    turn = points.heads[:block].count(head)
    seen = 0
    weights: list[Tensor] = []

    def catch(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal seen
        seen += 1
        if seen <= turn:
            return
        weights.extend(square_tensors(output)[-1:])
        raise _Enough

    handle = head.register_forward_hook(catch)
    try:
        # Most models return their weights under eager attention; some only when asked.
        for asked in ({}, {"output_attentions": True}) if points.form is None else ({},):
            seen = 0
            with step.mixer.flow.plain_model(), torch.no_grad(), eager_attention(step.mixer.model):
                with contextlib.suppress(_Enough):
                    step.call(**asked)
            if weights:
                break
    finally:
        handle.remove()
    if not weights:
        raise UnsupportedModelError(
            f"block {block} of {type(step.mixer.model).__name__} gives no attention weights under eager "
            f"attention; a method that reads them cannot be used"
        )
    if step.first_time("attention weights") and not is_attention(weights[0]):
        raise UnsupportedModelError(
            f"what block {block} of {type(step.mixer.model).__name__} returns with its output are no attention "
            f"weights (shares of the keys, for each row and query); a method that reads them cannot be used"
        )
    return weights[0]


def embedding_gradient(step: Step) -> Tensor:
    """Return d loss / d embedding output on the unmixed batch, dropout off, parameters' gradients untouched.

    Args:
        step: the step that is being opened; its labels are known.

    Returns:
        (B, T, d)
    """
    point = step.mixer.points.get("embeddings")[0]
    assert step.labels is not None
    kept: list[Tensor] = []

    def catch(module: nn.Module, args: Any, kwargs: Any, output: Any = None) -> Any:
        x = output if point.how == "output" else first_input(args, kwargs)
        kept.append(x.detach().requires_grad_(True))
        return kept[-1] if point.how == "output" else replace_input(args, kwargs, kept[-1])

    register = point.module.register_forward_hook if point.how == "output" else point.module.register_forward_pre_hook
    handle = register(catch, with_kwargs=True)
    try:
        with step.mixer.flow.plain_model(), torch.enable_grad():
            logits = step.mixer.flow.logits(step.call())
            assert logits is not None
            loss = step.mixer.criterion(logits, step.labels).total(logits, step.labels)
            kind = step.device.type
            if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16:
                loss = loss * 2.0**14  # else most of it underflows; only ratios are used
            (gradient,) = torch.autograd.grad(loss, kept[:1])
    except (RuntimeError, AssertionError, AttributeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or not hasattr(step.mixer.model, "unshard"):
            raise
        raise UnsupportedModelError(
            f"method {step.mixer.method.name!r} needs a pass of its own, which this sharded model cannot do "
            f"({' '.join(str(error).split())[:120]}); use DistributedDataParallel, or another method"
        ) from error
    finally:
        handle.remove()
    unshard: Any = getattr(step.mixer.model, "unshard", None)
    if unshard is not None:
        unshard()  # FSDP gathered the weights for the forward we are in; our backward let them go
    return gradient


def square_tensors(output: Any) -> list[Tensor]:
    """Return the (., H, T, T) tensors among a module's outputs: attention weights come last (T5: after the bias)."""
    values = output if isinstance(output, tuple) else ()
    return [v for v in values if isinstance(v, Tensor) and v.dim() == 4 and v.shape[-1] == v.shape[-2]]


def is_attention(weights: Tensor) -> bool:
    """Tell whether a tensor holds shares of the keys: not negative, and in sum at most 1 (a sink may take the rest)."""
    return bool((weights >= 0).all() & (weights.float().sum(-1) < 1.01).all())


@contextlib.contextmanager
def eager_attention(model: nn.Module) -> Iterator[None]:
    """Run with eager attention, the only one that returns its weights."""
    configs: dict[int, Any] = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    before = [
        (config, config._attn_implementation_internal)
        for config in configs.values()
        if getattr(config, "_attn_implementation_internal", None) is not None
    ]
    for config, _ in before:
        config._attn_implementation_internal = "eager"
    try:
        yield
    finally:
        for config, value in before:
            config._attn_implementation_internal = value
