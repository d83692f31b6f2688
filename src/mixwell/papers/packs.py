"""Packs: the compact records of a run, for committing.

PACK/run.json               as in the run's folder, without the user's paths; `earlier`: commands of parts before
PACK/cells.jsonl            a line a cell: its identity (whose hash is its name), metrics, epochs and times
PACK/outputs.safetensors    what `measured.Outputs` keeps of every test row; the test labels once for each test set

Parts of an experiment that were run apart can be put together in one pack; a run can take from packs what they have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mixwell.compare.spec import canonical
from mixwell.errors import RunError
from mixwell.files import atomic_path, home, write_json, write_text
from mixwell.papers.measured import PACKED, Cell, Measured, Outputs, anonymous, read
from mixwell.papers.protocols import get


def pack(folder: str | Path, target: str | Path, *, add: bool = False) -> Path:
    """Write the compact records of a run to a folder for committing: neither texts nor the user's paths.

    Args:
        folder: of the run.
        target: the folder to write to.
        add: keep what is packed there; for an experiment that is run in parts.

    Raises:
        RunError: the target is something else, or a pack of another experiment.
    """
    found, path = read(folder), Path(target)
    if path.exists() and any(path.iterdir()) and not (path / "run.json").is_file():
        raise RunError(f"{path} is not empty and no pack; name another folder")
    found = replace(found, run=_without_paths(found))
    if add:
        found = joined(read(path), found, str(path))
    path.mkdir(parents=True, exist_ok=True)
    _write(found, path)
    return path


def _without_paths(found: Measured) -> dict[str, Any]:
    run = {**found.run, "records": PACKED, "packs": [], "failed": found.failed, "missing": found.missing}
    run |= {"command": anonymous(found.run["command"]), "request": {**found.run["request"], "data": None}}
    if "/" in run["model"] and home(run["model"]).is_dir():
        run["model"] = Path(run["model"]).name
        run["request"]["model"] = run["model"]
    return run


def joined(old: Measured, new: Measured, where: str) -> Measured:
    """Two parts of one experiment as one; a cell of both is the new one.

    Args:
        old: what was packed before.
        new: another part.
        where: the old one's folder, for messages.

    Raises:
        RunError: they are not parts of one experiment, or the old one is no pack.
    """
    for name in ("experiment", "scale", "model"):
        if old.run[name] != new.run[name]:
            raise RunError(f"{where} has {name} {old.run[name]}, not {new.run[name]}: it cannot be added there")
    if old.run["records"] != PACKED:
        raise RunError(f"{where} is the folder of a run, not a pack; name the folder of a pack")
    experiment = get(new.run["experiment"])
    order = {each.key: at for at, each in enumerate(experiment.datasets)}
    places = {_place(each): each for part in (old, new) for each in part.run["cells"]}
    places = dict(sorted(places.items(), key=lambda item: order.get(item[0][0], -1)))
    cells = {_place(vars(cell)): cell for part in (old, new) for cell in part.cells}
    trained = {cell.title for cell in cells.values()}
    failed = {what: why for part in (old, new) for what, why in part.failed if what not in trained}
    done = {experiment.dataset(key[0]).title for key in cells}
    not_run = {each["what"]: each for part in (old, new) for each in part.run["not_run"] if each["what"] not in done}
    run = {
        **new.run,
        "earlier": [*old.run.get("earlier", []), old.run["command"]],
        "request": {**new.run["request"], "only": _union(old, new)},
        "not_run": list(not_run.values()),
        "cut": _cuts(new, list(places)),
        "notes": list(dict.fromkeys([*old.run["notes"], *new.run["notes"]])),
        "cells": list(places.values()),
        "failed": list(failed.items()),
        "missing": len(places) - len(cells) - len(failed),
    }
    return Measured(run, tuple(cells[key] for key in places if key in cells), tuple(failed.items()), run["missing"])


def _place(values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(values[name] for name in ("dataset", "size", "row", "seed"))


def _union(old: Measured, new: Measured) -> list[str]:
    """The data sets of both; none, for all of them, if one has all."""
    both = [part.run["request"]["only"] for part in (old, new)]
    return list(dict.fromkeys([*both[0], *both[1]])) if all(both) else []


def _cuts(part: Measured, places: Sequence[tuple[Any, ...]]) -> list[str]:
    """What all parts together leave out of the protocol, in words."""
    wanted = [_place(vars(run)) for run in get(part.run["experiment"]).cells(part.run["scale"])]
    there = dict.fromkeys(place[0] for place in places)
    gone = [key for key in dict.fromkeys(place[0] for place in wanted) if key not in there]
    made = [f"The data sets {', '.join(gone)} are left out."] if gone else []
    for key in there:
        mine, all_of_it = ({place[1:] for place in each if place[0] == key} for each in (places, wanted))
        rows = dict.fromkeys(place[2] for place in wanted if place[0] == key)
        if missing := [row for row in rows if row not in {place[1] for place in mine}]:
            made.append(f"{key}: the rows {', '.join(map(repr, missing))} are left out.")
        have, want = (len({place[2] for place in each}) for each in (mine, all_of_it))
        if have < want:
            made.append(f"{key}: {have} of {want} seeds.")
    return made


def _write(found: Measured, path: Path) -> None:
    from safetensors.numpy import save_file

    lines, arrays = {}, {}
    for cell in found.cells:
        name = hashlib.sha256(cell.outputs.labels.tobytes()).hexdigest()[:12]
        arrays[f"labels/{name}"] = cell.outputs.labels
        arrays[f"{cell.key}/predicted"] = cell.outputs.predicted
        arrays[f"{cell.key}/log_p"] = cell.outputs.log_p
        whole = {"labels": name, "classes": cell.outputs.classes}
        lines[cell.key] = {
            "key": cell.key, "identity": dict(cell.identity), "result": dict(cell.result), "outputs": whole,
        }  # fmt: skip
    write_text(path / "cells.jsonl", "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines.values()))
    with atomic_path(path / "outputs.safetensors") as place:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, place)
    write_json(path / "run.json", found.run)


def lent(folders: Sequence[str | Path]) -> dict[str, Cell]:
    """The cells of some packs by their names; a cell of several is the last one's.

    Raises:
        RunError: a folder is no pack.
    """
    found: dict[str, Cell] = {}
    for folder in folders:
        there = read(folder)
        if there.run["records"] != PACKED:
            raise RunError(f"{folder} is the folder of a run, not a pack; name a pack, or share its --records")
        found |= {cell.key: cell for cell in there.cells}
    return found


def cells(path: Path, run: Mapping[str, Any]) -> list[Cell]:
    """The cells of a pack.

    Raises:
        RunError: a file is damaged, or was changed.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path / "outputs.safetensors")
        text = (path / "cells.jsonl").read_text(encoding="utf-8")
        lines = {line["key"]: line for line in map(json.loads, text.splitlines())}
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"{path}: the pack is damaged ({error}); bring it back from the repository") from error
    made = []
    for place in run["cells"]:
        line = lines.get(place["key"])
        if line is None:
            continue
        if hashlib.sha256(canonical(line["identity"]).encode()).hexdigest()[:40] != place["key"]:
            raise RunError(f"{path}: cell {place['key'][:12]} does not belong to its identity; the pack was changed")
        key, about = place["key"], line["outputs"]
        outputs = Outputs(
            arrays[f"labels/{about['labels']}"], arrays[f"{key}/predicted"], arrays[f"{key}/log_p"], about["classes"]
        )
        place = {**place, "metrics": tuple(place["metrics"])}
        made.append(Cell(**place, identity=line["identity"], result=line["result"], outputs=outputs))
    return made
