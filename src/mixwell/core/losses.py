"""Losses by the plan of a forward: its own, and whatever else a user trains with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mixwell.core.blend import lerp, spread
from mixwell.core.draw import Plan
from mixwell.core.hooks import LossHook
from mixwell.core.loss import IGNORE, Criterion, check_labels
from mixwell.core.outputs import Origin, changed, origin_of, source, tensors_of
from mixwell.core.step import State, Step
from mixwell.utils.errors import BatchError, LabelsNotMixedError, OptionError

if TYPE_CHECKING:
    from mixwell.core.flow import Flow

AnyLoss = Callable[..., Tensor]


class Losses:
    """Computes the mixed losses of one attached model, and notes which forwards have theirs."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow

    # --- the loss of the logits ---

    def of_logits(self, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        """Return the loss of a forward that was not given its labels: mixed in training, plain otherwise."""
        step, logits = self._waiting_for(logits)
        return self._of(step, logits, labels, items)

    def of_outputs(self, outputs: Any, labels: Tensor, items: Tensor | int | None) -> Tensor:
        """Return the same from all that a forward returned."""
        entries = self._entries(outputs)
        logits = self.flow.logits(changed(outputs, source) if entries else outputs)
        if logits is None:
            raise BatchError("the outputs hold no logits")
        if not entries:
            return self.of_logits(logits, labels, items)
        if all(entry.paid for entry in entries):
            raise _paid()
        for entry in entries:
            entry.paid = True
        return self._of(entries[0].step, logits, labels, items)

    def of_step(self, step: Step, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        """Return the loss that the plan of a step asks for, from its labels and raw logits."""
        self.flow.own_loss.check(step, labels)
        criterion = self.flow.mixer.criterion(logits, labels)
        loss = self._by_plan(step, criterion, logits, labels, items)
        parts = [step]
        if step.second is not None:
            if step.mixed_logits is None:
                raise _paid()
            loss = loss + self._by_plan(step.second, criterion, step.mixed_logits, labels, items)
            step.mixed_logits = None
            parts.append(step.second)
        return self.pay(loss, parts)

    def _of(self, step: Step | None, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        if step is None:
            return self.flow.mixer.criterion(logits, labels).total(logits, labels, items)
        check_labels(labels, step.size)
        return self.of_step(step, logits, labels, items)

    def _waiting_for(self, logits: Tensor) -> tuple[Step | None, Tensor]:
        """Return the step that made these logits, and the tensor to compute its loss from; None for a plain loss.

        Raises:
            LabelsNotMixedError: it cannot be told which step made them, or its loss was computed already.
        """
        known = origin_of(logits)
        if known is not None:
            if known.paid or known.step.settled:
                raise _paid()
            known.paid = True
            return known.step, source(logits)
        if not (self.flow.mixer.model.training and logits.requires_grad):
            return None, logits
        waiting = self.flow.waiting  # logits that were cast or reshaped
        if len(waiting) > 1:
            raise LabelsNotMixedError(
                f"{len(waiting)} forwards wait for their labels and these logits are none of theirs; pass the logits "
                f"as the model returned them"
            )
        if not waiting:
            raise _paid()
        waiting[0].trusted = waiting[0].settled = True
        return waiting[0], logits

    def _by_plan(
        self, step: Step, criterion: Criterion, logits: Tensor, labels: Tensor, items: Tensor | int | None
    ) -> Tensor:
        plan = step.plan
        assert plan is not None
        if plan.plain:
            return criterion.total(logits, labels, items)
        return self.flow.mixer.method.loss(criterion, logits, labels, plan, step, items)

    # --- any other loss ---

    def mixed(self, loss_fn: AnyLoss, outputs: Any, targets: tuple[Any, ...]) -> Tensor:
        """Return any loss of outputs and targets, mixed by the plan of the forward that made the outputs."""
        entries = self._entries(outputs)
        steps = list(dict.fromkeys(entry.step for entry in entries))
        if not steps:
            step = self._derived(outputs)
            if step is None:
                return loss_fn(outputs, *targets).mean()
            steps = [step]
        plan = self._common_plan(steps)
        for target in tensors_of(targets):
            check_labels(target, steps[0].size)
        outputs = changed(outputs, source)
        own = loss_fn(outputs, *targets)
        if plan.plain or not targets:
            return self.pay(own.mean(), steps)
        rows = plan.permutation
        other = loss_fn(outputs, *changed(targets, lambda target: target.index_select(0, rows.to(target.device))))
        return self.pay(self._weighed(own, other, plan), steps)

    def _weighed(self, own: Tensor, other: Tensor, plan: Plan) -> Tensor:
        """Return the mean of lerp(other, own, w), exact where w is 1."""
        method = self.flow.mixer.method
        weight = method.weight_of_labels(plan)
        if own.dim() == 0:
            if not isinstance(plan.lam, float) or not method.one_weight:
                raise OptionError(
                    f"the loss is one number, but {method.name!r} weighs each row by itself here; return one loss per "
                    f"row (reduction='none')"
                )
            return own + (1 - plan.lam) * (other - own)
        if own.shape[0] != len(plan.permutation):
            raise OptionError(
                f"the loss has shape {tuple(own.shape)} but the batch has {len(plan.permutation)} rows; return one "
                f"loss per row, or one number"
            )
        return own.mean() + ((1 - spread(weight.to(own), own)) * (other - own)).mean()

    def mix_targets(self, targets: Tensor, classes: int | None, outputs: Any) -> Tensor:
        """Return soft targets mixed by the plan of a forward; see `Mixer.mix_targets`."""
        entries = self._entries(outputs)
        step = entries[0].step if entries else self.flow.recent
        soft = self._soft(targets, classes)
        if step is None or step.plan is None:
            return soft
        if step.second is not None:
            raise OptionError("regularise=True has two losses a step: use mixer.loss(logits, labels) or loss_fn=")
        check_labels(targets, step.size)
        # From here on the loss is the user's.
        step.trusted = True
        self.flow.settle(step)
        step.state = State.LOSS_REACHED
        if step.plan.plain:
            return soft
        weight = self.flow.mixer.method.weight_of_labels(step.plan).to(soft)
        rows = step.plan.permutation.to(soft.device)
        return lerp(soft.index_select(0, rows), soft, spread(weight, soft))

    def _soft(self, targets: Tensor, classes: int | None) -> Tensor:
        if targets.is_floating_point():
            return targets
        classes = classes or self.flow.mixer.points.classes
        one_hot = F.one_hot(targets.clamp(min=0), classes) * (targets != IGNORE).unsqueeze(-1)
        return one_hot.to(torch.get_default_dtype())

    def _common_plan(self, steps: list[Step]) -> Plan:
        """Return the one plan of several forwards."""
        plan = steps[0].plan
        assert plan is not None
        if any(step.second is not None for step in steps):
            raise OptionError("regularise=True has two losses a step: use mixer.loss(logits, labels) or loss_fn=")
        for step in steps[1:]:
            assert step.plan is not None
            if step.plan.seed != plan.seed or step.size != steps[0].size:
                raise LabelsNotMixedError(
                    "these outputs come from forwards that were mixed differently; run them inside "
                    "`with mixer.same_draw():`"
                )
        return plan

    def _derived(self, outputs: Any) -> Step | None:
        """Return the step of outputs that the user changed: the latest one in training, which is trusted then."""
        tensors = list(tensors_of(outputs))
        if not self.flow.mixer.model.training or not any(tensor.requires_grad for tensor in tensors):
            return None
        step = self.flow.recent
        if step is None:
            raise _paid()
        step.trusted = True
        return step

    @staticmethod
    def _entries(outputs: Any) -> list[Origin]:
        return [entry for tensor in tensors_of(outputs) if (entry := origin_of(tensor)) is not None]

    def pay(self, loss: Tensor, steps: list[Step]) -> Tensor:
        """Note that steps have a loss with mixed labels, and see that backward comes through it."""
        watched = [step for step in steps if loss.requires_grad and step.training]
        for step in steps:
            self.flow.settle(step)
            if step.state is not State.LOSS_REACHED:
                step.state = State.LOSS_COMPUTED if step in watched else State.LOSS_REACHED
        if watched:
            loss.register_hook(LossHook(watched))
        return loss


def _paid() -> LabelsNotMixedError:
    return LabelsNotMixedError(
        "no forward waits for its labels: the loss of these logits was computed already, or they were not made by a "
        "training forward of the attached model"
    )
