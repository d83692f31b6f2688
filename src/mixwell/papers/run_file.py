"""run.json: what a run, a pack or a figure is; and how it is written without the user's folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixwell.papers.protocols import get
from mixwell.papers.schema import SAMPLE
from mixwell.utils.errors import RunError
from mixwell.utils.files import home
from mixwell.utils.records import read_json

FORMAT = "mixwell paper run 1"
# What stands in the place of the records' folder: for packs, and for figures that need no records.
PACKED = "packed"
FIGURE = "figure.json"
_NEEDED = ("records", "cells", "scale", "model", "command", "request", "notes", "cut", "not_run")
PLACE = ("dataset", "size", "beside", "row", "seed", "metrics", "key")  # of a training in the tables

_PLACEHOLDERS = {
    "--data": "DATA", "--output": "OUTPUT", "-o": "OUTPUT", "--records": "RECORDS", "--cache-dir": "CACHE",
    "--packed": "PACK",
}  # fmt: skip


def read_run(path: Path) -> dict[str, Any]:
    """What the run.json of a run, a pack or a figure holds.

    Raises:
        RunError: there is none, or it is damaged.
    """
    run = read_json(path / "run.json", FORMAT, "the folder of a paper's run; name what `mixwell paper run` wrote")
    experiment = get(str(run.get("experiment")))
    if run.get("records") == FIGURE:
        return run
    packed = ("failed", "missing") if run.get("records") == PACKED else ()
    lacking = [name for name in (*_NEEDED, *packed) if name not in run]
    if lacking:
        raise RunError(f"{path / 'run.json'}: damaged (without {', '.join(lacking)}); bring it back, or run it again")
    kinds: dict[str, type] = {
        "records": str,
        "cells": list,
        "scale": str,
        "model": str,
        "command": list,
        "request": dict,
        "notes": list,
    }
    if packed:
        kinds |= {"failed": list, "missing": int}
    wrong = [name for name, kind in kinds.items() if not isinstance(run[name], kind)]
    if wrong:
        raise RunError(f"{path / 'run.json'}: damaged ({wrong[0]} has a wrong type); bring it back, or run it again")
    if packed and not all(isinstance(each, list) for each in run["failed"]):
        raise RunError(f"{path / 'run.json'}: damaged (failed has a wrong type); bring it back, or run it again")
    known = {dataset.key for dataset in (*experiment.datasets, SAMPLE)}
    for place in run["cells"]:
        if not isinstance(place, dict) or place.get("dataset") not in known or place.keys() != {*PLACE}:
            raise RunError(f"{path / 'run.json'}: damaged (the run {place}); bring it back, or run it again")
    return run


def place_title(place: Mapping[str, Any]) -> str:
    """The place of a training in a table, in words."""
    return f"{place['dataset']}, {place['size']}, {place['row']}, seed {place['seed']}"


def anonymous(command: list[str]) -> list[str]:
    """A command line with words in the place of the user's folders."""

    def instead(option: str, value: str) -> str:
        return model_name(value) if option in ("--model", "-m") else _PLACEHOLDERS.get(option, value)

    words: list[str] = []
    for word in command:
        name, equals, value = word.partition("=")
        if equals and name.startswith("-"):
            words.append(f"{name}={instead(name, value)}")
        else:
            words.append(instead(words[-1], word) if words else word)
    return words


def model_name(model: str) -> str:
    """A model's name without the user's folders; a hub id stays."""
    local = model.startswith(("/", ".", "~")) or home(model).is_dir()
    return Path(model).name if local else model
