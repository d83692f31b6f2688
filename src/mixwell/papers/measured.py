"""What a run has measured, from its records or from a pack of them (see `packs`).

Tables are made from a compact form of the records, which is all that a pack holds: for every test row its class, the
predicted class, and the log-probabilities of both in half precision. Accuracy, F1, MCC, NLL and ECE can be computed
from these anew, on any resample of the test rows: what mass is left is spread evenly over the other classes. Other
classes' probabilities, validation outputs and texts are not kept. Means and standard deviations in tables are of the
exact metrics; the compact outputs serve for the intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.compare.records import CorruptRecord, Record, Records
from mixwell.compare.spec import BASELINE
from mixwell.compare.statistics import SeedResult
from mixwell.compare.summary import Summary, summarise
from mixwell.errors import RunError
from mixwell.files import home
from mixwell.papers.planning import FORMAT
from mixwell.papers.protocols import SAMPLE, get
from mixwell.runs import read_json

PACKED = "packed"
FIGURE = "figure.json"  # in the place of records, for figures that need none
_NEEDED = ("records", "cells", "scale", "model", "command", "request", "notes", "cut", "not_run")
_PLACE = {"dataset", "size", "beside", "row", "seed", "metrics", "key"}
_LEAST = 1e-3  # by how much the predicted class is ahead where half precision makes a tie
_KEPT = ("train_rows", "temperature", "best_epoch", "epochs", "steps", "stopped_early", "learning_rate", "timing",
         "threads", "versions", "notes")  # fmt: skip


@dataclass(frozen=True)
class Outputs:
    """What a model said about its test rows.

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
class Cell:
    """One training: its place in the table, and what came of it."""

    dataset: str
    size: str
    beside: str | None
    row: str
    seed: int
    metrics: tuple[str, ...]
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
    def seconds_per_step(self) -> float:
        """Mean time of an update."""
        return float(self.result["timing"]["seconds_per_step"])

    @property
    def minutes_per_epoch(self) -> float:
        """Mean time of an epoch, evaluation left out; early stopping and `draws` are in the number of steps."""
        return self.seconds_per_step * self.result["steps"] / self.result["epochs"] / 60


@dataclass(frozen=True)
class Measured:
    """All of a run.

    Attributes:
        run: what run.json holds.
        cells: those with a result.
        failed: place and reason of those that failed.
        missing: how many have not been trained yet.
    """

    run: Mapping[str, Any]
    cells: tuple[Cell, ...]
    failed: tuple[tuple[str, str], ...] = ()
    missing: int = 0


def read(folder: str | Path) -> Measured:
    """Read the folder of a run, or a pack.

    Raises:
        RunError: it is neither, or a file is damaged.
    """
    from mixwell.papers import packs

    path = Path(folder)
    run = read_run(path)
    if run["records"] == FIGURE:
        raise RunError(f"{path} is a figure and has no trainings; name the folder of a table")
    if run["records"] == PACKED:
        return Measured(run, tuple(packs.cells(path, run)), tuple(map(tuple, run["failed"])), run["missing"])
    records, lent = Records(path / run["records"]), packs.lent(run.get("packs", ()))
    curve = get(run["experiment"]).curve is not None
    cells, failed, missing = [], [], 0
    for place in run["cells"]:
        record = _record(records, place["key"])
        if record is not None:
            cells.append(_cell(place, record, curve))
        elif (other := lent.get(place["key"])) is not None:
            cells.append(replace(other, **{**place, "metrics": tuple(place["metrics"])}))
        elif (failure := records.failure(place["key"])) is not None:
            failed.append((place_title(place), failure.reason))
        else:
            missing += 1
    return Measured(run, tuple(cells), tuple(failed), missing)


def read_run(path: Path) -> dict[str, Any]:
    """What the run.json of a run, a pack or a figure holds.

    Raises:
        RunError: there is none, or it is damaged.
    """
    run = read_json(path / "run.json", FORMAT, "the folder of a paper's run; name what `mixwell paper run` wrote")
    experiment = get(str(run.get("experiment")))
    packed = ("failed", "missing") if run.get("records") == PACKED else ()
    lacking = [name for name in (*_NEEDED, *packed) if name not in run]
    if run.get("records") == FIGURE:
        return run
    if lacking:
        raise RunError(f"{path / 'run.json'}: damaged (without {', '.join(lacking)}); bring it back, or run it again")
    known = {each.key for each in (*experiment.datasets, SAMPLE)}
    for place in run["cells"]:
        if not isinstance(place, dict) or place.get("dataset") not in known or place.keys() != _PLACE:
            raise RunError(f"{path / 'run.json'}: damaged (the cell {place}); bring it back, or run it again")
    return run


def place_title(place: Mapping[str, Any]) -> str:
    """The place of a training in a table, in words."""
    return f"{place['dataset']}, {place['size']}, {place['row']}, seed {place['seed']}"


def _record(records: Records, key: str) -> Record | None:
    """A record; None if it is missing or damaged."""
    try:
        return records.read(key) if records.has(key) else None
    except CorruptRecord:
        return None


def summary(folder: str | Path, level: float = 0.95) -> Summary | None:
    """The run as a comparison against plain training, for its page.

    None if there is nothing yet, for a pack, and for a run that has trainings from packs: these have too little for a
    page, and one of the rest would contradict the table.
    """
    from mixwell.papers import packs

    path = Path(folder)
    run = read_run(path)
    if run["records"] == PACKED:
        return None
    records, experiment = Records(path / run["records"]), get(run["experiment"])
    lent = packs.lent(run.get("packs", ()))
    if any(place["key"] in lent and not records.has(place["key"]) for place in run["cells"]):
        return None
    found = []
    for place in run["cells"]:
        record = _record(records, place["key"])
        if record is not None:
            plain = record.spec.method == BASELINE and not record.spec.options.get("label_smoothing")
            name = experiment.dataset(place["dataset"]).title
            # Some protocols cut validation rows anew for each seed, and draws a batch belong to a row of the table:
            # all of one data set and size stand beside each other, as in the tables.
            settings = {key: value for key, value in record.spec.settings.items() if key != "updates_per_batch"}
            label = BASELINE if plain else place["row"]
            common = f"{place['dataset']}, {place['size']}"
            spec = replace(record.spec, name=name, label=label, settings=settings, fingerprint=common)
            found.append(replace(record, spec=spec))
    if not found:
        return None
    made = summarise(found, level=level)
    keys = [place["key"] for place in run["cells"]]
    failed = [failure for key in keys if not records.has(key) and (failure := records.failure(key)) is not None]
    notes = tuple(f"failed: {each.spec.label}, seed {each.spec.seed}: {each.reason}" for each in failed)
    return replace(made, notes=notes, commands=(" ".join(anonymous(run["command"])),))


def _cell(place: Mapping[str, Any], record: Record, curve: bool) -> Cell:
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
    return Cell(**{**place, "metrics": tuple(place["metrics"])}, identity=record.spec.identity(), result=result,
                outputs=outputs)  # fmt: skip


def anonymous(command: list[str]) -> list[str]:
    """A command line with words in the place of the user's folders."""
    stands = {"--data": "DATA", "--output": "OUTPUT", "-o": "OUTPUT", "--records": "RECORDS", "--cache-dir": "CACHE",
              "--packed": "PACK"}  # fmt: skip

    def instead(option: str, value: str) -> str:
        return model_name(value) if option in ("--model", "-m") else stands.get(option, value)

    made: list[str] = []
    for word in command:
        name, equals, value = word.partition("=")
        if equals and name.startswith("-"):
            made.append(f"{name}={instead(name, value)}")
        else:
            made.append(instead(made[-1], word) if made else word)
    return made


def model_name(model: str) -> str:
    """A model's name without the user's folders; a hub id stays."""
    local = model.startswith(("/", ".", "~")) or home(model).is_dir()
    return Path(model).name if local else model
