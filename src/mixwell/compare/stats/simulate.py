"""Simulated records of trained models, to measure what the statistics promise.

A row's logits are those of a noisy model: the label's own class gets a margin made of the method's skill, how
good its seed was, how difficult the example is, what the method makes of that example, and noise of this seed on
this example; all logits are then multiplied by the seed's overconfidence. With no effect the two methods are
exchangeable, so every metric has a true difference of exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mixwell.compare.stats.bootstrap import SeedResult


@dataclass(frozen=True)
class World:
    """The spreads of a simulated comparison (standard deviations of the margin, in logits).

    Attributes:
        examples: rows of the test set.
        classes: classes; class k is twice as frequent as class k + 2, so that macro-F1 differs from accuracy.
        skill: mean margin of the label's class.
        difficulty: spread of the examples' difficulty, common to all models.
        method_spread: spread of what a method makes of an example, common to its seeds.
        seed_spread: spread over seeds, each method its own.
        noise: spread of each seed on each example.
        overconfidence: mean of the factor on all logits (above 1 is overconfident).
        overconfidence_spread: spread over seeds of that factor's logarithm.
    """

    examples: int = 400
    classes: int = 4
    skill: float = 2.2
    difficulty: float = 1.5
    method_spread: float = 0.5
    seed_spread: float = 0.15
    noise: float = 0.7
    overconfidence: float = 1.5
    overconfidence_spread: float = 0.1


# Where the error comes from differs by data set: these are a mixed case and the three extremes.
WORLDS = {
    "mixed": World(),
    "seeds": World(seed_spread=0.4, method_spread=0.2, noise=0.3, overconfidence_spread=0.3),
    "examples": World(seed_spread=0.03, method_spread=1.0, noise=0.3, overconfidence_spread=0.02),
    "noise": World(seed_spread=0.0, method_spread=0.0, noise=1.2, overconfidence_spread=0.0),
}


def simulate(
    seeds: int,
    rng: np.random.Generator,
    world: World | None = None,
    *,
    methods: int = 2,
    skill: float = 0.0,
    overconfidence: float = 1.0,
    one_test_set: bool = True,
) -> list[list[SeedResult]]:
    """Draw the records of some methods, the first of them plain.

    Args:
        seeds: seeds per method.
        rng: source of chance.
        world: the spreads.
        methods: how many methods.
        skill: added to the margin of all methods but the first.
        overconfidence: factor on the overconfidence of all methods but the first.
        one_test_set: whether all seeds share one test set; otherwise each seed has its own.

    Returns:
        For each method its records.
    """
    w = World() if world is None else world
    n, c = w.examples, w.classes
    frequency = 2.0 ** (-np.arange(c) / 2)
    out: list[list[SeedResult]] = [[] for _ in range(methods)]

    def test_set() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        y = rng.choice(c, size=n, p=frequency / frequency.sum())
        return (
            y,
            rng.normal(0, w.difficulty, n),
            rng.normal(0, 1, (n, c)),
            rng.normal(0, w.method_spread, (methods, n, c)),
        )

    y, difficulty, common, method_spread = test_set()
    for s in range(seeds):
        if s and not one_test_set:
            y, difficulty, common, method_spread = test_set()
        for m in range(methods):
            z = common + method_spread[m] + rng.normal(0, w.noise, (n, c))
            z[np.arange(n), y] += w.skill + difficulty + rng.normal(0, w.seed_spread) + (skill if m else 0.0)
            factor = w.overconfidence * np.exp(rng.normal(0, w.overconfidence_spread)) * (overconfidence if m else 1.0)
            out[m].append(SeedResult(s, factor * z, y))
    return out
