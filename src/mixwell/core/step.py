"""One training forward: its inputs, its labels, its plan, and where it is in its life."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mixwell.core.arguments import Inputs
from mixwell.core.model import last_token, pad_id
from mixwell.utils.errors import BatchError

if TYPE_CHECKING:
    from mixwell.core.draw import Plan
    from mixwell.core.mixer import Mixer

_BATCH_KEYS = ("input_ids", "inputs_embeds", "pixel_values")


class State(enum.Enum):
    """Where a step is in its life."""

    OPENED = "the plan is being drawn"
    FORWARD = "the model is running"
    AWAITING_LABELS = "the forward is over, and its labels are not known yet"
    LOSS_COMPUTED = "there is a loss that mixes its labels"
    LOSS_REACHED = "backward came through that loss"


@dataclass(eq=False)
class Step:
    """What belongs to one forward of the attached model.

    Attributes:
        mixer: the mixer.
        inputs: the keyword arguments of the forward, without labels; `Method.prepare` may replace entries.
        labels: the labels, or None while the caller keeps them.
        items: `num_items_in_batch`, if given.
        plan: the plan; set before the forward runs.
        state: where it is in its life.
        training: whether the model was in training mode.
        second: RegMixup: the mixed step that follows this plain one.
        mixed_logits: RegMixup: what the second forward gave, until the loss is computed.
        fired: how many sites have mixed in the forward.
        turns: calls seen by each hook in this forward, for modules that several blocks share.
        scratch: values that a method or hook keeps from one point to another.
        trusted: gradient may come through the outputs themselves: the loss was computed from them, with mixed targets.
        settled: its loss was computed from logits that the user had changed.
        around: gradient came through the outputs although nothing says that its labels were mixed.
    """

    mixer: Mixer
    inputs: Inputs
    labels: Tensor | None = None
    items: Tensor | int | None = None
    plan: Plan | None = None
    state: State = State.OPENED
    training: bool = True
    second: Step | None = None
    mixed_logits: Tensor | None = None
    fired: int = 0
    turns: dict[Any, int] = field(default_factory=dict)
    scratch: dict[Any, Any] = field(default_factory=dict)
    trusted: bool = False
    settled: bool = False
    around: bool = False

    @property
    def anchor(self) -> Tensor:
        """The input that carries the batch axis."""
        if self.inputs.anchor:
            value = self.inputs.get(self.inputs.anchor)
            if isinstance(value, Tensor):
                return value
            raise BatchError(
                f"the forward got no tensor {self.inputs.anchor!r}, which carried the batch in example= (it got "
                f"{', '.join(self.inputs) or 'nothing'}); call the model as with the example"
            )
        for key in _BATCH_KEYS:
            value = self.inputs.get(key)
            if isinstance(value, Tensor):
                return value
        raise BatchError(
            f"the forward got none of {', '.join(_BATCH_KEYS)} (it got {', '.join(self.inputs) or 'nothing'}): "
            f"there is no batch to mix"
        )

    @property
    def size(self) -> int:
        """B, the number of rows."""
        return self.anchor.shape[self.inputs.axis]

    @property
    def length(self) -> int:
        """T, the number of positions of a text; methods that need it refuse images."""
        return self.anchor.shape[1 - self.inputs.axis]

    @property
    def last(self) -> Tensor:
        """(B,), the place of each row's last token, which decoders pool."""
        ids = self.inputs.get("input_ids")
        if self.inputs.anchor and self.mask is not None:
            return (torch.arange(self.length, device=self.device) * self.mask).argmax(1)
        if not isinstance(ids, Tensor):
            return torch.full((self.size,), self.length - 1, device=self.device)
        return last_token(ids, pad_id(self.mixer.model))

    @property
    def device(self) -> torch.device:
        """Where the batch lies."""
        return self.anchor.device

    @property
    def mask(self) -> Tensor | None:
        """(B, T) bool, the real tokens; None if the batch has no mask, so that all are real."""
        mask = self.inputs.get("attention_mask")
        if mask is None:
            return None
        if mask.dim() != 2:
            raise BatchError(
                f"the attention_mask has shape {tuple(mask.shape)}; mixing tokens needs one of shape (B, T). Packed "
                f"sequences cannot be mixed"
            )
        return mask.bool()

    @property
    def ids(self) -> Tensor:
        """(B, T), the token ids."""
        ids = self.inputs.get("input_ids")
        if not isinstance(ids, Tensor):
            raise BatchError(f"method {self.mixer.method.name!r} needs input_ids in the batch, not inputs_embeds")
        return ids

    def call(self, **more: Any) -> Any:
        """Call the model on the inputs as they are now."""
        args, kwargs = self.inputs.call()
        return self.mixer.model(*args, **kwargs, **more)

    def attend(self, positions: Tensor) -> None:
        """Widen the attention mask by `positions`, (B, T) bool."""
        mask = self.inputs["attention_mask"]
        self.inputs["attention_mask"] = torch.where(positions, torch.ones_like(mask), mask)

    def plan_of_choices(self, rows: int) -> Plan:
        """Return the plan for the rows of multiple choice, where a module sees each choice of a row by itself.

        Args:
            rows: B times the number of choices, a row's choices one after the other.
        """
        plan, choices = self.plan, rows // self.size
        assert plan is not None
        if self.anchor.dim() != 3 or self.anchor.is_floating_point() or self.anchor.shape[1] != choices:
            raise BatchError(
                f"a point of {type(self.mixer.model).__name__} works on {rows} rows but the batch has {self.size}"
            )
        known = self.scratch.get("choices")
        if known is None:
            places = torch.arange(choices, device=plan.permutation.device)
            permutation = (plan.permutation.unsqueeze(1) * choices + places).flatten()
            weights = plan.point_weights.repeat_interleave(choices, 1)
            known = self.scratch["choices"] = dataclasses.replace(plan, permutation=permutation, point_weights=weights)
        return known

    def attend_partner(self, plan: Plan) -> None:
        """Let each row attend where its partner has tokens too, unless the row keeps all of itself.

        In causal stacks partners are lined up at the last token, so a row's own mask is the right one.
        """
        mask = self.mask
        if mask is not None and not self.mixer.points.get("embeddings")[0].causal:
            self.attend(mask.index_select(0, plan.permutation) & mixed_rows(plan).unsqueeze(1))

    def first_time(self, check: str) -> bool:
        """Tell whether to run a check that reads values: always on the CPU, elsewhere once."""
        new = check not in self.mixer.checked
        self.mixer.checked.add(check)
        return new or self.device.type == "cpu"


def mixed_rows(plan: Plan) -> Tensor:
    """Return (B,) bool: rows that give away a part of themselves at some point."""
    return (plan.point_weights < 1).any(0)


def first_input(args: Any, kwargs: Any) -> Tensor:
    """Return a module's first input, positional or by name."""
    if args and isinstance(args[0], Tensor):
        return args[0]
    return next(value for value in kwargs.values() if isinstance(value, Tensor) and value.is_floating_point())


def replace_input(args: Any, kwargs: Any, value: Tensor) -> tuple[Any, Any]:
    """Return a module's arguments with the first input replaced."""
    if args and isinstance(args[0], Tensor):
        return (value, *args[1:]), kwargs
    name = next(k for k, v in kwargs.items() if isinstance(v, Tensor) and v.is_floating_point())
    return args, {**kwargs, name: value}
