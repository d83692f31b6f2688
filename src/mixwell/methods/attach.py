"""`attach`: from the name of a method to a model that trains with it."""

from __future__ import annotations

from typing import Any

from torch import nn

from mixwell.core.checks import check_attachable
from mixwell.core.layout import find_points
from mixwell.core.method import Method
from mixwell.core.mixer import Mixer
from mixwell.methods.registry import build


def attach(model: nn.Module, method: str | Method, **options: Any) -> Mixer:
    """Make a model train with mixup.

    Args:
        model: a transformers model with a classification head, on any device, not compiled yet.
        method: a name of `mixwell.methods()`, or a method object.
        **options: the method's options; an unknown one is an error.

    Returns:
        The mixer: also a context manager that detaches at its end.

    Example:
        >>> mixer = mixwell.attach(model, "amplify", alpha=0.1, samples=5)
        >>> model(**batch).loss.backward()  # the mixed loss
    """
    chosen = build(method, options)
    check_attachable(model)
    return Mixer(model, chosen, find_points(model))
