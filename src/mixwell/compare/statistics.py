"""Is a method better than plain training, and how sure is that?

The difference of a method to plain training is paired twice: by seed (one split, sample, initialisation,
batch order and dropout stream) and by test example. `compare` makes one row per method and metric, with an
interval over seeds and examples (`intervals`), Holm's adjustment over methods and a verdict;
`summary_sentence` says what to use and how sure that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixwell import calibration as cal
from mixwell.compare import bootstrap as boot
from mixwell.compare.bootstrap import AFTER, SCALARS, SeedResult, metric_info
from mixwell.compare.intervals import (
    Interval,
    holm,
    interval,
    seeds_needed,
    sign_flip_test,
    smallest_sign_flip_p,
)
from mixwell.errors import OptionError, RunError, nearest

__all__ = [
    "Comparison",
    "Difference",
    "Interval",
    "Row",
    "SeedResult",
    "compare",
    "holm",
    "interval",
    "metric_info",
    "paired_difference",
    "seeds_needed",
    "sign_flip_test",
    "smallest_sign_flip_p",
    "summary_sentence",
]

BETTER, WORSE, UNSURE = "better", "worse", "not enough evidence"
RESAMPLES = 1000
PRIMARY = {cal.SINGLE: "accuracy", cal.MULTI: "micro_f1", cal.REGRESSION: "mse"}
CALIBRATION = {cal.SINGLE: "nll_after", cal.MULTI: "nll_after"}
_PERCENT = {"accuracy", "subset_accuracy", "micro_f1", "macro_f1", "ece", "adaptive_ece"}


@dataclass(frozen=True)
class Difference:
    """A method's difference to plain training in one metric.

    Attributes:
        mean: mean over the seeds in common, method minus plain.
        sd: standard deviation over those seeds; NaN for one seed.
        lo: lower end of the interval (not adjusted for several methods).
        hi: upper end.
        p: p-value of the same construction as the interval.
        p_holm: p adjusted over the methods compared; the verdict goes by this.
        sign_flip_p: exact paired permutation test over seeds, None if so few seeds cannot reach 1 - level. It
            is for this very test set; a second opinion, not the verdict.
        effect_size: mean / sd with Hedges' small-sample factor; NaN below 3 seeds.
        seeds: seeds in common.
        examples: test examples behind the interval; 0 for a scalar such as seconds per step.
        seeds_needed: for a verdict of "not enough evidence", the seeds in all that would find a difference of
            this size with 80 % power; None if no number up to 1,000 would or if it cannot be estimated.
        verdict: "better", "worse" or "not enough evidence".
        note: what limits the verdict, in words.
        interval: the interval with its parts.
        base: plain training's mean over the seeds in common; NaN where only differences were given.
    """

    mean: float
    sd: float
    lo: float
    hi: float
    p: float
    p_holm: float
    sign_flip_p: float | None
    effect_size: float
    seeds: int
    examples: int
    seeds_needed: int | None
    verdict: str
    note: str
    interval: Interval
    base: float = float("nan")


@dataclass(frozen=True)
class Row:
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

    rows: tuple[Row, ...]
    baseline: str
    task: str
    level: float
    methods: tuple[str, ...]
    metrics: tuple[str, ...]

    def row(self, method: str, metric: str) -> Row:
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


# ------------------------------------------------------------------------------------------ one difference


def _difference(
    diffs: ArrayLike, resampled: NDArray[Any] | None, examples: int, level: float, metric: str
) -> Difference:
    """All of a `Difference` but its verdict."""
    from scipy import special

    d = np.asarray(diffs, dtype=np.float64)
    n = len(d)
    i = interval(d, resampled, examples, level, metric)
    sd = float(d.std(ddof=1)) if n > 1 else float("nan")
    effect = float("nan")
    if n > 2 and (sd > 0 or i.mean == 0):
        half = (n - 1) / 2
        hedges = np.exp(special.gammaln(half) - special.gammaln(half - 0.5)) / np.sqrt(half)
        effect = float(hedges * i.mean / sd) if sd > 0 else 0.0
    flip = sign_flip_test(d) if smallest_sign_flip_p(n) <= 1 - level + 1e-12 else None
    return Difference(i.mean, sd, i.lo, i.hi, i.p, i.p, flip, effect, n, examples, None, UNSURE, "", i)


def _judge(d: Difference, p_holm: float, level: float, higher: bool, family: int) -> Difference:
    """Set the verdict by the adjusted p-value, and say what limits it."""
    verdict, needed, notes = UNSURE, None, []
    if d.seeds == 1:
        notes.append("one seed: the interval is for these two trained models only; run at least 3 seeds")
    elif p_holm < 1 - level:
        verdict = BETTER if (d.mean > 0) == higher else WORSE
    elif d.mean == 0 and d.interval.own + d.interval.shared == 0:
        notes.append("no difference at all in any seed")
    else:
        needed = seeds_needed(d.mean, d.interval.own, d.interval.shared, d.seeds, 1 - (1 - level) / family)
        if needed is None:
            more = ", a larger test set might" if d.examples else ""
            notes.append(f"more seeds alone would not show so small a difference{more}")
        else:
            needed = max(needed, d.seeds + 1)
            notes.append(f"about {needed} seeds would show a difference of this size")
    if d.seeds > 1 and d.sign_flip_p is None:
        notes.append(f"a sign-flip test of {d.seeds} seeds cannot go below p = {smallest_sign_flip_p(d.seeds):.3g}")
    return replace(d, p_holm=p_holm, verdict=verdict, seeds_needed=needed, note="; ".join(notes))


def _options(level: float, resamples: int) -> None:
    if not 0.5 <= level < 1:
        raise OptionError(f"level must be from 0.5 to below 1, got {level}")
    if resamples < 50:
        raise OptionError(f"resamples must be at least 50, got {resamples}")


def paired_difference(
    a: Sequence[SeedResult],
    b: Sequence[SeedResult],
    metric: str = "accuracy",
    *,
    task: str = cal.SINGLE,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    rng: np.random.Generator | int = 0,
    names: tuple[str, str] = ("a", "b"),
) -> Difference:
    """Difference a - b in one metric over the seeds that both have; the verdict is about `a`."""
    done = compare({names[1]: b, names[0]: a}, names[1], [metric], task=task, level=level, resamples=resamples, rng=rng)
    difference = done.row(names[0], done.metrics[0]).difference
    assert difference is not None
    return difference


# ------------------------------------------------------------------------------------------ all of them


def _check_results(results: Mapping[str, Sequence[SeedResult]], baseline: str, task: str) -> None:
    cal.check_task(task)
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
            cell = f"method {method!r}, seed {r.seed}"
            boot.check(r, task, cell)
            other, first = by_seed.setdefault(r.seed, (method, r))
            same_ids = (r.ids is None) == (first.ids is None) and (
                r.ids is None or np.array_equal(r.ids, np.asarray(first.ids))
            )
            if not (np.array_equal(r.labels, first.labels) and same_ids):
                raise RunError(
                    f"{cell}: its test labels are not those of method {other!r} with the same seed, so the "
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
    warm = task != cal.REGRESSION and all(r.temperature is not None for r in runs)
    have = [n for n in SCALARS if all(any(n in r.scalars for r in rs) for rs in results.values())]
    if wanted is None:
        return boot.metric_names(task, warm), have
    names: list[str] = []
    for name in wanted:
        info = metric_info(name)
        if task not in info.tasks:
            raise OptionError(f"metric {name!r} does not belong to task {task!r}: it is for {info.tasks[0]}")
        if name in SCALARS and name not in have:
            raise OptionError(f"metric {name!r} is not recorded for every method")
        base = name.removesuffix(AFTER)
        if name != base and cal.METRICS[base].scaled and not warm:
            raise OptionError(f"metric {name!r} needs a temperature in every record; some have none")
        names.append(base if name != base and not cal.METRICS[base].scaled else name)  # T changes nothing
    names = list(dict.fromkeys(names))
    return [n for n in names if n not in SCALARS], [n for n in names if n in SCALARS]


def compare(
    results: Mapping[str, Sequence[SeedResult]],
    baseline: str = "none",
    metrics: Sequence[str] | None = None,
    *,
    task: str = cal.SINGLE,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    rng: np.random.Generator | int = 0,
) -> Comparison:
    """Compare every method with the baseline in every metric.

    Args:
        results: method -> its trained models. A method with fewer seeds is paired over those in common.
        baseline: name of plain training.
        metrics: names in `calibration.METRICS`, with `_after` for "after temperature", and
            `seconds_per_step`; all there are by default. Accuracy, F1 and MCC are the same before and after.
        task: one of `calibration.TASKS`.
        level: of the intervals; a verdict needs a Holm-adjusted p-value below 1 - level. The adjustment is
            over the methods, for each metric by itself: name the metric that decides before looking.
        resamples: of the test examples. They serve for variances, not tails, so 1,000 is plenty.
        rng: generator or seed.
    """
    _options(level, resamples)
    _check_results(results, baseline, task)
    names, scalars = _metric_list(results, metrics, task)
    rng = np.random.default_rng(rng)

    by_seed = {r.seed: r for runs in results.values() for r in runs}
    size, rows = boot.pool(list(by_seed.values()))
    where = dict(zip(by_seed, rows))
    keys = [(m, r) for m, runs in results.items() for r in runs]
    point = {(m, r.seed): boot.values(r, names, task) for m, r in keys} if names else {}
    again: dict[tuple[str, int], dict[str, NDArray[np.float64]]] = {}
    if names:
        cells = [(r, names) for _, r in keys]
        drawn = boot.resample(cells, [where[r.seed] for _, r in keys], size, task, resamples, rng)
        again = {(m, r.seed): d for (m, r), d in zip(keys, drawn)}

    out: list[Row] = []
    for name in names + scalars:
        info = metric_info(name)
        of: dict[str, dict[int, float]] = {}
        for method, runs in results.items():
            if name in SCALARS:
                of[method] = {r.seed: float(r.scalars[name]) for r in runs if name in r.scalars}
            else:
                of[method] = {r.seed: point[method, r.seed][name] for r in runs}
        found: dict[str, Difference] = {}
        for method in results:
            seeds = [s for s in of[method] if s in of[baseline]]
            if method == baseline or not seeds:
                continue
            diffs = [of[method][s] - of[baseline][s] for s in seeds]
            shift, examples = None, 0
            if name not in SCALARS:
                shift = np.stack([again[method, s][name] - again[baseline, s][name] for s in seeds])
                examples = len(np.unique(np.concatenate([where[s] for s in seeds])))
            base = float(np.mean([of[baseline][s] for s in seeds]))
            found[method] = replace(_difference(diffs, shift, examples, level, name), base=base)
        family = [m for m, d in found.items() if d.seeds > 1]
        adjusted = dict(zip(family, holm([found[m].p for m in family])))
        for m, d in found.items():
            found[m] = _judge(d, adjusted.get(m, 1.0), level, info.higher_is_better, len(family))
        for method in results:
            v = np.array(list(of[method].values()))
            sd = float(v.std(ddof=1)) if len(v) > 1 else float("nan")
            mean = float(v.mean())
            out.append(Row(method, name, info.title, info.higher_is_better, mean, sd, len(v), found.get(method)))
    return Comparison(tuple(out), baseline, task, level, tuple(results), tuple(names + scalars))


# ---------------------------------------------------------------------------------------------- in words


def _figure(value: float, metric: str) -> str:
    return f"{100 * value:.1f} %" if metric.removesuffix(AFTER) in _PERCENT else f"{value:.3g}"


def _evidence(d: Difference, metric: str, level: float) -> str:
    """`+1.9 points, 95 % interval +0.8 to +3.0, adjusted p = 0.004, 5 seeds`."""
    scale, unit = (100, " points") if metric.removesuffix(AFTER) in _PERCENT else (1, "")
    gain, lo, hi = (f"{scale * v:+.1f}" if scale == 100 else f"{v:+.3g}" for v in (d.mean, d.lo, d.hi))
    p = "adjusted p < 0.001" if d.p_holm < 0.001 else f"adjusted p = {d.p_holm:.2g}"
    seeds = f"{d.seeds} seed{'s' if d.seeds > 1 else ''}"
    return f"{gain}{unit}, {100 * level:g} % interval {lo} to {hi}, {p}, {seeds}"


def summary_sentence(comparison: Comparison, metric: str | None = None, calibration_metric: str | None = None) -> str:
    """One plain sentence: what to use, and how sure that is.

    Args:
        comparison: from `compare`.
        metric: the metric that decides; accuracy, micro-F1 or mean squared error by task.
        calibration_metric: the metric for the probabilities; the NLL after temperature, if it was compared.
    """
    metric = PRIMARY[comparison.task] if metric is None else metric
    if calibration_metric is None:
        guess = CALIBRATION.get(comparison.task, "")
        calibration_metric = next((m for m in (guess, "nll") if m in comparison.metrics), None)
    plain = "plain training" if comparison.baseline == "none" else repr(comparison.baseline)
    others = [m for m in comparison.methods if m != comparison.baseline]

    def ranked(name: str, verdict: str | None = None) -> list[Row]:
        """Rows of the other methods with that verdict, the largest gain first."""
        rows = [r for m in others if (r := comparison.row(m, name)).difference]
        sign = 1 if metric_info(name).higher_is_better else -1
        rows = [r for r in rows if verdict is None or (r.difference and r.difference.verdict == verdict)]
        return sorted(rows, key=lambda r: -sign * r.difference.mean if r.difference else 0.0)

    def against(row: Row, name: str) -> str:
        assert row.difference is not None
        # Both over the seeds in common, as the difference is: where some failed, the means of all are others.
        base = row.difference.base
        mean = base + row.difference.mean
        return (
            f"{row.title} {_figure(mean, name)} against {_figure(base, name)} with {plain} "
            f"({_evidence(row.difference, name, comparison.level)})"
        )

    def standing(method: str, name: str) -> str:
        row = comparison.row(method, name)
        verdict = row.difference.verdict if row.difference else UNSURE
        words = {BETTER: "is better too", WORSE: "is worse", UNSURE: "is not shown to differ"}
        return f"its {row.title} {words[verdict]}"

    title = metric_info(metric).title
    everything = ranked(metric)
    if not everything:
        return f"Only {plain} was trained, so there is nothing to compare."
    if all(r.difference and r.difference.seeds == 1 for r in everything):
        return (
            f"Keep {plain} for now: with one seed nothing can be said about the methods, only about these "
            f"trained models, so run at least 3 seeds."
        )
    winners = ranked(metric, BETTER)
    if winners:
        best = winners[0]
        words = f"Use {best.method}: {against(best, metric)}"
        if calibration_metric:
            words += f"; {standing(best.method, calibration_metric)}"
        if len(winners) > 1:
            more = ", ".join(r.method for r in winners[1:])
            words += f"; {more} also beat{'s' if len(winners) == 2 else ''} {plain}, "
            words += "and which is best was not tested"
        return words + "."
    sure = ranked(calibration_metric, BETTER) if calibration_metric else []
    if sure and calibration_metric:
        harmless = [r for r in sure if r.method not in {w.method for w in ranked(metric, WORSE)}]
        best = (harmless or sure)[0]
        return (
            f"Nothing beats {plain} in {title}, but for better probabilities use {best.method}: "
            f"{against(best, calibration_metric)}; {standing(best.method, metric)}."
        )
    if all(r.difference and r.difference.mean == r.difference.sd == 0 for r in everything):
        return f"Nothing beats {plain}, so keep it: no method changes the {title} of any seed."
    nearest_one = everything[0]
    d = nearest_one.difference
    assert d is not None
    words = f"Nothing beats {plain}, so keep it: the closest in {title} is {nearest_one.method} "
    words += f"({_evidence(d, metric, comparison.level)}), {d.verdict}"
    worse = len(ranked(metric, WORSE))
    if worse and d.verdict != WORSE:
        words += f", and {worse} of {len(everything)} {'is' if worse == 1 else 'are'} worse"
    ahead = (d.mean > 0) == nearest_one.higher_is_better and d.mean != 0  # else more seeds are not worth advising
    return words + (f"; {d.note.split('; ')[0]}." if ahead and d.verdict == UNSURE else ".")
