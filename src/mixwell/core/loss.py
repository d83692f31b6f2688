"""Losses a row at a time, and their weighted sum under a plan.

The mixed loss is the two-term form of AMPLIFY, eq. 8: the mean over rows of w * l(logits, y) + (1 - w) * l(logits,
y[perm]). It is computed as the model's own loss plus the mean of (1 - w) * (l(logits, y[perm]) - l(logits, y)), so that
w = 1 gives the model's own loss and gradients bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mixwell.utils.errors import BatchError, LossMismatchError, OptionError

IGNORE = -100
HALF = (torch.float16, torch.bfloat16)
PROBLEMS = ("single_label", "soft_label", "multi_label", "regression")
LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Criterion:
    """The per-row loss l for one kind of task.

    Attributes:
        kind: `single_label`, `soft_label` (probabilities), `multi_label`, `regression`, `token`, `span` or `custom`.
        class_weights: (C,) weights of the classes, or None.
        label_smoothing: share of the label spread evenly over all classes.
        function: for `custom`: (logits, labels) -> (B,).
        wide: the model's loss is float32 though its logits are of lower precision.
    """

    kind: str
    class_weights: Tensor | None = None
    label_smoothing: float = 0.0
    function: LossFunction | None = None
    wide: bool = False

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of l over the items of each row.

        Args:
            logits: (B, C), or (B, T, C) for token labels.
            labels: (B,), (B, C) or (B, T).

        Returns:
            (B,)
        """
        logits = self._widened(logits)
        if self.kind == "custom":
            assert self.function is not None
            values = self.function(logits, labels)
            if values.shape != logits.shape[:1]:
                raise OptionError(
                    f"loss_fn must return one value a row, shape ({logits.shape[0]},), but returned "
                    f"{tuple(values.shape)}; use reduction='none' inside it"
                )
            return values
        if self.kind == "single_label":
            return self._cross_entropy(logits, labels.view(-1))
        if self.kind == "soft_label":
            return self._cross_entropy(logits, labels.to(logits.dtype))
        if self.kind == "token":
            flat = self._cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
            return flat.view(labels.shape).sum(1)
        if self.kind == "span":
            labels = labels.clamp(0, logits.shape[-1])
            ends = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=logits.shape[-1], reduction="none")
            return (ends / (labels < logits.shape[-1]).sum(0)).sum(1) / 2
        return self._elementwise(logits, labels, "none").reshape(labels.shape[0], -1).sum(1)

    def table(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return l for every pair of a row of logits and a row of labels.

        Args:
            logits: (n, C).
            labels: (B,) or (B, C).

        Returns:
            (n, B), the mean of l over the items of a row of labels.
        """
        n, size = logits.shape[0], labels.shape[0]
        wide = logits.unsqueeze(1).expand(n, size, logits.shape[-1]).reshape(n * size, -1)
        tall = labels.unsqueeze(0).expand(n, *labels.shape).reshape(n * size, *labels.shape[1:])
        return self.rows(wide, tall).view(n, size) / self.items_a_row(labels)

    def total(self, logits: Tensor, labels: Tensor, items: Tensor | int | None = None) -> Tensor:
        """Return the loss over the batch, reduced as the models of transformers reduce it.

        Args:
            logits: as for `rows`.
            labels: as for `rows`.
            items: `num_items_in_batch` of Trainer: the items of all batches that make up one optimiser step.

        Returns:
            A scalar.
        """
        logits, labels = self._widened(logits), labels.to(logits.device)
        if self.kind != "span" and (items is not None or self.kind == "custom" or self.class_weights is not None):
            return self.rows(logits, labels).sum() / self.items(logits, labels, items)
        if self.kind == "single_label":
            return F.cross_entropy(logits, labels.view(-1), label_smoothing=self.label_smoothing)
        if self.kind == "soft_label":
            return F.cross_entropy(logits, labels.to(logits.dtype), label_smoothing=self.label_smoothing)
        if self.kind == "token":
            flat = logits.reshape(-1, logits.shape[-1])
            return F.cross_entropy(flat, labels.reshape(-1), label_smoothing=self.label_smoothing)
        if self.kind == "span":
            return sum(
                F.cross_entropy(
                    logits[:, end], labels[:, end].clamp(0, logits.shape[-1]), ignore_index=logits.shape[-1]
                )
                for end in (0, 1)
            ) / torch.tensor(2.0, dtype=logits.dtype, device=logits.device)
        return self._elementwise(logits, labels, "mean")

    def items(self, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor | float:
        """Return what the sum of the rows is divided by; counts labels the way Trainer does."""
        if self.kind == "custom":
            if items is None:
                return logits.shape[0]
            # One value a row: its share of a step is that of this batch's labels.
            return _move(items, logits.device) * logits.shape[0] / (labels != IGNORE).sum().to(logits.device)
        if self.kind == "span":
            return 1
        if self.kind == "soft_label":  # Trainer counts every probability as a label
            return logits.shape[0] if items is None else _move(items, logits.device) / logits.shape[-1]
        if items is not None:
            return _move(items, logits.device)
        if self.kind in ("single_label", "token"):
            return (labels != IGNORE).sum().to(logits.device)
        return labels.numel()

    @staticmethod
    def items_a_row(labels: Tensor) -> int:
        """Return how many labels one row carries."""
        return max(labels[:1].numel(), 1)

    def _widened(self, logits: Tensor) -> Tensor:
        # Multi-label and regression losses become float32 by their labels alone.
        cross_entropy = self.kind in ("single_label", "soft_label", "token", "span")
        return logits.float() if self.wide and cross_entropy else logits

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        weights = None if self.class_weights is None else self.class_weights.to(logits)
        return F.cross_entropy(logits, labels, weight=weights, label_smoothing=self.label_smoothing, reduction="none")

    def _elementwise(self, logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
        labels = labels.to(torch.float32 if self.wide else logits.dtype)
        if self.kind == "regression":
            return F.mse_loss(logits.reshape(labels.shape), labels, reduction=reduction)
        if logits.shape != labels.shape:  # one logit a row
            logits = logits.reshape(labels.shape)
        if self.label_smoothing:
            labels = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        weights = None if self.class_weights is None else self.class_weights.to(logits)
        return F.binary_cross_entropy_with_logits(logits, labels, weight=weights, reduction=reduction)


def _move(items: Tensor | int, device: torch.device) -> Tensor | int:
    return items.to(device) if isinstance(items, Tensor) else items


def task_kind(config: Any, logits: Tensor, labels: Tensor) -> str:
    """Tell the kind of task from the labels, as the models of transformers do."""
    problem = getattr(config, "problem_type", None)
    classes = getattr(config, "num_labels", logits.shape[-1])
    if problem == "regression" or (problem is None and classes == 1):
        return "regression"
    if problem == "multi_label_classification" or (problem is None and labels.is_floating_point()):
        return "multi_label"
    return "single_label"


def kind_of_targets(logits: Tensor, labels: Tensor) -> str:
    """Tell the kind of task of any module from logits and labels; looks at values.

    Raises:
        OptionError: they could be of two kinds.
    """
    if not labels.is_floating_point():
        return "single_label"
    binary = bool(((labels == 0) | (labels == 1)).all())
    if logits.dim() < 2 or logits.shape[-1] == 1:
        if not binary:
            return "regression"
        raise OptionError(
            "labels of 0 and 1 for one logit a row may be classes or values: pass attach(..., problem='multi_label') "
            "for binary cross-entropy, or problem='regression' for the squared error"
        )
    sums = bool(torch.allclose(labels.sum(-1).float(), torch.ones((), device=labels.device), atol=1e-2))
    if sums and not binary and bool((labels >= 0).all()):
        return "soft_label"
    if binary and not sums:
        return "multi_label"
    raise OptionError(
        f"labels of numbers, {tuple(labels.shape)}, may be of several kinds: pass attach(..., problem='soft_label') "
        f"for probabilities or one-hot classes, 'multi_label' for independent classes, or 'regression'"
    )


def mixed_loss(
    criterion: Criterion,
    logits: Tensor,
    labels: Tensor,
    permutation: Tensor,
    weight: Tensor,
    items: Tensor | int | None = None,
) -> Tensor:
    """Return the mean over rows of lerp(l(logits, y[perm]), l(logits, y), w).

    Args:
        criterion: the per-row loss l.
        logits: (B, C) or (B, T, C).
        labels: (B, ...).
        permutation: (B,), the same that mixed the features.
        weight: (B,) or one value: the weight of a row's own label.
        items: `num_items_in_batch`, see `Criterion.total`.
    """
    # A model over several devices has its logits on another one than its inputs.
    labels, permutation, weight = (value.to(logits.device) for value in (labels, permutation, weight))
    own = criterion.total(logits, labels, items)
    gap = criterion.rows(logits, labels.index_select(0, permutation)) - criterion.rows(logits, labels)
    return own + ((1 - weight.to(gap.dtype)) * gap).sum() / criterion.items(logits, labels, items)


def check_labels(labels: Tensor, rows: int) -> None:
    """Raise unless there is one entry of labels for each row."""
    if labels.shape[:1] != (rows,):
        raise BatchError(f"the labels have shape {tuple(labels.shape)} but the batch has {rows} rows")


def check_reproduces(ours: Tensor, own: Tensor | None, model_name: str) -> None:
    """Raise unless our plain loss is the model's own: otherwise mixing it would drop a part of it.

    Args:
        ours: the loss of `Criterion.total`.
        own: the model's own loss, or None where the model returns none.
        model_name: for the message.
    """
    way_out = "pass attach(..., loss_fn=...), a function (logits, labels) -> one loss a row"
    if own is None:
        raise LossMismatchError(f"{model_name} returns no loss when called with labels; {way_out}")
    coarse = {ours.dtype, own.dtype} & set(HALF) or torch.is_autocast_enabled(own.device.type)
    close = torch.allclose(ours.float(), own.float(), rtol=3e-2 if coarse else 1e-4, atol=1e-5, equal_nan=True)
    if not close:
        raise LossMismatchError(
            f"the loss of {model_name} is {float(own):.6g}, but its plain classification loss would be "
            f"{float(ours):.6g}: it has an auxiliary or custom loss, which mixing would drop; {way_out}, or set "
            f"model.config.problem_type if that is what differs"
        )
