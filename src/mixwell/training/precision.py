"""Training in bfloat16 or float16: what is evaluated and kept stays in full precision.

With `bf16` or `fp16` accelerate puts a forward around the model's own that computes in low precision, and leaves it
there. The saved model has none, so held-out rows that choose an epoch or a temperature must not see one either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# What accelerate writes into a model, and the mark without which it would do so again in the next training.
_WRAPPED = ("forward", "_original_forward")
_PREPARED = "_is_accelerate_prepared"


@contextmanager
def own_forward(model: Any) -> Iterator[None]:
    """Give a model its class's forward inside, and what was put around it back."""
    around = {name: model.__dict__.pop(name) for name in _WRAPPED if name in model.__dict__}
    try:
        yield
    finally:
        model.__dict__.update(around)


@contextmanager
def own_forward_afterwards(model: Any) -> Iterator[None]:
    """Take off what a training puts around a model's forward, when it is over."""
    written = (*_WRAPPED, _PREPARED)
    before = {name: model.__dict__[name] for name in written if name in model.__dict__}
    try:
        yield
    finally:
        for name in written:
            model.__dict__.pop(name, None)
        model.__dict__.update(before)


def in_full_precision(model: Any, evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """An evaluation with the model's own forward."""

    @functools.wraps(evaluate)
    def evaluate_own(*args: Any, **kwargs: Any) -> Any:
        with own_forward(model):
            return evaluate(*args, **kwargs)

    return evaluate_own
