"""The loss that is mixed must be the model's own: checked once, on the first batch with labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixwell.core.arguments import takes_labels
from mixwell.core.loss import HALF, Criterion, check_reproduces, kind_of_targets, task_kind
from mixwell.core.model import base_config
from mixwell.core.step import Step
from mixwell.utils.errors import LossMismatchError, UnsupportedModelError

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer


class OwnLoss:
    """What is known of the loss of an attached model.

    Attributes:
        checked: whether it was compared with ours.
        wide: whether it is float32 though the logits are of lower precision.
    """

    def __init__(self, mixer: Mixer) -> None:
        self.mixer = mixer
        points, method = mixer.points, mixer.method
        labelled = points.form is None or takes_labels(mixer.model)
        self.checked = method.loss_fn is not None or method.problem is not None or not labelled
        self.wide = False
        self._kind: str | None = None  # of labels that are numbers, once seen

    def kind(self, logits: Tensor, labels: Tensor) -> str:
        """Return the kind of the loss; see `Criterion`."""
        points, config = self.mixer.points, base_config(self.mixer.model)
        if self.mixer.method.problem is not None:
            return self.mixer.method.problem
        if points.task != "sequence":
            return points.task
        if points.form is None or getattr(config, "problem_type", None) is not None:
            return task_kind(config, logits, labels)
        if not labels.is_floating_point():
            return "single_label"
        self._kind = self._kind or kind_of_targets(logits, labels)
        return self._kind

    def _refuse_probabilities(self, labels: Tensor) -> None:
        """Raise if labels that transformers takes for multi-label ones are probabilities.

        To be called before the model sees them: it then takes the kind of its labels into its config.
        """
        config = base_config(self.mixer.model)
        told = self.mixer.points.form is not None or getattr(config, "problem_type", None) is not None
        if told or self.mixer.points.task != "sequence" or not labels.is_floating_point() or labels.dim() < 2:
            return
        whole = bool(((labels == 0) | (labels == 1)).all())
        if not whole and bool(torch.allclose(labels.sum(-1).float(), torch.ones((), device=labels.device), atol=1e-2)):
            raise LossMismatchError(
                "the labels are probabilities (each row sums to 1), which transformers takes for multi-label ones; "
                "pass attach(..., problem='soft_label') for cross-entropy with soft targets, or problem='multi_label'"
            )

    def check(self, step: Step, labels: Tensor) -> None:
        """Raise unless our plain loss is the model's own, with what it adds in training; does so once."""
        if self.checked:
            return
        self._refuse_probabilities(labels)
        model, task = self.mixer.model, self.mixer.points.task
        name = type(model).__name__
        buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
        given = {"labels": labels}
        if task == "span":
            given = {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
        with self.mixer.flow.plain_model(training=None), torch.no_grad():
            with torch.random.fork_rng(devices=devices):
                output = step.call(**given)
            with torch.random.fork_rng(devices=devices):
                alone = self.mixer.flow.logits(step.call())
            for buffer, before in buffers:
                if not torch.equal(buffer, before):  # running statistics; copying marks a buffer as changed
                    buffer.copy_(before)
        logits = self.mixer.flow.logits(output)
        if logits is None:
            raise UnsupportedModelError(f"{name} returns no logits")
        # DeBERTa flattens the logits of a regression, but only where it is given labels.
        flat = torch.zeros(0) if alone is None else alone.flatten()
        if flat.numel() != logits.numel() or not torch.allclose(flat, logits.flatten(), rtol=1e-3, equal_nan=True):
            raise UnsupportedModelError(
                f"the logits of {name} depend on the labels it is given (a decoder that reads them?) or on random "
                f"numbers of its own, so that labels cannot be taken out and mixed"
            )
        own = output.get("loss") if hasattr(output, "get") else next((t for t in output if t.dim() == 0), None)
        # Some models compute their loss in float32 from logits of low precision.
        self.wide = own is not None and own.dtype == torch.float32 and logits.dtype in HALF
        plain = Criterion(self.kind(logits, labels), wide=self.wide)
        check_reproduces(plain.total(logits, labels), own, name)
        # The mean over no label at all is no number, and confirms nothing.
        self.checked = bool(own is not None and own.isfinite())
