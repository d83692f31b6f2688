"""Is a method better than plain training, and how certain is that?

The difference of a method to plain training is paired twice: by seed (one split, sample, initialisation,
batch order and dropout stream) and by test example. `compare` makes one row per method and metric, with an
interval over seeds and examples (`intervals`), Holm's adjustment over methods and a verdict.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.compare.stats import bootstrap as boot
from mixwell.compare.stats.bootstrap import AFTER, SCALARS, SeedResult, metric_info
from mixwell.compare.stats.judge import FIXED, Difference, Rules, difference_of, judged
from mixwell.metrics.scores import METRICS, check_task
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE
from mixwell.utils.errors import OptionError, RunError, nearest

RESAMPLES = 1000
PRIMARY = {SINGLE: "accuracy", MULTI: "micro_f1", REGRESSION: "mse"}
CALIBRATION = {SINGLE: "nll_after", MULTI: "nll_after"}


@dataclass(frozen=True)
class MetricRow:
    """One method in one metric; `difference` is None for the baseline. Mean and sd are over all its seeds."""

    method: str
    metric: str
    title: str
    higher_is_better: bool
    mean: float
    sd: float
    seeds: int
    difference: Difference | None


@dataclass(frozen=True)
class Comparison:
    """All methods in all metrics; `summary_sentence` puts it into words."""

    rows: tuple[MetricRow, ...]
    baseline: str
    task: str
    level: float
    methods: tuple[str, ...]
    metrics: tuple[str, ...]

    def row(self, method: str, metric: str) -> MetricRow:
        """The row of a method and metric."""
        for r in self.rows:
            if (r.method, r.metric) == (method, metric):
                return r
        raise OptionError(
            f"no row for method {method!r} and metric {metric!r}: methods are {', '.join(self.methods)}; "
            f"metrics are {', '.join(self.metrics)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; numbers that are not finite become None."""

        def plain(v: Any) -> Any:
            if isinstance(v, dict):
                return {k: plain(x) for k, x in v.items()}
            if isinstance(v, (list, tuple)):
                return [plain(x) for x in v]
            return None if isinstance(v, float) and not np.isfinite(v) else v

        return dict(plain(asdict(self)))


def _check_options(level: float, resamples: int) -> None:
    if not 0.5 <= level < 1:
        raise OptionError(f"level must be from 0.5 to below 1, got {level}")
    if resamples < 50:
        raise OptionError(f"resamples must be at least 50, got {resamples}")


def paired_difference(
    a: Sequence[SeedResult],
    b: Sequence[SeedResult],
    metric: str = "accuracy",
    *,
    task: str = SINGLE,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    rng: np.random.Generator | int = 0,
    names: tuple[str, str] = ("a", "b"),
) -> Difference:
    """Difference a - b in one metric over the seeds that both have; the verdict is about `a`."""
    results = {names[1]: b, names[0]: a}
    comparison = compare(results, names[1], [metric], task=task, level=level, resamples=resamples, rng=rng)
    difference = comparison.row(names[0], comparison.metrics[0]).difference
    assert difference is not None
    return difference


def _check_results(results: Mapping[str, Sequence[SeedResult]], baseline: str, task: str) -> None:
    check_task(task)
    if baseline not in results:
        raise OptionError(
            f"baseline {baseline!r} is not among the methods{nearest(baseline, results)}: {', '.join(results)}"
        )
    by_seed: dict[int, tuple[str, SeedResult]] = {}
    for method, runs in results.items():
        if not runs:
            raise OptionError(f"method {method!r} has no seeds: train at least one, better 5")
        if len({r.seed for r in runs}) < len(runs):
            raise OptionError(f"method {method!r} has a seed twice: keep one record per seed")
        for r in runs:
            name = f"method {method!r}, seed {r.seed}"
            boot.check(r, task, name)
            other, first = by_seed.setdefault(r.seed, (method, r))
            same_ids = (r.ids is None) == (first.ids is None) and (
                r.ids is None or np.array_equal(r.ids, np.asarray(first.ids))
            )
            if not (np.array_equal(r.labels, first.labels) and same_ids):
                raise RunError(
                    f"{name}: its test labels are not those of method {other!r} with the same seed, so the "
                    f"two cannot be paired; train both on one data set and split"
                )
    base = {r.seed for r in results[baseline]}
    for method, runs in results.items():
        if not base & {r.seed for r in runs}:
            raise OptionError(f"method {method!r} has no seed in common with {baseline!r}: train the same seeds")


def _metric_list(
    results: Mapping[str, Sequence[SeedResult]], wanted: Sequence[str] | None, task: str
) -> tuple[list[str], list[str]]:
    """Names of the metrics from examples, and of the scalars."""
    runs = [r for rs in results.values() for r in rs]
    calibrated = task != REGRESSION and all(r.temperature is not None for r in runs)
    recorded = [n for n in SCALARS if all(any(n in r.scalars for r in rs) for rs in results.values())]
    if wanted is None:
        return boot.metric_names(task, calibrated), recorded
    names: list[str] = []
    for name in wanted:
        info = metric_info(name)
        if task not in info.tasks:
            raise OptionError(f"metric {name!r} does not belong to task {task!r}: it is for {info.tasks[0]}")
        if name in SCALARS and name not in recorded:
            raise OptionError(f"metric {name!r} is not recorded for every method")
        base = name.removesuffix(AFTER)
        if name != base and METRICS[base].scaled and not calibrated:
            raise OptionError(f"metric {name!r} needs a temperature in every record; some have none")
        names.append(base if name != base and not METRICS[base].scaled else name)  # T changes nothing
    names = list(dict.fromkeys(names))
    return [n for n in names if n not in SCALARS], [n for n in names if n in SCALARS]


def compare(
    results: Mapping[str, Sequence[SeedResult]],
    baseline: str = "none",
    metrics: Sequence[str] | None = None,
    *,
    task: str = SINGLE,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    rng: np.random.Generator | int = 0,
    apart: Collection[str] = (),
    rules: Rules = FIXED,
    without: Collection[str] = (),
) -> Comparison:
    """Compare every method with the baseline in every metric.

    Args:
        results: method -> its trained models. A method with fewer seeds is paired over those in common.
        baseline: name of plain training.
        metrics: names in `scores.METRICS`, with `_after` for "after temperature", and
            `seconds_per_step`; all that were recorded by default. Accuracy, F1 and MCC are the same before and after.
        task: one of `scores.TASKS`.
        level: of the intervals; a verdict needs a Holm-adjusted p-value below 1 - level. The adjustment is
            over the methods, for each metric by itself: name the metric that decides before looking.
        resamples: of the test examples. They serve for variances, not tails, so 1,000 is plenty.
        rng: generator or seed.
        apart: methods that are references and no candidates: they have no part in the adjustment.
        rules: what else verdicts depend on: looks at fewer seeds, what is practically equal, what is withheld.
        without: metrics to leave out, before and after temperature.
    """
    _check_options(level, resamples)
    _check_results(results, baseline, task)
    names, scalars = _metric_list(results, metrics, task)
    names = [name for name in names if name.removesuffix(AFTER) not in without]
    measured = MetricValues.of(results, names, task, resamples, np.random.default_rng(rng))
    rows: list[MetricRow] = []
    for name in names + scalars:
        info = metric_info(name)
        values = measured.values(name)
        differences = {
            method: measured.difference(name, values, method, baseline, level)
            for method in results
            if method != baseline and values[method].keys() & values[baseline].keys()
        }
        verdicts = judged(differences, apart, level, info.higher_is_better, rules, main=name == PRIMARY[task])
        for method in results:
            v = np.array(list(values[method].values()))
            sd = float(v.std(ddof=1)) if len(v) > 1 else float("nan")
            row = (method, name, info.title, info.higher_is_better, float(v.mean()), sd, len(v), verdicts.get(method))
            rows.append(MetricRow(*row))
    return Comparison(tuple(rows), baseline, task, level, tuple(results), tuple(names + scalars))


@dataclass(frozen=True)
class MetricValues:
    """The metrics of all trained models, on their test sets and on resamples of them.

    Attributes:
        results: method -> its trained models.
        point: (method, seed) -> metric -> value.
        resampled: (method, seed) -> metric -> (R,) values.
        examples: seed -> (N,) which of all examples its test rows are.
    """

    results: Mapping[str, Sequence[SeedResult]]
    point: dict[tuple[str, int], dict[str, float]]
    resampled: dict[tuple[str, int], dict[str, NDArray[np.float64]]]
    examples: dict[int, NDArray[np.int64]]

    @classmethod
    def of(
        cls,
        results: Mapping[str, Sequence[SeedResult]],
        names: Sequence[str],
        task: str,
        resamples: int,
        rng: np.random.Generator,
    ) -> MetricValues:
        """Measure all trained models; see `compare` for the arguments."""
        by_seed = {r.seed: r for runs in results.values() for r in runs}
        size, rows = boot.pool(list(by_seed.values()))
        examples = dict(zip(by_seed, rows))
        if not names:
            return cls(results, {}, {}, examples)
        runs = [(method, r) for method, runs in results.items() for r in runs]
        point = {(method, r.seed): boot.values(r, names, task) for method, r in runs}
        wanted = [(r, names) for _, r in runs]
        drawn = boot.resample(wanted, [examples[r.seed] for _, r in runs], size, task, resamples, rng)
        return cls(results, point, {(method, r.seed): d for (method, r), d in zip(runs, drawn)}, examples)

    def values(self, name: str) -> dict[str, dict[int, float]]:
        """Method -> seed -> value of a metric."""
        if name in SCALARS:
            return {
                method: {r.seed: float(r.scalars[name]) for r in runs if name in r.scalars}
                for method, runs in self.results.items()
            }
        return {
            method: {r.seed: self.point[method, r.seed][name] for r in runs} for method, runs in self.results.items()
        }

    def difference(
        self, name: str, values: dict[str, dict[int, float]], method: str, baseline: str, level: float
    ) -> Difference:
        """The difference of a method to the baseline over the seeds in common, not judged yet."""
        seeds = [seed for seed in values[method] if seed in values[baseline]]
        diffs = [values[method][seed] - values[baseline][seed] for seed in seeds]
        shift, count = None, 0
        if name not in SCALARS:
            shift = np.stack([self.resampled[method, s][name] - self.resampled[baseline, s][name] for s in seeds])
            count = len(np.unique(np.concatenate([self.examples[s] for s in seeds])))
        plain = np.array([values[baseline][seed] for seed in seeds])
        found = difference_of(diffs, shift, count, level, name)
        return replace(found, base=float(plain.mean()), correlation=_correlation(plain, plain + np.asarray(diffs)))


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Pearson's correlation over seeds; NaN below 3 seeds or without spread."""
    if len(x) < 3 or x.std() < 1e-12 or y.std() < 1e-12:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])
