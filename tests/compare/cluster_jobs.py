"""What the workers of `test_ray` run in place of a training. Light, as every worker imports it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from mixwell.compare.records import CellResult


def empty(spec: Any, cache: Any) -> CellResult:
    """A result of nothing."""
    import numpy as np

    metrics = {"rows": 4, "before": {"accuracy": 0.5, "nll": 1.0}}
    result = {"temperature": None, "test": metrics, "train_rows": 4, "timing": {"seconds": 0.0}, "labels": ["a", "b"]}
    return CellResult(result, {"test_logits": np.zeros((4, 2), np.float32), "test_labels": np.arange(4) % 2})


def slow(spec: Any, cache: Any) -> CellResult:
    time.sleep(0.5)
    return empty(spec, cache)


def full_disk(spec: Any, cache: Any) -> CellResult:
    """On a node with TEST_FULL_DISK the disk is full; cells elsewhere take long enough that it gets one, too."""
    if os.environ.get("TEST_FULL_DISK"):
        with open("/dev/full", "w") as stream:
            stream.write("tokens")
    return slow(spec, cache)


def deadly(spec: Any, cache: Any) -> CellResult:
    """Seed 0 kills its process once, seed 1 always."""
    mark = Path(os.environ["TEST_MARKS"]) / spec.key
    if spec.label == "amplify" and (spec.seed == 1 or not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return empty(spec, cache)


def broken(spec: Any, cache: Any) -> CellResult:
    raise ZeroDivisionError("by zero")
