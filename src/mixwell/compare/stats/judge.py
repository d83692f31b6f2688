"""From differences to verdicts: adjusted over methods and looks; better, worse, practically equal or none of them.

A verdict and its adjusted interval (`Difference.lo_adjusted`, `hi_adjusted`) always agree: the interval leaves 0 out
exactly when the difference is significant. Only one of the three verdicts can be wrong for any true difference, so each
is tested at the full level: no difference makes "practically equal" true, and a large one makes "different" true. The
adjustment over methods is for "different", where one looks for the best of many; "practically equal" is tested for each
method by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixwell.compare.stats.intervals import (
    Interval,
    detectable,
    holm,
    interval,
    sign_flip_test,
    smallest_sign_flip_p,
)
from mixwell.compare.stats.sequential import looks_until, nominal_level, sequential_p

BETTER, WORSE, UNSURE = "better", "worse", "no significant difference"
EQUAL, WITHHELD = "practically equal", "withheld"


@dataclass(frozen=True)
class Rules:
    """What verdicts depend on besides the numbers.

    Attributes:
        looks: numbers of seeds at which somebody looked before; None if the number of seeds was fixed beforehand
            and this is the one look.
        equal_within: differences of the main metric up to this count as none; None for no such verdict.
        withheld: method -> why it gets no verdict; the key "" stands for all.
    """

    looks: tuple[int, ...] | None = None
    equal_within: float | None = None
    withheld: Mapping[str, str] = field(default_factory=dict)

    def p_of_looks(self, p: float, seeds: int) -> float:
        """A p-value at so many seeds as one over all looks."""
        return p if self.looks is None else sequential_p(p, looks_until(seeds, self.looks))

    def level_of_look(self, alpha: float, seeds: int) -> float:
        """The p-value to be reached at so many seeds."""
        return alpha if self.looks is None else nominal_level(alpha, looks_until(seeds, self.looks))

    def reason(self, method: str) -> str:
        """Why a method gets no verdict; empty if it does."""
        return self.withheld.get("") or self.withheld.get(method, "")


FIXED = Rules()


@dataclass(frozen=True)
class Difference:
    """A method's difference to plain training in one metric.

    Attributes:
        mean: mean over the seeds in common, method minus plain.
        sd: standard deviation over those seeds; NaN for one seed.
        lo: lower end of the interval (not adjusted for several methods and looks).
        hi: upper end.
        p: p-value of the same construction as the interval.
        p_holm: p adjusted over the methods compared and over looks; the verdict depends on this.
        sign_flip_p: exact paired permutation test over seeds, None if so few seeds cannot reach 1 - level. It
            is for this test set only; a second opinion, not the verdict.
        effect_size: mean / sd with Hedges' small-sample factor; NaN below 3 seeds.
        seeds: seeds in common.
        examples: test examples behind the interval; 0 for a scalar such as seconds per step.
        verdict: "better", "worse", "practically equal", "no significant difference" or "withheld".
        note: what limits the verdict, in words.
        interval: the interval with its parts.
        base: plain training's mean over the seeds in common; NaN where only differences were given.
        lo_adjusted: lower end of the interval that agrees with the verdict.
        hi_adjusted: upper end.
        p_equal: p-value of "practically equal", adjusted over looks; None where that is not asked.
        detectable: the smallest true difference that these seeds would have found with 80 % power; NaN if unknown.
        correlation: of the two methods' values over seeds: what pairing is worth; NaN below 3 seeds.
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
    verdict: str
    note: str
    interval: Interval
    base: float = float("nan")
    lo_adjusted: float = float("nan")
    hi_adjusted: float = float("nan")
    p_equal: float | None = None
    detectable: float = float("nan")
    correlation: float = float("nan")


def difference_of(
    diffs: ArrayLike, resampled: NDArray[Any] | None, examples: int, level: float, metric: str
) -> Difference:
    """A `Difference` without its verdict; see `intervals.interval`."""
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
    return Difference(i.mean, sd, i.lo, i.hi, i.p, i.p, flip, effect, n, examples, UNSURE, "", i)


def judged(
    differences: dict[str, Difference],
    apart: Collection[str],
    level: float,
    higher: bool,
    rules: Rules = FIXED,
    *,
    main: bool = True,
) -> dict[str, Difference]:
    """The differences in one metric with their verdicts.

    Args:
        differences: by method.
        apart: methods that have no part in the adjustment.
        level: 1 - the error rate.
        higher: whether higher values are better.
        rules: see there.
        main: whether this is the metric that decides, which alone can be practically equal.
    """
    family = [method for method, d in differences.items() if d.seeds > 1 and method not in apart]
    p = {m: rules.p_of_looks(d.p, d.seeds) if d.seeds > 1 else 1.0 for m, d in differences.items()}
    adjusted = {**p, **dict(zip(family, holm([p[method] for method in family])))}
    rates = {**dict.fromkeys(differences, 1 - level), **_local_rates({m: p[m] for m in family}, 1 - level)}
    equal: dict[str, float] = {}
    if main and rules.equal_within is not None:
        equal = {m: _p_equal(d, rules) for m, d in differences.items() if d.seeds > 1}
    return {
        method: _judge(d, adjusted[method], rates[method], level, higher, rules, method, equal.get(method))
        for method, d in differences.items()
    }


def _p_equal(d: Difference, rules: Rules) -> float:
    """One-sided tests: half of what two-sided ones over the looks give."""
    assert rules.equal_within is not None
    return min(1.0, rules.p_of_looks(min(1.0, 2 * d.interval.p_equal(rules.equal_within)), d.seeds) / 2)


def _local_rates(p: dict[str, float], alpha: float) -> dict[str, float]:
    """The error rate that Holm's procedure tests each method at."""
    rates: dict[str, float] = {}
    left = len(p)
    for method in sorted(p, key=lambda name: p[name]):
        rates[method] = alpha / left
        if p[method] < alpha / left:
            left -= 1
    return rates


def _judge(
    d: Difference, p_holm: float, rate: float, level: float, higher: bool, rules: Rules, method: str,
    p_equal: float | None,
) -> Difference:  # fmt: skip
    """Set the verdict by the adjusted p-value, and note what limits it."""
    verdict, notes = UNSURE, []
    nominal = rules.level_of_look(rate, d.seeds)
    half = d.interval.half_width(1 - nominal) if 0 < nominal < 1 and d.seeds > 1 else float("nan")
    smallest = float("nan")
    equal = p_equal is not None and p_equal < 1 - level
    if reason := rules.reason(method):
        verdict = WITHHELD
        notes.append(reason)
    elif d.seeds == 1:
        notes.append("one seed: the interval is for these two trained models only; run at least 3 seeds")
    elif p_holm < 1 - level:
        verdict = EQUAL if equal else BETTER if (d.mean > 0) == higher else WORSE
        notes += ["the difference is significant, but too small to matter"] if equal else []
    elif equal:
        verdict = EQUAL
    elif d.mean == 0 and d.interval.own + d.interval.shared == 0:
        notes.append("no difference at all in any seed")
    else:
        smallest = detectable(d.interval, d.seeds, 1 - nominal) if 0 < nominal < 1 else float("nan")
    if d.seeds > 1 and d.sign_flip_p is None:
        notes.append(f"a sign-flip test of {d.seeds} seeds cannot go below p = {smallest_sign_flip_p(d.seeds):.3g}")
    return replace(
        d, p_holm=p_holm, verdict=verdict, note="; ".join(notes), lo_adjusted=d.mean - half, hi_adjusted=d.mean + half,
        p_equal=p_equal, detectable=smallest,
    )  # fmt: skip
