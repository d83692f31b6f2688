"""What a record of a cell must hold to be compared: a checksum tells changes, not that the values make sense."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mixwell.compare.spec import CellSpec
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE


class CorruptRecord(Exception):
    """A record is damaged; the text says how."""


def check_contents(spec: CellSpec, result: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Raise `CorruptRecord` unless tables and pages can be made of a record.

    Args:
        spec: the cell.
        result: of result.json.
        outputs: arrays by name: logits (N, C), or (N,) for regression, and labels (N,) or (N, C) of both splits.
    """
    _check_result(spec, result)
    classes = None if spec.task == REGRESSION else len(result["labels"])
    for split in ("validation", "test"):
        logits, labels = outputs.get(f"{split}_logits"), outputs.get(f"{split}_labels")
        if logits is None or labels is None:
            if split == "test" or logits is not labels:
                raise CorruptRecord(f"outputs.safetensors has no {split} rows")
            continue
        whole = logits.ndim == (1 if classes is None else 2) and len(logits) == len(labels) > 0
        if not whole or (classes is not None and logits.shape[1] != classes) or logits.dtype.kind != "f":
            raise CorruptRecord(f"outputs.safetensors: {split}_logits have the shape {logits.shape}")
        if spec.task == SINGLE:
            fit = labels.ndim == 1 and labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < classes
        else:
            fit = labels.shape == logits.shape
        if not np.isfinite(logits).all():
            raise CorruptRecord(f"outputs.safetensors: {split}_logits are not finite")
        if not fit or not np.isfinite(labels).all():
            raise CorruptRecord(f"outputs.safetensors: {split}_labels are none of the {classes} classes")
    if result["test"]["rows"] != len(outputs["test_labels"]):
        raise CorruptRecord("result.json and outputs.safetensors have different numbers of rows")


def _check_result(spec: CellSpec, result: Mapping[str, Any]) -> None:
    kinds = {"labels": list, "train_rows": int, "test": dict, "history": list, "timing": dict, "versions": dict}
    more = {"validation": dict, "notes": list, "epochs": int, "steps": int, "best_epoch": int}
    kinds |= {name: kind for name, kind in more.items() if name in result}
    for name, kind in kinds.items():
        if not isinstance(result.get(name), kind):
            raise CorruptRecord(f"result.json has no {name!r} of the right type")
    if spec.task not in (SINGLE, MULTI, REGRESSION) or result.get("task", spec.task) != spec.task:
        raise CorruptRecord(f"result.json has the task {result.get('task')!r}, expected {spec.task!r}")
    if not all(isinstance(label, str) for label in result["labels"]):
        raise CorruptRecord("result.json has labels that are no texts")
    temperature = result.get("temperature")
    if (temperature is None) != (spec.task == REGRESSION) or not _number(temperature or 1.0, least=1e-9):
        raise CorruptRecord(f"result.json has the temperature {temperature!r}")
    if (seconds := result["timing"].get("seconds_per_step", "")) is not None and not _number(seconds):
        raise CorruptRecord("result.json has no seconds_per_step")
    for part in [result[split] for split in ("validation", "test") if split in result]:
        tables = [part.get("before"), part.get("after", {})]
        if not isinstance(part.get("rows"), int) or not all(isinstance(table, dict) for table in tables):
            raise CorruptRecord("result.json has no metrics of a split")
    for row in result["history"]:
        losses: list[Any] = [row.get(name) for name in ("validation", "test")] if isinstance(row, dict) else [0]
        if not all(isinstance(part, (dict, type(None))) for part in losses) or not _number(row.get("step", "")):
            raise CorruptRecord("result.json has a damaged history")
        numbers = [row.get("train_loss"), *(value for part in losses for value in (part or {}).values())]
        if not all(value is None or isinstance(value, (int, float)) for value in numbers):
            raise CorruptRecord("result.json has a damaged history")


def _number(value: Any, least: float = 0.0) -> bool:
    """Whether a value is a finite number of at least `least`."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return bool(plain and math.isfinite(value) and value >= least)
