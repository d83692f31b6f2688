"""The plan of one step: what is drawn, what is pinned, and what a method makes of it.

Takes one seed from torch's generator for every training forward, whatever the method; see `draw`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixwell.core.draw import Plan, check_permutation, draw_permutation, generator
from mixwell.core.model import base_config
from mixwell.core.step import Step
from mixwell.utils.errors import BatchError, OptionError

if TYPE_CHECKING:
    from mixwell.core.method import Method
    from mixwell.core.mixer import Mixer

_PROB_STREAM = 11


@dataclass(frozen=True)
class Pin:
    """What `Mixer.pin` fixes; None is drawn."""

    lam: float | Tensor | None = None
    permutation: Tensor | None = None
    layer: int | None = None
    in_eval: bool = False

    def narrowed(self, mixer: Mixer, lam: object, permutation: object, layer: int | None, in_eval: bool) -> Pin:
        """Return this pin with what is given on top of it; raise `OptionError` for what the method does not draw."""
        method = mixer.method
        fixed_lam, fixed_permutation = self.lam, self.permutation
        if lam is not None:
            if not method.has_lam:
                raise OptionError(f"method {method.name!r} draws no lam, so none can be pinned")
            values = torch.as_tensor(lam, dtype=torch.float64)
            if values.dim() > 1 or not bool(((values >= 0) & (values <= 1)).all()):
                raise OptionError(f"lam={lam} must be one number or (B,) values in [0, 1]")
            fixed_lam = float(values) if values.dim() == 0 else values
        if permutation is not None:
            if not method.has_permutation:
                raise OptionError(f"method {method.name!r} mixes the whole batch: no permutation can be pinned")
            fixed_permutation = torch.as_tensor(permutation, dtype=torch.long)
        if layer is not None:
            if not method.has_layer:
                raise OptionError(f"method {method.name!r} draws no layer, so none can be pinned")
            if layer not in mixer.layers:
                raise OptionError(f"layer={layer} is not one of this mixer's layers {mixer.layers}")
        return Pin(fixed_lam, fixed_permutation, self.layer if layer is None else layer, self.in_eval or in_eval)


def draw_plan(mixer: Mixer, step: Step) -> Plan:
    """Draw the plan of one step; the method may refine it and edit the step's inputs."""
    method, pin, size = mixer.method, mixer.pinned, step.size
    if pin.permutation is not None:
        check_permutation(pin.permutation, size, mixer.mutual)
    if isinstance(pin.lam, Tensor) and pin.lam.shape != (size,):
        raise BatchError(f"the pinned lam has shape {tuple(pin.lam.shape)} but the batch has {size} rows")
    mixing = mixing_now(mixer)
    # Pinned eval forwards (pictures) must not move the random state.
    seed = mixer.flow.seed() if mixer.model.training else 0
    if size < 2 or not mixing or not method.mixes or _left_out(method, seed):
        return plain_plan(mixer, step, seed)
    rng = generator(seed)
    lam = method.draw_lam(rng) if pin.lam is None else pin.lam
    if lam is not None:
        lam = method.adjust_lam(lam)
    layer = pin.layer
    if layer is None and (drawn := method.draw_layer(rng, len(mixer.layers))) is not None:
        layer = mixer.layers[drawn]
    permutation = _partners(mixer, step, rng)
    weight, point_weights, active = _weights(mixer, step, lam, layer, permutation)
    shift, shift_mask = _line_up(mixer, step, permutation)
    plan = Plan(seed, permutation, lam, layer, point_weights, active, weight, shift=shift, shift_mask=shift_mask)
    return method.prepare(step, plan, rng)


def _left_out(method: Method, seed: int) -> bool:
    """Tell whether this batch is one of those that `prob` leaves unmixed; draws from a stream of its own."""
    return method.prob < 1 and bool(torch.rand((), generator=generator(seed, _PROB_STREAM)) >= method.prob)


def plain_plan(mixer: Mixer, step: Step, seed: int) -> Plan:
    """Return the plan that mixes nothing."""
    ones = torch.ones(max(len(mixer.sites), 1), step.size, dtype=_weight_dtype(mixer), device=step.device)
    rows = torch.arange(step.size, device=step.device)
    return Plan(seed, rows, None, None, ones, (False,) * len(mixer.sites), ones[0], plain=True)


def mixing_now(mixer: Mixer) -> bool:
    """Tell whether mixing is on at this point of training."""
    start, stop = mixer.method.start, mixer.method.stop
    if start == 0.0 and stop == 1.0:
        return True
    progress = mixer.progress
    if progress is None and mixer.method.total_steps is not None:
        progress = mixer.flow.steps / mixer.method.total_steps
    if progress is None:
        raise OptionError(
            f"start={start}, stop={stop} need to know how far training is: pass total_steps=, set mixer.progress "
            f"(0 to 1), or add mixer.callback() to Trainer's callbacks"
        )
    return start <= progress and (progress < stop or stop == 1.0)


def _partners(mixer: Mixer, step: Step, rng: torch.Generator) -> Tensor:
    """Return who is mixed with whom: (B,)."""
    pin = mixer.pinned
    if not mixer.method.has_permutation:
        return torch.arange(step.size, device=step.device)
    if pin.permutation is not None:
        return pin.permutation.to(step.device)
    own = mixer.method.draw_partners(step, rng)
    if own is not None:
        return own
    return draw_permutation(
        mixer.pairing, step.size, rng, device=step.device,
        classes=int(getattr(base_config(mixer.model), "num_labels", 0) or 0),
        lengths=None if step.mask is None else step.mask.sum(1), labels=step.labels,
    )  # fmt: skip


def _weights(
    mixer: Mixer, step: Step, lam: float | Tensor | None, layer: int | None, permutation: Tensor
) -> tuple[Tensor, Tensor, tuple[bool, ...]]:
    """Return the weight of a row's own label (B,), its own part at each point (P, B), and which points are active."""
    size, device, dtype = step.size, step.device, _weight_dtype(mixer)
    ones = torch.ones(max(len(mixer.sites), 1), size, dtype=dtype, device=device)
    weight = torch.as_tensor(1.0 if lam is None else lam, dtype=torch.float64).to(dtype)
    weight = weight.to(device, non_blocking=True).expand(size)
    # A row that is its own partner keeps weight 1: the same value, and gradients exact to the bit.
    weight = torch.where(permutation == torch.arange(size, device=device), ones[0], weight)
    # AMPLIFY's lam rounds to 1 in two of five steps: nothing to do at its points then.
    alone = isinstance(lam, float) and bool(torch.tensor(lam, dtype=dtype) == 1)
    active = tuple(not alone and (layer is None or own == layer) for own in mixer.site_layers)
    points = torch.stack([weight if mixed else ones[0] for mixed in active]) if active else ones
    return weight, points, active


def _line_up(mixer: Mixer, step: Step, permutation: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Line partners up at their last tokens, for points in causal stacks: (B, T) places and where they are real."""
    if not any(point.causal for point in mixer.sites):
        return None, None
    if mixer.points.task != "sequence":
        # Labels have places of their own: tokens meet at theirs, where the partner has one.
        return None, None if step.mask is None else step.mask.index_select(0, permutation)
    last = step.last
    other = last.index_select(0, permutation)
    places = torch.arange(step.length, device=step.device) + (other - last).unsqueeze(1)
    real = (places >= 0) & (places <= other.unsqueeze(1))
    places = places.clamp(0, step.length - 1)
    mask = step.mask
    if mask is not None:
        real = real & mask.index_select(0, permutation).gather(1, places)
    return places, real


def _weight_dtype(mixer: Mixer) -> torch.dtype:
    parameter = next(mixer.model.parameters(), None)
    return torch.float64 if parameter is not None and parameter.dtype == torch.float64 else torch.float32
