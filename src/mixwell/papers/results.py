"""The results in the folder of a run, from its records, or in a pack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mixwell.compare.records import CorruptRecord, Record, Records
from mixwell.compare.spec import BASELINE
from mixwell.compare.summary import Summary, summarise
from mixwell.papers.experiment import Experiment
from mixwell.papers.measured import MeasuredRun, Outputs, Results
from mixwell.papers.pack_files import read_pack, shared_results
from mixwell.papers.protocols import get
from mixwell.papers.run_file import FIGURE, PACKED, anonymous, place_title, read_run
from mixwell.utils.errors import RunError

_KEPT = (
    "train_rows", "temperature", "best_epoch", "epochs", "steps", "stopped_early", "learning_rate", "timing", "threads",
    "versions", "notes",
)  # fmt: skip


def read(folder: str | Path) -> Results:
    """Read the folder of a run, or a pack.

    Raises:
        RunError: it is neither, or a file is damaged.
    """
    path = Path(folder)
    run = read_run(path)
    if run["records"] == FIGURE:
        raise RunError(f"{path} is a figure and has no trainings; name the folder of a table")
    if run["records"] == PACKED:
        return read_pack(path, run)
    records, shared = Records(path / run["records"]), shared_results(run.get("packs", ()))
    curve = get(run["experiment"]).curve is not None
    runs, failed, missing = [], [], 0
    for place in run["cells"]:
        record = _record(records, place["key"])
        if record is not None:
            runs.append(_measured_run(place, record, curve))
        elif (other := shared.get(place["key"])) is not None:
            runs.append(replace(other, **{**place, "metrics": tuple(place["metrics"])}))
        elif (failure := records.failure(place["key"])) is not None:
            failed.append((place_title(place), failure.reason))
        else:
            missing += 1
    return Results(run, tuple(runs), tuple(failed), missing)


def _record(records: Records, key: str) -> Record | None:
    """A record; None if it is missing or damaged."""
    try:
        return records.read(key) if records.has(key) else None
    except CorruptRecord:
        return None


def _measured_run(place: Mapping[str, Any], record: Record, curve: bool) -> MeasuredRun:
    raw = record.outputs()
    result = {name: record.result[name] for name in _KEPT}
    result["test"] = {name: record.result["test"][name] for name in ("rows", "before", "after")}
    result["last"] = record.result["history"][-1]["validation"].get("nll")
    result["curve"] = [
        {"step": row["step"], "train_loss": row["train_loss"], "test_loss": row.get("test", {}).get("nll")}
        for row in record.result["history"]
        if curve
    ]
    outputs = Outputs.of(raw["test_logits"], raw["test_labels"])
    place = {**place, "metrics": tuple(place["metrics"])}
    return MeasuredRun(**place, identity=record.spec.identity(), result=result, outputs=outputs)


def summary(folder: str | Path, level: float = 0.95) -> Summary | None:
    """The run as a comparison against plain training, for its page.

    None if there is nothing yet, for a pack, and for a run that has trainings from packs: these have too little for a
    page, and one of the rest would contradict the table.
    """
    path = Path(folder)
    run = read_run(path)
    if run["records"] == PACKED:
        return None
    records, experiment = Records(path / run["records"]), get(run["experiment"])
    shared = shared_results(run.get("packs", ()))
    if any(place["key"] in shared and not records.has(place["key"]) for place in run["cells"]):
        return None
    compared = []
    for place in run["cells"]:
        record = _record(records, place["key"])
        if record is not None:
            compared.append(_as_candidate(place, record, experiment))
    if not compared:
        return None
    keys = [place["key"] for place in run["cells"]]
    failures = [failure for key in keys if not records.has(key) and (failure := records.failure(key)) is not None]
    notes = tuple(f"failed: {failure.spec.label}, seed {failure.spec.seed}: {failure.reason}" for failure in failures)
    return replace(summarise(compared, level=level), notes=notes, commands=(" ".join(anonymous(run["command"])),))


def _as_candidate(place: Mapping[str, Any], record: Record, experiment: Experiment) -> Record:
    """A record under the name of its row, for a comparison.

    Some protocols cut validation rows anew for each seed, and draws per batch belong to a row of the table: all of one
    data set and size stand beside each other, as in the tables.
    """
    plain = record.spec.method == BASELINE and not record.spec.options.get("label_smoothing")
    spec = replace(
        record.spec,
        name=experiment.dataset(place["dataset"]).title,
        label=BASELINE if plain else place["row"],
        settings={key: value for key, value in record.spec.settings.items() if key != "updates_per_batch"},
        fingerprint=f"{place['dataset']}, {place['size']}",
    )
    return replace(record, spec=spec)
