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
from mixwell.files import atomic_path, make_folder, write_json, write_text
from mixwell.papers.measured import FIGURE, PACKED, Cell, Measured, Outputs, anonymous, model_name, read, read_run
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
    found = replace(found, run=_without_paths(found))
    if add:
        found = joined(read(path), found, str(path))
    _write(found, make_folder(path))
    return path


def check_target(path: Path, run: Mapping[str, Any]) -> None:
    """Raise `RunError` unless a folder is free for a pack of a run, or holds one of the same experiment and scale."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "run.json").is_file():
        raise RunError(f"{path} is not empty and no pack; name another folder")
    there = read_run(path)
    if there["records"] not in (PACKED, FIGURE):
        raise RunError(f"{path} is the folder of a run, not a pack; name another folder")
    for name in ("experiment", "scale"):
        if there.get(name) != run.get(name):
            raise RunError(f"{path} has {name} {there.get(name)}, not {run.get(name)}; name another folder")


def _without_paths(found: Measured) -> dict[str, Any]:
    run = {**found.run, "records": PACKED, "packs": [], "failed": found.failed, "missing": found.missing}
    run |= {"command": anonymous(found.run["command"]), "request": {**found.run["request"], "data": None}}
    run["model"] = model_name(run["model"])
    if run["request"]["model"] is not None:
        run["request"]["model"] = run["model"]
    return run


def joined(old: Measured, new: Measured, where: str) -> Measured:
    """Two parts of one experiment as one; a cell of both is the new one.

    Args:
        old: what was packed before.
        new: another part.
        where: the old one's folder, for messages.

    Raises:
        RunError: they are of different models.
    """
    if old.run["model"] != new.run["model"]:
        raise RunError(f"{where} has model {old.run['model']}, not {new.run['model']}: it cannot be added there")
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

    back = "bring it back from the repository"
    try:
        arrays = load_file(path / "outputs.safetensors")
        text = (path / "cells.jsonl").read_text(encoding="utf-8")
        lines = {line["key"]: line for line in map(json.loads, text.splitlines())}
        places = [place for place in run["cells"] if place["key"] in lines]
        made = [_cell(place, lines[place["key"]], arrays) for place in places]
        changed = [cell for cell in made if not _sound(cell)]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: the pack is damaged ({type(error).__name__}: {error}); {back}") from error
    if changed:
        raise RunError(f"{path}: {changed[0].title} does not belong to its record; the pack was changed; {back}")
    if len(made) + len(run["failed"]) + run["missing"] != len(run["cells"]):
        lost = len(run["cells"]) - len(made) - len(run["failed"]) - run["missing"]
        raise RunError(f"{path}: {lost} of {len(run['cells'])} trainings are not in cells.jsonl; {back}")
    return made


def _cell(place: Mapping[str, Any], line: Mapping[str, Any], arrays: Mapping[str, Any]) -> Cell:
    key, about = place["key"], line["outputs"]
    outputs = Outputs(
        arrays[f"labels/{about['labels']}"], arrays[f"{key}/predicted"], arrays[f"{key}/log_p"], about["classes"]
    )
    place = {**place, "metrics": tuple(place["metrics"])}
    return Cell(**place, identity=line["identity"], result=line["result"], outputs=outputs)


def _sound(cell: Cell) -> bool:
    """Whether a cell's name is that of what it was trained on, and its metrics are those of its outputs."""
    named = hashlib.sha256(canonical(cell.identity).encode()).hexdigest()[:40] == cell.key
    right = float((cell.outputs.predicted == cell.outputs.labels).mean())
    loss = -float(cell.outputs.log_p[0].astype(np.float64).mean())
    close = abs(cell.value("nll") - loss) <= 2e-3 * max(1.0, loss)  # half precision
    return named and abs(cell.value("accuracy") - right) < 1e-6 and close
