"""From data, a model and a method to a trained, calibrated classifier, on an unmodified Trainer.

`fit` trains a loaded model on tokenised data, in memory or with checkpoints; `train` does all of a run: data, splits,
model, `fit`, temperature, test metrics and the run folder.

The best epoch is the one with the lowest validation loss (for classification the negative log-likelihood: a proper
score, which rewards right and honest probabilities alike). Another metric can be named by `best_metric`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from mixwell.errors import MixwellError, OptionError, RunError, nearest
from mixwell.progress import Interrupted, Reporter, StopSignal, history, make_callbacks, make_reporter
from mixwell.runs import (
    RunFolder,
    git_commit,
    load_weights,
    rank,
    read_state,
    training_over,
    versions,
    writing,
)
from mixwell.values import typed_value

__all__ = ["FitResult", "Interrupted", "RunResult", "TrainSettings", "fit", "resume", "train"]
