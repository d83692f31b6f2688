"""How often the intervals of `mixwell compare` cover, and what its verdicts find.

Simulates records of two methods (`mixwell.compare.stats.simulate`), many times over, and prints for each number of
seeds and metric:

- null: share of comparisons without a true difference that are called different (nominal 5 %);
- cover: share of 95 % intervals that hold the true difference, when there is one;
- power: share of comparisons with that difference that are called different;
- the coverage of two usual constructions on the same records: the percentile bootstrap over seeds and
  examples, and Satterthwaite's degrees of freedom.

Run: python benchmarks/statistics_power.py --simulations 1000
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from scipy import stats

from mixwell.compare.stats import bootstrap as boot
from mixwell.compare.stats.intervals import interval
from mixwell.compare.stats.simulate import WORLDS, simulate

METRICS = ("accuracy", "nll", "macro_f1", "ece")


def differences(
    runs: list, metrics: tuple[str, ...], resamples: int, rng: np.random.Generator
) -> tuple[dict, dict, int]:
    """Differences per seed (S,) and on resamples (S, R) of the second method to the first, by metric."""
    cells = [(r, metrics) for method in runs for r in method]
    size, rows = boot.pool([r for r, _ in cells])
    again = boot.resample(cells, rows, size, "single_label", resamples, rng)
    point = [boot.values(r, metrics, "single_label") for r, _ in cells]
    s = len(runs[0])
    d = {m: np.array([point[s + k][m] - point[k][m] for k in range(s)]) for m in metrics}
    b = {m: np.stack([again[s + k][m] - again[k][m] for k in range(s)]) for m in metrics}
    return d, b, size


def percentile(d: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """The usual interval: resample seeds, and examples within, and take the quantiles."""
    s, r = b.shape
    pick = rng.integers(0, s, (s, r))
    lo, hi = np.quantile(b[pick, np.arange(r)].mean(axis=0), [0.025, 0.975])
    return float(lo), float(hi)


def satterthwaite(d: np.ndarray, own: float, shared: float) -> tuple[float, float]:
    df = (len(d) - 1) * min((own + shared) / max(own, 1e-300), 1e6) ** 2
    half = stats.t.ppf(0.975, df) * np.sqrt(own + shared)
    return d.mean() - half, d.mean() + half


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--simulations", type=int, default=1000)
    p.add_argument("--seeds", type=int, nargs="+", default=[3, 5, 10])
    p.add_argument("--worlds", nargs="+", default=["mixed"], choices=list(WORLDS))
    p.add_argument("--metrics", nargs="+", default=list(METRICS))
    p.add_argument("--resamples", type=int, default=300)
    p.add_argument("--skill", type=float, default=0.4, help="the true effect, added to the margin in logits")
    p.add_argument("--sure", type=float, default=1.0, help="factor on the overconfidence of the second method")
    p.add_argument("--random-seed", type=int, default=0)
    args = p.parse_args()
    metrics = tuple(args.metrics)

    error = 100 * np.sqrt(0.05 * 0.95 / args.simulations)
    print(f"{args.simulations} simulations each; standard error of 95 % is {error:.1f} points; all in %")
    head = ("world", "seeds", "metric", "null", "cover", "power", "percentile", "satterthw.", "true diff.")
    print(" ".join(f"{h:>10}" for h in head))
    for world in args.worlds:
        rng = np.random.default_rng([args.random_seed, list(WORLDS).index(world)])
        truth: dict[str, list[float]] = {m: [] for m in metrics}
        # Many small comparisons, not one large one: the expected ECE depends on the test set's size.
        for _ in range(max(1000, 2 * args.simulations)):
            a, b = (
                boot.values(r[0], metrics, "single_label")
                for r in simulate(1, rng, WORLDS[world], skill=args.skill, overconfidence=args.sure)
            )
            for m in metrics:
                truth[m].append(b[m] - a[m])
        for seeds in args.seeds:
            start = time.perf_counter()
            hits = {m: np.zeros(5) for m in metrics}
            for _ in range(args.simulations):
                for effect in (0, 1):
                    kw = {"skill": args.skill, "overconfidence": args.sure} if effect else {}
                    runs = simulate(seeds, rng, WORLDS[world], **kw)
                    diffs, resampled, size = differences(runs, metrics, args.resamples, rng)
                    for m in metrics:
                        i = interval(diffs[m], resampled[m], size, metric=m)
                        if not effect:
                            hits[m][0] += i.p < 0.05
                            continue
                        t = np.mean(truth[m])
                        pl, ph = percentile(diffs[m], resampled[m], rng)
                        sl, sh = satterthwaite(diffs[m], i.own, i.shared)
                        hits[m][1:] += (i.lo <= t <= i.hi, i.p < 0.05, pl <= t <= ph, sl <= t <= sh)
            for m in metrics:
                share = " ".join(f"{v:10.1f}" for v in 100 * hits[m] / args.simulations)
                print(f"{world:>10} {seeds:10d} {m:>10} {share} {np.mean(truth[m]):10.4f}", flush=True)
            print(f"{'':>10} ({time.perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
