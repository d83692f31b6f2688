"""Paired differences between two rows of a table, in the units of the paper, and whether what the paper says holds.

Scores (accuracy, MCC, F1, NLL, ECE) are paired by seed and by test row, as in `mixwell compare`. Numbers that a
training has one of (time, losses at its end, scores after the temperature, whose probabilities packs do not have) are
paired by seed alone. Variances over seeds are compared by Pitman and Morgan's test.

A pair of rows bears a claim out if the interval of their difference lies on the claimed side of 0. A claim over
several pairs holds if each pair does ("where tested" if some pairs, or data sets of a mean, were not run); it does not
hold if a pair lies on the other side after Holm's adjustment over the claim's pairs; else there is not enough evidence.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from mixwell.compare.stats.intervals import holm, interval
from mixwell.compare.stats.verdicts import paired_difference
from mixwell.metrics.scores import METRICS as SCORES
from mixwell.papers.experiment import Experiment
from mixwell.papers.results import MeasuredRun, Results
from mixwell.papers.schema import METRICS, SAMPLE, Claim

AFTER = "_after"  # a metric of the probabilities after the temperature
LAST = "nll_last"  # the validation loss of the last epoch, whichever was chosen
TIMES = ("time_ratio", "minutes_per_epoch", "seconds_saved")
HOLDS, FAILS, UNSURE, UNKNOWN = "holds", "does not hold", "not enough evidence", "unknown"
PARTLY = "holds where tested"  # not all of it was run
Place = tuple[str, str]  # data set and size
Seeds = Mapping[int, MeasuredRun]


@dataclass(frozen=True)
class PairedDifference:
    """A difference of two rows, first minus second.

    Attributes:
        mean: over the seeds in common.
        lo: lower end of the interval; NaN where there is none.
        hi: upper end.
        p: two-sided p-value for "no difference".
        df: degrees of freedom.
        seeds: seeds in common.
    """

    mean: float
    lo: float
    hi: float
    p: float
    df: float
    seeds: int

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {name: getattr(self, name) for name in ("mean", "lo", "hi", "p", "seeds")}

    def decides(self, sign: int, level: float) -> str:
        """Whether the first is better, by an interval that leaves 0 out; one seed decides nothing."""
        if self.seeds < 2 or not self.p < 1 - level:
            return UNSURE
        return HOLDS if sign * self.mean > 0 else FAILS


def direction(metric: str, of: str = "value") -> int:
    """1 if more is better, else -1."""
    return 1 if METRICS[metric] and of == "value" else -1


def decide(pairs: Sequence[PairedDifference], sign: int, level: float) -> list[str]:
    """The verdicts on some pairs that are looked at together, with p-values adjusted after Holm."""
    adjusted = holm([pair.p if math.isfinite(pair.p) else 1.0 for pair in pairs])
    return [replace(pair, p=p).decides(sign, level) for pair, p in zip(pairs, adjusted)]


def together(pairs: Sequence[PairedDifference | None], sign: int, level: float) -> str:
    """The verdict on several pairs of rows.

    Args:
        pairs: the differences; None where one was not run.
        sign: the side on which they are borne out.
        level: of the intervals.
    """
    known = [pair for pair in pairs if pair is not None]
    if not known:
        return UNKNOWN
    # That all hold needs no adjusting; that single ones of many do not, does.
    if all(pair.decides(sign, level) == HOLDS for pair in known):
        return HOLDS if len(known) == len(pairs) else PARTLY
    return FAILS if FAILS in decide(known, sign, level) else UNSURE


class PairedDifferences:
    """The differences between the rows of an experiment.

    Args:
        results: what was measured.
        experiment: its protocol.
        level: of the intervals.
    """

    def __init__(self, results: Results, experiment: Experiment, level: float) -> None:
        self.experiment, self.level = experiment, level
        self.groups: dict[Place, dict[str, dict[int, MeasuredRun]]] = {}
        for run in results.runs:
            self.groups.setdefault((run.dataset, run.size), {}).setdefault(run.row, {})[run.seed] = run
        plain = [row.label for row in experiment.rows if row.method == "none" and not row.options]
        self.plain = plain[0] if plain else None
        self.beside = {(run.dataset, run.size): run.beside for run in results.runs}
        self.smoke = results.run_json["scale"] == "smoke"
        self.of = lru_cache(maxsize=None)(self._of)

    def factor(self, metric: str) -> float:
        """What a measured value is multiplied by to stand beside a published one."""
        return self.experiment.factor if metric.removesuffix(AFTER) in SCORES or metric == LAST else 1.0

    def value(self, run: MeasuredRun, metric: str, of: str = "value") -> float:
        """A number of one training, in the units of the paper.

        `train_loss` is the mean over the second half of the epochs, its spread their standard deviation. Where a
        figure follows the test loss, `nll` is that of the last epoch, not of the best.
        """
        if metric in ("time_ratio", "minutes_per_epoch"):
            return run.minutes_per_epoch
        if metric == "seconds_saved":
            return run.seconds_per_step * self.experiment.training.get("max_steps", 1)
        curve = run.result["curve"]
        if metric == "train_loss":
            late = np.array([point["train_loss"] for point in curve[len(curve) // 2 :]], dtype=np.float64)
            return float(late.mean() if of == "value" else late.std())
        if metric == "nll" and self.experiment.curve == "test_loss":
            return float(curve[-1]["test_loss"]) * self.factor(metric)
        if metric == LAST:
            return float(run.result["last"]) * self.factor(metric)
        if metric.endswith(AFTER):
            return float(run.result["test"]["after"][metric.removesuffix(AFTER)]) * self.factor(metric)
        return run.value(metric) * self.factor(metric)

    def scored(self, metric: str) -> bool:
        """Whether a metric is paired by test rows too."""
        return metric in SCORES and not (metric == "nll" and self.experiment.curve == "test_loss")

    def _of(self, first: str, second: str, place: Place, metric: str, of: str = "value") -> PairedDifference | None:
        """The difference of two rows in one place; None if they have no seed in common."""
        rows = self.groups.get(place, {})
        a, b = rows.get(first, {}), rows.get(second, {})
        seeds = [seed for seed in a if seed in b]
        if not seeds:
            return None
        if self.scored(metric):
            return self._spread(a, b, seeds, metric) if of == "spread" else self._score(a, b, seeds, metric)
        diffs = [self.value(a[seed], metric, of) - self.value(b[seed], metric, of) for seed in seeds]
        paired = interval(diffs, None, 0, self.level)
        return PairedDifference(paired.mean, paired.lo, paired.hi, paired.p, paired.df, len(seeds))

    def _score(self, a: Seeds, b: Seeds, seeds: Sequence[int], metric: str) -> PairedDifference:
        paired = paired_difference(
            [a[seed].seed_result for seed in seeds], [b[seed].seed_result for seed in seeds], metric, level=self.level
        )
        factor = self.factor(metric)
        mean, lo, hi = (factor * value for value in (paired.mean, paired.lo, paired.hi))
        return PairedDifference(mean, lo, hi, paired.p, paired.interval.df, len(seeds))

    def _spread(self, a: Seeds, b: Seeds, seeds: Sequence[int], metric: str) -> PairedDifference:
        """The difference of the variances over seeds; first and second are correlated, as their seeds are shared."""
        from scipy import stats

        x, y = (np.array([self.value(runs[seed], metric) for seed in seeds]) for runs in (a, b))
        if len(seeds) < 3:
            return PairedDifference(math.nan, math.nan, math.nan, 1.0, math.nan, len(seeds))
        gap = float(x.var(ddof=1) - y.var(ddof=1))
        # Scores that are all the same would correlate perfectly with anything.
        flat = any(np.ptp(scores) == 0 for scores in (x - y, x + y, x, y))
        p = 1.0 if flat else float(stats.pearsonr(x - y, x + y).pvalue)
        return PairedDifference(gap, math.nan, math.nan, p, math.nan, len(seeds))

    def mean(self, pairs: Sequence[PairedDifference | None], places: Sequence[Place]) -> PairedDifference | None:
        """The mean of differences on several data sets, taken as they are.

        Errors of data sets with texts in common are taken to go together, those of others to be independent.

        Args:
            pairs: a difference for each place; None makes it unknown.
            places: where they were measured.
        """
        from scipy import stats

        known = [pair for pair in pairs if pair is not None]
        if not known or len(known) < len(pairs):
            return None
        mean = float(np.mean([pair.mean for pair in known]))
        seeds = min(pair.seeds for pair in known)
        # Standard errors as the intervals have them, so that what widened those widens this one too.
        reach = [stats.t.ppf(0.5 + self.level / 2, pair.df) for pair in known]
        alike: dict[str, list[tuple[float, float]]] = {}
        for pair, t, (dataset, _) in zip(known, reach, places):
            alike.setdefault(self.experiment.dataset(dataset).texts, []).append(((pair.hi - pair.lo) / 2 / t, pair.df))
        v = np.array([sum(error for error, _ in family) ** 2 for family in alike.values()]) / len(known) ** 2
        least = [min(df for _, df in family) for family in alike.values()]
        if not np.isfinite(v).all():
            return PairedDifference(mean, math.nan, math.nan, 1.0, math.nan, seeds)
        if v.sum() == 0:
            return PairedDifference(mean, mean, mean, 1.0 if mean == 0 else 0.0, math.inf, seeds)
        df = float(v.sum() ** 2 / sum(part**2 / own for part, own in zip(v, least))) if v.any() else math.inf
        df = df if math.isfinite(df) else 1e9
        error = math.sqrt(v.sum())
        half = float(stats.t.ppf(0.5 + self.level / 2, df)) * error
        return PairedDifference(mean, mean - half, mean + half, float(2 * stats.t.sf(abs(mean) / error, df)), df, seeds)


class Judge(PairedDifferences):
    """Compares what a paper says with what was measured."""

    def places(self, dataset: str, size: str, timed: bool) -> list[tuple[str, list[Place]]]:
        """Where a published place was measured: name and places, several for a mean over data sets."""
        measured = list(self.beside)
        if self.smoke:
            return [(f"{SAMPLE.key}, {place[1]}", [place]) for place in measured]
        fits = [place for place in measured if self.beside[place] == size]
        if self.experiment.is_mean(dataset):
            sizes = dict.fromkeys(place[1] for place in fits)
            return [(f"{dataset}, {own}", [place for place in fits if place[1] == own]) for own in sizes]
        places = [place for place in fits if place[0] == dataset]
        if timed and not places:  # what an update costs does not depend on how many rows there are
            places = [place for place in measured if place[0] == dataset]
        return [(", ".join(place), [place]) for place in places]

    def claim(self, claim: Claim) -> dict[str, Any]:
        """One claim: its verdict, and each pair of rows behind it."""
        sign, timed = direction(claim.metric, claim.of), claim.metric in TIMES
        pairs: dict[tuple[str, str, str], PairedDifference | None] = {}  # by rows and place
        means = set()  # (data sets that were run, data sets the paper averages over)
        for dataset, size in itertools.product(claim.datasets, claim.sizes):
            where = self.places(dataset, size, timed)
            if self.experiment.is_mean(dataset) and not self.smoke:
                means |= {(len(places), len(self.experiment.averaged)) for _, places in where}
            for above, below in itertools.product(claim.above, claim.below):
                compared = {name: self._over(above, below, places, claim) for name, places in where}
                usable = {(above, below, name): pair for name, pair in compared.items() if pair is not None}
                if not usable and (not self.smoke or not any(key[:2] == (above, below) for key in pairs)):
                    pairs.setdefault((above, below, f"{dataset}, {size}"), None)
                for key in list(usable)[:1] if timed else usable:
                    pairs.setdefault(key, usable[key])
        known = [pair for pair in pairs.values() if pair is not None]
        printed = [verdict.holds for verdict in claim.judge(self.experiment.values(claim.metric, of=claim.of))]
        verdict = together(list(pairs.values()), sign, self.level)
        partly = sorted(f"{run} of {whole} data sets" for run, whole in means if run < whole)
        return {
            "says": claim.says,
            "metric": claim.metric,
            "of": claim.of,
            "verdict": PARTLY if verdict == HOLDS and partly else verdict,
            "tested": ", ".join([f"{len(known)} of {len(pairs)} pairs", *partly]),
            "in_direction": sum(sign * pair.mean > 0 for pair in known),
            "published": {
                "difference": claim.difference,
                "ratio": claim.ratio,
                "pairs_that_hold": printed.count(True),
                "pairs_known": len(printed) - printed.count(None),
            },
            "pairs": [self._entry(*key, pair, sign, timed) for key, pair in pairs.items()],
        }

    def _over(self, above: str, below: str, places: Sequence[Place], claim: Claim) -> PairedDifference | None:
        """The difference in one place, or the mean over several."""
        pairs = [self.of(above, below, place, claim.metric, claim.of) for place in places]
        if len(places) == 1:
            return pairs[0]
        return self.mean(pairs, places) if self.scored(claim.metric) and claim.of == "value" else None

    def _entry(
        self, above: str, below: str, where: str, pair: PairedDifference | None, sign: int, timed: bool
    ) -> dict[str, Any]:
        entry: dict[str, Any] = {"above": above, "below": below, "where": where, "verdict": UNKNOWN}
        if pair is None:
            return {**entry, "why": "not run"}
        entry |= {"difference": pair.to_dict(), "verdict": pair.decides(sign, self.level)}
        if timed:
            dataset, size = where.rsplit(", ", 1)
            first, second = (self.groups[dataset, size][row] for row in (above, below))
            times = [second[seed].minutes_per_epoch / first[seed].minutes_per_epoch for seed in first if seed in second]
            entry["ratio"] = statistics.median(times)
        return entry

    def order(self, dataset: str, size: str) -> dict[str, Any] | None:
        """The published order of the rows in one place against the measured one; None where nothing is published."""
        beside, rows = self.beside[dataset, size], self.groups[dataset, size]
        metric = self.experiment.dataset(dataset).metric
        printed = {
            row: value
            for (row, *place), value in self.experiment.values(metric).items()
            if place == [dataset, beside] and row in rows
        }
        if len(printed) < 2:
            return None
        sign, more = direction(metric), METRICS[metric]
        means = {row: sum(run.value(metric) for run in rows[row].values()) / len(rows[row]) for row in printed}
        published, measured = (sorted(printed, key=by.__getitem__, reverse=more) for by in (printed, means))
        pairs = [
            self.of(better, worse, (dataset, size), metric)
            for better, worse in itertools.combinations(published, 2)
            if printed[better] != printed[worse]
        ]
        known = [pair for pair in pairs if pair is not None]
        verdicts = decide(known, sign, self.level)
        return {
            "dataset": dataset,
            "size": size,
            "beside": beside,
            "metric": metric,
            "published": published,
            "measured": measured,
            "pairs": len(known),
            "same_side": sum(sign * pair.mean > 0 for pair in known),
            "shown": verdicts.count(HOLDS),
            "against": verdicts.count(FAILS),
            "verdict": together(pairs, sign, self.level),
        }
