"""What sentence-transformers and SetFit need: their models are called in ways of their own."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from mixwell.core.mixer import Mixer
from mixwell.utils.errors import UnsupportedModelError


def _is_of(package: str, model: object) -> bool:
    return any(base.__module__.split(".")[0] == package for base in type(model).__mro__)


def trained_module(model: Any) -> Any:
    """Return the torch module that is mixed: a SetFit model is none itself, its body is."""
    body = getattr(model, "model_body", None)
    if isinstance(model, nn.Module) or not isinstance(body, nn.Module):
        return model
    if not isinstance(getattr(model, "model_head", None), nn.Module):
        raise UnsupportedModelError(
            f"the head of this {type(model).__name__} is scikit-learn's, which is fitted to features without training "
            f"steps: nothing would be mixed. Load it with use_differentiable_head=True"
        )
    return body


def losses_of_their_own(model: nn.Module) -> bool:
    """Tell whether a model's trainers compute the loss where nobody else sees the labels."""
    return _is_of("sentence_transformers", model)


def example_of(model: nn.Module) -> Any:
    """Return a batch for a model of sentence-transformers, which makes one of texts; else None."""
    if not _is_of("sentence_transformers", model):
        return None
    texts: Any = ["a few words", "some more words than before", "one"]
    if any(base.__name__ == "CrossEncoder" for base in type(model).__mro__):
        texts = [(text, "and an answer") for text in texts]
    prepare: Any = getattr(model, "preprocess", None) or getattr(model, "tokenize", None)
    return None if prepare is None else dict(prepare(texts))


class _Fit:
    """SetFit's `fit`, with mixing turned on while the head is trained: pairs of the phase before have no labels."""

    def __init__(self, fit: Any, mixer: Mixer) -> None:
        self.fit, self.mixer = fit, mixer
        functools.update_wrapper(self, fit)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.mixer.enabled = True
        try:
            return self.fit(*args, **kwargs)
        finally:
            self.mixer.enabled = False


def mix_in_fit(owner: Any, mixer: Mixer) -> None:
    """Mix a SetFit model only while its head is trained."""
    if owner is mixer.model or not callable(getattr(owner, "fit", None)):
        return
    mixer.enabled = False
    owner.fit = _Fit(owner.fit, mixer)
    mixer.on_detach(functools.partial(owner.__dict__.pop, "fit", None))
