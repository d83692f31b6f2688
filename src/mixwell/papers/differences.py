"""Paired differences between two rows of a table, in the units of the paper.

Scores (accuracy, MCC, F1, NLL, ECE) are paired by seed and by test row, as in `mixwell compare`. Numbers that a
training has one of (time, losses at its end, scores after the temperature, whose probabilities packs do not have) are
paired by seed alone. Variances over seeds are compared by Pitman and Morgan's test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from mixwell.compare.stats.intervals import holm, interval
from mixwell.compare.stats.verdicts import paired_difference
from mixwell.metrics.scores import METRICS as SCORES
from mixwell.papers.experiment import Experiment
from mixwell.papers.measured import MeasuredRun, Results
from mixwell.papers.schema import METRICS

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
        """As plain values; None for what is not known."""
        values = {"mean": self.mean, "lo": self.lo, "hi": self.hi, "p": self.p}
        return {
            **{name: value if math.isfinite(value) else None for name, value in values.items()},
            "seeds": self.seeds,
        }

    def decides(self, sign: int, level: float) -> str:
        """Whether the first is better, by an interval that leaves 0 out; one seed decides nothing."""
        if self.seeds < 2 or not self.p < 1 - level:
            return UNSURE
        return HOLDS if sign * self.mean > 0 else FAILS


def decide(pairs: Sequence[PairedDifference], sign: int, level: float) -> list[str]:
    """The verdicts on some pairs that are looked at together, with p-values adjusted after Holm."""
    adjusted = holm([pair.p if math.isfinite(pair.p) else 1.0 for pair in pairs])
    return [replace(pair, p=p).decides(sign, level) for pair, p in zip(pairs, adjusted)]


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
        kin: dict[str, list[tuple[float, float]]] = {}
        for pair, t, (dataset, _) in zip(known, reach, places):
            kin.setdefault(self.experiment.dataset(dataset).texts, []).append(((pair.hi - pair.lo) / 2 / t, pair.df))
        v = np.array([sum(error for error, _ in family) ** 2 for family in kin.values()]) / len(known) ** 2
        least = [min(df for _, df in family) for family in kin.values()]
        if not np.isfinite(v).all():
            return PairedDifference(mean, math.nan, math.nan, 1.0, math.nan, seeds)
        if v.sum() == 0:
            return PairedDifference(mean, mean, mean, 1.0 if mean == 0 else 0.0, math.inf, seeds)
        df = float(v.sum() ** 2 / sum(part**2 / own for part, own in zip(v, least))) if v.any() else math.inf
        df = df if math.isfinite(df) else 1e9
        error = math.sqrt(v.sum())
        half = float(stats.t.ppf(0.5 + self.level / 2, df)) * error
        return PairedDifference(mean, mean - half, mean + half, float(2 * stats.t.sf(abs(mean) / error, df)), df, seeds)


def direction(metric: str, of: str = "value") -> int:
    """1 if more is better, else -1."""
    return 1 if METRICS[metric] and of == "value" else -1
