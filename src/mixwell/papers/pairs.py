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

from mixwell.calibration import METRICS as SCORES
from mixwell.compare.intervals import holm, interval
from mixwell.compare.statistics import paired_difference
from mixwell.papers.measured import Cell, Measured
from mixwell.papers.protocols import METRICS, Experiment

AFTER = "_after"  # a metric of the probabilities after the temperature
LAST = "nll_last"  # the validation loss of the last epoch, whichever was chosen
TIMES = ("time_ratio", "minutes_per_epoch", "seconds_saved")
HOLDS, FAILS, UNSURE, UNKNOWN = "holds", "does not hold", "not enough evidence", "unknown"
PARTLY = "holds where tested"  # not all of it was run
Seeds = Mapping[int, Cell]


@dataclass(frozen=True)
class Pair:
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


def decide(pairs: Sequence[Pair], sign: int, level: float) -> list[str]:
    """The verdict of each of some pairs that are looked at together, with p-values adjusted after Holm."""
    adjusted = holm([pair.p if math.isfinite(pair.p) else 1.0 for pair in pairs])
    return [replace(pair, p=p).decides(sign, level) for pair, p in zip(pairs, adjusted)]


class Pairs:
    """The differences of a run.

    Args:
        measured: the run.
        experiment: its protocol.
        level: of the intervals.
    """

    def __init__(self, measured: Measured, experiment: Experiment, level: float) -> None:
        self.experiment, self.level = experiment, level
        self.groups: dict[tuple[str, str], dict[str, dict[int, Cell]]] = {}
        for cell in measured.cells:
            self.groups.setdefault((cell.dataset, cell.size), {}).setdefault(cell.row, {})[cell.seed] = cell
        plain = [row.label for row in experiment.rows if row.method == "none" and not row.options]
        self.plain = plain[0] if plain else None
        self.of = lru_cache(maxsize=None)(self._of)

    def factor(self, metric: str) -> float:
        """What a measured value is multiplied by to stand beside a published one."""
        return self.experiment.factor if metric.removesuffix(AFTER) in SCORES or metric == LAST else 1.0

    def value(self, cell: Cell, metric: str, of: str = "value") -> float:
        """A number of one training, in the units of the paper.

        `train_loss` is the mean over the second half of the epochs, its spread their standard deviation. Where a
        figure follows the test loss, `nll` is that of the last epoch, not of the best.
        """
        if metric in ("time_ratio", "minutes_per_epoch"):
            return cell.minutes_per_epoch
        if metric == "seconds_saved":
            return cell.seconds_per_step * self.experiment.training.get("max_steps", 1)
        curve = cell.result["curve"]
        if metric == "train_loss":
            late = np.array([row["train_loss"] for row in curve[len(curve) // 2 :]], dtype=np.float64)
            return float(late.mean() if of == "value" else late.std())
        if metric == "nll" and self.experiment.curve == "test_loss":
            return float(curve[-1]["test_loss"]) * self.factor(metric)
        if metric == LAST:
            return float(cell.result["last"]) * self.factor(metric)
        if metric.endswith(AFTER):
            return float(cell.result["test"]["after"][metric.removesuffix(AFTER)]) * self.factor(metric)
        return cell.value(metric) * self.factor(metric)

    def scored(self, metric: str) -> bool:
        """Whether a metric is paired by test rows too."""
        return metric in SCORES and not (metric == "nll" and self.experiment.curve == "test_loss")

    def _of(self, first: str, second: str, place: tuple[str, str], metric: str, of: str = "value") -> Pair | None:
        """The difference of two rows in one place (data set, size); None if they have no seed in common."""
        rows = self.groups.get(place, {})
        a, b = rows.get(first, {}), rows.get(second, {})
        seeds = [seed for seed in a if seed in b]
        if not seeds:
            return None
        if self.scored(metric):
            return self._spread(a, b, seeds, metric) if of == "spread" else self._score(a, b, seeds, metric)
        diffs = [self.value(a[seed], metric, of) - self.value(b[seed], metric, of) for seed in seeds]
        found = interval(diffs, None, 0, self.level)
        return Pair(found.mean, found.lo, found.hi, found.p, found.df, len(seeds))

    def _score(self, a: Seeds, b: Seeds, seeds: Sequence[int], metric: str) -> Pair:
        found = paired_difference(
            [a[seed].seed_result for seed in seeds], [b[seed].seed_result for seed in seeds], metric, level=self.level
        )
        factor = self.factor(metric)
        return Pair(found.mean * factor, found.lo * factor, found.hi * factor, found.p, found.interval.df, len(seeds))

    def _spread(self, a: Seeds, b: Seeds, seeds: Sequence[int], metric: str) -> Pair:
        """The difference of the variances over seeds; first and second are correlated, as their seeds are shared."""
        from scipy import stats

        x, y = (np.array([self.value(each[seed], metric) for seed in seeds]) for each in (a, b))
        if len(seeds) < 3:
            return Pair(math.nan, math.nan, math.nan, 1.0, math.nan, len(seeds))
        gap = float(x.var(ddof=1) - y.var(ddof=1))
        # Scores that are all the same would correlate perfectly with anything.
        flat = any(np.ptp(each) == 0 for each in (x - y, x + y, x, y))
        p = 1.0 if flat else float(stats.pearsonr(x - y, x + y).pvalue)
        return Pair(gap, math.nan, math.nan, p, math.nan, len(seeds))

    def mean(self, pairs: Sequence[Pair | None], places: Sequence[tuple[str, str]]) -> Pair | None:
        """The mean of differences on several data sets, taken as they are.

        Errors of data sets with texts in common are taken to go together, those of others to be independent.

        Args:
            pairs: a difference for each place; None makes it unknown.
            places: (data set, size).
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
        v = np.array([sum(error for error, _ in each) ** 2 for each in kin.values()]) / len(known) ** 2
        least = [min(df for _, df in each) for each in kin.values()]
        if not np.isfinite(v).all():
            return Pair(mean, math.nan, math.nan, 1.0, math.nan, seeds)
        if v.sum() == 0:
            return Pair(mean, mean, mean, 1.0 if mean == 0 else 0.0, math.inf, seeds)
        df = float(v.sum() ** 2 / sum(each**2 / own for each, own in zip(v, least))) if v.any() else math.inf
        df = df if math.isfinite(df) else 1e9
        error = math.sqrt(v.sum())
        half = float(stats.t.ppf(0.5 + self.level / 2, df)) * error
        return Pair(mean, mean - half, mean + half, float(2 * stats.t.sf(abs(mean) / error, df)), df, seeds)


def direction(metric: str, of: str = "value") -> int:
    """1 if more is better, else -1."""
    return 1 if METRICS[metric] and of == "value" else -1
