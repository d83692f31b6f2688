"""mixwell.calibration against scikit-learn, slow loops and properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from sklearn import metrics as sk

from mixwell.metrics.calibration import adaptive_ece, bin_index, ece, reliability_bins
from mixwell.metrics.measure import measure
from mixwell.metrics.scores import METRICS, brier, classwise, log_softmax, macro_f1, nll, sigmoid, softmax
from mixwell.metrics.temperature import MAX_TEMPERATURE, MIN_TEMPERATURE, fit_temperature
from mixwell.utils.errors import DataError, OptionError


def make(n=200, c=5, seed=0, scale=3.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, c, n)
    z = rng.normal(size=(n, c))
    z[np.arange(n), y] += 1.0
    return scale * z, y


def slow_ece(probs, labels, bins=15):
    total = 0.0
    for b in range(bins):
        rows = []
        for i, p in enumerate(probs):
            conf = max(p)
            if b / bins < conf <= (b + 1) / bins or (b == 0 and conf == 0) or (b == bins - 1 and conf > 1):
                rows.append((conf, float(np.argmax(p) == labels[i])))
        if rows:
            total += len(rows) / len(probs) * abs(np.mean([r[1] for r in rows]) - np.mean([r[0] for r in rows]))
    return total


def slow_adaptive_ece(probs, labels, bins=15):
    """Every row written `bins` times, so that the bins come out whole; ties hold the mean of their group."""
    conf, right = probs.max(1), (probs.argmax(1) == labels).astype(float)
    pairs = sorted((c, np.mean(right[conf == c])) for c in conf)
    rows = [p for p in pairs for _ in range(bins)]
    chunks = np.array_split(np.array(rows), bins)
    return float(np.mean([abs(ch[:, 1].mean() - ch[:, 0].mean()) for ch in chunks]))


@pytest.mark.parametrize("seed", range(3))
def test_single_label_against_sklearn(seed):
    z, y = make(seed=seed)
    p = softmax(z)
    got = measure(z, y, "single_label")
    pred = z.argmax(1)
    names = ["accuracy", "macro_f1", "mcc", "nll", "brier", "ece", "adaptive_ece", "aurc", "excess_aurc", "error_auroc"]
    assert list(got) == names
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(y, pred))
    assert got["macro_f1"] == pytest.approx(sk.f1_score(y, pred, average="macro"))
    assert got["mcc"] == pytest.approx(sk.matthews_corrcoef(y, pred))
    assert got["nll"] == pytest.approx(sk.log_loss(y, p))
    assert got["brier"] == pytest.approx(((p - np.eye(5)[y]) ** 2).sum(1).mean())
    assert got["ece"] == pytest.approx(slow_ece(p, y))
    assert got["adaptive_ece"] == pytest.approx(slow_adaptive_ece(p, y))
    assert set(got) == {k for k, m in METRICS.items() if "single_label" in m.tasks}


def test_two_class_brier_is_twice_sklearns():
    z, y = make(c=2)
    p = softmax(z)
    assert brier(p, y) == pytest.approx(2 * sk.brier_score_loss(y, p[:, 1]))


def test_classwise_and_absent_classes():
    z, y = make(n=40, c=6)
    y = y % 4
    z[:, 5] = -100  # class 5 neither present nor predicted; class 4 perhaps predicted
    pred = z.argmax(1)
    pr, re, f1, sup = sk.precision_recall_fscore_support(y, pred, labels=range(6), zero_division=0)
    got = classwise(z, y)
    for name, want in zip(("precision", "recall", "f1", "support"), (pr, re, f1, sup)):
        np.testing.assert_allclose(got[name], want)
    assert macro_f1(z, y) == pytest.approx(sk.f1_score(y, pred, average="macro"))  # sklearn leaves 5 out too


def test_multi_label_against_sklearn():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, (150, 4))
    z = rng.normal(size=y.shape) * 2 + y
    p, yes = sigmoid(z), z > 0
    got = measure(z, y, "multi_label")
    assert got["subset_accuracy"] == pytest.approx(sk.accuracy_score(y, yes))
    assert got["micro_f1"] == pytest.approx(sk.f1_score(y, yes, average="micro"))
    assert got["macro_f1"] == pytest.approx(sk.f1_score(y, yes, average="macro"))
    assert got["nll"] == pytest.approx(np.mean([sk.log_loss(y[:, k], p[:, k]) for k in range(4)]))
    assert got["brier"] == pytest.approx(np.mean([sk.brier_score_loss(y[:, k], p[:, k]) for k in range(4)]))
    two = np.stack([1 - p.ravel(), p.ravel()], axis=1)
    assert got["ece"] == pytest.approx(slow_ece(two, y.ravel()))
    assert set(got) == {k for k, m in METRICS.items() if "multi_label" in m.tasks}
    nothing = measure(-np.ones((3, 2)), np.zeros((3, 2), int), "multi_label")
    assert nothing["micro_f1"] == 0.0
    assert nothing["macro_f1"] == 0.0


def test_regression_against_scipy():
    rng = np.random.default_rng(2)
    y = rng.integers(0, 6, 80).astype(float)  # ties
    z = y + rng.normal(size=80).round(1)
    got = measure(z, y, "regression")
    assert got["mse"] == pytest.approx(sk.mean_squared_error(y, z))
    assert got["mae"] == pytest.approx(sk.mean_absolute_error(y, z))
    assert got["pearson"] == pytest.approx(stats.pearsonr(z, y)[0])
    assert got["spearman"] == pytest.approx(stats.spearmanr(z, y)[0])
    assert measure(z[:, None], y[:, None], "regression") == got
    flat = measure(np.ones(4), np.arange(4.0), "regression")
    assert flat["pearson"] == flat["spearman"] == 0.0
    assert set(got) == {k for k, m in METRICS.items() if "regression" in m.tasks}


# ------------------------------------------------------------------------------------- edges


def test_bin_edges():
    edges = np.arange(16) / 15
    assert bin_index([0.0, 1.0, 1.0 + 1e-12, 0.2, np.nextafter(0.2, 1)]).tolist() == [0, 14, 14, 2, 3]
    assert bin_index(edges).tolist() == [0, *range(15)]  # the upper edge belongs to the bin
    assert bin_index([0.5, 0.7, 0.1], bins=10).tolist() == [4, 6, 0]


def test_confidence_on_an_edge_and_one():
    p = np.array([[0.6, 0.4], [0.61, 0.39], [1.0, 0.0], [0.0, 1.0]])
    y = np.array([0, 1, 0, 0])
    assert ece(p, y) == pytest.approx(slow_ece(p, y))
    bars = reliability_bins(p, y)
    assert [b.count for b in bars] == [0] * 8 + [1, 1, 0, 0, 0, 0, 2]
    assert (bars[8].lo, bars[8].hi) == (8 / 15, 9 / 15)
    assert (bars[14].confidence, bars[14].accuracy) == (1.0, 0.5)
    assert np.isnan(bars[0].accuracy)
    assert sum(b.count / 4 * abs(b.accuracy - b.confidence) for b in bars if b.count) == pytest.approx(ece(p, y))


def test_one_row_and_one_class_predicted():
    one = measure([[2.0, 1.0]], [0])
    conf = softmax([[2.0, 1.0]])[0, 0]
    assert one["ece"] == pytest.approx(1 - conf)
    assert one["adaptive_ece"] == pytest.approx(1 - conf)
    assert (one["accuracy"], one["mcc"]) == (1.0, 0.0)
    z = np.tile([5.0, 0.0, 0.0], (30, 1))
    got = measure(z, np.arange(30) % 3)
    assert got["mcc"] == 0.0
    assert got["macro_f1"] == pytest.approx(0.5 / 3)  # precision 1/3, recall 1: F1 1/2; the others 0
    assert got["adaptive_ece"] == pytest.approx(got["ece"])  # one block of equal confidence, however split


def test_large_logits_stay_finite():
    got = measure([[1e4, 0.0], [0.0, 1e4]], [0, 0])
    assert got["nll"] == pytest.approx(5e3)
    assert np.isfinite(list(got.values())).all()
    assert sigmoid([-1e4, 0.0, 1e4]).tolist() == [0.0, 0.5, 1.0]
    np.testing.assert_allclose(log_softmax([[1e4, 0.0]]), [[0.0, -1e4]])


@pytest.mark.parametrize(
    ("z", "y", "task", "message"),
    [
        ([[1.0, np.nan]], [0], "single_label", "row 0.*learning rate"),
        ([[1.0, 2.0]], [2], "single_label", "from 0 to 1"),
        ([[1.0, 2.0]], [0, 1], "single_label", "got"),
        (np.zeros((0, 2)), np.zeros(0, int), "single_label", "at least one row"),
        ([[1.0, 2.0]], [[0, 3]], "multi_label", "from 0 to 1"),
        ([1.0, 2.0], [1.0], "regression", "one shape"),
        ([1.0], [np.nan], "regression", "targets"),
    ],
)
def test_bad_arrays(z, y, task, message):
    with pytest.raises(DataError, match=message):
        measure(z, y, task)


def test_bad_options():
    with pytest.raises(OptionError, match="did you mean 'single_label'"):
        measure([[1.0, 2.0]], [0], "singel_label")
    with pytest.raises(OptionError, match="above 0"):
        measure([[1.0, 2.0]], [0], temperature=0.0)
    with pytest.raises(OptionError, match="regression"):
        measure([1.0], [0.5], "regression", temperature=2.0)
    with pytest.raises(OptionError, match="regression"):
        fit_temperature([1.0], [0.5], "regression")


# ------------------------------------------------------------------------------------- temperature


@pytest.mark.parametrize("true", [0.4, 1.0, 2.5, 8.0])
def test_temperature_is_the_minimum(true):
    rng = np.random.default_rng(3)
    z = rng.normal(size=(4000, 4)) * 2
    y = np.array([rng.choice(4, p=p) for p in softmax(z)])
    t = fit_temperature(z * true, y)
    assert t == pytest.approx(true, rel=0.1)
    grid = np.exp(np.linspace(np.log(0.05), np.log(20), 2001))
    best = min(nll(z * true / g, y) for g in grid[:: 1 if true == 2.5 else 20])
    assert nll(z * true / t, y) <= best + 1e-12
    many = (rng.random((1000, 3)) < sigmoid(z[:1000, :3])).astype(int)
    assert fit_temperature(z[:1000, :3] * true, many, "multi_label") == pytest.approx(true, rel=0.2)


def test_temperature_at_its_bounds():
    z = np.array([[3.0, 0.0], [0.0, 2.0], [4.0, 1.0]])
    y = np.array([0, 1, 0])
    assert fit_temperature(z, y) == MIN_TEMPERATURE  # perfectly separated
    assert fit_temperature(z, 1 - y) == MAX_TEMPERATURE  # always wrong
    assert fit_temperature(z[:1], y[:1]) == MIN_TEMPERATURE
    assert fit_temperature(np.zeros((5, 3)), np.zeros(5, int)) == 1.0  # nothing to fit
    assert fit_temperature(np.array([[1e6, 0.0], [0.0, 1e6], [1e6, 0.0]]), [0, 1, 1]) == MAX_TEMPERATURE


# ------------------------------------------------------------------------------------- properties

LOGITS = st.integers(1, 30).flatmap(
    lambda n: st.integers(2, 5).flatmap(
        lambda c: st.tuples(
            arrays(np.float64, (n, c), elements=st.floats(-50, 50, width=32)),
            arrays(np.int64, n, elements=st.integers(0, c - 1)),
            st.permutations(range(n)),
        )
    )
)


@settings(max_examples=150, deadline=None)
@given(LOGITS)
def test_range_permutation_and_slow_references(case):
    z, y, order = case
    got = measure(z, y)
    assert 0 <= got["ece"] <= 1
    assert 0 <= got["adaptive_ece"] <= 1
    assert -1 - 1e-12 <= got["mcc"] <= 1 + 1e-12
    assert 0 <= got["brier"] <= 2 + 1e-12
    assert got["nll"] >= 0
    again = measure(z[list(order)], y[list(order)])
    for name in got:
        assert again[name] == pytest.approx(got[name], abs=1e-12, rel=1e-12)
    p = softmax(z)
    assert ece(p, y) == pytest.approx(slow_ece(p, y), abs=1e-12)
    assert adaptive_ece(p, y) == pytest.approx(slow_adaptive_ece(p, y), abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(LOGITS)
def test_temperature_never_hurts(case):
    z, y, _ = case
    t = fit_temperature(z, y)
    assert MIN_TEMPERATURE <= t <= MAX_TEMPERATURE
    before, after = measure(z, y), measure(z, y, temperature=t)
    assert after["nll"] <= before["nll"]
    for name in ("accuracy", "macro_f1", "mcc"):
        assert after[name] == before[name]
