"""Packs: the compact results of a run, for committing; parts that were run apart are put together.

PACK/run.json               as in the run's folder, without the user's paths; `earlier`: commands of parts before
PACK/cells.jsonl            one line per run: its identity (whose hash is its name), metrics, epochs and times
PACK/outputs.safetensors    what `results.Outputs` keeps of every test row; the test labels once for each test set
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mixwell.papers import figures, output
from mixwell.papers.protocols import get
from mixwell.papers.results import Results, read
from mixwell.papers.run_file import FIGURE, PACKED, anonymous, model_name, read_run
from mixwell.utils.errors import RunError
from mixwell.utils.files import atomic_path, make_folder, write_json, write_text
from mixwell.utils.records import reading


def pack(folder: str | Path, target: str | Path, *, add: bool = False) -> Path:
    """Write the compact results of a run and the tables made of them to a folder: neither texts nor the user's paths.

    Args:
        folder: of the run.
        target: the folder to write to.
        add: keep what is packed there, for an experiment that is run in parts; the page of the part is then one more
            file.

    Raises:
        RunError: the target is something else, or a pack of another experiment.
    """
    source, path = Path(folder), Path(target)
    run = read_run(source)
    _check_target(path, run)
    if run["records"] == FIGURE:
        if add:
            raise RunError(f"--add: {source} is a figure, which has no parts; leave --add out")
        return figures.pack(source, path)
    with reading(source, "bring it back as it was, or run it again"):
        before, results = read(path) if add else None, read(source)
        pages = dict(before.run_json.get("pages", {})) if before else {}
        added = [(name, page, (source / name).read_text(encoding="utf-8")) for name, page in _pages(source, results)]
        results = replace(results, run_json=_without_paths(results))
    write_pack(joined(before, results, str(path)) if before else results, make_folder(path))
    output.write(path)
    for name, page, text in added:
        name = f"report-{'-'.join(page['datasets'])}.html" if add else name
        write_text(path / name, text)
        pages[name] = page
    _keep_pages(path, pages)
    return path


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
            "identity": run.identity,
            "result": run.result,
            "outputs": {"labels": name, "classes": run.outputs.classes},
        }
    write_text(path / "cells.jsonl", "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines.values()))
    with atomic_path(path / "outputs.safetensors") as place:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, place)
    write_json(path / "run.json", results.run_json)


def _check_target(path: Path, run: Mapping[str, Any]) -> None:
    """Raise `RunError` unless a folder is free for a pack of a run, or holds one of the same experiment and scale."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "run.json").is_file():
        raise RunError(f"{path} is not empty and no pack; name another folder")
    present = read_run(path)
    if present["records"] not in (PACKED, FIGURE):
        raise RunError(f"{path} is the folder of a run, not a pack; name another folder")
    for name in ("experiment", "scale"):
        if present.get(name) != run.get(name):
            raise RunError(f"{path} has {name} {present.get(name)}, not {run.get(name)}; name another folder")


def _pages(source: Path, measured: Results) -> list[tuple[str, Any]]:
    """The pages of a run or of a pack: file name, and its data sets and number of trainings.

    A pack has too little to make one: they come from the whole records.
    """
    pages = measured.run_json.get("pages")
    if pages is None:
        parts = list(dict.fromkeys(run.dataset for run in measured.runs))
        pages = {output.PAGE: {"datasets": parts, "cells": len(measured.runs)}}
    return [(name, page) for name, page in pages.items() if (source / name).is_file()]


def _keep_pages(path: Path, pages: Mapping[str, Any]) -> None:
    """Remove the pages of a pack that are of fewer trainings than its tables, and note the others."""
    measured = read(path)
    sizes = Counter(run.dataset for run in measured.runs)
    kept = {name: page for name, page in pages.items() if page["cells"] == sum(sizes[key] for key in page["datasets"])}
    for file in path.glob("report*.html"):
        if file.name not in kept:
            file.unlink()
    write_json(path / "run.json", {**measured.run_json, "pages": kept})


def _without_paths(results: Results) -> dict[str, Any]:
    """What the run.json of a pack holds."""
    before = results.run_json
    run = {**before, "records": PACKED, "packs": [], "failed": results.failed, "missing": results.missing}
    run |= {"command": anonymous(before["command"]), "request": {**before["request"], "data": None}}
    run["model"] = model_name(run["model"])
    if run["request"]["model"] is not None:
        run["request"]["model"] = run["model"]
    return run


def joined(old: Results, new: Results, where: str) -> Results:
    """Two parts of one experiment as one; of a run that both have, the new one is kept.

    Args:
        old: what was packed before.
        new: another part.
        where: the old one's folder, for messages.

    Raises:
        RunError: they are of different models.
    """
    if old.run_json["model"] != new.run_json["model"]:
        raise RunError(
            f"{where} has model {old.run_json['model']}, not {new.run_json['model']}: it cannot be added there"
        )
    experiment = get(new.run_json["experiment"])
    order = {dataset.key: position for position, dataset in enumerate(experiment.datasets)}
    places = {_place(place): place for part in (old, new) for place in part.run_json["cells"]}
    places = dict(sorted(places.items(), key=lambda item: order.get(item[0][0], -1)))
    runs = {_place(vars(run)): run for part in (old, new) for run in part.runs}
    trained = {run.title for run in runs.values()}
    failed = {what: why for part in (old, new) for what, why in part.failed if what not in trained}
    done = {experiment.dataset(key[0]).title for key in runs}
    not_run = {item["what"]: item for part in (old, new) for item in part.run_json["not_run"]}
    run_json = {
        **new.run_json,
        "earlier": [*old.run_json.get("earlier", []), old.run_json["command"]],
        "request": {**new.run_json["request"], "only": _union(old, new)},
        "not_run": [item for what, item in not_run.items() if what not in done],
        "cut": _cuts(new, list(places)),
        "notes": list(dict.fromkeys([*old.run_json["notes"], *new.run_json["notes"]])),
        "cells": list(places.values()),
        "failed": list(failed.items()),
        "missing": len(places) - len(runs) - len(failed),
    }
    kept = tuple(runs[key] for key in places if key in runs)
    return Results(run_json, kept, tuple(failed.items()), run_json["missing"])


def _place(values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(values[name] for name in ("dataset", "size", "row", "seed"))


def _union(old: Results, new: Results) -> list[str]:
    """The data sets of both; none, for all of them, if one has all."""
    both = [part.run_json["request"]["only"] for part in (old, new)]
    return list(dict.fromkeys([*both[0], *both[1]])) if all(both) else []


def _cuts(part: Results, places: Sequence[tuple[Any, ...]]) -> list[str]:
    """What all parts together leave out of the protocol, in words."""
    wanted = [_place(vars(run)) for run in get(part.run_json["experiment"]).runs(part.run_json["scale"])]
    present = dict.fromkeys(place[0] for place in places)
    gone = [key for key in dict.fromkeys(place[0] for place in wanted) if key not in present]
    sentences = [f"The data sets {', '.join(gone)} are left out."] if gone else []
    for key in present:
        mine, whole = ({place[1:] for place in group if place[0] == key} for group in (places, wanted))
        rows = dict.fromkeys(place[2] for place in wanted if place[0] == key)
        if missing := [row for row in rows if row not in {place[1] for place in mine}]:
            sentences.append(f"{key}: the rows {', '.join(map(repr, missing))} are left out.")
        have, want = (len({place[2] for place in group}) for group in (mine, whole))
        if have < want:
            sentences.append(f"{key}: {have} of {want} seeds.")
    return sentences
