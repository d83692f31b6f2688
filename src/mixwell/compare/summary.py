"""From records to comparisons: one for each data set, sample, model and settings.

Plain training with a temperature is a candidate that needs no training: its probabilities are those of plain
training after the temperature. It makes the same decisions, so it is no part of the family of trained methods over
which p-values are adjusted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mixwell.compare.columns import COLUMNS, EXPORTED_ONLY, JUDGED, SCALAR_COLUMNS, Column
from mixwell.compare.records import CorruptRecord, Failure, Record, Records
from mixwell.compare.spec import BASELINE, REFERENCES, CellSpec, canonical
from mixwell.compare.stats.bootstrap import AFTER, SCALARS, SeedResult, metric_info
from mixwell.compare.stats.judge import Rules
from mixwell.compare.stats.learned import GUESSING, Learning, what_was_learned
from mixwell.compare.stats.sentences import VERDICT_WORDS, summary_sentence
from mixwell.compare.stats.verdicts import PRIMARY, Comparison, MetricRow, compare
from mixwell.utils.errors import OptionError

TEMPERATURE = "none + temperature"
EQUAL_WITHIN = 1.0  # points of the main metric


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
        learning: guessing, and runs that collapsed; None while plain training has no finished run.
        rules: what its verdicts depend on.
        tests: the same methods on further test sets, by name.
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
    learning: Learning | None = None
    rules: Rules = Rules(())
    tests: Mapping[str, Comparison] = field(default_factory=dict)

    @property
    def methods(self) -> list[str]:
        """The candidates and guessing, the best mean first."""
        if self.comparison is None:
            return []
        metric, sign = PRIMARY[self.spec.task], -1 if self.spec.task == "regression" else 1
        means = {name: self.comparison.row(name, metric).mean for name in self.comparison.methods}
        if self.learning is not None:
            means[GUESSING] = self.learning.guess[metric]
        names = sorted(means, key=lambda name: -sign * means[name])
        if self.temperature is not None:
            names.insert(names.index(BASELINE) + 1, TEMPERATURE)
        return names

    @property
    def columns(self) -> list[Column]:
        """The columns of the leaderboard."""
        metrics = self.comparison.metrics if self.comparison else ()
        return [column for column in (*COLUMNS[self.spec.task], *SCALAR_COLUMNS) if column.metric in metrics]

    def row(self, method: str, metric: str) -> MetricRow | None:
        """A candidate in a metric; None where it was not compared."""
        if method == GUESSING and self.learning is not None and self.comparison is not None:
            value = None if metric in SCALARS else self.learning.guess.get(metric.removesuffix(AFTER))
            info = metric_info(metric)
            return value if value is None else MetricRow(
                method, metric, info.title, info.higher_is_better, value, float("nan"), 0, None
            )  # fmt: skip
        chosen = self.temperature if method == TEMPERATURE else self.comparison
        if chosen is None or metric not in chosen.metrics:
            return None
        return chosen.row(method, metric)

    def judges(self, metric: str) -> bool:
        """Whether verdicts are shown for a metric."""
        return metric in JUDGED[self.spec.task]


@dataclass(frozen=True)
class Summary:
    """All comparisons of a folder, what the user should know about it, and the commands that made it."""

    groups: tuple[Group, ...]
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


def read_summary(
    records: Records, level: float = 0.95, equal_within: float = EQUAL_WITHIN, *, shown_only: bool = False
) -> Summary:
    """The comparisons of all records in a folder.

    Args:
        records: the folder.
        level: of the intervals.
        equal_within: points of the main metric that count as no difference.
        shown_only: leave out metrics that are in exports only.

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
    failures = list(records.failures())
    summary = summarise(finished, failures, level, equal_within, records.looks(), shown_only=shown_only)
    return dataclasses.replace(summary, notes=tuple(notes), commands=tuple(records.commands()))


def _order(record: Record) -> tuple[Any, ...]:
    """By data, then the size of the sample, then method and seed."""
    spec = record.spec
    return spec.name, record.result["train_rows"], spec.group_key, spec.label, spec.seed


def summarise(
    records: Iterable[Record],
    failures: Sequence[Failure] = (),
    level: float = 0.95,
    equal_within: float = EQUAL_WITHIN,
    looks: Mapping[str, Collection[int]] | None = None,
    *,
    shown_only: bool = False,
) -> Summary:
    """The comparisons of some records, in their order.

    Args:
        records: finished cells.
        failures: failed cells.
        level: of the intervals.
        equal_within: points of the main metric that count as no difference.
        looks: for each comparison (`CellSpec.group_mark`) the numbers of seeds at which somebody has looked.
        shown_only: leave out metrics that are in exports only.
    """
    check_equal_within(equal_within)
    earlier = looks or {}
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
            points = None if spec.task == "regression" else equal_within / 100
            rules = Rules(tuple(sorted(earlier.get(spec.group_mark, ()))), points)
            without = EXPORTED_ONLY if shown_only else ()
            groups.append(_group(f"{title}{words}", spec, part, failed.get(key, []), level, rules, without))
    return Summary(tuple(groups))


def check_equal_within(points: float) -> None:
    """Raise `OptionError` unless a number of points can be used."""
    if not 0 < points <= 50:
        raise OptionError(f"equal_within must be points above 0 and at most 50, got {points}")


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
    short = [f"{spec.name}, {spec.title}" for spec in specs]
    details: list[dict[str, str]] = []
    for spec in specs:
        values = {"model": spec.model.rstrip("/").split("/")[-1]}
        values |= {name: str(value) for name, value in spec.settings.items()}
        values |= {"test rows": str(spec.max_test or "all"), "data": spec.fingerprint[:8], "weights": spec.weights[:8]}
        values["further tests"] = canonical(spec.conditions.identity(seeded=False)) if spec.conditions.files() else ""
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
    scalars = {"seconds_per_step": record.result["timing"]["seconds_per_step"]}
    scalars |= {f"ood_{name}": value for name, value in record.result.get("ood", {}).items() if name != "rows"}
    logits = outputs["test_logits"]
    if after_temperature:
        logits, temperature = logits / temperature, None
    return SeedResult(
        seed=record.spec.seed,
        logits=logits,
        labels=outputs["test_labels"],
        temperature=temperature,
        scalars={name: float(v) for name, v in scalars.items() if v is not None and not after_temperature},
    )


def _further_tests(
    by_method: Mapping[str, Sequence[Record]], task: str, level: float, rules: Rules
) -> dict[str, Comparison]:
    """The methods on further test sets, in the metrics that are judged."""
    found: dict[str, Comparison] = {}
    for name in by_method[BASELINE][0].result.get("tests", {}):
        results: dict[str, list[SeedResult]] = {}
        for label, records in by_method.items():
            for record in records:
                outputs, own = record.outputs(), record.result.get("tests", {}).get(name)
                if own is not None:
                    pair = outputs[f"test.{name}_logits"], outputs[f"test.{name}_labels"]
                    results.setdefault(label, []).append(SeedResult(record.spec.seed, *pair, own["temperature"]))
        if BASELINE in results:
            found[name] = compare(
                results, BASELINE, JUDGED[task], task=task, level=level, apart=REFERENCES, rules=rules
            )
    return found


def _group(
    title: str, spec: CellSpec, records: list[Record], failed: list[Failure], level: float, rules: Rules,
    without: Collection[str],
) -> Group:  # fmt: skip
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
    learning = learned(spec, {label: by_method[label] for label in results})
    rules = dataclasses.replace(rules, withheld=learning.withheld(BASELINE))
    comparison = compare(results, BASELINE, task=spec.task, level=level, apart=REFERENCES, rules=rules, without=without)
    one_set = len(seeds) > 1 and len({record.spec.sampled for record in by_method[BASELINE]}) == 1
    temperature = None
    if spec.task != "regression":
        before = [dataclasses.replace(result, temperature=None, scalars={}) for result in results[BASELINE]]
        after = [seed_result(record, after_temperature=True) for record in by_method[BASELINE]]
        pair = {BASELINE: before, TEMPERATURE: after}
        names = [name for name in (PRIMARY[spec.task], "nll", "ece") if name in comparison.metrics]
        temperature = compare(pair, BASELINE, names, task=spec.task, level=level)
    sentences = _sentences(comparison, learning, temperature, one_set)
    tests = _further_tests({label: by_method[label] for label in results}, spec.task, level, rules)
    return Group(
        tests=tests,
        comparison=comparison,
        temperature=temperature,
        sentences=sentences,
        learning=learning,
        rules=rules,
        **common,
    )


def learned(spec: CellSpec, by_method: Mapping[str, Sequence[Record]]) -> Learning:
    """What the models of a comparison learned, from their records."""
    metric = PRIMARY[spec.task]
    values = {
        label: {record.spec.seed: float(record.result["test"]["before"][metric]) for record in part}
        for label, part in by_method.items()
    }
    labels: list[Any] = []
    for record in by_method[BASELINE]:
        own = record.outputs()["test_labels"]
        if not any(own is one or (own.shape == one.shape and (own == one).all()) for one in labels):
            labels.append(own)
    classes = len(by_method[BASELINE][0].result["labels"])
    return what_was_learned(values, labels, spec.task, metric, classes, REFERENCES)


def _sentences(
    comparison: Comparison, learning: Learning, temperature: Comparison | None, one_set: bool
) -> tuple[str, ...]:
    """The conclusion: what makes verdicts meaningless comes first."""
    sentences = [f"{learning.headline}."] if learning.headline else []
    if not learning.headline or (len(learning.runs) and max(learning.runs.values()) == 1):
        sentences.append(summary_sentence(comparison, one_training_set=one_set))
    if not learning.headline:
        for method in learning.collapsed:
            whose = "all verdicts are" if method == BASELINE else "its verdict is"
            sentences.append(f"{learning.words(method)[0].upper()}{learning.words(method)[1:]}, so {whose} withheld.")
        if temperature is not None:
            sentences.append(_temperature_sentence(temperature))
    pairing = pairing_sentence(comparison)
    return tuple([*sentences, pairing] if pairing else sentences)


def pairing_sentence(comparison: Comparison) -> str:
    """What pairing by seed is worth; empty where too few seeds tell."""
    metric = PRIMARY[comparison.task]
    others = [name for name in comparison.methods if name != BASELINE and name not in REFERENCES]
    rows = [comparison.row(name, metric).difference for name in others]
    known = [row.correlation for row in rows if row is not None and math.isfinite(row.correlation)]
    if not known:
        return ""
    mean = sum(known) / len(known)
    words = f"Pairing by seed: {metric_info(metric).title} of the methods and of plain training correlates by "
    words += f"{mean:+.2f} over seeds, so "
    if mean < 0.05:
        return words + "pairing gains nothing here."
    return words + f"unpaired runs would need about {1 / (1 - min(mean, 0.99)):.1f} times the seeds."


def _temperature_sentence(comparison: Comparison) -> str:
    before, after = comparison.row(BASELINE, "ece"), comparison.row(TEMPERATURE, "ece")
    difference = comparison.row(TEMPERATURE, "nll").difference
    assert difference is not None
    return (
        f"A temperature alone, without any mixing, takes the calibration error of plain training from "
        f"{100 * before.mean:.1f} % to {100 * after.mean:.1f} %; its negative log-likelihood "
        f"{VERDICT_WORDS[difference.verdict]}."
    )
