"""Verdicts: looks at fewer seeds, practically equal, collapsed runs, and models that learned nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import special
from test_compare import FakeEngine, calm, made_up, make_grid, place  # noqa: F401

from mixwell.compare import tables
from mixwell.compare.live import PlainView
from mixwell.compare.planning import plan
from mixwell.compare.records import Records
from mixwell.compare.run import run
from mixwell.compare.schedule import execute
from mixwell.compare.stats.bootstrap import SeedResult
from mixwell.compare.stats.intervals import Interval, interval
from mixwell.compare.stats.judge import BETTER, EQUAL, UNSURE, WITHHELD, WORSE, Rules, difference_of, judged
from mixwell.compare.stats.learned import what_was_learned
from mixwell.compare.stats.sequential import LOOKS, looks_until, nominal_level, sequential_p, spent
from mixwell.compare.stats.simulate import World, simulate
from mixwell.compare.stats.verdicts import compare
from mixwell.compare.summary import read_summary
from mixwell.report import compare as export
from mixwell.utils.errors import OptionError

# --- looks ------------------------------------------------------------------------------------------------------------


def test_levels_of_looks():
    assert spent(2) == 0 and spent(5) == pytest.approx(0.6)
    assert nominal_level(0.05, (5,)) == pytest.approx(0.05 * 0.6)
    assert nominal_level(0.05, (2,)) == 0 and sequential_p(1e-9, (2,)) == 1.0
    assert looks_until(8, [2, 3, 5, 8, 12]) == (3, 5, 8)
    for count in range(1, 5):  # the p-value over looks is alpha exactly where the level is reached
        looks = LOOKS[:count]
        for alpha in (0.2, 0.05, 0.003):
            assert sequential_p(nominal_level(alpha, looks), looks) == pytest.approx(alpha, rel=1e-3)
    assert nominal_level(0.05, (3, 5)) < nominal_level(0.05, (5,))  # an earlier look costs
    assert sequential_p(0.9, (5,)) == 1.0


def test_looks_against_a_simulated_walk():
    """The share of random walks that ever cross the levels is what was to be spent."""
    rng = np.random.default_rng(0)
    walk = rng.normal(size=(200_000, 12)).cumsum(axis=1)
    crossed = np.zeros(len(walk), dtype=bool)
    for count, seeds in enumerate((3, 5, 8, 12), 1):
        level = nominal_level(0.2, (3, 5, 8, 12)[:count])
        crossed |= np.abs(walk[:, seeds - 1]) / np.sqrt(seeds) > -special.ndtri(level / 2)
        assert crossed.mean() == pytest.approx(0.2 * spent(seeds), abs=0.004)


def test_sequential_looks_of_t_tests():
    """Stopping at the first verdict: naive looks err in 14 % of cases, these in 5 %."""
    rng = np.random.default_rng(1)
    d = rng.normal(size=(20_000, 12))
    called, naive = np.zeros(len(d), dtype=bool), np.zeros(len(d), dtype=bool)
    for count, n in enumerate((3, 5, 8, 12), 1):
        x = d[:, :n]
        p = 2 * special.stdtr(n - 1, -np.abs(x.mean(1)) / (x.std(1, ddof=1) / np.sqrt(n)))
        called |= p < nominal_level(0.05, (3, 5, 8, 12)[:count])
        naive |= p < 0.05
    assert called.mean() < 0.06 < 0.12 < naive.mean()


def some(means, seeds=6, spread=0.002, rows=0):
    rng = np.random.default_rng(3)
    del rows
    return {
        f"m{k}": difference_of(mean + spread * rng.normal(size=seeds), None, 0, 0.95, "accuracy")
        for k, mean in enumerate(means)
    }


@pytest.mark.parametrize("looks", [None, (), (3, 5)])
def test_verdict_and_adjusted_interval_agree(looks):
    rng = np.random.default_rng(5)
    for _ in range(60):
        differences = some(rng.normal(0, 0.004, 5), seeds=int(rng.integers(3, 9)), spread=0.004)
        found = judged(differences, (), 0.95, True, Rules(looks))
        for d in found.values():
            outside = not d.lo_adjusted <= 0 <= d.hi_adjusted
            assert outside == (d.verdict in (BETTER, WORSE)) == (d.p_holm < 0.05)
            assert d.hi_adjusted >= d.hi


def test_two_seeds_decide_nothing():
    found = judged(some([0.1], seeds=2, spread=1e-6), (), 0.95, True, Rules(()))["m0"]
    assert found.p < 0.001 and found.verdict == UNSURE and found.p_holm == 1.0


# --- practically equal ------------------------------------------------------------------------------------------------


def test_two_one_sided_tests_by_hand():
    from scipy import stats

    d = np.array([0.001, -0.002, 0.003, 0.0, 0.001])
    error = d.std(ddof=1) / np.sqrt(5)
    want = max(stats.t.sf((d.mean() + 0.01) / error, 4), stats.t.cdf((d.mean() - 0.01) / error, 4))
    assert interval(d, None, 0).p_equal(0.01) == pytest.approx(want)
    assert interval(d + 0.02, None, 0).p_equal(0.01) == 1.0
    assert Interval(0.0, 0, 0, 1.0, 4.0, 0.0, 0.0).p_equal(0.01) == 0.0


def test_practically_equal():
    rules = Rules((), equal_within=0.01)
    verdicts = {name: d.verdict for name, d in judged(some([0.0, 0.03, -0.03, 0.005]), (), 0.95, True, rules).items()}
    assert verdicts == {"m0": EQUAL, "m1": BETTER, "m2": WORSE, "m3": EQUAL}
    small = judged(some([0.005], spread=0.0005), (), 0.95, True, rules)["m0"]
    assert small.verdict == EQUAL and "significant, but too small to matter" in small.note
    # Not where it was not asked for, not in other metrics, and not from noise.
    assert judged(some([0.0]), (), 0.95, True, Rules(()))["m0"].verdict == UNSURE
    assert judged(some([0.0]), (), 0.95, True, rules, main=False)["m0"].verdict == UNSURE
    noisy = judged(some([0.0], spread=0.05), (), 0.95, True, rules)["m0"]
    assert noisy.verdict == UNSURE and noisy.detectable > 0.01


def test_equal_errs_as_promised():
    """A true difference of just the margin is called practically equal in at most 5 % of cases."""
    rng = np.random.default_rng(0)
    rules, calls = Rules(None, 0.01), 0
    for _ in range(2000):
        d = difference_of(0.01 + rng.normal(0, 0.004, 5), None, 0, 0.95, "accuracy")
        calls += judged({"m": d}, (), 0.95, True, rules)["m"].verdict == EQUAL
    assert calls / 2000 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)


# --- what was learned -------------------------------------------------------------------------------------------------

LABELS = [np.arange(200) % 4]


def learned(values, **kw):
    by_seed = {method: dict(enumerate(each)) for method, each in values.items()}
    return what_was_learned(by_seed, LABELS, "single_label", "accuracy", 4, ("probe", "tfidf"), **kw)


def test_nothing_was_learned():
    found = learned({"none": [0.25, 0.27, 0.24], "amplify": [0.26, 0.22, 0.28], "probe": [0.7] * 3})
    assert found.guess["accuracy"] == 0.25 and found.guess["nll"] == pytest.approx(np.log(4))
    assert found.headline.startswith("Nothing was learned: no fine-tuned model is clearly better than guessing (25.0 %")
    assert found.withheld("none") == {"": found.headline}
    assert not learned({"none": [0.5, 0.6], "probe": [0.4, 0.4]}).headline


def test_below_the_probe():
    found = learned({"none": [0.5, 0.6], "amplify": [0.6, 0.6], "probe": [0.7, 0.7], "tfidf": [0.9, 0.9]})
    assert found.headline.startswith("Fine-tuning stays below the probe") and "70.0 %" in found.headline
    assert not learned({"none": [0.5, 0.6], "amplify": [0.7, 0.7], "probe": [0.7, 0.7]}).headline


def test_collapsed_runs():
    found = learned({"none": [0.8, 0.82, 0.81], "amplify": [0.83, 0.25, 0.84], "tmix": [0.8, 0.7, 0.75]})
    assert found.collapsed == {"amplify": (1,)} and not found.headline
    assert found.withheld("none") == {"amplify": "1 of 3 runs of AMPLIFY collapsed to the level of guessing"}
    base = learned({"none": [0.8, 0.25, 0.81], "amplify": [0.83, 0.8, 0.84]})
    assert "nothing sound to compare with" in base.withheld("none")[""]
    # One method that never learns while the others do is no accident of a seed, but its runs are collapsed too.
    assert learned({"none": [0.8, 0.8], "a": [0.8, 0.8], "b": [0.25, 0.26]}).collapsed == {"b": (0, 1)}


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_guessing_in_other_tasks(task):
    rng = np.random.default_rng(0)
    y = (rng.random((90, 3)) < [0.7, 0.2, 0.1]).astype(int) if task == "multi_label" else rng.normal(3, 2, 90)
    metric = "micro_f1" if task == "multi_label" else "mse"
    good = 0.9 if task == "multi_label" else 0.3
    bad = 0.6 if task == "multi_label" else 4.0
    values = {"none": {0: good, 1: good, 2: bad}, "m": {0: good, 1: good, 2: good}}
    found = what_was_learned(values, [y], task, metric, 3)
    if task == "regression":
        assert found.guess["mse"] == pytest.approx(y.var()) and found.collapsed == {"none": (2,)}
    assert not found.headline
    lost = {name: dict.fromkeys(seeds, found.guess[metric]) for name, seeds in values.items()}
    assert "Nothing was learned" in what_was_learned(lost, [y], task, metric, 3).headline


def test_withheld_in_a_comparison():
    runs = simulate(4, np.random.default_rng(0), World(examples=150), skill=3.0)
    results = dict(zip(("none", "m"), runs))
    assert compare(results, resamples=100).row("m", "accuracy").difference.verdict == BETTER
    found = compare(results, resamples=100, rules=Rules(None, withheld={"m": "1 of 4 runs of m collapsed"}))
    d = found.row("m", "accuracy").difference
    assert d.verdict == WITHHELD and "1 of 4 runs" in d.note


# --- in a folder ------------------------------------------------------------------------------------------------------


def with_outputs(spec, change):
    """A made-up result whose logits are changed."""
    made = made_up(spec)
    outputs = {**made.outputs, "test_logits": change(made.outputs["test_logits"])}
    from mixwell.metrics.measure import measure

    metrics = measure(outputs["test_logits"], outputs["test_labels"])
    test = {"rows": len(outputs["test_labels"]), "before": metrics, "after": metrics}
    return replace(made, result={**made.result, "test": test}, outputs=outputs)


def filled(place, folder, change, **grid):  # noqa: F811
    from mixwell.compare.engines.base import Finished

    records = Records(folder)
    records.create()
    cells = plan(make_grid(place, **grid))
    engine = FakeEngine(lambda spec: Finished(spec.key, with_outputs(spec, lambda z: change(spec, z))))
    execute(cells, records, engine, PlainView())
    return read_summary(records)


def test_a_collapsed_run_is_shown_everywhere(place, tmp_path):  # noqa: F811
    def change(spec, z):
        return z * 0 + [0.0, 1.0] if (spec.label, spec.seed) == ("amplify", 2) else z

    summary = filled(place, tmp_path / "out", change, seeds=4)
    group = summary.groups[0]
    assert group.learning.collapsed == {"amplify": (2,)}
    assert group.row("amplify", "accuracy").difference.verdict == WITHHELD
    assert any("1 of 4 runs of AMPLIFY collapsed" in sentence for sentence in group.sentences)
    table = tables.table(group)
    assert "4 (1 collapsed)" in table and "withheld" in table and "guessing" in table
    for format in export.FORMATS:
        assert "collapsed" in export.export(summary, format) or format == "latex"


def test_models_that_guess_get_no_verdict(place, tmp_path):  # noqa: F811
    group = filled(place, tmp_path / "out", lambda spec, z: z * 0 + [0.0, 1.0], seeds=3).groups[0]
    assert group.sentences[0].startswith("Nothing was learned")
    assert not any(word in " ".join(group.sentences) for word in ("Use ", "Nothing beats", "temperature alone"))
    rows = [group.row(name, "accuracy") for name in group.comparison.methods if name != "none"]
    assert {row.difference.verdict for row in rows} == {WITHHELD}


def test_looks_are_remembered(place, tmp_path):  # noqa: F811
    for seeds in (3, 5, 5):
        run(make_grid(place, seeds=seeds), tmp_path / "out", engine=FakeEngine)
    records = Records(tmp_path / "out")
    (seen,) = records.looks().values()
    assert seen == {3, 5}
    group = read_summary(records).groups[0]
    assert group.rules.looks == (3, 5)
    d = group.row("amplify", "accuracy").difference
    fresh = Rules(()).p_of_looks(d.p, 5)
    assert group.rules.p_of_looks(d.p, 5) >= fresh  # having looked before costs


def test_marks_only_where_they_cannot_mislead(place, tmp_path):  # noqa: F811
    """A method with timid, better-calibrated raw probabilities and more mistakes gets no + for its raw NLL."""

    def change(spec, z):
        draw = np.random.default_rng(spec.seed)
        same = (draw.normal(size=z.shape) + 2 * np.eye(2)[np.arange(len(z)) % 2]).astype(np.float32)
        return same * 30 if spec.label == "none" else same

    summary = filled(place, tmp_path / "out", change, seeds=8)
    group = summary.groups[0]
    row = group.row("amplify", "nll")
    assert row.difference.verdict == BETTER and not group.judges("nll") and group.judges("aurc")
    line = dict(zip(tables.header(group), tables.table_line(group, "amplify")))
    assert "+" not in line["NLL"] and "-" not in line["NLL"] and "+" not in line["ECE %"]
    board = export.prepare(summary)["board"]
    cells = [pair for row in board["rows"] for pair in zip(board["heads"], row["cells"])]
    marked = {head.name for head, cell in cells if cell.kind in (BETTER, WORSE)}
    assert marked <= {"accuracy %", "AURC", "NLL after T"}


def test_the_sentence_says_what_training_set(place, tmp_path):  # noqa: F811
    whole = filled(place, tmp_path / "a", lambda spec, z: z, seeds=3).groups[0]
    assert "for this training set" in whole.sentences[0]
    drawn = filled(place, tmp_path / "b", lambda spec, z: z, seeds=3, fractions=[0.5]).groups[0]
    assert "for this training set" not in drawn.sentences[0]


def test_bad_margins(place, tmp_path):  # noqa: F811
    for points in (0, -1, 51):
        with pytest.raises(OptionError, match="equal_within must be points above 0"):
            run(make_grid(place), tmp_path / "out", engine=FakeEngine, equal_within=points)


def test_old_results_gain_new_columns():
    """Outputs of any age have what the new metrics need."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 80)
    runs = [SeedResult(s, rng.normal(size=(80, 3)) + 2 * np.eye(3)[y], y) for s in range(3)]
    done = compare({"none": runs, "m": runs}, resamples=60)
    assert {"aurc", "excess_aurc", "error_auroc"} <= set(done.metrics)
