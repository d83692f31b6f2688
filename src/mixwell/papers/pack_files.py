"""The files of a pack: the compact results of a run, for committing.

PACK/run.json               as in the run's folder, without the user's paths; `earlier`: commands of parts before
PACK/cells.jsonl            one line per run: its identity (whose hash is its name), metrics, epochs and times
PACK/outputs.safetensors    what `measured.Outputs` keeps of every test row; the test labels once for each test set
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mixwell.compare.spec import canonical
from mixwell.papers.measured import MeasuredRun, Outputs, Results
from mixwell.papers.run_file import FIGURE, PACKED, read_run
from mixwell.utils.errors import RunError
from mixwell.utils.files import atomic_path, write_json, write_text


def write_pack(results: Results, path: Path) -> None:
    """Write results, whose run.json is that of a pack, to a folder."""
    from safetensors.numpy import save_file

    lines, arrays = {}, {}
    for run in results.runs:
        name = hashlib.sha256(run.outputs.labels.tobytes()).hexdigest()[:12]
        arrays[f"labels/{name}"] = run.outputs.labels
        arrays[f"{run.key}/predicted"] = run.outputs.predicted
        arrays[f"{run.key}/log_p"] = run.outputs.log_p
        lines[run.key] = {
            "key": run.key,
            "identity": dict(run.identity),
            "result": dict(run.result),
            "outputs": {"labels": name, "classes": run.outputs.classes},
        }
    write_text(path / "cells.jsonl", "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines.values()))
    with atomic_path(path / "outputs.safetensors") as place:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, place)
    write_json(path / "run.json", results.run_json)


def read_pack(path: Path, run: Mapping[str, Any]) -> Results:
    """The results of a pack.

    Args:
        path: the pack's folder.
        run: what its run.json holds.

    Raises:
        RunError: a file is damaged, or was changed.
    """
    return Results(run, tuple(_read_runs(path, run)), tuple(map(tuple, run["failed"])), run["missing"])


def shared_results(folders: Sequence[str | Path]) -> dict[str, MeasuredRun]:
    """The results of some packs by the runs' names; of a run that several packs have, the last one's.

    Raises:
        RunError: a folder is no pack.
    """
    runs: dict[str, MeasuredRun] = {}
    for folder in folders:
        path = Path(folder)
        run = read_run(path)
        if run["records"] == FIGURE:
            raise RunError(f"{path} is a figure and has no trainings; name the folder of a table")
        if run["records"] != PACKED:
            raise RunError(f"{folder} is the folder of a run, not a pack; name a pack, or share its --records")
        runs |= {shared.key: shared for shared in read_pack(path, run).runs}
    return runs


def _read_runs(path: Path, run: Mapping[str, Any]) -> list[MeasuredRun]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    back = "bring it back from the repository"
    try:
        arrays = load_file(path / "outputs.safetensors")
        text = (path / "cells.jsonl").read_text(encoding="utf-8")
        lines = {line["key"]: line for line in map(json.loads, text.splitlines())}
        places = [place for place in run["cells"] if place["key"] in lines]
        runs = [_measured_run(place, lines[place["key"]], arrays) for place in places]
        changed = [measured for measured in runs if not _sound(measured)]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: the pack is damaged ({type(error).__name__}: {error}); {back}") from error
    if changed:
        raise RunError(f"{path}: {changed[0].title} does not belong to its record; the pack was changed; {back}")
    lost = len(run["cells"]) - len(runs) - len(run["failed"]) - run["missing"]
    if lost:
        raise RunError(f"{path}: {lost} of {len(run['cells'])} trainings are not in cells.jsonl; {back}")
    return runs


def _measured_run(place: Mapping[str, Any], line: Mapping[str, Any], arrays: Mapping[str, Any]) -> MeasuredRun:
    key, about = place["key"], line["outputs"]
    outputs = Outputs(
        arrays[f"labels/{about['labels']}"], arrays[f"{key}/predicted"], arrays[f"{key}/log_p"], about["classes"]
    )
    place = {**place, "metrics": tuple(place["metrics"])}
    return MeasuredRun(**place, identity=line["identity"], result=line["result"], outputs=outputs)


def _sound(run: MeasuredRun) -> bool:
    """Whether a run's name is that of what it was trained on, and its metrics are those of its outputs."""
    named = hashlib.sha256(canonical(run.identity).encode()).hexdigest()[:40] == run.key
    right = float((run.outputs.predicted == run.outputs.labels).mean())
    loss = -float(run.outputs.log_p[0].astype(np.float64).mean())
    close = abs(run.value("nll") - loss) <= 2e-3 * max(1.0, loss)  # half precision
    return named and abs(run.value("accuracy") - right) < 1e-6 and close
