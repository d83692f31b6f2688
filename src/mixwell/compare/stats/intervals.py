"""The numbers behind a verdict: interval, p-value, sign-flip test, Holm's adjustment, what could have been detected.

The mean over S seeds of a paired difference errs for two reasons: other seeds, and other test examples. The
interval comes from a bootstrap crossed over both, in three steps.

1. Examples: resample the test set, the same draw for all seeds and methods (`bootstrap.resample`). The
   variance of the seeds' mean difference over resamples, less what is each seed's own (found from the
   variances of the single seeds), is `shared`: the error that more seeds cannot remove.
2. Seeds: the bootstrap variance of a mean over seeds has a closed form, sd^2 (S - 1) / S^2; with the
   small-sample factor S / (S - 1) it is `own` = sd^2 / S. The examples' error that differs from seed to seed
   is in it too.
3. The interval is mean -+ t sqrt(own + shared), with (S - 1) (own + shared) / own degrees of freedom: a t
   distribution on S - 1 where seeds decide, the normal one where examples do. For two seeds it is 1 always.
   It is never taken narrower than the interval that examples alone would give, were all seeds alike: three
   seeds may agree by luck.

The p-value is the level at which that interval just touches 0, so the two always agree.

Measured by `benchmarks/statistics_power.py` (400 examples; 3, 5 and 10 seeds; accuracy, NLL, macro-F1, ECE; 1,000
simulations per case, so a standard error of 0.7 points). Where seeds, examples or both matter, 94.0 to 97.2 % of
95 % intervals cover. Where only noise of each seed on each example does, 96.6 to 99.1 %: too wide, the price of
not knowing that seeds are alike. Of the constructions not taken, the percentile bootstrap over seeds and examples
covers from 74 % (3 seeds, seeds matter) to 99 % (it counts the noise twice), and Satterthwaite's degrees of
freedom, (S - 1) ((own + shared) / own)^2, cover 92 % with 3 seeds.

ECE grows as examples get fewer, so its interval is for the expected ECE at this number of examples. When test
sets overlap between seeds, give `SeedResult.ids`; training sets that overlap cannot be corrected for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixwell.utils.errors import OptionError

POWER = 0.8
# Calibration errors are sums of absolute values, whose bootstrap variance falls short: by 11 % for a mean over
# 10 seeds on 400 examples (2 x 2,500 simulations of the world "examples"). Rounded up.
SHORTFALL = {"ece": 1.15, "adaptive_ece": 1.15}
_EXACT_PAIRS = 14


@dataclass(frozen=True)
class Interval:
    """A mean with its interval, and the p-value that belongs to it.

    Attributes:
        mean: mean over seeds.
        lo: lower end; NaN if it cannot be estimated.
        hi: upper end.
        p: two-sided p-value for "no difference", below 1 - level exactly when the interval leaves 0 out.
        df: degrees of freedom of the t distribution.
        own: variance of the mean that more seeds would reduce.
        shared: variance of the mean that only more test examples would reduce.
        floor: the variance that examples alone would give; no interval is narrower.
    """

    mean: float
    lo: float
    hi: float
    p: float
    df: float
    own: float
    shared: float
    floor: float = 0.0

    def half_width(self, level: float) -> float:
        """Half the width of the interval at another level."""
        if not np.isfinite(self.own + self.shared):
            return float("nan")
        error, floor = np.sqrt(self.own + self.shared), np.sqrt(self.floor)
        return float(max(_quantile(level, self.df) * error, _quantile(level, np.inf) * floor))

    def p_of(self, value: float) -> float:
        """Two-sided p-value for a true difference of `value`."""
        error, floor, gap = np.sqrt(self.own + self.shared), np.sqrt(self.floor), abs(self.mean - value)
        if not np.isfinite(error):
            return 1.0
        if max(error, floor) == 0:
            return 1.0 if gap == 0 else 0.0
        tails = [(error, self.df), (floor, np.inf)]
        return max(_outside(gap / e, f) for e, f in tails if e > 0)

    def p_equal(self, margin: float) -> float:
        """p-value of two one-sided tests for "at least `margin` apart": small when the two are practically equal."""
        if not abs(self.mean) < margin:
            return 1.0
        return max(self.p_of(margin), self.p_of(-margin)) / 2


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: valid however the tests depend on each other."""
    p = np.asarray(ps, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)) if len(p) else p
    out = np.empty_like(p)
    out[order] = np.minimum(stepped, 1.0)
    return [float(v) for v in out]


def smallest_sign_flip_p(n: int) -> float:
    """The smallest p-value a two-sided sign-flip test of n pairs can give: 0.0625 for 5, 0.031 for 6."""
    return min(1.0, 2.0 ** (1 - n))


def sign_flip_test(diffs: ArrayLike, rng: np.random.Generator | None = None, draws: int = 20_000) -> float:
    """Two-sided paired permutation test of mean 0: the share of sign patterns with a mean as far from 0.

    Up to 14 pairs exact, over all patterns; above, (hits + 1) / (draws + 1) over random ones. Sums that differ only by
    rounding count as equal.
    """
    d = np.asarray(diffs, dtype=np.float64)
    n = len(d)
    if n == 0:
        raise OptionError("a sign-flip test needs at least one pair of seeds, got none")
    if n == 1:
        return 1.0
    exact = n <= _EXACT_PAIRS
    if exact:
        sums = _signs(n) @ d
    else:
        generator = np.random.default_rng(0) if rng is None else rng
        sums = (1.0 - 2.0 * generator.integers(0, 2, size=(draws, n))) @ d
    hits = np.count_nonzero(np.abs(sums) >= abs(d.sum()) - 1e-12 * np.abs(d).sum())
    own = 0 if exact else 1  # the pattern that was measured counts as drawn
    return float((hits + own) / (len(sums) + own))


@lru_cache(maxsize=_EXACT_PAIRS + 1)
def _signs(n: int) -> NDArray[np.float64]:
    """All patterns (2^n, n) of +1 and -1."""
    return np.asarray(1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1))


def _degrees(seeds: int, own: float, shared: float) -> float:
    if seeds == 2 or own + shared == 0:
        return seeds - 1.0
    return (seeds - 1) * (own + shared) / own if own > 0 else np.inf


def _quantile(level: float, df: float) -> float:
    """The t that a share `level` of a t distribution lies within, two-sided."""
    from scipy import special

    return float(special.stdtrit(df, 0.5 + level / 2) if df < 1e6 else special.ndtri(0.5 + level / 2))


def _outside(t: float, df: float) -> float:
    """The share of a t distribution beyond -+t."""
    from scipy import special

    return float(2 * (special.stdtr(df, -t) if df < 1e6 else special.ndtr(-t)))


def interval(
    diffs: ArrayLike, resampled: NDArray[Any] | None, examples: int, level: float = 0.95, metric: str = ""
) -> Interval:
    """The interval of the module's top, from differences per seed.

    Args:
        diffs: (S,) differences, one per seed.
        resampled: (S, R) the same differences on R resamples of the test examples, the same resample for all
            seeds in a column; None for a number that has no examples (seconds per step).
        examples: test examples that were resampled.
        level: share of intervals that shall cover.
        metric: name of the metric; some widen the interval, see `SHORTFALL`.

    With one seed the interval is for these two trained models only: one seed says nothing about others.
    """
    d = np.asarray(diffs, dtype=np.float64)
    s, mean = len(d), float(d.mean())
    if s == 1 and (resampled is None or examples < 2):
        return Interval(mean, np.nan, np.nan, 1.0, np.nan, np.nan, np.nan)
    own = float(d.var(ddof=1) / s) if s > 1 else 0.0
    joint = shared = 0.0
    if resampled is not None and examples > 1:
        unbiased = examples / (examples - 1) * SHORTFALL.get(metric.removesuffix("_after"), 1.0)
        joint = float(resampled.mean(axis=0).var(ddof=1)) * unbiased
        single = float(resampled.var(axis=1, ddof=1).mean()) * unbiased
        # single = shared + S * noise and joint = shared + noise, with noise the examples' error in `own`.
        noise = (single - joint) / (s - 1) if s > 1 else 0.0
        shared = min(max(0.0, joint - noise), joint)
    df = np.inf if s == 1 else _degrees(s, own, shared)
    parts = Interval(mean, mean, mean, 1.0, float(df), own, shared, joint)
    half = parts.half_width(level)
    return replace(parts, lo=mean - half, hi=mean + half, p=parts.p_of(0.0))


def detectable(found: Interval, seeds: int, level: float = 0.95, power: float = POWER) -> float:
    """The smallest true difference that would have been found with the given power.

    Args:
        found: the interval, for its variances.
        seeds: the seeds behind it.
        level: 1 - the p-value to be reached.
        power: probability of reaching it.

    Returns:
        A difference above 0, or NaN if it cannot be told (one seed, or no spread).
    """
    error = np.sqrt(max(found.own + found.shared, found.floor))
    if seeds < 2 or not np.isfinite(error) or error == 0 or level >= 1:
        return float("nan")
    return float(error * _shift(round(min(found.df, 1e6), 2), round(level, 6), power))


@lru_cache(maxsize=4096)
def _shift(df: float, level: float, power: float) -> float:
    """How many standard errors a difference must be large for a t test to find it with that power."""
    from scipy import special

    t = _quantile(level, df)
    if df > 200 or t > 25:  # where the non-central t is slow or fails, a shifted one is as good
        return t + float(special.stdtrit(min(df, 1e6), power))
    low, high = 0.0, 4 * t + 10
    for _ in range(40):
        middle = (low + high) / 2
        if 1 - special.nctdtr(df, middle, t) < power:
            low = middle
        else:
            high = middle
    return high
