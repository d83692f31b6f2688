"""`attach`: from the name of a method to a model that trains with it; `detach` and `mixer_of` for later."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from mixwell.core.checks import MIXERS, check_attachable
from mixwell.core.layout import find_points
from mixwell.core.method import Method
from mixwell.core.mixer import Mixer
from mixwell.core.points import Points
from mixwell.methods.frameworks import example_of, losses_of_their_own, mix_in_fit, trained_module
from mixwell.methods.registry import build
from mixwell.utils.errors import OptionError, UnsupportedModelError


def attach(
    model: nn.Module,
    method: str | Method,
    *,
    example: Any = None,
    mask: str | None = None,
    batch_dim: int | None = None,
    where: Mapping[str, str] | None = None,
    auto_loss: bool | None = None,
    **options: Any,
) -> Mixer:
    """Make a model train with mixup. Attaching again replaces the mixer that is there.

    Methods (`mixwell.methods()` says more; each is also a class, as in `mixwell.methods.Amplify(alpha=0.1)`):

    - `amplify`: the stream after attention, in every block; with its defaults noticeable in 15 % of steps
    - `embedmix`: the embeddings
    - `sentencemix`: the sentence vector, before the last linear layer
    - `cls`: the same, more strongly
    - `tmix`: the output of one block, drawn each step
    - `input`: the embeddings, shorter rows filled up
    - `manifold`: embeddings, a block or the sentence vector, drawn each step
    - `attentionmix`: the embeddings, token by token, by attention
    - `batchmixup`: sentence vectors of the whole batch
    - `nonlinear`: the sentence vector, feature by feature
    - `ssmix`: spans of tokens, by saliency
    - `regmixup`: the embeddings, in a second forward beside the plain one
    - `nfm`: embeddings or a block, drawn each step, with noise
    - `mit`: the embeddings; the logits are taken apart again
    - `remix`: as `input`; the label goes to the much rarer class
    - `cmixup`: the sentence vector, with a row whose label is near: for regression
    - `eda`: nothing: tokens are deleted, swapped or replaced, as a rival to mixing
    - `none`: nothing: plain training, for comparison

    Args:
        model: a transformers model with a head, a model of sentence-transformers or SetFit, or any torch module if
            there is an `example`; on any device, not compiled yet.
        method: a name, or a method object with its options.
        example: a batch of yours, as the module is called: a tensor, a tuple of positional arguments or a dict of named
            ones, two rows or more. The module is run on it a few times to find out where it can be mixed.
        mask: with `example`: the name of the argument that tells tokens from padding; `"~name"` if it is true at
            padding and its name does not say so (`pad`). Found by itself where there is one of a telling name.
        batch_dim: with `example`: the axis of the batch in the input, found by itself by default.
        where: with `example`: names of modules, where they are not found by themselves: `{"block": "layers.*",
            "attention": "layers.*.mixer", "embeddings": "embed", "sentence": "head"}`.
        auto_loss: mix torch's own losses (`F.cross_entropy(logits, labels)` and its like) as they are computed from the
            outputs, for trainers that keep labels and loss to themselves. By default only for sentence-transformers
            and SetFit; elsewhere such a loss is an error in backward, and `mixer.loss(logits, labels)` is the way.
        **options: the method's options; an unknown one is an error.

    Returns:
        The mixer: also a context manager that detaches at its end.

    Example:
        >>> mixer = mixwell.attach(model, "amplify", alpha=0.1, samples=5)
        >>> model(**batch).loss.backward()  # the mixed loss
    """
    how = {"mask": mask, "batch_dim": batch_dim, "named": where}
    return _attach(model, build(method, options), example, how, auto_loss)


def _attach(owner: Any, method: Method, example: Any, how: dict[str, Any], auto_loss: bool | None) -> Mixer:
    """Probe the model, and attach a method to it.

    Args:
        owner: the model, or what holds it (SetFit).
        method: the method.
        example: the user's batch, or None.
        how: how to read the example, see `Example`.
        auto_loss: see `attach`.
    """
    model = trained_module(owner)
    check_attachable(model, again=True)
    example = example_of(model) if example is None else example
    given = {name: value for name, value in how.items() if value is not None}
    if example is None and given:
        raise OptionError("mask=, batch_dim= and where= go with example=, a batch that the model is called with")
    points = find_points(model, example, **given)
    if example is None and not points.classifies:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no head: it returns hidden states, not logits. Attach to a model with one "
            f"(AutoModelForSequenceClassification), or to the module that holds this one and its head: "
            f"attach(module, method, example=batch)"
        )
    mixer = _replaced(model, method, points, losses_of_their_own(model) if auto_loss is None else auto_loss)
    mix_in_fit(owner, mixer)
    return mixer


def _replaced(model: nn.Module, method: Method, points: Points, auto_loss: bool) -> Mixer:
    """Attach, in place of the mixer that the model has; that one stays if the new one does not fit."""
    old = next((other for other in list(MIXERS) if other.attached and other.model is model), None)
    if old is not None:
        old.detach()
    try:
        mixer = Mixer(model, method, points, auto_loss)
    except BaseException:
        if old is not None:
            old.attach_again()
        raise
    if old is not None:
        warnings.warn(
            f"{type(model).__name__} had {old.method.name!r} attached, which {method.name!r} replaces", stacklevel=4
        )
    return mixer


def mixer_of(model: Any) -> Mixer | None:
    """Return the mixer that is attached to a model, to what it wraps (DDP, torch.compile), or to a part of it."""
    model = getattr(model, "model_body", model) if not isinstance(model, nn.Module) else model
    if not isinstance(model, nn.Module):
        return None
    inside = set(map(id, model.modules()))
    return next((mixer for mixer in list(MIXERS) if mixer.attached and id(mixer.model) in inside), None)


def detach(model: Any) -> Any:
    """Take the mixer off a model, if there is one; return the model, which is bit for bit what it was."""
    mixer = mixer_of(model)
    if mixer is not None:
        mixer.detach()
    return model
