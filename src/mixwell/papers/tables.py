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
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mixwell.errors import OptionError
from mixwell.papers.claims import Judge, Place
from mixwell.papers.measured import Cell, Measured
from mixwell.papers.pairs import AFTER, FAILS, HOLDS, LAST, TIMES, Pair, Pairs, decide, direction
from mixwell.papers.protocols import Experiment, Number, Row, get

FORMAT = "mixwell paper table 1"


def build(measured: Measured, level: float = 0.95) -> dict[str, Any]:
    """Make the tables of a run.

    Args:
        measured: its records.
        level: of the intervals.
    """
    check_level(level)
    run = measured.run
    experiment = get(run["experiment"])
    pairs = Pairs(measured, experiment, level)
    judge = Judge(measured, experiment, pairs)
    orders = [judge.order(*place) for place in pairs.groups]
    chosen = sorted({str(cell.identity["settings"]["best_metric"]) for cell in measured.cells})
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
        "plain": pairs.plain,
        "cells": [_plain(entry) for entry in _Cells(experiment, pairs, judge).all()],
        "orders": [_plain(order) for order in orders if order is not None],
        "claims": [_plain(judge.claim(claim)) for claim in experiment.claims],
        "audit": [_plain(entry) for entry in audit(experiment, pairs)],
        "trained": len(measured.cells),
        "missing": measured.missing,
        "failed": [{"what": what, "why": why} for what, why in measured.failed],
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
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


class _Cells:
    """The entries of a table."""

    def __init__(self, experiment: Experiment, pairs: Pairs, judge: Judge) -> None:
        self.experiment, self.pairs, self.judge = experiment, pairs, judge
        self.numbers = {(n.row, n.dataset, n.size, n.metric): n for n in experiment.published}

    def all(self) -> Iterator[dict[str, Any]]:
        """All entries, place by place."""
        for place in self.pairs.groups:
            for metric in self.metrics(place):
                yield from self.column(place, metric)
        yield from self.means()

    def metrics(self, place: Place) -> list[str]:
        """The metrics of a place: those of the protocol, then loss and time."""
        first = next(iter(next(iter(self.pairs.groups[place].values())).values()))
        more = ["train_loss"] if self.experiment.curve == "train_loss" else []
        if any(number.metric == "seconds_saved" for number in self.experiment.published):
            more.append("seconds_saved")
        warm = [
            f"{name}{AFTER}" for name in ("nll", "ece") if name in first.metrics and first.result["test"].get("after")
        ]
        # Last epochs can be compared if all trainings went to the end; older packs do not have their losses.
        cells = [cell for seeds in self.pairs.groups[place].values() for cell in seeds.values()]
        whole = all(each.result.get("last") is not None and not each.result["stopped_early"] for each in cells)
        return [*first.metrics, *warm, *([LAST] if whole else []), *more, "time_ratio"]

    def column(self, place: Place, metric: str) -> Iterator[dict[str, Any]]:
        """One metric of all rows in a place, derived rows included."""
        rows, plain = self.pairs.groups[place], self.pairs.plain
        made: dict[str, dict[str, Any]] = {}
        compared: list[tuple[dict[str, Any], Pair]] = []
        for row in self.experiment.rows:
            entry = self.entry(row, place, metric)
            if row.derived is not None:
                derived = self.derived(row, place, metric, made)
                if derived is None:
                    continue
                entry |= {"mean": derived, "derived": row.derived}
            elif row.label not in rows:
                continue
            else:
                values = self.values(row.label, place, metric)
                if not values:
                    continue
                # A worker's first training and other programs make outliers of times.
                entry |= {
                    "mean": float(np.median(values) if metric in TIMES else np.mean(values)),
                    "sd": float(np.std(values, ddof=1)) if len(values) > 1 and metric not in TIMES else None,
                    "seeds": len(values),
                }
                if plain in rows and row.label != plain and metric not in TIMES:
                    found = self.pairs.of(row.label, plain, place, metric)
                    if found is not None:
                        compared.append((entry, found))
            made[row.label] = entry
        _judge(compared, direction(metric), self.pairs.level)
        yield from made.values()

    def entry(self, row: Row, place: Place, metric: str) -> dict[str, Any]:
        """An entry with its published number."""
        beside = self.judge.beside.get(place)
        number = None if beside is None else self.published(row.label, place[0], beside, metric)
        return {
            "dataset": place[0], "size": place[1], "beside": beside, "row": row.label, "ours": row.ours,
            "metric": metric,
            "published": None if number is None else number.printed,
            "published_value": None if number is None else number.value,
            "published_spread": None if number is None else number.spread,
            "mean": None, "sd": None, "seeds": 0, "difference": None,
        }  # fmt: skip

    def published(self, row: str, dataset: str, size: str, metric: str) -> Number | None:
        """The number a paper prints; ratios are made of its minutes an epoch."""
        if metric != "time_ratio":
            return self.numbers.get((row, dataset, size, metric))
        timed = {n.row: n for n in self.experiment.published if (n.dataset, n.metric) == (dataset, "minutes_per_epoch")}
        if row not in timed or self.pairs.plain not in timed:
            return None
        ratio = timed[row].value / timed[self.pairs.plain].value
        return Number(row, dataset, size, metric, ratio, None, f"{ratio:.1f}")

    def values(self, row: str, place: Place, metric: str) -> list[float]:
        """A number for each seed: ratios are to plain training, seconds saved are those of AMPLIFY."""
        rows, plain = self.pairs.groups[place], self.pairs.plain
        mine = rows[row]
        if metric == "time_ratio":
            base = rows.get(plain or "", {})
            return [
                each.minutes_per_epoch / base[seed].minutes_per_epoch for seed, each in mine.items() if seed in base
            ]
        if metric == "seconds_saved":
            base = next((rows[each.label] for each in self.experiment.rows if each.method == "amplify"
                         and each.label in rows), {})  # fmt: skip
            return [self.pairs.value(each, metric) - self.pairs.value(base[seed], metric)
                    for seed, each in mine.items() if seed in base]  # fmt: skip
        return [self.pairs.value(each, metric) for each in mine.values()]

    def derived(self, row: Row, place: Place, metric: str, made: dict[str, dict[str, Any]]) -> float | None:
        """A row that is computed: the mean of the rows above it, or the share of the most frequent class."""
        if row.derived is not None and row.derived.startswith("mean over"):
            labels = [each.label for each in self.experiment.rows if each.derived is None and not each.ours]
            if metric in TIMES or not all(label in made for label in labels):
                return None
            return float(np.mean([made[label]["mean"] for label in labels]))
        if metric != "accuracy":
            return None
        cell: Cell = next(iter(next(iter(self.pairs.groups[place].values())).values()))
        return float(np.bincount(cell.outputs.labels).max() / len(cell.outputs.labels)) * self.pairs.factor(metric)

    def means(self) -> Iterator[dict[str, Any]]:
        """The column that is a mean over data sets."""
        derived = next((each for each in self.experiment.datasets if each.derived is not None), None)
        sizes = dict.fromkeys(size for _, size in self.pairs.groups)
        for size in sizes if derived is not None else ():
            assert derived is not None
            places = [place for place in self.pairs.groups if place[1] == size]
            whole = len(self.experiment.averaged)
            part = f" ({len(places)} of {whole} data sets)" if len(places) < whole else ""
            entries: list[dict[str, Any]] = []
            compared: list[tuple[dict[str, Any], Pair]] = []
            for row in self.experiment.rows:
                if not all(row.label in self.pairs.groups[place] for place in places):
                    continue
                beside = self.judge.beside[places[0]]
                number = None if beside is None else self.numbers.get((row.label, derived.key, beside, derived.metric))
                values = [np.mean(self.values(row.label, place, derived.metric)) for place in places]
                found = None
                if self.pairs.plain is not None and row.label != self.pairs.plain:
                    each = [self.pairs.of(row.label, self.pairs.plain, place, derived.metric) for place in places]
                    found = self.pairs.mean(each, places)
                entry = self.entry(row, (derived.key, size), derived.metric)
                entry |= {
                    "beside": beside,
                    "published": None if number is None else number.printed,
                    "published_value": None if number is None else number.value,
                    "mean": float(np.mean(values)),
                    "seeds": min(len(self.pairs.groups[place][row.label]) for place in places),
                    "derived": f"mean over {', '.join(place[0] for place in places)}{part}",
                }
                entries.append(entry)
                if found is not None:
                    compared.append((entry, found))
            _judge(compared, direction(derived.metric), self.pairs.level)
            yield from entries


def _judge(compared: Sequence[tuple[dict[str, Any], Pair]], sign: int, level: float) -> None:
    """Write the differences of rows to plain training into their entries, the verdicts adjusted over the rows."""
    words = {HOLDS: "better", FAILS: "worse"}
    for (entry, pair), verdict in zip(compared, decide([pair for _, pair in compared], sign, level)):
        entry["difference"] = {**pair.to_dict(), "verdict": words.get(verdict, verdict)}


def audit(experiment: Experiment, pairs: Pairs) -> list[dict[str, Any]]:
    """What the published mistake costs each baseline, in each metric, and the mean over data.

    A cost is above 0 where the faulty row is worse: less accuracy, more loss. Verdicts are adjusted over the baselines
    of a data set and metric.
    """
    entries: list[dict[str, Any]] = []
    families: dict[tuple[str, str, str], list[tuple[dict[str, Any], Pair]]] = {}
    for row in experiment.rows:
        if row.fault is None:
            continue
        right = next(each for each in experiment.rows if each.fault is None
                     and (each.method, each.options, each.blocks) == (row.method, row.options, row.blocks))  # fmt: skip
        sizes = list(dict.fromkeys(size for _, size in pairs.groups))
        for metric, size in itertools.product(("accuracy", *experiment.metrics), sizes):
            order = (right.label, row.label) if direction(metric) > 0 else (row.label, right.label)
            places = [place for place in pairs.groups if place[1] == size]
            found = {place: pair for place in places if (pair := pairs.of(*order, place, metric)) is not None}
            named = {place[0]: pair for place, pair in found.items()}
            if len(found) > 1 and (whole := pairs.mean(list(found.values()), list(found))) is not None:
                named[f"mean of {len(found)}"] = whole
            for dataset, pair in named.items():
                entry = {"row": right.label, "dataset": dataset, "size": size, "metric": metric, "cost": pair.to_dict()}
                entries.append(entry)
                families.setdefault((dataset, size, metric), []).append((entry, pair))
    words = {HOLDS: "costs", FAILS: "helps"}
    for family in families.values():
        for (entry, _), verdict in zip(family, decide([pair for _, pair in family], 1, pairs.level)):
            entry["verdict"] = words.get(verdict, verdict)
    return entries
