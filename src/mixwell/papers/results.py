"""What trainings have measured, in the compact form that tables are made of; read from a run's records or from a pack.

That form is all that a pack holds: for every test row its class, the predicted class, and the log-probabilities of both
in half precision. Accuracy, F1, MCC, NLL and ECE can be computed from these anew, on any resample of the test rows:
what mass is left is spread evenly over the other classes. Other classes' probabilities, validation outputs and texts
are not kept. Means and standard deviations in tables are of the exact metrics; the compact outputs serve for the
intervals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.compare.records import CorruptRecord, Record, Records
from mixwell.compare.spec import BASELINE, canonical
from mixwell.compare.stats.bootstrap import SeedResult
from mixwell.compare.summary import Summary, summarise
from mixwell.papers.protocols import get
from mixwell.papers.run_file import FIGURE, PACKED, anonymous, place_title, read_run
from mixwell.utils.errors import RunError
from mixwell.utils.records import parse_json

_LEAST = 1e-3  # by how much the predicted class is ahead where half precision makes a tie
_KEPT = (
    "train_rows", "temperature", "best_epoch", "epochs", "steps", "stopped_early", "learning_rate", "timing", "threads",
    "versions", "notes",
)  # fmt: skip


@dataclass(frozen=True)
class Outputs:
    """What a model predicts for its test rows.

    Attributes:
        labels: (N,) the rows' classes.
        predicted: (N,) the likeliest classes.
        log_p: (2, N) float16, log-probabilities of the class and of the likeliest class.
        classes: how many there are.
    """

    labels: NDArray[Any]
    predicted: NDArray[Any]
    log_p: NDArray[Any]
    classes: int

    @classmethod
    def of(cls, logits: NDArray[Any], labels: NDArray[Any]) -> Outputs:
        """The compact form of logits (N, C)."""
        wide = logits.astype(np.float64)
        wide = wide - wide.max(1, keepdims=True)
        wide = wide - np.log(np.exp(wide).sum(1, keepdims=True))
        rows, predicted = np.arange(len(labels)), logits.argmax(1)
        kind = np.uint8 if logits.shape[1] <= 256 else np.uint16
        log_p = np.stack([wide[rows, labels], wide[rows, predicted]]).clip(-6e4, 0)
        return cls(labels.astype(kind), predicted.astype(kind), log_p.astype(np.float16), int(logits.shape[1]))

    def logits(self) -> NDArray[np.float64]:
        """Logits (N, C) with these log-probabilities, the mass that is left spread evenly."""
        own, top = self.log_p.astype(np.float64)
        right = self.labels == self.predicted
        top = np.where(right, top, np.maximum(top, own + _LEAST))
        left = np.maximum(1 - np.exp(top) - np.where(right, 0, np.exp(own)), 1e-12)
        others = np.maximum(self.classes - np.where(right, 1, 2), 1)
        rest = np.minimum(np.log(left / others), top - _LEAST)
        wide = np.repeat(rest[:, None], self.classes, axis=1)
        rows = np.arange(len(own))
        wide[rows, self.labels] = own
        wide[rows, self.predicted] = top
        return wide


@dataclass(frozen=True)
class MeasuredRun:
    """One training: its place in the table, and what came of it."""

    dataset: str
    size: str
    beside: str | None
    row: str
    seed: int
    metrics: Sequence[str]
    key: str
    identity: Mapping[str, Any] = field(repr=False)
    result: Mapping[str, Any] = field(repr=False)
    outputs: Outputs = field(repr=False)

    @property
    def title(self) -> str:
        """Its place, in words."""
        return place_title(vars(self))

    @cached_property
    def seed_result(self) -> SeedResult:
        """For the statistics."""
        return SeedResult(self.seed, self.outputs.logits(), self.outputs.labels.astype(np.int64))

    def value(self, metric: str) -> float:
        """A test metric, as it was computed after training."""
        return float(self.result["test"]["before"][metric])

    @property
    def fine_tuned(self) -> bool:
        """Whether it had updates; a probe has none, and no times and losses of epochs."""
        return bool(self.result["steps"])

    @property
    def seconds_per_step(self) -> float:
        """Mean time of an update."""
        return float(self.result["timing"]["seconds_per_step"])

    @property
    def minutes_per_epoch(self) -> float:
        """Mean time of an epoch, evaluation left out; early stopping and `draws` are in the number of steps."""
        return self.seconds_per_step * self.result["steps"] / self.result["epochs"] / 60


@dataclass(frozen=True)
class Results:
    """All that an experiment's runs, or a pack of them, have measured.

    Attributes:
        run_json: what run.json holds.
        runs: those with a result.
        failed: place and reason of those that failed.
        missing: how many have not been trained yet.
    """

    run_json: Mapping[str, Any]
    runs: tuple[MeasuredRun, ...]
    failed: tuple[tuple[str, str], ...] = ()
    missing: int = 0


# --- reading ---------------------------------------------------------------------------------------------------------


def read(folder: str | Path, *, pack: bool = False) -> Results:
    """Read the folder of a run, or a pack.

    Args:
        folder: the folder.
        pack: refuse the folder of a run.

    Raises:
        RunError: it is neither, or a file is damaged.
    """
    path = Path(folder)
    run = read_run(path)
    if run["records"] == FIGURE:
        raise RunError(f"{path} is a figure and has no trainings; name the folder of a table")
    if run["records"] == PACKED:
        return Results(run, tuple(_packed_runs(path, run)), tuple(map(tuple, run["failed"])), run["missing"])
    if pack:
        raise RunError(f"{folder} is the folder of a run, not a pack; name a pack, or share its --records")
    records, shared = Records(path / run["records"]), shared_results(run.get("packs", ()))
    curve = get(run["experiment"]).curve is not None
    runs, failed, missing = [], [], 0
    for place in run["cells"]:
        record = _record(records, place["key"])
        if record is not None:
            runs.append(_measured_run(place, record, curve))
        elif (other := shared.get(place["key"])) is not None:
            runs.append(replace(other, **place))
        elif (failure := records.failure(place["key"])) is not None:
            failed.append((place_title(place), failure.reason))
        else:
            missing += 1
    return Results(run, tuple(runs), tuple(failed), missing)


def shared_results(folders: Sequence[str | Path]) -> dict[str, MeasuredRun]:
    """The results of some packs by the runs' names; of a run that several packs have, the last one's.

    Raises:
        RunError: a folder is no pack.
    """
    return {run.key: run for folder in folders for run in read(folder, pack=True).runs}


def _record(records: Records, key: str) -> Record | None:
    """A record; None if it is missing or damaged."""
    try:
        return records.read(key) if records.has(key) else None
    except CorruptRecord:
        return None


def _measured_run(place: Mapping[str, Any], record: Record, curve: bool) -> MeasuredRun:
    raw, history = record.outputs(), record.result["history"]
    result = {name: record.result[name] for name in _KEPT}
    result["test"] = {name: record.result["test"][name] for name in ("rows", "before", "after")}
    result["last"] = history[-1]["validation"].get("nll") if history else None  # a probe has no epochs
    result["curve"] = [
        {"step": row["step"], "train_loss": row["train_loss"], "test_loss": row.get("test", {}).get("nll")}
        for row in history
        if curve
    ]
    outputs = Outputs.of(raw["test_logits"], raw["test_labels"])
    return MeasuredRun(**place, identity=record.spec.identity(), result=result, outputs=outputs)


def _packed_runs(path: Path, run: Mapping[str, Any]) -> list[MeasuredRun]:
    """The runs of a pack; raises `RunError` if a file is damaged, or was changed."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    back, runs = "bring it back from the repository", []
    try:
        arrays = load_file(path / "outputs.safetensors")
        text = (path / "cells.jsonl").read_text(encoding="utf-8")
        lines = {line["key"]: line for line in map(parse_json, text.splitlines())}
        for place in run["cells"]:
            if (line := lines.get(key := place["key"])) is not None:
                labels, classes = arrays[f"labels/{line['outputs']['labels']}"], line["outputs"]["classes"]
                outputs = Outputs(labels, arrays[f"{key}/predicted"], arrays[f"{key}/log_p"], classes)
                runs.append(MeasuredRun(**place, identity=line["identity"], result=line["result"], outputs=outputs))
        changed = [measured for measured in runs if not _sound(measured)]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise RunError(f"{path}: the pack is damaged ({type(error).__name__}: {error}); {back}") from error
    if changed:
        raise RunError(f"{path}: {changed[0].title} does not belong to its record; the pack was changed; {back}")
    lost = len(run["cells"]) - len(runs) - len(run["failed"]) - run["missing"]
    if lost:
        raise RunError(f"{path}: {lost} of {len(run['cells'])} trainings are not in cells.jsonl; {back}")
    return runs


def _sound(run: MeasuredRun) -> bool:
    """Whether a run's name is that of what it was trained on, and its metrics are those of its outputs."""
    found, rows = run.outputs, len(run.outputs.labels)
    shaped = found.labels.shape == found.predicted.shape == (rows,) and found.log_p.shape == (2, rows) and rows > 0
    if not shaped or max(int(found.labels.max()), int(found.predicted.max())) >= found.classes:
        return False
    if not np.isfinite(found.log_p).all() or found.log_p.max() > 0:
        return False
    named = hashlib.sha256(canonical(run.identity).encode()).hexdigest()[:40] == run.key
    right = float((run.outputs.predicted == run.outputs.labels).mean())
    loss = -float(run.outputs.log_p[0].astype(np.float64).mean())
    close = abs(run.value("nll") - loss) <= 2e-3 * max(1.0, loss)  # half precision
    return named and abs(run.value("accuracy") - right) < 1e-6 and close


def summary(folder: str | Path, level: float = 0.95) -> Summary | None:
    """The run as a comparison against plain training, for its page.

    None if there is nothing yet, for a pack, and for a run that has trainings from packs: these have too little for a
    page, and one of the rest would contradict the table.
    """
    path = Path(folder)
    run = read_run(path)
    if run["records"] == PACKED:
        return None
    records, shared = Records(path / run["records"]), shared_results(run.get("packs", ()))
    compared, notes = [], []
    for place in run["cells"]:
        key = place["key"]
        record = _record(records, key)
        if record is not None:
            compared.append(_as_candidate(place, record, get(run["experiment"]).dataset(place["dataset"]).title))
        elif not records.has(key) and key in shared:
            return None
        elif not records.has(key) and (failure := records.failure(key)) is not None:
            notes.append(f"failed: {failure.spec.label}, seed {failure.spec.seed}: {failure.reason}")
    if not compared:
        return None
    command = " ".join(anonymous(run["command"]))
    return replace(summarise(compared, level=level), notes=tuple(notes), commands=(command,))


def _as_candidate(place: Mapping[str, Any], record: Record, name: str) -> Record:
    """A record under the name of its row, for a comparison.

    Some protocols cut validation rows anew for each seed, and draws per batch belong to a row of the table: all of one
    data set and size stand beside each other, as in the tables.
    """
    plain = record.spec.method == BASELINE and not record.spec.options.get("label_smoothing")
    spec = replace(
        record.spec,
        name=name,
        label=BASELINE if plain else place["row"],
        settings={key: value for key, value in record.spec.settings.items() if key != "updates_per_batch"},
        fingerprint=f"{place['dataset']}, {place['size']}",
    )
    return replace(record, spec=spec)
