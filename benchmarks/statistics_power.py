"""What the verdicts of `mixwell compare` promise, measured: false positives, coverage, power, and what a race saves.

Parts, each with its own tables (`--part`, all by default):

- records: simulated records of two methods (`mixwell.compare.stats.simulate`); false positives, coverage and power of
  the interval over seeds and examples, and the coverage of two usual constructions on the same records;
- looks: worlds of seeds (normal, heavy-tailed, skewed, collapsing), one look and looks at 3, 5, 8, 12 and 18 seeds,
  stopping at the first verdict: false positives without and with the group-sequential rule, and coverage;
- power: the rule against designs whose number of seeds was fixed beforehand;
- race: simulated races of six methods against the full grid: the same decisions, at what share of its runs;
- replay: races on the records of docs/results, against all of their seeds.

Run: python benchmarks/statistics_power.py --simulations 1000
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import special, stats

from mixwell.compare.race import why_out
from mixwell.compare.stats import bootstrap as boot
from mixwell.compare.stats.intervals import interval
from mixwell.compare.stats.judge import BETTER, UNSURE, WORSE, Difference, Rules, judged
from mixwell.compare.stats.sequential import LOOKS as ROUNDS
from mixwell.compare.stats.sequential import nominal_level
from mixwell.compare.stats.simulate import WORLDS, simulate
from mixwell.compare.stats.verdicts import MetricValues

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


def records_part(args: argparse.Namespace) -> None:
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


# --- worlds of seeds --------------------------------------------------------------------------------------------------

LOOKS = (3, 5, 8, 12, 18)
DEPTH, CHANCE = 30.0, 0.15  # points that a collapsed run loses, and how often it happens in the second arm
SPREAD, SHARED = 1.0, 0.3  # standard deviation over seeds in points, and the correlation that pairing uses


def noise(world: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Mean 0 and standard deviation 1."""
    if world == "heavy-tailed":
        return rng.standard_t(3, shape) / np.sqrt(3)
    if world in ("skewed", "one arm skewed"):
        return 1 - rng.exponential(size=shape)  # bad seeds are far below
    return rng.normal(size=shape)


def seed_differences(
    world: str, count: int, seeds: int, rng: np.random.Generator, effect: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Differences (count, seeds) in points of two arms, and which runs collapsed."""
    common = np.sqrt(SHARED) * noise(world, (count, seeds), rng)
    rest = np.sqrt(1 - SHARED)
    other = "normal" if world == "one arm skewed" else world
    plain, method = (common + rest * noise(w, (count, seeds), rng) for w in (other, world))
    gone = np.zeros((count, seeds), dtype=bool)
    if world.startswith("collapsing"):
        gone = rng.random((count, seeds)) < CHANCE
        method = np.where(gone, method - DEPTH, method)
    if world == "collapsing, equal means":
        method = method + CHANCE * DEPTH
    return SPREAD * (method + effect - plain), gone


def t_test(d: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, standard error and two-sided p-value along the last axis: `interval` without examples, vectorised."""
    n = d.shape[-1]
    mean, error = d.mean(axis=-1), d.std(axis=-1, ddof=1) / np.sqrt(n)
    return mean, error, 2 * special.stdtr(n - 1, -np.abs(mean) / error)


def check_vectorised(rng: np.random.Generator) -> None:
    """What is simulated is what `mixwell compare` computes."""
    for row in rng.normal(0.3, 1, (20, 5)):
        found = interval(row, None, 0)
        mean, error, p = t_test(row)
        assert np.allclose([found.mean, found.p, found.own], [mean, p, error**2])
        rules = Rules((3,))
        assert (rules.p_of_looks(found.p, 5) < 0.05) == (p < nominal_level(0.05, (3, 5)))


def looks_part(args: argparse.Namespace) -> None:
    rng = np.random.default_rng(args.random_seed)
    check_vectorised(rng)
    count = 20 * args.simulations
    error = 100 * np.sqrt(0.05 * 0.95 / count)
    print(f"\nFalse positives in %, nominal 5; {count:,} comparisons without a difference each (error {error:.2f})")
    print("cover: 95 % intervals at 5 seeds, and adjusted ones at the look that stops")
    head = ("one look at: 3", "5", "10", "looks, p < 0.05", "looks, the rule", "withheld", "cover, 5", "adjusted", "")
    print(f"{'world':>25} " + " ".join(f"{h:>15}" for h in head))
    worlds = ("normal", "heavy-tailed", "skewed", "collapsing", "collapsing, equal means", "one arm skewed")
    for world in worlds:
        d, gone = seed_differences(world, count, max(LOOKS), rng)
        once = []
        for n in (3, 5, 10):
            called = (t_test(d[:, :n])[2] < nominal_level(0.05, (n,))) & ~gone[:, :n].any(axis=1)
            once.append(called.mean())
        naive, called, covered = (np.zeros(count, dtype=bool) for _ in range(3))
        open_ = np.ones(count, dtype=bool)
        for k, n in enumerate(LOOKS, 1):
            mean, error, p = t_test(d[:, :n])
            naive |= p < 0.05
            level = nominal_level(0.05, LOOKS[:k])
            seen = gone[:, :n].any(axis=1)
            stops = open_ & ~seen & (p < level)
            called |= stops
            last = stops | (open_ & (n == LOOKS[-1]))
            half = -special.stdtrit(n - 1, level / 2) * error
            covered |= last & (np.abs(mean) <= half)
            open_ &= ~stops
        five = t_test(d[:, :5])
        cover = (np.abs(five[0]) <= -special.stdtrit(4, 0.025) * five[1]).mean()
        withheld = gone.any(axis=1).mean()
        shares = [*once, naive.mean(), called.mean(), withheld, cover, covered.mean()]
        reached = max(*once, called.mean()) <= 0.06
        note = "" if reached else " above 6: not reached"
        print(f"{world:>25} " + " ".join(f"{100 * share:15.1f}" for share in shares) + note, flush=True)
    print(
        "collapsing: 15 % of one arm's runs end 30 points lower, and the runs that learn are equal.\n"
        "equal means: its runs that learn are 4.5 points better instead. While no collapse is seen nothing tells this\n"
        "from a better method, and 'better' is true of the runs that learn.\n"
        "one arm skewed: only one arm has far lower seeds, at equal means."
    )


def power_part(args: argparse.Namespace) -> None:
    rng = np.random.default_rng(args.random_seed + 1)
    count = 10 * args.simulations
    print(
        f"\nPower in %, {count:,} comparisons each; the true difference in standard deviations of a paired difference"
    )
    head = ("5 seeds fixed", "10 fixed", "18 fixed", "the rule at 5", "looks up to 18", "mean seeds")
    print(f"{'difference':>12} " + " ".join(f"{h:>15}" for h in head))
    for effect in (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0):
        d = rng.normal(effect, 1, (count, max(LOOKS)))
        fixed = [(t_test(d[:, :n])[2] < 0.05).mean() for n in (5, 10, 18)]
        fixed.append((t_test(d[:, :5])[2] < nominal_level(0.05, (5,))).mean())
        open_, used = np.ones(count, dtype=bool), np.full(count, max(LOOKS))
        for k, n in enumerate(LOOKS, 1):
            stops = open_ & (t_test(d[:, :n])[2] < nominal_level(0.05, LOOKS[:k]))
            used[stops] = n
            open_ &= ~stops
        shares = [*fixed, 1 - open_.mean()]
        print(
            f"{effect:12.2f} " + " ".join(f"{100 * share:15.1f}" for share in shares) + f"{used.mean():16.1f}",
            flush=True,
        )


# --- races ------------------------------------------------------------------------------------------------------------


def quick_difference(d: np.ndarray, resampled: np.ndarray | None = None, examples: int = 0) -> Difference:
    """A `Difference` without what no verdict needs."""
    i = interval(d, resampled, examples)
    nan = float("nan")
    return Difference(i.mean, nan, i.lo, i.hi, i.p, i.p, None, nan, len(d), examples, UNSURE, "", i)


def run_race(of: Callable[[str, int], Difference], methods: list[str], seeds: int) -> tuple[dict[str, str], int]:
    """Race by the functions of `compare.race`.

    Args:
        of: method and number of seeds -> difference to plain training.
        methods: the candidates.
        seeds: the most.

    Returns:
        The verdict of each method, and how many trainings there were, plain training included.
    """
    looks = [n for n in ROUNDS if n < seeds] + [seeds]
    last: dict[str, int] = {}
    verdicts = dict.fromkeys(methods, UNSURE)
    active = list(methods)
    runs = before = 0
    for k, n in enumerate(looks):
        runs += (n - before) * (len(active) + 1)
        before = n
        rules = Rules(tuple(looks[: k + 1]), 0.01)
        found = judged({m: of(m, last.get(m, n)) for m in methods}, (), 0.95, True, rules)
        for m in list(active):
            if why_out(found[m], rules, 0.95, len(methods), seeds, "accuracy"):
                verdicts[m], last[m] = found[m].verdict, n
                active.remove(m)
        if not active:
            break
    for m in active:
        verdicts[m] = found[m].verdict
    return verdicts, runs


def full_grid(of: Callable[[str, int], Difference], methods: list[str], seeds: int) -> dict[str, str]:
    """The verdicts of all seeds, at one look."""
    found = judged({m: of(m, seeds) for m in methods}, (), 0.95, True, Rules((), 0.01))
    return {m: found[m].verdict for m in methods}


def race_part(args: argparse.Namespace) -> None:
    rng = np.random.default_rng(args.random_seed + 2)
    methods, seeds, count = list("abcdef"), 18, max(200, args.simulations // 3)
    print(f"\nSimulated races: 6 methods and plain training, at most {seeds} seeds, {count} races each; in %")
    print(f"{'world':>50} {'same decisions':>15} {'of methods':>12} {'runs':>8} {'wrong':>8}")
    cases = {
        "all equal, spread 0.3 points": (0.3, {}),
        "one better by 4 points, spread 0.3": (0.3, {"a": 4.0}),
        "one worse by 4 points, spread 0.3": (0.3, {"a": -4.0}),
        "all equal, spread 0.5 points": (0.5, {}),
        "one better by 4 points, spread 0.5": (0.5, {"a": 4.0}),
        "one worse by 4 points, spread 0.5": (0.5, {"a": -4.0}),
        "all worse by 4 to 9 points, spread 1": (1.0, {m: -4.0 - k for k, m in enumerate(methods)}),
        "one better by 8 points, rest worse by 8, spread 2": (2.0, {"a": 8.0, **dict.fromkeys("bcdef", -8.0)}),
        "all equal, spread 1 point": (1.0, {}),
        "one better by 2 points, spread 1": (1.0, {"a": 2.0}),
    }
    for name, (spread, effects) in cases.items():
        clear = not name.endswith(("spread 1 point", "2 points, spread 1"))
        same = whole = runs = wrong = 0
        for _ in range(count):
            values = {m: (effects.get(m, 0.0) + rng.normal(0, spread, seeds)) / 100 for m in ("none", *methods)}
            of = lambda m, n, v=values: quick_difference(v[m][:n] - v["none"][:n])  # noqa: E731
            verdicts, used = run_race(of, methods, seeds)
            full = full_grid(of, methods, seeds)
            same += sum(verdicts[m] == full[m] for m in methods)
            whole += verdicts == full
            runs += used
            for m in methods:
                true = effects.get(m, 0.0)
                wrong += (verdicts[m] == BETTER and true <= 0) or (verdicts[m] == WORSE and true >= 0)
        shares = (whole / count, same / count / len(methods), runs / count / (7 * seeds), wrong / count / len(methods))
        reached = not clear or (shares[1] >= 0.95 and shares[2] <= 1 / 3)
        note = "" if clear else "  (not clear: for comparison)"
        note += "" if reached else "  target not reached"
        figures = f"{100 * shares[0]:15.1f} {100 * shares[1]:12.1f} {100 * shares[2]:8.1f} {100 * shares[3]:8.2f}"
        print(f"{name:>50} {figures}{note}", flush=True)


def replay_part(args: argparse.Namespace) -> None:
    from mixwell.papers.results import read

    rng = np.random.default_rng(args.random_seed + 3)
    orders = 20
    print(f"\nRaces replayed on stored records, {orders} orders of the seeds each; accuracy; in %")
    print(f"{'records':>36} {'seeds':>6} {'methods':>8} {'same':>6} {'of decided':>11} {'runs':>6}  full grid")
    for pack in sorted(Path(args.packs).glob("*-small")):
        grouped: dict[tuple[str, str], dict[str, list]] = {}
        for run in read(pack).runs:
            grouped.setdefault((run.dataset, run.size), {}).setdefault(run.row, []).append(run.seed_result)
        for (dataset, size), results in grouped.items():
            base = next((row for row in results if row in ("No mixup", "Base")), None)
            seeds = min(len(each) for each in results.values())
            if base is None or seeds < 8:
                continue
            replay(f"{pack.name}, {dataset}", results, base, seeds, orders, rng)
            del size


def replay(title: str, results: dict[str, list], base: str, seeds: int, orders: int, rng: np.random.Generator) -> None:
    numbers = sorted({r.seed for r in results[base]})
    measured = MetricValues.of(results, ["accuracy"], "single_label", 400, rng)
    examples = len(np.unique(np.concatenate(list(measured.examples.values()))))
    methods = [name for name in results if name != base]
    point, drawn = measured.point, measured.resampled
    same = runs = clear = agreed = 0
    full: dict[str, str] = {}
    for _ in range(orders):
        order = rng.permutation(numbers)

        def of(m: str, n: int, order: np.ndarray = order) -> Difference:
            chosen = order[:n]
            d = np.array([point[m, s]["accuracy"] - point[base, s]["accuracy"] for s in chosen])
            again = np.stack([drawn[m, s]["accuracy"] - drawn[base, s]["accuracy"] for s in chosen])
            return quick_difference(d, again, examples)

        verdicts, used = run_race(of, methods, seeds)
        full = full_grid(of, methods, seeds)
        same += sum(verdicts[m] == full[m] for m in methods)
        clear += sum(full[m] != UNSURE for m in methods)
        agreed += sum(verdicts[m] == full[m] != UNSURE for m in methods)
        runs += used
    counts = Counter(full.values())
    shares = same / orders / len(methods), runs / orders / ((len(methods) + 1) * seeds)
    words = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
    decided = f"{100 * agreed / clear:.1f}" if clear else "-"
    print(
        f"{title:>36} {seeds:6d} {len(methods):8d} {100 * shares[0]:6.1f} {decided:>11} {100 * shares[1]:6.1f}",
        f" {words}",
        flush=True,
    )


PARTS = {
    "records": records_part, "looks": looks_part, "power": power_part, "race": race_part, "replay": replay_part,
}  # fmt: skip


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--part", nargs="+", default=list(PARTS), choices=list(PARTS))
    p.add_argument("--simulations", type=int, default=1000)
    p.add_argument("--seeds", type=int, nargs="+", default=[3, 5, 10])
    p.add_argument("--worlds", nargs="+", default=["mixed"], choices=list(WORLDS))
    p.add_argument("--metrics", nargs="+", default=list(METRICS))
    p.add_argument("--resamples", type=int, default=300)
    p.add_argument("--skill", type=float, default=0.4, help="the true effect, added to the margin in logits")
    p.add_argument("--sure", type=float, default=1.0, help="factor on the overconfidence of the second method")
    p.add_argument("--random-seed", type=int, default=0)
    p.add_argument("--packs", default=str(Path(__file__).parent.parent / "docs" / "results"))
    args = p.parse_args()
    for part in args.part:
        PARTS[part](args)


if __name__ == "__main__":
    main()
