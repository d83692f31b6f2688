"""From records to comparisons: one for each data set, sample, model and settings.

Plain training with a temperature is a candidate that needs no training: its probabilities are those of plain
training after the temperature. It takes the same decisions, so it stands apart from the family of trained methods
over which p-values are adjusted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mixwell.compare.records import CorruptRecord, Failure, Record, Records
from mixwell.compare.spec import BASELINE, CellSpec
from mixwell.compare.statistics import (
    BETTER,
    PRIMARY,
    UNSURE,
    Comparison,
    Row,
    SeedResult,
    compare,
    summary_sentence,
)

TEMPERATURE = "none + temperature"


@dataclass(frozen=True)
class Column:
    """A column of the leaderboard: a metric, and its name for tables."""

    metric: str
    title: str
    percent: bool = False


COLUMNS = {
    "single_label": (
        Column("accuracy", "accuracy", True), Column("nll", "NLL"), Column("nll_after", "NLL after T"),
        Column("ece", "ECE", True), Column("ece_after", "ECE after T", True),
    ),
    "multi_label": (
        Column("micro_f1", "micro-F1", True), Column("nll", "NLL"), Column("nll_after", "NLL after T"),
        Column("ece", "ECE", True), Column("ece_after", "ECE after T", True),
    ),
    "regression": (
        Column("mse", "MSE"), Column("mae", "MAE"), Column("pearson", "Pearson"), Column("spearman", "Spearman"),
    ),
}  # fmt: skip
SECONDS = Column("seconds_per_step", "s/step")


@dataclass(frozen=True)
class Group:
    """One comparison.

    Attributes:
        title: what it is about.
        spec: any of its cells, for what they have in common.
        seeds: the seeds of plain training.
        train_rows: rows of train, least and most over seeds.
        test_rows: rows of test.
        comparison: the trained methods against plain training; None while that has no seed.
        temperature: plain training with a temperature against plain training; None for regression.
        sentences: the conclusion.
        failed: cells that failed.
        records: the finished cells.
    """

    title: str
    spec: CellSpec
    seeds: tuple[int, ...]
    train_rows: tuple[int, int]
    test_rows: int
    comparison: Comparison | None
    temperature: Comparison | None
    sentences: tuple[str, ...]
    failed: tuple[Failure, ...] = ()
    records: tuple[Record, ...] = ()

    @property
    def methods(self) -> list[str]:
        """The candidates, the best mean first."""
        if self.comparison is None:
            return []
        metric, sign = PRIMARY[self.spec.task], -1 if self.spec.task == "regression" else 1
        found = sorted(self.comparison.methods, key=lambda name: -sign * self.comparison.row(name, metric).mean)  # type: ignore[union-attr]
        if self.temperature is not None:
            found.insert(found.index(BASELINE) + 1, TEMPERATURE)
        return found

    @property
    def columns(self) -> list[Column]:
        """The columns of the leaderboard."""
        there = self.comparison.metrics if self.comparison else ()
        return [each for each in (*COLUMNS[self.spec.task], SECONDS) if each.metric in there]

    def row(self, method: str, metric: str) -> Row | None:
        """A candidate in a metric; None where there is nothing to say."""
        chosen = self.temperature if method == TEMPERATURE else self.comparison
        if chosen is None or metric not in chosen.metrics:
            return None
        return chosen.row(method, metric)


@dataclass(frozen=True)
class Summary:
    """All comparisons of a folder, what the user should know about it, and the commands that made it."""

    groups: tuple[Group, ...]
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


def read_summary(records: Records, level: float = 0.95) -> Summary:
    """The comparisons of all records in a folder.

    Raises:
        RunError: it is no such folder, or has records of another version.
    """
    records.check()
    found, notes = [], []
    for key in records.names():
        try:
            found.append(records.read(key))
        except CorruptRecord as error:
            notes.append(f"record {key[:12]} is corrupt ({error}) and left out; `mixwell compare` trains it again")
    found.sort(key=_order)
    made = summarise(found, list(records.failures()), level)
    return dataclasses.replace(made, notes=tuple(notes), commands=tuple(records.commands()))


def _order(record: Record) -> tuple[Any, ...]:
    """By data, then the size of the sample, then method and seed."""
    spec = record.spec
    return spec.name, record.result["train_rows"], spec.group_key, spec.label, spec.seed


def summarise(records: Iterable[Record], failures: Sequence[Failure] = (), level: float = 0.95) -> Summary:
    """The comparisons of some records, in their order.

    Args:
        records: finished cells.
        failures: failed cells.
        level: of the intervals.
    """
    grouped: dict[str, list[Record]] = {}
    for record in records:
        grouped.setdefault(record.spec.group_key, []).append(record)
    failed: dict[str, list[Failure]] = {}
    for failure in failures:
        failed.setdefault(failure.spec.group_key, []).append(failure)
    keys = [*grouped, *(key for key in failed if key not in grouped)]
    specs = [grouped[key][0].spec if key in grouped else failed[key][0].spec for key in keys]
    made = []
    for key, spec, title in zip(keys, specs, group_titles(specs)):
        for words, part in _samplings(grouped.get(key, [])).items():
            made.append(_group(f"{title}{words}", spec, part, failed.get(key, []), level))
    return Summary(tuple(made))


def _samplings(found: list[Record]) -> dict[str, list[Record]]:
    """The records of a comparison, apart where one folder has both samples of the seeds' own and fixed ones.

    A cell whose sample has the seed's number belongs to both.
    """
    if len({(record.spec.label, record.spec.seed) for record in found}) == len(found):
        return {"": found}
    fixed = dict.fromkeys(record.spec.sample.seed for record in found if record.spec.sample.seed != record.spec.seed)
    parts = {", a sample a seed": [record for record in found if record.spec.sample.seed == record.spec.seed]}
    for seed in fixed:
        parts[f", sample seed {seed}"] = [record for record in found if record.spec.sample.seed == seed]
    return {words: part for words, part in parts.items() if part}


def group_titles(specs: Sequence[CellSpec]) -> list[str]:
    """What tells comparisons apart: data and sample, then what differs among them."""
    plain = [f"{spec.name}, {spec.sample.title}" for spec in specs]
    parts: list[dict[str, str]] = []
    for spec in specs:
        told = {"model": spec.model.rstrip("/").split("/")[-1]}
        told |= {name: str(value) for name, value in spec.settings.items()}
        told |= {"test rows": str(spec.max_test or "all"), "data": spec.fingerprint[:8], "weights": spec.weights[:8]}
        parts.append(told)
    made = []
    for spec_plain, told in zip(plain, parts):
        alike = [other for text, other in zip(plain, parts) if text == spec_plain]
        differ = [name for name in told if any(other.get(name) != told[name] for other in alike)]
        made.append(", ".join([spec_plain, *(f"{name.replace('_', ' ')} {told[name]}" for name in differ)]))
    return made


def seed_result(record: Record, *, warm: bool = False) -> SeedResult:
    """A record for the statistics.

    Args:
        record: a finished cell.
        warm: take the probabilities after the temperature for those of the model.
    """
    outputs, temperature = record.outputs(), record.result["temperature"]
    seconds = record.result["timing"]["seconds_per_step"]
    logits = outputs["test_logits"]
    if warm:
        logits, temperature = logits / temperature, None
    return SeedResult(
        seed=record.spec.seed,
        logits=logits,
        labels=outputs["test_labels"],
        temperature=temperature,
        scalars={} if seconds is None or warm else {"seconds_per_step": float(seconds)},
    )


def _group(title: str, spec: CellSpec, found: list[Record], failed: list[Failure], level: float) -> Group:
    by_method: dict[str, list[Record]] = {}
    for record in sorted(found, key=lambda each: each.spec.seed):
        by_method.setdefault(record.spec.label, []).append(record)
    sizes = [record.result["train_rows"] for record in found] or [0]
    common: dict[str, Any] = {
        "title": title,
        "spec": spec,
        "seeds": tuple(record.spec.seed for record in by_method.get(BASELINE, [])),
        "train_rows": (min(sizes), max(sizes)),
        "test_rows": found[0].result["test"]["rows"] if found else 0,
        "failed": tuple(failed),
        "records": tuple(found),
    }
    if BASELINE not in by_method:
        words = "Plain training has no finished run here yet, so there is nothing to compare with."
        return Group(comparison=None, temperature=None, sentences=(words,), **common)
    results = {label: [seed_result(each) for each in cells] for label, cells in by_method.items()}
    # Plain training first; a method without a seed in common cannot be compared yet.
    seeds = {each.seed for each in results[BASELINE]}
    order = [BASELINE, *(label for label in results if label != BASELINE)]
    results = {label: results[label] for label in order if seeds & {each.seed for each in results[label]}}
    comparison = compare(results, BASELINE, task=spec.task, level=level)
    temperature = None
    sentences = [summary_sentence(comparison)]
    if spec.task != "regression":
        warm = [seed_result(each, warm=True) for each in by_method[BASELINE]]
        cold = [dataclasses.replace(each, temperature=None, scalars={}) for each in results[BASELINE]]
        temperature = compare({BASELINE: cold, TEMPERATURE: warm}, BASELINE, task=spec.task, level=level)
        sentences.append(_temperature_sentence(temperature))
    return Group(comparison=comparison, temperature=temperature, sentences=tuple(sentences), **common)


def _temperature_sentence(comparison: Comparison) -> str:
    plain, warm = comparison.row(BASELINE, "ece"), comparison.row(TEMPERATURE, "ece")
    likely = comparison.row(TEMPERATURE, "nll").difference
    assert likely is not None
    words = {BETTER: "is better", UNSURE: "is not shown to differ"}.get(likely.verdict, "is worse")
    return (
        f"A temperature alone, without any mixing, takes the calibration error of plain training from "
        f"{100 * plain.mean:.1f} % to {100 * warm.mean:.1f} %; its negative log-likelihood {words}."
    )
