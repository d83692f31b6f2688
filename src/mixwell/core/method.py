"""What a method is: options, the points it uses, and what happens there.

A method is a dataclass. Its fields are its options, each with a help text; cross-field checks live in `check`.
Through one training step the mixer calls, in this order, `draw_lam` and `draw_layer` (random numbers), `prepare` (edit
masks or token ids, refine the plan), `mix` at each point, and `loss`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from mixwell.core.blend import blend, mix, partner, token_weight
from mixwell.core.draw import PAIRINGS, Plan, check_draw, draw_lam, mutual_pairing
from mixwell.core.loss import PROBLEMS, Criterion, LossFunction, mixed_loss
from mixwell.utils.errors import OptionError, nearest

if TYPE_CHECKING:
    from mixwell.core.mixer import Mixer
    from mixwell.core.points import Point, Points
    from mixwell.core.step import Step


def option(default: Any, help: str) -> Any:
    """Declare an option of a method with its default and a help text."""
    return field(default=default, metadata={"help": help})


def is_auto(value: object) -> bool:
    """Whether an option is left to be found on training rows."""
    return isinstance(value, str) and value == "auto"


T = TypeVar("T", bound="Method")
# Options that came after the first records, and their defaults.
_LATER: dict[str, Any] = {"prob": 1.0, "problem": None, "strength": None, "schedule": None, "after": None}
# When to mix, in words: `start` and `stop`. Late: Mixup-Transformer (Sun et al., COLING 2020) mixes in the second half.
# Early: mixing to the end can hurt (Liu et al., Over-training with Mixup, ICLR 2023); the share is ours.
SCHEDULES = {"late": {"start": 0.5, "stop": 1.0}, "early": {"start": 0.0, "stop": 0.75}}
MOST = 100_000  # of whole numbers such as `samples`: a step would take minutes, or all memory


@dataclass
class Method:
    """Base of all methods; holds the options that all share.

    Class attributes:
        name: what `attach` is called with.
        summary: one line for lists.
        mixes: whether anything is mixed at all.
        has_lam: whether one number lam is drawn (and can be pinned).
        has_permutation: whether rows have partners (that can be pinned).
        has_layer: whether a layer is drawn (and can be pinned).
        one_weight: whether lam, where it is one number, is the weight of every row's label.
        needs_labels: whether the labels must be there before the forward.
        tasks: what it can serve: `sequence` (one label per row), `token` (one per token), `span` (start and end).
        modalities: what the model may read: `text`, `image`.
        alternatives: options to try, in this order, on models that refuse the defaults; for `inspect`.
        aliases: other names for options: the paper's, where the class needs the name itself.
        searchable: options that `mixwell train` and `compare` can find on the training rows, if they are "auto".
        hidden: found by its name only, not in lists: not for use.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    mixes: ClassVar[bool] = True
    has_lam: ClassVar[bool] = True
    has_permutation: ClassVar[bool] = True
    has_layer: ClassVar[bool] = False
    one_weight: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = ("sequence", "token", "span")
    modalities: ClassVar[tuple[str, ...]] = ("text", "image")
    alternatives: ClassVar[tuple[dict[str, Any], ...]] = ()
    aliases: ClassVar[dict[str, str]] = {}
    searchable: ClassVar[tuple[str, ...]] = ()
    hidden: ClassVar[bool] = False

    pairing: str = option(
        "random", "who meets whom: random, pairs (mutual), length (similar length), label (other label)"
    )
    stacks: str = option("all", "encoder-decoder models: mix in all blocks, or in those of the encoder only")
    start: float = option(0.0, "fraction of training after which mixing begins")
    stop: float = option(1.0, "fraction of training after which mixing ends")
    schedule: str | None = option(None, "late (only in the second half) or early (not in the last quarter)")
    prob: float = option(1.0, "share of the batches that are mixed; the others train plain")
    total_steps: int | None = option(None, "training forwards in all, to know the fraction without a callback")
    regularise: bool = option(False, "RegMixup: plain loss + mixed loss, by a second forward")
    label_smoothing: float = option(0.0, "share of each label spread evenly over the classes, inside the loss")
    class_weights: Sequence[float] | None = option(None, "one weight a class, inside the loss")
    problem: str | None = option(
        None, "what the labels are: single_label, soft_label, multi_label, regression; None tells by model and labels"
    )
    loss_fn: LossFunction | None = option(None, "(logits, labels) -> one loss a row, instead of the model's loss")
    mutual: str = field(default="", init=False, repr=False)  # what needs mutual partners, if anything does

    def __post_init__(self) -> None:
        if self.schedule is not None:
            self.choice("schedule", SCHEDULES)
            self.set_by("schedule", SCHEDULES[self.schedule])
        self._check_types()
        for name in ("start", "stop", "prob", "label_smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"{name}={getattr(self, name)} must lie between 0 and 1")
        if self.start >= self.stop:
            raise OptionError(f"start={self.start} must be less than stop={self.stop}")
        if self.total_steps is not None and self.total_steps < 1:
            raise OptionError(f"total_steps={self.total_steps} must be at least 1")
        self.choice("pairing", PAIRINGS)
        self.choice("stacks", ("all", "encoder"))
        self.choice("problem", (None, *PROBLEMS))
        if self.class_weights is not None:
            try:
                self.class_weights = [float(w) for w in self.class_weights]
            except (TypeError, ValueError, OverflowError) as error:
                raise OptionError(f"class_weights must be finite numbers, got {self.class_weights!r:.80}") from error
            if not all(map(math.isfinite, self.class_weights)):
                raise OptionError(f"class_weights must be finite numbers, got {self.class_weights!r:.80}")
            if not self.class_weights or min(self.class_weights) < 0 or max(self.class_weights) <= 0:
                raise OptionError("class_weights must be at least 0, and one of them above 0")
        if self.loss_fn is not None and (self.label_smoothing or self.class_weights is not None):
            raise OptionError("loss_fn replaces the whole loss: put label_smoothing and class_weights inside it")
        if self.loss_fn is not None and self.problem is not None:
            raise OptionError("loss_fn replaces the whole loss: problem= does not go with it")
        self.check()

    def _check_types(self) -> None:
        """Check numbers and switches against the type of their default."""
        for name in self.searchable:
            if is_auto(getattr(self, name)):
                raise OptionError(
                    f"{name}='auto' is found on training rows by mixwell train and mixwell compare; here give a value"
                )
        for field_ in dataclasses.fields(self):
            value, kind = getattr(self, field_.name), type(field_.default)
            fits = {
                bool: isinstance(value, bool),
                int: isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST,
                float: isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300,
            }.get(kind, True)
            if not fits:
                words = {bool: "true or false", int: f"a whole number of at most {MOST:,}", float: "a finite number"}
                raise OptionError(f"{field_.name}={_short(value)} must be {words[kind]} for {self.name}")

            if field_.default is None and value is not None and not _fits(value, str(field_.type)):
                raise OptionError(f"{field_.name}={_short(value)} must be of type {field_.type} for {self.name}")

    # --- for methods to fill in ---

    def check(self) -> None:
        """Check the options against each other; raise OptionError."""

    def sites(self, points: Points) -> list[Point]:
        """Return the points this method mixes at, in a fixed order; raise if the model has no such points."""
        return []

    def verify(self, mixer: Mixer) -> None:
        """Verify at attach time that the method fits the model; raise OptionError or UnsupportedModelError."""

    def for_mixer(self: T) -> T:
        """Return a copy for one mixer: what a method learns belongs to that."""
        return copy.copy(self)

    def draw_lam(self, rng: torch.Generator) -> float | None:
        """Draw the weight of a row's own part."""
        return None

    def adjust_lam(self, lam: float | Tensor) -> float | Tensor:
        """Adapt lam, drawn or pinned, before it is used."""
        return lam

    def draw_layer(self, rng: torch.Generator, count: int) -> int | None:
        """Draw one of `count` layers, whose sites are then the active ones, or None if all are active."""
        return None

    def draw_partners(self, step: Step, rng: torch.Generator) -> Tensor | None:
        """Draw every row's partner by a rule of the method's own, (B,); None leaves it to `pairing`."""
        return None

    def layer_of(self, site: Point, points: Points) -> int:
        """Return the user's number of a site, for methods that draw one; sites may share a number."""
        return site.index

    def prepare(self, step: Step, plan: Plan, rng: torch.Generator) -> Plan:
        """Edit the inputs (masks, token ids) and complete the plan, before the forward."""
        return plan

    def mix(self, x: Tensor, plan: Plan, site: int, step: Step) -> Tensor:
        """Mix the tensor at one site.

        Args:
            x: (B, T, d) or (B, d).
            plan: the current plan.
            site: index into what `sites` returned.
            step: the current step.
        """
        causal = step.mixer.sites[site].causal
        weight = token_weight(x, plan, site, causal)
        if causal and plan.shift is not None and x.dim() == 3:
            return blend(partner(x, plan, causal), x, weight)
        return mix(x, plan.permutation, weight)

    def loss(
        self,
        criterion: Criterion,
        logits: Tensor,
        labels: Tensor,
        plan: Plan,
        step: Step,
        items: Tensor | int | None,
    ) -> Tensor:
        """Return the mixed loss of one forward."""
        return mixed_loss(criterion, logits, labels, plan.permutation, self.weight_of_labels(plan), items)

    def weight_of_labels(self, plan: Plan) -> Tensor:
        """Return the weight of a row's own label, (B,)."""
        if plan.label_weight.dim() != 1:  # a new point has a part of every row's label
            raise OptionError(
                f"{self.name} mixes the whole batch: use mixer.loss(logits, labels), or loss_fn= at attach"
            )
        return plan.label_weight

    @property
    def learns(self) -> bool:
        """Whether the method has values of its own that training changes."""
        return False

    def state(self) -> dict[str, Tensor]:
        """Return what the method learned, for a resumed run to go on from."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take what `state` returned."""

    # --- helpers ---

    def pick(self, points: Points, kind: str) -> tuple[Point, ...]:
        """Return the points of one kind in the stacks that are mixed."""
        return tuple(point for point in points.get(kind) if self.stacks == "all" or point.stack == "encoder")

    def need_mutual_partners(self, why: str) -> None:
        """In `check`: draw partners that are each other's, and take no others: `why` says what needs them."""
        self.pairing, self.mutual = mutual_pairing(self.pairing, why), why

    def choice(self, name: str, allowed: Iterable[Any]) -> None:
        """Raise unless an option has one of the allowed values."""
        allowed = list(allowed)
        value = getattr(self, name)
        if value not in allowed:
            raise OptionError(
                f"{name}={value!r} is unknown for {self.name}{nearest(str(value), allowed)}; "
                f"use one of {', '.join(map(str, allowed))}"
            )

    def set_by(self, name: str, wanted: Mapping[str, Any]) -> None:
        """Set options by another one that stands for them; raise where one of them was given otherwise."""
        usual = {field_.name: field_.default for field_ in dataclasses.fields(self)}
        for other, value in wanted.items():
            if getattr(self, other) not in (usual[other], value):
                raise OptionError(
                    f"{name}={getattr(self, name)!r} sets {other}={value!r}, but {other}={getattr(self, other)!r} is "
                    f"given too: leave one of them out"
                )
            setattr(self, other, value)

    def positive(self, *names: str) -> None:
        """Raise unless options are above 0."""
        for name in names:
            if not getattr(self, name) > 0:
                raise OptionError(f"{name}={getattr(self, name)} must be above 0 for {self.name}")

    @classmethod
    def option_names(cls) -> list[str]:
        """Return the names of all options."""
        return [f.name for f in dataclasses.fields(cls) if f.init]

    def options(self) -> dict[str, Any]:
        """Return the options as plain values; a loss function is given by its name.

        Options that were added later are left out at their defaults: records from before them stay what they are.
        """
        values = {name: getattr(self, name) for name in self.option_names()}
        values = {name: value for name, value in values.items() if _LATER.get(name, _LATER) != value}
        if self.schedule is not None:  # stands for what it sets
            values = {name: value for name, value in values.items() if name not in ("start", "stop")}
        if self.loss_fn is not None:
            values["loss_fn"] = getattr(self.loss_fn, "__qualname__", repr(self.loss_fn))
        return values


# How strongly to mix, in words: alpha of lam = max(l, 1 - l), l ~ Beta(alpha, alpha). The partner's share is on average
# 6, 16 and 25 %.
STRENGTHS = {"mild": 0.1, "medium": 0.4, "strong": 1.0}


@dataclass
class DrawsLam(Method):
    """A method that draws one lam a step by a named rule."""

    one_weight = True

    alpha: float = option(0.2, "shape of the Beta distribution lam is drawn from")
    draw: str = option("folded", "max_of (largest of `samples`), folded (max(l, 1-l)) or beta")
    samples: int = option(5, "how many draws max_of takes the largest of")
    strength: str | None = option(None, "mild, medium or strong: sets draw='folded' and alpha to 0.1, 0.4 or 1")

    def __post_init__(self) -> None:
        if self.strength is not None:
            self.choice("strength", STRENGTHS)
            self.set_by("strength", {"alpha": STRENGTHS[self.strength], "draw": "folded"})
        super().__post_init__()
        self.positive("alpha", "samples")
        check_draw(self.draw)

    def options(self) -> dict[str, Any]:
        """Return the options as plain values; `strength` stands for what it sets."""
        values = super().options()
        return values if self.strength is None else {k: v for k, v in values.items() if k not in ("alpha", "draw")}

    def draw_lam(self, rng: torch.Generator) -> float:
        """Draw lam by the rule `draw`."""
        return draw_lam(self.draw, self.alpha, self.samples, rng)


def _fits(value: Any, kind: str) -> bool:
    """Whether an option that may be left out has a value of the kind that its annotation names."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "int | None":
        return number and isinstance(value, int) and abs(value) < 2**53
    if kind == "float | None":
        return number and -1e300 < value < 1e300
    if kind.startswith("LossFunction"):
        return callable(value)
    if kind == "Sequence[int] | None" and not isinstance(value, int):
        items: Iterable[Any] = [None]
        if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
            items = value
        return all(hasattr(item, "__index__") and -(2**53) < int(item) < 2**53 for item in items)
    return True


def _short(value: Any) -> str:
    """A value for a message; numbers of very many digits are cut."""
    text = (
        repr(value)
        if not isinstance(value, int) or abs(value) < 10**30
        else f"about 1e{value.bit_length() * 0.301:.0f}"
    )
    return text if len(text) <= 80 else text[:80] + "..."


def pick_layers(layers: Sequence[int] | None, depth: int, default: Sequence[int], what: str) -> list[int]:
    """Check a list of block numbers against the depth of the model.

    Args:
        layers: the user's list, or None for the default.
        depth: how many there are; numbers go from 0 to depth - 1.
        default: what None stands for.
        what: the name of the option, for messages.
    """
    if layers is None:
        return list(default)
    chosen = [layers] if isinstance(layers, int) else list(layers)
    if not chosen:
        raise OptionError(f"{what}=[] mixes nowhere; name at least one of 0..{depth - 1}, or use method 'none'")
    for layer in chosen:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < depth:
            raise OptionError(f"{what}={chosen}: {layer!r} is not one of 0..{depth - 1} (they count from 0)")
    if len(set(chosen)) != len(chosen):
        raise OptionError(f"{what}={chosen} names one twice")
    return sorted(chosen)
