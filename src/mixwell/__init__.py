"""mixwell: mixup in the hidden layers of any Transformer.

>>> import mixwell
>>> mixer = mixwell.attach(model, "amplify")  # then train as ever
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mixwell._registration import register as _register
from mixwell._version import __version__

if TYPE_CHECKING:
    from mixwell.inspection import Inspection, inspect
    from mixwell.methods import Method
    from mixwell.mixer import Mixer, attach
    from mixwell.plan import Plan

__all__ = ["Inspection", "Method", "Mixer", "Plan", "__version__", "attach", "inspect", "methods"]

_register()

# Public names and where they live: torch and transformers are imported when one is first used.
_HOMES = {
    "attach": "mixwell.mixer",
    "Mixer": "mixwell.mixer",
    "Plan": "mixwell.plan",
    "Method": "mixwell.methods",
    "inspect": "mixwell.inspection",
    "Inspection": "mixwell.inspection",
}


def methods() -> dict[str, str]:
    """Return all methods, ours and those of other packages: name -> one line."""
    # Importing the package of the same name puts it in this function's place; it can be called like this one.
    from mixwell.methods import summaries

    return summaries()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mixwell' has no attribute {name!r}")
