"""One training forward: its inputs, its labels, its plan, and where it is in its life."""

from __future__ import annotations

import enum
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

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
    """

    mixer: Mixer
    inputs: dict[str, Any]
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
    _logits: weakref.ref[Tensor] | None = None

    @property
    def anchor(self) -> Tensor:
        """The input that carries the batch axis."""
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
        return self.anchor.shape[0]

    @property
    def length(self) -> int:
        """T, the number of positions of a text; methods that need it refuse images."""
        return self.anchor.shape[1]

    @property
    def last(self) -> Tensor:
        """(B,), the place of each row's last token, which decoders pool."""
        ids = self.inputs.get("input_ids")
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

    def attend(self, positions: Tensor) -> None:
        """Widen the attention mask by `positions`, (B, T) bool."""
        mask = self.inputs["attention_mask"]
        self.inputs["attention_mask"] = torch.where(positions, torch.ones_like(mask), mask)

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

    def remember(self, logits: Tensor) -> None:
        """Keep hold of the logits, weakly, to know them again in `Mixer.loss`."""
        self._logits = weakref.ref(logits)

    def made(self, logits: Tensor) -> bool:
        """Tell whether `logits` is what this forward returned."""
        return self._logits is not None and self._logits() is logits


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
