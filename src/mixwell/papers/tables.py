"""What was measured beside what is published, as plain values for table.json; all of it from the records.

- `cells`: for each place (data set, size), row and metric the published number, mean and standard deviation over seeds,
  and the paired difference to plain training with its interval;
- `orders`: whether the published order of the rows holds;
- `claims`: whether what the paper says holds;
- `audit`: points that the label mistake costs, for the experiment `audit`.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from mixwell.papers.differences import (
    AFTER,
    FAILS,
    HOLDS,
    LAST,
    TIMES,
    Judge,
    PairedDifference,
    Place,
    decide,
    direction,
)
from mixwell.papers.experiment import Experiment
from mixwell.papers.protocols import get
from mixwell.papers.results import MeasuredRun, Results
from mixwell.papers.schema import DataSet, PublishedNumber, TableRow
from mixwell.utils.errors import OptionError

FORMAT = "mixwell paper table 1"


def build(results: Results, level: float = 0.95) -> dict[str, Any]:
    """Make the tables of a run.

    Args:
        results: what was measured.
        level: of the intervals.
    """
    check_level(level)
    run = results.run_json
    experiment = get(run["experiment"])
    judge = Judge(results, experiment, level)
    orders = [judge.order(*place) for place in judge.groups]
    chosen = sorted({str(measured.identity["settings"]["best_metric"]) for measured in results.runs})
    words = f"The best epoch is chosen on validation (by {' or '.join(chosen)}), never on test."
    return {
        "format": FORMAT,
        "experiment": experiment.name,
        "number": experiment.number,
        "title": experiment.title,
        "paper": f"{experiment.paper.authors}: {experiment.paper.title}. {experiment.paper.reference}",
        "scale": run["scale"],
        "model": run["model"],
        "published_model": experiment.model.title if experiment.model else None,
        "commands": [*run.get("earlier", []), run["command"]],
        "level": level,
        "best_epoch": words,
        "spread": experiment.spread_kind,
        "unstated": {name: experiment.training[name] for name in experiment.unstated},
        "plain": judge.plain,
        "cells": _plain(_TableEntries(experiment, judge).all()),
        "orders": _plain([order for order in orders if order is not None]),
        "claims": _plain([judge.claim(claim) for claim in experiment.claims]),
        "audit": _plain(audit(experiment, judge)),
        "trained": len(results.runs),
        "missing": results.missing,
        "failed": [{"what": what, "why": why} for what, why in results.failed],
        "not_run": list(run["not_run"]),
        "cut": list(run["cut"]),
        "notes": [*run["notes"], *experiment.notes, *experiment.paper.notes],
    }


def check_level(level: float) -> None:
    """Raise `OptionError` if a level of confidence is of no use."""
    if not 0.5 <= level < 1:
        raise OptionError(f"level must be from 0.5 to below 1, got {level}")


def _plain(value: Any) -> Any:
    """Values for JSON: seven digits, and None for what is no number."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


class _TableEntries:
    """The entries of a table."""

    def __init__(self, experiment: Experiment, judge: Judge) -> None:
        self.experiment, self.judge, self.groups, self.plain = experiment, judge, judge.groups, judge.plain
        self.numbers = {(n.row, n.dataset, n.size, n.metric): n for n in experiment.published}

    def all(self) -> list[dict[str, Any]]:
        """All entries, place by place, then the column that is a mean over data sets."""
        entries = [
            entry for place in self.groups for metric in self.metrics(place) for entry in self.column(place, metric)
        ]
        for derived in (data for data in self.experiment.datasets if data.derived is not None):
            for size in dict.fromkeys(size for _, size in self.groups):
                entries += self.means(derived, size)
        return entries

    def metrics(self, place: Place) -> list[str]:
        """The metrics of a place: those of the protocol, then loss and time."""
        runs = [run for seeds in self.groups[place].values() for run in seeds.values() if run.fine_tuned]
        names, after = runs[0].metrics, runs[0].result["test"].get("after")
        more = ["train_loss"] if self.experiment.curve == "train_loss" else []
        if any(number.metric == "seconds_saved" for number in self.experiment.published):
            more.append("seconds_saved")
        calibrated = [f"{name}{AFTER}" for name in ("nll", "ece") if name in names and after]
        # Last epochs can be compared if all trainings went to the end; older packs do not have their losses.
        whole = all(run.result.get("last") is not None and not run.result["stopped_early"] for run in runs)
        return [*names, *calibrated, *([LAST] if whole else []), *more, "time_ratio"]

    def column(self, place: Place, metric: str) -> list[dict[str, Any]]:
        """One metric of all rows in a place, derived rows included."""
        entries: dict[str, dict[str, Any]] = {}
        pairs: dict[str, PairedDifference | None] = {}
        for row in self.experiment.rows:
            if row.derived is not None:
                mean = self.derived(row.derived, place, metric, entries)
                if mean is not None:
                    entries[row.label] = self.entry(row, place, metric) | {"mean": mean, "derived": row.derived}
            elif values := self.values(row.label, place, metric):
                # A worker's first training and other programs make outliers of times.
                entries[row.label] = self.entry(row, place, metric) | {
                    "mean": float(np.median(values) if metric in TIMES else np.mean(values)),
                    "sd": float(np.std(values, ddof=1)) if len(values) > 1 and metric not in TIMES else None,
                    "seeds": len(values),
                }
                if self.plain is not None and row.label != self.plain and metric not in TIMES:
                    pairs[row.label] = self.judge.of(row.label, self.plain, place, metric)
        return self.compared(entries, pairs, metric)

    def compared(
        self, entries: dict[str, dict[str, Any]], pairs: dict[str, PairedDifference | None], metric: str
    ) -> list[dict[str, Any]]:
        """The entries with their differences to plain training, the verdicts adjusted over the rows."""
        words = {HOLDS: "better", FAILS: "worse"}
        known = {label: pair for label, pair in pairs.items() if pair is not None}
        verdicts = decide(list(known.values()), direction(metric), self.judge.level)
        for (label, pair), verdict in zip(known.items(), verdicts):
            entries[label]["difference"] = {**pair.to_dict(), "verdict": words.get(verdict, verdict)}
        return list(entries.values())

    def entry(self, row: TableRow, place: Place, metric: str, beside: str | None = None) -> dict[str, Any]:
        """An entry with its published number; `beside` is the published size, by default that of the place."""
        beside = beside or self.judge.beside.get(place)
        number = None if beside is None else self.published(row.label, place[0], beside, metric)
        return {
            "dataset": place[0], "size": place[1], "beside": beside, "row": row.label, "ours": row.ours,
            "metric": metric,
            "published": None if number is None else number.printed,
            "published_value": None if number is None else number.value,
            "published_spread": None if number is None else number.spread,
            "mean": None, "sd": None, "seeds": 0, "difference": None,
        }  # fmt: skip

    def published(self, row: str, dataset: str, size: str, metric: str) -> PublishedNumber | None:
        """The number a paper prints; ratios are made of its minutes per epoch."""
        if metric != "time_ratio":
            return self.numbers.get((row, dataset, size, metric))
        timed = {n.row: n for n in self.experiment.published if (n.dataset, n.metric) == (dataset, "minutes_per_epoch")}
        if row not in timed or self.plain not in timed:
            return None
        ratio = timed[row].value / timed[self.plain].value
        return PublishedNumber(row, dataset, size, metric, ratio, None, f"{ratio:.1f}")

    def values(self, row: str, place: Place, metric: str) -> list[float]:
        """A number for each seed: ratios are to plain training, seconds saved are those of AMPLIFY."""
        rows, value = self.groups[place], self.judge.value
        runs = rows.get(row, {})
        if metric in (*TIMES, LAST):
            runs = {seed: run for seed, run in runs.items() if run.fine_tuned}
        if metric == "time_ratio":
            base = rows.get(self.plain or "", {})
            return [run.minutes_per_epoch / base[seed].minutes_per_epoch for seed, run in runs.items() if seed in base]
        if metric == "seconds_saved":
            labels = [other.label for other in self.experiment.rows if other.method == "amplify"]
            base = next((rows[label] for label in labels if label in rows), {})
            return [value(run, metric) - value(base[seed], metric) for seed, run in runs.items() if seed in base]
        return [value(run, metric) for run in runs.values()]

    def derived(self, how: str, place: Place, metric: str, entries: dict[str, dict[str, Any]]) -> float | None:
        """A row that is computed: the mean of the rows above it, or the share of the most frequent class."""
        if how.startswith("mean over"):
            labels = [other.label for other in self.experiment.rows if other.derived is None and not other.ours]
            if metric in TIMES or not all(label in entries for label in labels):
                return None
            return float(np.mean([entries[label]["mean"] for label in labels]))
        if metric != "accuracy":
            return None
        run: MeasuredRun = next(iter(next(iter(self.groups[place].values())).values()))
        classes = run.outputs.labels
        return float(np.bincount(classes).max() / len(classes)) * self.judge.factor(metric)

    def means(self, derived: DataSet, size: str) -> list[dict[str, Any]]:
        """The rows' means over data sets, those that were run at one size."""
        places, metric = [place for place in self.groups if place[1] == size], derived.metric
        whole = len(self.experiment.averaged)
        part = f" ({len(places)} of {whole} data sets)" if len(places) < whole else ""
        entries: dict[str, dict[str, Any]] = {}
        pairs: dict[str, PairedDifference | None] = {}
        for row in self.experiment.rows:
            if not all(row.label in self.groups[place] for place in places):
                continue
            values = [np.mean(self.values(row.label, place, metric)) for place in places]
            entries[row.label] = self.entry(row, (derived.key, size), metric, self.judge.beside[places[0]]) | {
                "mean": float(np.mean(values)),
                "seeds": min(len(self.groups[place][row.label]) for place in places),
                "derived": f"mean over {', '.join(place[0] for place in places)}{part}",
            }
            if self.plain is not None and row.label != self.plain:
                alone = [self.judge.of(row.label, self.plain, place, metric) for place in places]
                pairs[row.label] = self.judge.mean(alone, places)
        return self.compared(entries, pairs, metric)


def audit(experiment: Experiment, judge: Judge) -> list[dict[str, Any]]:
    """What the published mistake costs each baseline, in each metric, and the mean over data.

    A cost is above 0 where the faulty row is worse: less accuracy, more loss. Verdicts are adjusted over the baselines
    of a data set and metric.
    """
    entries: list[dict[str, Any]] = []
    families: dict[tuple[str, str, str], list[tuple[dict[str, Any], PairedDifference]]] = {}
    sizes = dict.fromkeys(size for _, size in judge.groups)
    for row in experiment.rows:
        if row.fault is None:
            continue
        right = _correct_row(experiment, row)
        for metric, size in itertools.product(("accuracy", *experiment.metrics), sizes):
            order = (right.label, row.label) if direction(metric) > 0 else (row.label, right.label)
            places = [place for place in judge.groups if place[1] == size]
            pairs = {place: pair for place in places if (pair := judge.of(*order, place, metric)) is not None}
            named = {place[0]: pair for place, pair in pairs.items()}
            if len(pairs) > 1 and (whole := judge.mean(list(pairs.values()), list(pairs))) is not None:
                named[f"mean of {len(pairs)}"] = whole
            for dataset, pair in named.items():
                entry = {"row": right.label, "dataset": dataset, "size": size, "metric": metric, "cost": pair.to_dict()}
                entries.append(entry)
                families.setdefault((dataset, size, metric), []).append((entry, pair))
    words = {HOLDS: "costs", FAILS: "helps"}
    for family in families.values():
        for (entry, _), verdict in zip(family, decide([pair for _, pair in family], 1, judge.level)):
            entry["verdict"] = words.get(verdict, verdict)
    return entries


def _correct_row(experiment: Experiment, faulty: TableRow) -> TableRow:
    """The row that differs from a faulty one in the fault alone."""
    wanted = (faulty.method, faulty.options, faulty.blocks)
    return next(row for row in experiment.rows if row.fault is None and (row.method, row.options, row.blocks) == wanted)
