"""The mixer: a method attached to a model, and what its user calls.

What happens in a training step is told by `flow`; what is drawn by `planning`; where it is mixed by `hooks`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mixwell._version import __version__
from mixwell.core.callback import make_callback
from mixwell.core.checks import MIXERS, check_task
from mixwell.core.compat import HookGuards
from mixwell.core.draw import Plan, mutual_pairing
from mixwell.core.flow import Flow
from mixwell.core.hooks import After, Before, BlockInput, Guard, Hook, PointHook, WordIds, enter, own_number
from mixwell.core.loss import Criterion
from mixwell.core.losses import AnyLoss
from mixwell.core.method import Method
from mixwell.core.planning import Pin
from mixwell.core.points import Point, Points
from mixwell.core.stats import Counts
from mixwell.utils.errors import OptionError


class Mixer:
    """A method attached to a model. Made by `attach`.

    Attributes:
        model: the model.
        method: the method, a copy of its own: what a method learns belongs to one mixer.
        points: the points of the model.
        sites: the points that the method mixes at.
        site_layers: the user's number of each site, for methods that draw one; sites with the same number (the
            embeddings of two stacks) are drawn together.
        pairing: how partners are drawn; the method's own, unless the model needs mutual partners.
        mutual: what needs mutual partners; empty if nothing does.
        last: the last plan, for logging.
        progress: the fraction of training that is done, where something sets it.
        enabled: false turns mixing off, and leaves everything else as it is.
        auto_loss: whether torch's own losses of the outputs are mixed as they are computed.
        counts: what the steps so far did; see `stats`.
        attached: whether the hooks are on the model.
        flow: the training steps.
        checked: names of checks that were done once.
    """

    def __init__(self, model: nn.Module, method: Method, points: Points, auto_loss: bool = False) -> None:
        self.model = model
        self.auto_loss = auto_loss
        self.enabled = True
        self.counts = Counts()
        self.number = enter(self)
        self.method = method.for_mixer()
        self.points = points
        check_task(self.method, points, model)
        self.sites: list[Point] = self.method.sites(points)
        self.site_layers = [self.method.layer_of(site, points) if method.has_layer else None for site in self.sites]
        self.pairing, self.mutual = method.pairing, method.mutual
        self.last: Plan | None = None
        self.progress: float | None = None
        self.attached = False
        self.pinned = Pin()
        self.checked: set[str] = set()
        self._handles: list[Any] = []
        self._undo: list[Callable[[], Any]] = []
        self._guards = HookGuards()
        self.flow = Flow(self)
        self._install()
        try:
            self.method.verify(self)
        except BaseException:
            self.detach()
            raise

    # --- attach and detach ---

    def _install(self) -> None:
        self._guards.take()
        # A module can be hooked before and after: GPT-2's first block reads the embeddings and is a block itself.
        by_module: dict[tuple[nn.Module, str], dict[int, tuple[int, Point]]] = {}
        for number, point in enumerate(self.sites):
            by_module.setdefault((point.module, point.how), {})[point.call] = (number, point)
        for (module, _), turns in by_module.items():
            hook = PointHook(self, turns, self.points.calls.get(module, 1))
            # First in line, so that transformers' own capture hooks record what was mixed.
            before = hook.how in ("input", "last")
            self._hook(module.register_forward_pre_hook if before else module.register_forward_hook, hook, prepend=True)
        for block in {point.block for point in self.sites if point.how == "residual"}:
            assert block is not None
            self._hook(block.register_forward_pre_hook, BlockInput(self))
        if self.method.mixes and not self.sites:
            # Nothing else would notice a call that goes around the attached model's hooks.
            self._hook(self.points.get("block")[0].module.register_forward_pre_hook, Guard(self))
        if self.points.words is not None:
            self._hook(self.points.words.register_forward_pre_hook, WordIds(self))
        self._hook(self.model.register_forward_pre_hook, Before(self))
        self._hook(self.model.register_forward_hook, After(self), always_call=True)
        self.attached = True
        MIXERS.add(self)

    def _hook(self, register: Any, hook: Hook, **how: Any) -> None:
        with own_number():
            self._handles.append(register(hook, with_kwargs=True, **how))

    def detach(self) -> nn.Module:
        """Take all hooks off and return the model, which is bit for bit what it was."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for undo in self._undo:
            undo()
        self._undo.clear()
        self.attached = False
        self._guards.release()
        self.flow.forward = self.flow.backward = None
        return self.model

    def on_detach(self, undo: Callable[[], Any]) -> None:
        """Call something once when the mixer is detached."""
        self._undo.append(undo)

    def attach_again(self) -> None:
        """Put the hooks of a detached mixer back."""
        self._install()

    def __enter__(self) -> Mixer:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles are detached."""
        detached = {"attached": False, "_handles": [], "_undo": [], "_guards": HookGuards()}
        return {**self.__dict__, "last": None, "pinned": Pin(), **detached}

    def __repr__(self) -> str:
        state = "attached to" if self.attached else "detached from"
        return f"<mixwell.Mixer {self.method.name!r} {state} {type(self.model).__name__}, {len(self.sites)} points>"

    # --- for methods, when they verify that they fit the model ---

    def need_mutual_partners(self, why: str) -> None:
        """Draw partners that are each other's, and take no others: `why` says what needs them."""
        self.pairing, self.mutual = mutual_pairing(self.pairing, why), why

    def check_masked_embeddings(self) -> None:
        """Draw mutual partners where embeddings are 0 at places that a row does not attend to (DeBERTa).

        A row attends to its partner's places too; others' places would reach it through its partner.
        """
        if "mask" in inspect.signature(self.points.get("embeddings")[0].module.forward).parameters:
            name = type(self.model).__name__
            self.need_mutual_partners(f"{self.method.name} on {name}, whose embeddings read the mask,")

    # --- the draw ---

    @property
    def layers(self) -> list[int]:
        """The numbers that a method with `has_layer` draws from; else empty."""
        return list(dict.fromkeys(layer for layer in self.site_layers if layer is not None))

    @contextlib.contextmanager
    def pin(
        self,
        lam: float | Tensor | None = None,
        permutation: Tensor | list[int] | None = None,
        layer: int | None = None,
        in_eval: bool = False,
    ) -> Iterator[Mixer]:
        """Fix the draw of all forwards inside; what is not given stays as an outer pin has it, or random.

        Args:
            lam: the weight of a row's own part, in [0, 1]: one number or (B,) values.
            permutation: (B,), row i meets row permutation[i].
            layer: the block (tmix) or point (manifold) that is drawn.
            in_eval: mix in eval mode and without gradients too, for pictures.
        """
        before = self.pinned
        self.pinned = before.narrowed(self, lam, permutation, layer, in_eval)
        try:
            yield self
        finally:
            self.pinned = before

    # --- losses ---

    def criterion(self, logits: Tensor, labels: Tensor) -> Criterion:
        """Return the per-row loss for these logits and labels."""
        method = self.method
        if method.loss_fn is not None:
            return Criterion("custom", function=method.loss_fn)
        kind = self.flow.own_loss.kind(logits, labels)
        if kind in ("regression", "span") and (method.class_weights is not None or method.label_smoothing):
            raise OptionError(f"class_weights and label_smoothing do not go with {kind} tasks")
        weights = None
        if method.class_weights is not None:
            if len(method.class_weights) != logits.shape[-1]:
                raise OptionError(
                    f"class_weights has {len(method.class_weights)} values but the model has {logits.shape[-1]} classes"
                )
            weights = torch.tensor(method.class_weights, device=logits.device)
        return Criterion(kind, weights, method.label_smoothing, wide=self.flow.own_loss.wide)

    def loss(self, logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the loss of a forward that was not given the labels: mixed in training, plain otherwise.

        Args:
            logits: the logits that the forward returned.
            labels: (B, ...), in the order of the batch.
            num_items_in_batch: what to normalise by, as Trainer gives it.
        """
        return self.flow.losses.of_logits(logits, labels, num_items_in_batch)

    def compute_loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the loss for `Trainer(compute_loss_func=mixer.compute_loss)`."""
        return self.flow.losses.of_outputs(outputs, labels, num_items_in_batch)

    def mixed(self, loss_fn: AnyLoss, outputs: Any, *targets: Any) -> Tensor:
        """Return any loss, mixed by the plan of the forward that made the outputs; plain if that was not mixed.

        For further heads, distillation, pairwise losses and penalties. May be called several times for one forward.

        Args:
            loss_fn: (outputs, *targets) -> one loss per row, (B, ...), or one number.
            outputs: what the model returned, or a part of it: a tensor, or tensors in dicts, tuples or lists. Pass them
                as the model returned them.
            *targets: labels, soft targets, a teacher's outputs: tensors (B, ...) in the order of the batch, also in
                dicts, tuples or lists. None at all: the loss has no targets, and is computed once.

        Returns:
            The mean over rows of w * l(outputs, targets) + (1 - w) * l(outputs, targets[perm]).

        Example:
            >>> out = model(**inputs)
            >>> loss = mixer.mixed(F.cross_entropy, out["topic"], topics) + mixer.mixed(F.mse_loss, out["age"], ages)
        """
        return self.flow.losses.mixed(loss_fn, outputs, targets)

    def mix_targets(self, targets: Tensor, num_classes: int | None = None, outputs: Any = None) -> Tensor:
        """Return targets mixed as the rows of the last forward were; for losses that take soft targets.

        From then on the loss of that forward is yours: what you compute from its outputs is not checked.

        Args:
            targets: class numbers (B, ...), which become one-hot, or soft targets (B, ...), in the order of the batch.
            num_classes: for class numbers; as many as the model has logits by default.
            outputs: what a forward returned, if not the last one's targets are meant.

        Returns:
            w * targets + (1 - w) * targets[perm]; the targets themselves where nothing was mixed.
        """
        return self.flow.losses.mix_targets(targets, num_classes, outputs)

    @contextlib.contextmanager
    def same_draw(self) -> Iterator[Mixer]:
        """Mix all forwards inside in the same way, for losses that compare them (chosen and rejected answers)."""
        with self.flow.same_seed():
            yield self

    # --- reporting ---

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain values, with the version of mixwell."""
        return {"mixwell_version": __version__, "method": self.method.name, "options": self.method.options()}

    def stats(self) -> dict[str, int | float | None]:
        """Return how many training steps there were, and in how many of them something was mixed.

        Returns:
            `steps`; `mixed`: those in which lam did not round to 1; `noticeable`: those with lam below 0.99 (with
            AMPLIFY's defaults about 15 % of all), or without a single lam; `mean_lam`: over steps that drew one.
        """
        return self.counts.to_dict()

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a resumed run needs besides the random state: the count of steps, and what the method learned."""
        return {"steps": torch.tensor(self.flow.steps), **self.method.state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a `state_dict` of a mixer with the same method."""
        state = dict(state)
        self.flow.steps = int(state.pop("steps"))
        self.method.load_state(state)

    def callback(self) -> Any:
        """Return a TrainerCallback that tells the mixer how far training is and logs the last lam."""
        return make_callback(self)
