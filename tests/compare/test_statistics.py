"""mixwell.compare's statistics: exact values, slow references, and simulations of what they promise."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import parts
from mixwell.compare.stats import bootstrap as boot
from mixwell.compare.stats.bootstrap import SeedResult
from mixwell.compare.stats.intervals import (
    Interval,
    detectable,
    holm,
    interval,
    sign_flip_test,
    smallest_sign_flip_p,
)
from mixwell.compare.stats.judge import BETTER, UNSURE, WORSE
from mixwell.compare.stats.sentences import summary_sentence
from mixwell.compare.stats.simulate import WORLDS, World, simulate
from mixwell.compare.stats.verdicts import compare, paired_difference
from mixwell.metrics.measure import measure
from mixwell.metrics.scores import accuracy, nll
from mixwell.utils.errors import OptionError, RunError

SMALL = World(examples=120)


def records(names=("none", "m"), seeds=4, world=SMALL, random=0, **kw):
    runs = simulate(seeds, np.random.default_rng(random), world, methods=len(names), **kw)
    timed = [
        [replace(r, temperature=1.4, scalars={"seconds_per_step": 0.1 + k}) for r in m] for k, m in enumerate(runs)
    ]
    return dict(zip(names, timed))


# ------------------------------------------------------------------------------------- exact values


def test_sign_flip_by_hand():
    assert smallest_sign_flip_p(5) == 0.0625
    assert smallest_sign_flip_p(6) == 0.03125
    assert smallest_sign_flip_p(0) == smallest_sign_flip_p(1) == 1.0
    assert sign_flip_test([1, 2, 3, 4, 5]) == 0.0625
    assert sign_flip_test([-1, -2, -3]) == 0.25
    # |sum| >= 4 of +-1 +-2 +-3: 6, 4 and their negatives, so 4 of 8.
    assert sign_flip_test([-1, 2, 3]) == 0.5
    assert sign_flip_test([0.0, 0.0]) == 1.0
    assert sign_flip_test([0.1] * 14) == 2 / 2**14
    rng = np.random.default_rng(0)
    d = rng.normal(0.4, 1, 14)
    assert sign_flip_test(np.append(d, 0.0)) == pytest.approx(sign_flip_test(d), abs=0.02)  # Monte Carlo from 15 on
    assert sign_flip_test(np.ones(30)) == 1 / 20_001
    with pytest.raises(OptionError, match="at least one pair"):
        sign_flip_test([])


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_interval_without_examples_is_students():
    from scipy import stats

    d = np.array([0.1, 0.3, 0.2, 0.25])
    i = interval(d, None, 0)
    lo, hi = stats.t.interval(0.95, 3, d.mean(), d.std(ddof=1) / 2)
    assert (i.lo, i.hi) == pytest.approx((lo, hi))
    assert i.p == pytest.approx(stats.ttest_1samp(d, 0).pvalue)


def test_interval_parts_by_hand():
    """Two-way data d = seed + example + both: the parts come out as the textbook's variance components."""
    rng = np.random.default_rng(0)
    s, n = 6, 500
    d = rng.normal(0, 0.02, (s, 1)) + rng.normal(0, 1, (1, n)) + rng.normal(0, 1.5, (s, n))
    i = interval(d.mean(1), d @ boot.draw(n, 20_000, rng) / n, n)
    both = d - d.mean(0) - d.mean(1, keepdims=True) + d.mean()
    ms_both = (both**2).sum() / ((s - 1) * (n - 1))
    ms_example = s * d.mean(0).var(ddof=1)
    assert i.own == pytest.approx(d.mean(1).var(ddof=1) / s)
    assert i.shared == pytest.approx((ms_example - ms_both) / s / n, rel=0.03)
    assert i.df == pytest.approx((s - 1) * (i.own + i.shared) / i.own)


def test_equal_differences_of_three_seeds_are_not_certainty():
    """Accuracy is in steps of 1/N, so three seeds may agree exactly by luck."""
    rng = np.random.default_rng(1)
    i = interval([0.02, 0.02, 0.02], rng.normal(0.02, 0.02, (3, 1000)), 100)
    alone = 1.96 * 0.02 / np.sqrt(3)  # what the examples' error alone makes of a mean over three seeds
    assert i.hi - i.mean == pytest.approx(alone, rel=0.1)
    assert i.p > 0.05
    assert interval([0.02, 0.02, 0.02], None, 0).p == 0.0
    assert interval([0.0, 0.0], np.zeros((2, 100)), 100).p == 1.0


@pytest.mark.parametrize("seeds", [1, 2, 3, 10])
def test_interval_and_p_agree(seeds):
    rng = np.random.default_rng(seeds)
    for _ in range(50):
        d = rng.normal(rng.normal(), 0.5, seeds)
        b = d[:, None] + rng.normal(0, 0.3, 200) + rng.normal(0, 0.3, (seeds, 200))
        i = interval(d, b, 80, level=0.9)
        assert (i.p < 0.1) == (not i.lo <= 0 <= i.hi)


def test_detectable_by_hand():
    from scipy import stats

    # One-sample t test with 34 seeds: 80 % power for half a standard deviation, in every table.
    found = detectable(Interval(0.0, 0, 0, 1.0, 33.0, 1.0 / 34, 0.0), 34)
    assert found == pytest.approx(0.495, abs=0.005)
    assert stats.nct.sf(stats.t.ppf(0.975, 33), 33, found * np.sqrt(34)) == pytest.approx(0.8, abs=1e-3)
    assert detectable(Interval(0.0, 0, 0, 1.0, 33.0, 1.0 / 34, 0.02), 34) > found
    assert detectable(Interval(0.0, 0, 0, 1.0, 33.0, 1.0 / 34, 0.0), 34, level=0.99) > found
    assert np.isnan(detectable(Interval(0.0, 0, 0, 1.0, 0.0, 0.0, 0.1), 1))
    assert np.isnan(detectable(Interval(0.0, 0, 0, 1.0, 4.0, 0.0, 0.0), 5))


def test_detectable_is_detected():
    """Simulated: a true difference of that size is found in 80 % of cases."""
    rng = np.random.default_rng(0)
    hits, n = [], 6
    for _ in range(1500):
        d = rng.normal(0, 1, n)
        size = detectable(interval(np.r_[d[:-1], d[-1]], None, 0), n) * 1.0 / d.std(ddof=1)  # for a spread of 1
        hits.append(interval(d + size, None, 0).p < 0.05)
    assert np.mean(hits) == pytest.approx(0.8, abs=0.03)


# ------------------------------------------------------------------------------------- fast = slow


def slow(result, counts, names, task):
    """`calibration.metrics` on the resampled rows, written out."""
    out = {n: [] for n in names}
    for column in counts.T.astype(int):
        pick = np.repeat(np.arange(len(column)), column)
        r = replace(result, logits=result.logits[pick], labels=result.labels[pick])
        for n, v in boot.values(r, names, task).items():
            out[n].append(v)
    return out


def cells():
    rng = np.random.default_rng(5)
    n = 97
    y = rng.integers(0, 7, n)  # class 7 never occurs
    z = rng.normal(size=(n, 8)) + 2 * np.eye(8)[y]
    yield "single_label", SeedResult(0, z, y, 1.7)
    yield "single_label", SeedResult(0, np.round(z), y, 0.6)  # many ties of confidence
    yield "single_label", SeedResult(0, 60 * np.round(z), y, 2.0)  # saturated at 1.0
    yield "single_label", SeedResult(0, z[:5], y[:5], 1.1)
    many = (rng.random((n, 5)) < 0.3).astype(int)
    yield "multi_label", SeedResult(0, rng.normal(size=(n, 5)) + 2 * many - 1, many, 1.7)
    t = rng.integers(0, 5, n).astype(float)
    yield "regression", SeedResult(0, t + rng.normal(size=n).round(1), t)
    yield "regression", SeedResult(0, np.stack([t, t * 0 + 1], 1) + rng.normal(size=(n, 2)), np.stack([t, t], 1))


@pytest.mark.parametrize(("task", "result"), cells())
def test_fast_resampling_is_the_slow_loop(task, result):
    names = boot.metric_names(task, result.temperature is not None)
    n = len(result.labels)
    got = boot.resample([(result, names)], [np.arange(n)], n, task, 40, np.random.default_rng(3))[0]
    want = slow(result, boot.draw(n, 40, np.random.default_rng(3)), names, task)
    assert set(got) == set(names)
    for name in names:
        np.testing.assert_allclose(got[name], want[name], rtol=2e-5, atol=2e-6, err_msg=name)


def test_resampling_in_chunks_and_pools(monkeypatch):
    runs = simulate(3, np.random.default_rng(0), SMALL, one_test_set=False)
    size, rows = boot.pool(runs[0])
    assert size == 360
    assert rows[2][0] == 240
    assert boot.pool(simulate(3, np.random.default_rng(0), SMALL)[0])[0] == 120
    args = ([(r, ["accuracy", "ece"]) for r in runs[0]], rows, size, "single_label", 60)
    whole = boot.resample(*args, np.random.default_rng(1))
    monkeypatch.setattr(boot, "_ELEMENTS", 360 * 7)
    parts = boot.resample(*args, np.random.default_rng(1))
    for a, b in zip(whole, parts):
        for n in a:
            np.testing.assert_allclose(a[n], b[n], rtol=1e-6)
    # The middle seed's rows are examples 120 to 239 of the pool.
    counts = boot.draw(size, 60, np.random.default_rng(1))[120:240]
    np.testing.assert_allclose(whole[1]["accuracy"], slow(runs[0][1], counts, ["accuracy"], "single_label")["accuracy"])


def test_overlapping_test_sets_by_id():
    a, b = (
        [replace(r, ids=np.arange(60) + 30 * s, logits=r.logits[:60], labels=r.labels[:60]) for s, r in enumerate(m)]
        for m in simulate(3, np.random.default_rng(0), SMALL, one_test_set=False)
    )
    assert boot.pool(a)[0] == 120
    assert paired_difference(b, a).examples == 120


# ------------------------------------------------------------------------------------- compare


def test_compare_rows_and_order():
    done = compare(records(("none", "x", "y"), skill=2.0), resamples=200)
    assert done.methods == ("none", "x", "y")
    assert done.metrics == (
        "accuracy",
        "macro_f1",
        "mcc",
        *(n + s for n in ("nll", "brier", "ece", "adaptive_ece") for s in ("", "_after")),
        "aurc",
        "excess_aurc",
        "error_auroc",
        "seconds_per_step",
    )
    assert len(done.rows) == 3 * 15
    row = done.row("x", "nll_after")
    runs = records(("none", "x", "y"), skill=2.0)
    each = [measure(r.logits, r.labels, temperature=1.4)["nll"] for r in runs["x"]]
    assert (row.mean, row.sd) == pytest.approx((np.mean(each), np.std(each, ddof=1)))
    assert row.title == "negative log-likelihood after temperature"
    assert row.difference.verdict == BETTER
    assert row.difference.mean < 0
    assert done.row("x", "seconds_per_step").difference.verdict == WORSE
    assert done.row("none", "accuracy").difference is None
    for name in done.metrics:
        ps = [done.row(m, name).difference.p for m in ("x", "y")]
        assert [done.row(m, name).difference.p_holm for m in ("x", "y")] == holm(ps)
    json.dumps(done.to_dict(), allow_nan=False)


def test_a_further_method_changes_no_interval():
    runs = records(("none", "x", "y"))
    two = compare({k: runs[k] for k in ("none", "x")}, metrics=["ece"], resamples=100)
    three = compare(runs, metrics=["ece"], resamples=100)
    assert two.row("x", "ece").difference.interval == three.row("x", "ece").difference.interval


def test_paired_difference_is_compare_with_one():
    runs = records(seeds=7)
    d = paired_difference(runs["m"], runs["none"], "accuracy_after", resamples=100)  # the same as before
    assert d == compare(runs, metrics=["accuracy"], resamples=100).row("m", "accuracy").difference
    assert d.sign_flip_p == sign_flip_test(
        [accuracy(a.logits, a.labels) - accuracy(b.logits, b.labels) for a, b in zip(runs["m"], runs["none"])]
    )
    assert d.p == d.p_holm
    # Hedges' factor for 6 degrees of freedom is 0.8687.
    assert d.effect_size == pytest.approx(0.8687 * d.mean / d.sd, rel=1e-3)


def test_five_seeds_know_that_sign_flips_cannot_do():
    d = paired_difference(*reversed(records(seeds=5).values()), resamples=100)
    assert d.sign_flip_p is None
    assert "5 seeds cannot go below p = 0.0625" in d.note


def test_one_seed():
    runs = records(seeds=1, skill=3.0)
    d = paired_difference(runs["m"], runs["none"])
    assert d.lo > 0
    assert d.p < 0.01
    assert d.verdict == UNSURE
    assert d.p_holm == 1.0
    assert "one seed" in d.note
    assert np.isnan(d.sd)
    assert "at least 3 seeds" in summary_sentence(compare(runs))
    scalar = paired_difference(runs["m"], runs["none"], "seconds_per_step")
    assert np.isnan(scalar.lo)
    assert scalar.p == 1.0


def test_identical_records():
    runs = records()
    done = compare({"none": runs["none"], "same": runs["none"]}, resamples=100)
    for name in done.metrics:
        d = done.row("same", name).difference
        assert (d.mean, d.lo, d.hi, d.p, d.verdict, d.effect_size) == (0, 0, 0, 1, UNSURE, 0)
        assert d.note.startswith("no difference at all")


def test_missing_cells_pair_over_common_seeds():
    runs = records(("none", "x"), seeds=5)
    short = compare({"none": runs["none"], "x": runs["x"][1:4]}, metrics=["nll"], resamples=100)
    row = short.row("x", "nll")
    assert (row.seeds, row.difference.seeds, short.row("none", "nll").seeds) == (3, 3, 5)
    want = [nll(a.logits, a.labels) - nll(b.logits, b.labels) for a, b in zip(runs["x"], runs["none"])][1:4]
    assert row.difference.mean == pytest.approx(np.mean(want))


def test_other_tasks():
    rng = np.random.default_rng(0)
    y = rng.normal(size=200)
    runs = {m: [SeedResult(s, y + rng.normal(0, sd, 200), y) for s in range(4)] for m, sd in (("none", 1), ("x", 0.5))}
    done = compare(runs, task="regression", resamples=100)
    assert done.metrics == ("mse", "mae", "pearson", "spearman")
    assert all(done.row("x", n).difference.verdict == BETTER for n in done.metrics)
    assert summary_sentence(done).startswith("Use x: mean squared error 0.2")
    many = rng.integers(0, 2, (200, 3))
    runs = {
        m: [SeedResult(s, 2 * many - 1 + rng.normal(0, sd, (200, 3)), many, 1.0) for s in range(4)]
        for m, sd in (("none", 2), ("x", 1))
    }
    done = compare(runs, task="multi_label", resamples=100)
    assert {"micro_f1", "macro_f1", "subset_accuracy", "ece_after"} <= set(done.metrics)
    assert summary_sentence(done).startswith("Use x: micro-F1")


def bad(change):
    runs = records()
    return {**runs, **change(runs)}


@pytest.mark.parametrize(
    ("change", "kw", "error", "message"),
    [
        (lambda r: {"m": []}, {}, OptionError, "'m' has no seeds"),
        (lambda r: {"m": [r["m"][0]] * 2}, {}, OptionError, "seed twice"),
        (lambda r: {"m": [replace(r["m"][0], seed=9)]}, {}, OptionError, "no seed in common"),
        (
            lambda r: {"m": [r["m"][0], replace(r["m"][1], logits=r["m"][1].logits * np.nan)]},
            {},
            RunError,
            "method 'm', seed 1: 120 of 120 rows.*NaN",
        ),
        (lambda r: {"m": [replace(r["m"][0], labels=r["m"][0].labels[::-1])]}, {}, RunError, "seed 0.*paired"),
        (lambda r: {"m": [replace(r["m"][0], labels=r["m"][0].labels[:5])]}, {}, RunError, "method 'm', seed 0"),
        (lambda r: {}, {"baseline": "nome"}, OptionError, "did you mean 'none'"),
        (lambda r: {}, {"metrics": ["acuracy"]}, OptionError, "did you mean 'accuracy'"),
        (lambda r: {}, {"metrics": ["mse"]}, OptionError, "regression"),
        (
            lambda r: {"m": [replace(r["m"][0], temperature=None)]},
            {"metrics": ["ece_after"]},
            OptionError,
            "temperature",
        ),
        (lambda r: {"m": [replace(r["m"][0], scalars={})]}, {"metrics": ["seconds_per_step"]}, OptionError, "recorded"),
        (lambda r: {}, {"level": 1.0}, OptionError, "level"),
        (lambda r: {}, {"resamples": 3}, OptionError, "resamples"),
        (lambda r: {}, {"task": "sorting"}, OptionError, "unknown task"),
    ],
)
def test_errors_name_the_cell(change, kw, error, message):
    with pytest.raises(error, match=message):
        compare(bad(change), **kw)


# ------------------------------------------------------------------------------------- the sentence


def test_sentences():
    win = compare(records(("none", "x", "y"), seeds=5, skill=2.0), resamples=200)
    words = summary_sentence(win)
    assert words.startswith("Use ")
    assert "with plain training (+" in words
    assert "negative log-likelihood after temperature is better too" in words
    assert "also beats plain training, and which is best was not tested" in words
    assert words.count(". ") == 0
    lose = compare(records(seeds=5, skill=-2.0), resamples=200)
    assert "Nothing beats plain training, so keep it" in summary_sentence(lose)
    assert summary_sentence(lose).endswith("worse.")
    draw = summary_sentence(compare(records(seeds=4, random=2), resamples=200))
    assert "Nothing beats plain training" in draw
    assert "no significant difference" in draw
    assert "with 4 seeds a difference of" in draw and "would have been found in 80 % of cases" in draw
    assert "for this training set" not in draw
    once = summary_sentence(compare(records(seeds=4, random=2), resamples=200), one_training_set=True)
    assert "no significant difference, for this training set" in once
    overconfident = replace(SMALL, overconfidence=3.0)
    timid = {"metrics": ["accuracy", "nll"], "resamples": 200}
    raw = compare(records(seeds=5, world=overconfident, overconfidence=0.4), **timid)
    assert raw.row("m", "nll").difference.verdict == BETTER
    assert "for better probabilities" not in summary_sentence(raw)  # a lower NLL before temperature decides nothing
    calibrated = compare(
        {
            name: [replace(r, temperature=1.0) for r in runs]
            for name, runs in records(seeds=5, world=overconfident, overconfidence=0.4).items()
        },
        metrics=["accuracy", "nll_after"],
        resamples=200,
    )
    assert "Nothing beats plain training in accuracy, but for better probabilities use m" in summary_sentence(
        calibrated
    )
    plain = records()["none"]
    twins = summary_sentence(compare({"none": plain, "m": plain}, resamples=100))
    assert twins == "Nothing beats plain training, so keep it: no method changes the accuracy of any seed."
    # A hard seed that only plain training finished: both figures are over the seeds in common.
    some = records(("none", "x"), seeds=5, skill=2.0)
    rows = compare({**some, "x": some["x"][1:]}, resamples=200)
    row, base = rows.row("x", "accuracy"), rows.row("none", "accuracy")
    assert row.difference is not None and row.difference.seeds == 4 and row.mean - row.difference.mean != base.mean
    assert f"against {100 * (row.mean - row.difference.mean):.1f} %" in summary_sentence(rows)
    # Each lacks another one.
    rows = compare({"none": some["none"][:-1], "x": some["x"][1:]}, resamples=200)
    common = [compare({m: [some[m][at]] for m in some}, resamples=50).rows for at in (1, 2, 3)]
    means = {(row.method, row.metric): [] for row in common[0]}
    for row in itertools.chain(*common):
        means[row.method, row.metric].append(row.mean)
    base, mean = np.mean(means["none", "accuracy"]), np.mean(means["x", "accuracy"])
    assert f"{100 * mean:.1f} % against {100 * base:.1f} %" in summary_sentence(rows)
    assert base != pytest.approx(rows.row("none", "accuracy").mean)
    alone = compare({"none": records()["none"]}, resamples=100)
    assert "nothing to compare" in summary_sentence(alone)


# ------------------------------------------------------------------------------------- what is promised

METRICS = ("accuracy", "nll", "macro_f1", "ece")


def simulated(n, seeds, world, random, **kw):
    """Intervals of n simulated comparisons, metric -> list."""
    rng = np.random.default_rng(random)
    out = {m: [] for m in METRICS}
    for _ in range(n):
        runs = simulate(seeds, rng, world, **kw)
        done = compare(dict(zip(("none", "m"), runs)), metrics=METRICS, resamples=100, rng=rng)
        for m in METRICS:
            out[m].append(done.row("m", m).difference)
    return out


@pytest.mark.parametrize(("seeds", "world"), [(3, "mixed"), (5, "seeds")])
def test_false_positives_over_many_comparisons(seeds, world):
    """No true difference: at most 5 % are called different, within 3 standard errors; all tests have 1,000."""
    count = 1000 if parts.ALL else 400
    found = simulated(count, seeds, replace(WORLDS[world], examples=150), random=seeds)
    for m, ds in found.items():
        called = np.mean([d.verdict != UNSURE for d in ds])
        assert called <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / count), (m, called)
        assert called == np.mean([not d.lo <= 0 <= d.hi for d in ds])


def test_family_wise_false_positives():
    """Six methods without effect: at most 5 % of comparisons call any of them different."""
    rng = np.random.default_rng(8)
    names = ("none", *"abcdef")
    hits = 0
    for _ in range(300):
        runs = simulate(3, rng, replace(WORLDS["mixed"], examples=150), methods=7)
        done = compare(dict(zip(names, runs)), metrics=["accuracy"], resamples=60, rng=rng)
        hits += any(done.row(m, "accuracy").difference.verdict != UNSURE for m in names[1:])
    assert hits / 300 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_coverage_and_power_of_a_known_effect():
    """5 seeds, 400 examples, 6 points of accuracy: 95 % cover and about 70 % are found (the benchmark's cell)."""
    n = 400
    found = simulated(n, 5, WORLDS["mixed"], random=1, skill=0.4)
    error = np.sqrt(0.05 * 0.95 / n)
    # The true differences, from 2,000 simulated comparisons of the benchmark.
    truth = {"accuracy": 0.0604, "nll": -0.2005, "macro_f1": 0.0617, "ece": -0.0332}
    for m, ds in found.items():
        cover = np.mean([d.lo <= truth[m] <= d.hi for d in ds])
        assert abs(cover - 0.95) <= 3 * error + 0.01, (m, cover)
    assert np.mean([d.verdict == BETTER for d in found["accuracy"]]) > 0.62
    assert np.mean([d.verdict == BETTER for d in found["nll"]]) > 0.62
    assert not any(d.verdict == WORSE for ds in found.values() for d in ds)
