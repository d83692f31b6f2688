"""From data, a model and a method to a trained, calibrated classifier."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixwell.training.fitting import FitResult, fit
    from mixwell.training.run import RunResult, resume, train
    from mixwell.training.settings import TrainSettings
    from mixwell.training.trainer_errors import quiet_libraries
    from mixwell.utils.signals import Interrupted

__all__ = ["FitResult", "Interrupted", "RunResult", "TrainSettings", "fit", "quiet_libraries", "resume", "train"]

# Imported when first used: settings can be read without torch.
_HOMES = {
    "FitResult": "mixwell.training.fitting",
    "fit": "mixwell.training.fitting",
    "RunResult": "mixwell.training.run",
    "resume": "mixwell.training.run",
    "train": "mixwell.training.run",
    "TrainSettings": "mixwell.training.settings",
    "quiet_libraries": "mixwell.training.trainer_errors",
    "Interrupted": "mixwell.utils.signals",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
