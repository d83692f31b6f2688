"""One training forward: its inputs, its labels, and the extra passes some methods need before it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixwell.errors import BatchError, UnsupportedModelError
from mixwell.points import last_token, logits_of, pad_id

if TYPE_CHECKING:
    from mixwell.mixer import Mixer
    from mixwell.plan import Plan

_BATCH_KEYS = ("input_ids", "inputs_embeds", "pixel_values")


class _Enough(Exception):
    """Stops a pass that has seen what it was run for."""


@dataclass
class Payment:
    """A loss that mixes the labels of a forward; `reached` once backward has come through it."""

    reached: bool


@dataclass(eq=False)
class Step:
    """What belongs to one forward of the attached model.

    Attributes:
        mixer: the mixer.
        inputs: the keyword arguments of the forward, without labels; `Method.prepare` may replace entries.
        labels: the labels, or None while the caller keeps them.
        items: `num_items_in_batch`, if given.
        plan: the plan; set before the forward runs.
        payment: the mixed loss of this forward; None until its labels are known.
        training: whether the model was in training mode.
        second: RegMixup: the mixed step that follows this plain one.
        mixed_logits: RegMixup: what the second forward gave, until it is paid for.
        fired: how many sites have mixed in the forward.
        turns: calls seen by each hook in this forward, for modules that several blocks share.
        scratch: values that a method or hook keeps from one point to another.
    """

    mixer: Mixer
    inputs: dict[str, Any]
    labels: Tensor | None = None
    items: Tensor | int | None = None
    plan: Plan | None = None
    payment: Payment | None = None
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

    # --- passes before the forward ---

    def attention_weights(self, block: int) -> Tensor:
        """Return the attention weights of one block on the unmixed batch, running the model only that far.

        No gradients, no dropout, random state untouched.

        Args:
            block: the block's number, from 0.

        Returns:
            (B, H, T, T), weights over keys for each query.
        """
        points = self.mixer.points
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
            for asked in ({}, {"output_attentions": True}):
                seen = 0
                with self.mixer.quiet(), torch.no_grad(), eager_attention(self.mixer.model):
                    with contextlib.suppress(_Enough):
                        self.mixer.model(**self.inputs, **asked)
                if weights:
                    break
        finally:
            handle.remove()
        if not weights:
            raise UnsupportedModelError(
                f"block {block} of {type(self.mixer.model).__name__} gives no attention weights under eager "
                f"attention; a method that reads them cannot be used"
            )
        if self.once("attention weights") and not is_attention(weights[0]):
            raise UnsupportedModelError(
                f"what block {block} of {type(self.mixer.model).__name__} returns with its output are no attention "
                f"weights (shares of the keys, for each row and query); a method that reads them cannot be used"
            )
        return weights[0]

    def embedding_gradient(self) -> Tensor:
        """Return d loss / d embedding output on the unmixed batch, dropout off, parameters' gradients untouched.

        Returns:
            (B, T, d)
        """
        point = self.mixer.points.get("embeddings")[0]
        assert self.labels is not None
        kept: list[Tensor] = []

        def catch(module: nn.Module, args: Any, kwargs: Any, output: Any = None) -> Any:
            x = output if point.how == "output" else first_input(args, kwargs)
            kept.append(x.detach().requires_grad_(True))
            return kept[-1] if point.how == "output" else replace_input(args, kwargs, kept[-1])

        register = (
            point.module.register_forward_hook if point.how == "output" else point.module.register_forward_pre_hook
        )
        handle = register(catch, with_kwargs=True)
        try:
            with self.mixer.quiet(), torch.enable_grad():
                logits = logits_of(self.mixer.model(**self.inputs), self.mixer.points.task)
                assert logits is not None
                loss = self.mixer.criterion(logits, self.labels).total(logits, self.labels)
                kind = self.device.type
                if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16:
                    loss = loss * 2.0**14  # else most of it underflows; only ratios are used
                (gradient,) = torch.autograd.grad(loss, kept[:1])
        finally:
            handle.remove()
        unshard: Any = getattr(self.mixer.model, "unshard", None)
        if unshard is not None:
            unshard()  # FSDP gathered the weights for the forward we are in; our backward let them go
        return gradient

    def once(self, check: str) -> bool:
        """Tell whether to run a check that reads values: always on the CPU, elsewhere once."""
        new = check not in self.mixer.checked
        self.mixer.checked.add(check)
        return new or self.device.type == "cpu"

    # --- payment ---

    def remember(self, logits: Tensor) -> None:
        """Keep hold of the logits, weakly, to know them again in `Mixer.loss`."""
        self._logits = weakref.ref(logits)

    def made(self, logits: Tensor) -> bool:
        """Tell whether `logits` is what this forward returned."""
        return self._logits is not None and self._logits() is logits


def square_tensors(output: Any) -> list[Tensor]:
    """Return the (., H, T, T) tensors among a module's outputs: attention weights come last (T5: after the bias)."""
    values = output if isinstance(output, tuple) else ()
    return [v for v in values if isinstance(v, Tensor) and v.dim() == 4 and v.shape[-1] == v.shape[-2]]


def is_attention(weights: Tensor) -> bool:
    """Tell whether a tensor holds shares of the keys: not negative, and in sum at most 1 (a sink may take the rest)."""
    return bool((weights >= 0).all() & (weights.float().sum(-1) < 1.01).all())


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
