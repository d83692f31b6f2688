"""Outputs whose losses are mixed as torch computes them, for trainers that keep both labels and loss to themselves.

`F.cross_entropy(output, labels)` and its like see the labels: that is where they can be mixed without a change to the
trainer. The outputs are tensors of a subclass that knows its step. Simple operations (a cast, a linear head) keep it;
all others lose it, and a loss from there on is an error in backward, as it is without tracking.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mixwell.core.blend import spread
from mixwell.core.loss import check_labels
from mixwell.core.outputs import changed
from mixwell.core.step import Step
from mixwell.utils.errors import OptionError

if TYPE_CHECKING:
    from mixwell.core.flow import Flow

# Losses of (input, target, ..., reduction=).
_LOSSES = {
    F.cross_entropy, F.nll_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.mse_loss, F.l1_loss,
    F.smooth_l1_loss, F.huber_loss, F.kl_div, F.soft_margin_loss, F.multilabel_soft_margin_loss, F.multi_margin_loss,
    F.multilabel_margin_loss,
}  # fmt: skip
# What works on each row by itself and leaves rows in their order.
_ROWWISE = {
    Tensor.view, Tensor.reshape, Tensor.squeeze, Tensor.unsqueeze, Tensor.flatten, Tensor.float, Tensor.double,
    Tensor.half, Tensor.bfloat16, Tensor.to, Tensor.type, Tensor.contiguous, Tensor.clone, Tensor.neg, Tensor.mul,
    Tensor.div, Tensor.add, Tensor.sub, Tensor.sigmoid, Tensor.tanh, Tensor.softmax, Tensor.log_softmax, Tensor.exp,
    Tensor.log, Tensor.relu, Tensor.clamp, Tensor.__mul__, Tensor.__rmul__, Tensor.__truediv__, Tensor.__add__,
    Tensor.__radd__, Tensor.__sub__, Tensor.__neg__, torch.mul, torch.div, torch.add, torch.sub, torch.sigmoid,
    torch.tanh, torch.softmax, torch.log_softmax, torch.squeeze, torch.unsqueeze, torch.flatten, torch.reshape,
    torch.relu, torch.clamp, F.linear, F.dropout, F.relu, F.gelu, F.silu, F.tanh, F.sigmoid, F.softmax, F.log_softmax,
    F.logsigmoid, F.layer_norm, F.normalize,
}  # fmt: skip
_WITH_WEIGHTS = {F.linear, F.layer_norm}


class Tracked(Tensor):
    """An output of a forward that was mixed, with the step and the flow it belongs to."""

    step: Step
    flow: Flow

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Mix what is a loss; carry the step on through what works on rows."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func in _LOSSES:
                return _loss(func, args, kwargs)
            result = func(*args, **kwargs)
            if not isinstance(result, Tensor):
                return result
            step = _common_step(func, args, kwargs) if func in _ROWWISE else None
            if step is None:
                return result.as_subclass(Tensor) if isinstance(result, Tracked) else result
            return _track(result, step.flow, step.step) if result.shape[:1] == (step.step.size,) else result


def tracked(output: Any, flow: Flow, step: Step) -> Any:
    """Return a forward's output with its tensors tracked."""
    return changed(output, lambda tensor: _track(tensor, flow, step) if tensor.requires_grad else tensor)


def _track(tensor: Tensor, flow: Flow, step: Step) -> Tracked:
    result = tensor.as_subclass(Tracked)
    result.step, result.flow = step, flow
    return result


def _common_step(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tracked | None:
    """Return a tracked argument if all rows in the call are its own; None where others might be mixed in."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    known = [value for value in tensors if isinstance(value, Tracked)]
    if not known or any(value.step is not known[0].step for value in known):
        return None
    if func in _WITH_WEIGHTS:
        return known[0] if known[0] is tensors[0] else None
    size = known[0].step.size
    others = [value for value in tensors if not isinstance(value, Tracked)]
    return None if any(value.dim() == known[0].dim() and value.shape[0] == size for value in others) else known[0]


def _loss(func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return a loss of torch with its targets mixed by the plan of the step."""
    bound = inspect.signature(func).bind(*args, **kwargs)
    given = dict(bound.arguments)
    first, second = list(inspect.signature(func).parameters)[:2]
    # Some write mse_loss(target, output).
    outputs, target = (first, second) if isinstance(given[first], Tracked) else (second, first)
    logits, labels = given[outputs], given[target]
    step, flow, plan = logits.step, logits.flow, logits.step.plan
    if isinstance(labels, Tracked):
        raise OptionError("a loss between outputs of mixed forwards has no labels: compute it with mixer.mixed")
    if step.second is not None:
        raise OptionError("regularise=True has two losses a step: use mixer.loss(logits, labels) or loss_fn=")
    check_labels(labels, step.size)
    step.trusted = True  # gradient comes through the output
    plain = logits.as_subclass(Tensor)
    own = func(**{**given, outputs: plain})
    if plan.plain:
        return flow.losses.pay(own, [step])
    reduction = given.get("reduction", "mean")
    rows = {**given, outputs: plain, "reduction": "none"}
    partner = labels.index_select(0, plan.permutation.to(labels.device))
    gap = func(**{**rows, target: partner}) - func(**rows)
    gap = (1 - spread(flow.mixer.method.weight_of_labels(plan).to(gap), gap)) * gap
    if reduction != "none":
        gap = gap.sum() / _items(func, reduction, gap, labels, given)
    return flow.losses.pay(own + gap, [step])


def _items(
    func: Callable[..., Tensor], reduction: str, rows: Tensor, labels: Tensor, given: dict[str, Any]
) -> Tensor | int:
    """Return what a loss of torch divides the sum of its values by."""
    if reduction == "sum":
        return 1
    if reduction == "batchmean":
        return rows.shape[0]
    if func not in (F.cross_entropy, F.nll_loss) or labels.is_floating_point():
        return rows.numel()
    ignored = labels == given.get("ignore_index", -100)
    weight = given.get("weight")
    if weight is None:
        return (~ignored).sum()
    return (weight[labels.clamp(min=0)] * ~ignored).sum()
