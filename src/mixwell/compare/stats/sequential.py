"""Looking again as seeds are added, without more false positives: a group-sequential rule by alpha spending.

Whoever tests at 3, 5, 8 and 12 seeds and stops at the first p < 0.05 is wrong far more often than in 5 % of cases. Here
the error rate is spent in parts (Lan and DeMets 1983): by n seeds the share `spent(n)` of it, whatever the looks before
were, and all of it only in the limit, so that seeds may be added without end. A first look at 5 seeds has 60 % of the
error rate, at 10 seeds 80 %; two seeds have none.

The level at each look follows from the joint distribution of the looks, that of a random walk, by numerical integration
(Armitage, McPherson and Rowe 1969). It is applied to p-values of t distributions, as Jennison and Turnbull (2000,
chapter 4.4) advise; what the walk does not know (few degrees of freedom, test examples that all looks share) is
measured by `benchmarks/statistics_power.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LOOKS = (3, 4, 5, 6, 8, 10, 12, 15, 18, 22, 27, 33, 40, 50, 60)  # the rounds of a race
_NODES = 64
_ALPHAS = np.logspace(-8, 0, 25)

Floats = NDArray[np.float64]


def spent(seeds: int) -> float:
    """The share of the error rate that may be used up by so many seeds."""
    return 0.0 if seeds < 3 else float(1.0 - 2.0 / seeds)


def looks_until(seeds: int, earlier: Iterable[int]) -> tuple[int, ...]:
    """The looks that count at a number of seeds: those before it that decide anything, and it."""
    return (*sorted({look for look in earlier if 3 <= look < seeds}), seeds)


def nominal_level(alpha: float, looks: tuple[int, ...]) -> float:
    """The p-value to be reached at the last of some looks, so that all of them together err in `alpha` of cases.

    Args:
        alpha: two-sided error rate.
        looks: the numbers of seeds, ascending; the last is the present one.
    """
    table = _levels(looks)
    if not table[-1]:
        return 0.0
    return float(np.exp(np.interp(np.log(max(alpha, _ALPHAS[0])), np.log(_ALPHAS), np.log(table))))


def sequential_p(p: float, looks: tuple[int, ...]) -> float:
    """The smallest error rate at which a p-value at the last of some looks is significant: a p-value over all looks."""
    table = _levels(looks)
    if not table[-1] or p >= table[-1]:
        return 1.0
    if p <= table[0]:
        return float(min(1.0, p * _ALPHAS[0] / table[0]))
    return float(np.exp(np.interp(np.log(p), np.log(table), np.log(_ALPHAS))))


@lru_cache(maxsize=256)
def _levels(looks: tuple[int, ...]) -> Floats:
    """The level at the last look for each of `_ALPHAS`."""
    return np.array([_level(float(alpha), looks) for alpha in _ALPHAS])


def _level(alpha: float, looks: tuple[int, ...]) -> float:
    from scipy import special

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    density: Floats | None = None  # of the walk, where no earlier look has stopped it
    place = weight = np.zeros(0)
    used, level = 0.0, 0.0
    for number, seeds in enumerate(looks):
        budget = max(alpha * spent(seeds) - used, 0.0)
        used += budget
        if density is None:
            level = budget
            edge = -special.ndtri(level / 2) * np.sqrt(seeds) if level else np.inf
        else:
            step = np.sqrt(seeds - looks[number - 1])
            mass = density * weight

            def beyond(z: float, mass: Floats = mass, place: Floats = place, step: float = step) -> float:
                return float(2 * (mass * special.ndtr((place - z) / step)).sum())

            edge = _solve(beyond, budget, 12 * np.sqrt(seeds))
            level = float(2 * special.ndtr(-edge / np.sqrt(seeds)))
        if number == len(looks) - 1:
            break
        edge = min(edge, 12 * np.sqrt(seeds))
        new, new_weight = edge * nodes, edge * weights
        if density is None:
            density = np.exp(-(new**2) / (2 * seeds)) / np.sqrt(2 * np.pi * seeds)
        else:
            gap = (new[:, None] - place[None, :]) / step
            density = (np.exp(-(gap**2) / 2) @ (density * weight)) / (np.sqrt(2 * np.pi) * step)
        place, weight = new, new_weight
    return level


def _solve(beyond: Callable[[float], float], goal: float, high: float) -> float:
    """Where a falling function reaches a goal."""
    low = 0.0
    for _ in range(45):
        middle = (low + high) / 2
        if beyond(middle) > goal:
            low = middle
        else:
            high = middle
    return (low + high) / 2
