"""From records to comparisons: one for each data set, sample, model and settings.

Plain training with a temperature is a candidate that needs no training: its probabilities are those of plain
training after the temperature. It makes the same decisions, so it is no part of the family of trained methods over
which p-values are adjusted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mixwell.compare.records import CorruptRecord, Failure, Record, Records
from mixwell.compare.spec import BASELINE, REFERENCES, CellSpec
from mixwell.compare.stats.bootstrap import SeedResult
from mixwell.compare.stats.sentences import VERDICT_WORDS, summary_sentence
from mixwell.compare.stats.verdicts import PRIMARY, Comparison, MetricRow, compare

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
        comparison: the trained methods against plain training; None while that has no finished run.
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
        comparison = self.comparison
        names = sorted(comparison.methods, key=lambda name: -sign * comparison.row(name, metric).mean)
        if self.temperature is not None:
            names.insert(names.index(BASELINE) + 1, TEMPERATURE)
        return names

    @property
    def columns(self) -> list[Column]:
        """The columns of the leaderboard."""
        metrics = self.comparison.metrics if self.comparison else ()
        return [column for column in (*COLUMNS[self.spec.task], SECONDS) if column.metric in metrics]

    def row(self, method: str, metric: str) -> MetricRow | None:
        """A candidate in a metric; None where it was not compared."""
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
    finished, notes = [], []
    for key in records.names():
        try:
            finished.append(records.read(key, keep_outputs=True))  # the statistics and the page use them
        except CorruptRecord as error:
            notes.append(f"record {key[:12]} is corrupt ({error}) and left out; `mixwell compare` trains it again")
    finished.sort(key=_order)
    summary = summarise(finished, list(records.failures()), level)
    return dataclasses.replace(summary, notes=tuple(notes), commands=tuple(records.commands()))


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
    groups = []
    for key, spec, title in zip(keys, specs, group_titles(specs)):
        for words, part in _samplings(grouped.get(key, [])).items():
            groups.append(_group(f"{title}{words}", spec, part, failed.get(key, []), level))
    return Summary(tuple(groups))


def _samplings(records: list[Record]) -> dict[str, list[Record]]:
    """The records of a comparison, separated where one folder has both samples of the seeds' own and fixed ones.

    A cell whose sample has the seed's number belongs to both.
    """
    if len({(record.spec.label, record.spec.seed) for record in records}) == len(records):
        return {"": records}
    fixed = dict.fromkeys(record.spec.sample.seed for record in records if record.spec.sample.seed != record.spec.seed)
    parts = {", one sample per seed": [record for record in records if record.spec.sample.seed == record.spec.seed]}
    for seed in fixed:
        parts[f", sample seed {seed}"] = [record for record in records if record.spec.sample.seed == seed]
    return {words: part for words, part in parts.items() if part}


def group_titles(specs: Sequence[CellSpec]) -> list[str]:
    """What distinguishes comparisons: data and sample, then what differs among them."""
    short = [f"{spec.name}, {spec.sample.title}" for spec in specs]
    details: list[dict[str, str]] = []
    for spec in specs:
        values = {"model": spec.model.rstrip("/").split("/")[-1]}
        values |= {name: str(value) for name, value in spec.settings.items()}
        values |= {"test rows": str(spec.max_test or "all"), "data": spec.fingerprint[:8], "weights": spec.weights[:8]}
        details.append(values)
    titles = []
    for title, values in zip(short, details):
        others = [other for text, other in zip(short, details) if text == title]
        differ = [name for name in values if any(other.get(name) != values[name] for other in others)]
        titles.append(", ".join([title, *(f"{name.replace('_', ' ')} {values[name]}" for name in differ)]))
    return titles


def seed_result(record: Record, *, after_temperature: bool = False) -> SeedResult:
    """A record for the statistics.

    Args:
        record: a finished cell.
        after_temperature: take the probabilities after the temperature for those of the model.
    """
    outputs, temperature = record.outputs(), record.result["temperature"]
    seconds = record.result["timing"]["seconds_per_step"]
    logits = outputs["test_logits"]
    if after_temperature:
        logits, temperature = logits / temperature, None
    return SeedResult(
        seed=record.spec.seed,
        logits=logits,
        labels=outputs["test_labels"],
        temperature=temperature,
        scalars={} if seconds is None or after_temperature else {"seconds_per_step": float(seconds)},
    )


def _group(title: str, spec: CellSpec, records: list[Record], failed: list[Failure], level: float) -> Group:
    by_method: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.spec.seed):
        by_method.setdefault(record.spec.label, []).append(record)
    sizes = [record.result["train_rows"] for record in records] or [0]
    common: dict[str, Any] = {
        "title": title,
        "spec": spec,
        "seeds": tuple(record.spec.seed for record in by_method.get(BASELINE, [])),
        "train_rows": (min(sizes), max(sizes)),
        "test_rows": records[0].result["test"]["rows"] if records else 0,
        "failed": tuple(failed),
        "records": tuple(records),
    }
    if BASELINE not in by_method:
        words = "Plain training has no finished run here yet, so there is nothing to compare with."
        return Group(comparison=None, temperature=None, sentences=(words,), **common)
    results = {label: [seed_result(record) for record in part] for label, part in by_method.items()}
    # Plain training first; a method without a seed in common cannot be compared yet.
    seeds = {result.seed for result in results[BASELINE]}
    order = [BASELINE, *(label for label in results if label != BASELINE)]
    results = {label: results[label] for label in order if seeds & {result.seed for result in results[label]}}
    comparison = compare(results, BASELINE, task=spec.task, level=level, apart=REFERENCES)
    temperature = None
    sentences = [summary_sentence(comparison)]
    if spec.task != "regression":
        before = [dataclasses.replace(result, temperature=None, scalars={}) for result in results[BASELINE]]
        after = [seed_result(record, after_temperature=True) for record in by_method[BASELINE]]
        temperature = compare({BASELINE: before, TEMPERATURE: after}, BASELINE, task=spec.task, level=level)
        sentences.append(_temperature_sentence(temperature))
    return Group(comparison=comparison, temperature=temperature, sentences=tuple(sentences), **common)


def _temperature_sentence(comparison: Comparison) -> str:
    before, after = comparison.row(BASELINE, "ece"), comparison.row(TEMPERATURE, "ece")
    difference = comparison.row(TEMPERATURE, "nll").difference
    assert difference is not None
    return (
        f"A temperature alone, without any mixing, takes the calibration error of plain training from "
        f"{100 * before.mean:.1f} % to {100 * after.mean:.1f} %; its negative log-likelihood "
        f"{VERDICT_WORDS[difference.verdict]}."
    )
