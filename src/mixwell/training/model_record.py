"""What a model folder says of itself (mixwell.json), checked against its config and what the model really is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.metrics.tasks import REGRESSION
from mixwell.training.models import PROBLEM_TYPES, length_limit, odd_weight, tokenizer_fault
from mixwell.utils.errors import RunError
from mixwell.utils.records import damage

_BACK = "bring the folder back as it was, or train anew"


def check_model_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Raise `RunError` unless mixwell.json has all that predictions depend on, of the right types.

    Args:
        folder: of the model.
        record: what its mixwell.json holds.
    """
    labels, temperature, length = record.get("labels"), record.get("temperature"), record.get("max_length")
    columns, task = record.get("columns", {}), record.get("task")
    number = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
    faults = {
        f"task {task!r} is none of {', '.join(PROBLEM_TYPES)}": not isinstance(task, str) or task not in PROBLEM_TYPES,
        "labels must be a list of texts": not isinstance(labels, list) or not all(isinstance(x, str) for x in labels),
        f"temperature must be a finite number above 0, got {temperature!r}": not (
            temperature is None or (number and math.isfinite(temperature) and temperature > 0)
        ),
        f"max_length must be a whole number of at least 3, got {length!r}": (
            not isinstance(length, int) or isinstance(length, bool) or length < 3
        ),
        "abstain must be a table": not isinstance(record.get("abstain", {}), (dict, type(None))),
        "columns must name columns by texts": not isinstance(columns, dict)
        or not all(isinstance(x, (str, type(None))) for x in columns.values()),
    }
    for name in ("pairs", "temperature_in_weights", "trust_remote_code"):
        faults[f"{name} must be true or false"] = not isinstance(record.get(name, False), bool)
    for fault, there in faults.items():
        if there:
            raise damage(folder / "mixwell.json", fault, _BACK)
    if len(set(labels or [])) < len(labels or []):
        raise damage(folder / "mixwell.json", "a label is named twice", _BACK)


def check_model(folder: Path, record: Mapping[str, Any], model: Any, tokenizer: Any) -> None:
    """Raise `RunError` unless a loaded model is the one that its mixwell.json speaks of.

    Args:
        folder: of the model.
        record: what its mixwell.json holds, checked by `check_model_record`.
        model: as it was loaded.
        tokenizer: likewise.
    """
    config, labels, task = model.config, list(record["labels"]), record["task"]
    count = 1 if task == REGRESSION else len(labels)
    named = [str(config.id2label.get(number)) for number in range(len(labels))]
    fault = None
    if config.num_labels != count or (task == REGRESSION and labels):
        fault = f"it has {count} labels where config.json has {config.num_labels}"
    elif named != labels:
        fault = f"its labels {labels[:3]} are not those of config.json, {named[:3]}"
    elif getattr(config, "problem_type", None) not in (None, PROBLEM_TYPES[task]):
        fault = f"its task {task} is not that of config.json, {config.problem_type}"
    elif record["max_length"] > (limit := length_limit(model, tokenizer)):
        fault = f"its max_length {record['max_length']} is more than the {limit} tokens that the model takes"
    if fault is not None:
        raise damage(folder / "mixwell.json", fault, _BACK)
    if (wrong := tokenizer_fault(tokenizer, model)) is not None:
        raise RunError(f"{folder}: {wrong}; {_BACK}")
    if (odd := odd_weight(model)) is not None:
        raise RunError(f"{folder}: the weight {odd} has values that are not finite; {_BACK}")


def check_logits(logits: NDArray[np.float32], classes: int) -> None:
    """Raise `RunError` unless logits are finite numbers of shape (N, classes)."""
    if logits.ndim != 2 or logits.shape[1] != classes:
        shape = "x".join(map(str, logits.shape[1:]))
        raise RunError(f"the model gives {shape or 'one'} outputs for a row, expected {classes}; {_BACK}")
    if not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise RunError(
            f"the model's outputs are not finite (first for text {row + 1} of a batch), so there is no prediction; "
            f"its weights are damaged or too large for the precision they are used in"
        )
