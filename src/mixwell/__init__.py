"""mixwell: mixup in the hidden layers of any Transformer.

>>> import mixwell
>>> mixer = mixwell.attach(model, "amplify")  # then train as usual
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mixwell._registration import register as _register
from mixwell._version import __version__

if TYPE_CHECKING:
    from mixwell import compare, methods
    from mixwell.api import resume, train
    from mixwell.core.draw import Plan
    from mixwell.core.method import Method
    from mixwell.core.mixer import Mixer
    from mixwell.core.outputs import LabelsNotMixedWarning
    from mixwell.methods.attach import attach, detach, mixer_of
    from mixwell.methods.inspection import Inspection, inspect
    from mixwell.training.estimator import TextClassifier
    from mixwell.training.predict import Classifier
    from mixwell.training.settings import TrainSettings

__all__ = [
    "Classifier",
    "Inspection",
    "LabelsNotMixedWarning",
    "Method",
    "Mixer",
    "Plan",
    "TextClassifier",
    "TrainSettings",
    "__version__",
    "attach",
    "compare",
    "detach",
    "inspect",
    "methods",
    "mixer_of",
    "resume",
    "train",
]

_register()

# Public names and where they live: torch and transformers are imported when one is first used.
_HOMES = {
    "Classifier": "mixwell.training.predict",
    "TextClassifier": "mixwell.training.estimator",
    "attach": "mixwell.methods.attach",
    "detach": "mixwell.methods.attach",
    "mixer_of": "mixwell.methods.attach",
    "LabelsNotMixedWarning": "mixwell.core.outputs",
    "train": "mixwell.api",
    "resume": "mixwell.api",
    "TrainSettings": "mixwell.training.settings",
    "Mixer": "mixwell.core.mixer",
    "Plan": "mixwell.core.draw",
    "Method": "mixwell.core.method",
    "inspect": "mixwell.methods.inspection",
    "Inspection": "mixwell.methods.inspection",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in ("methods", "compare"):  # packages that can be called
        return importlib.import_module(f"mixwell.{name}")
    raise AttributeError(f"module 'mixwell' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
