"""Selective prediction against slow references, by hand and by properties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from mixwell.metrics.measure import measure
from mixwell.metrics.selective import aurc_of, auroc, error_auroc_of, excess_aurc_of, false_accept_rate

ROWS = st.lists(st.tuples(st.sampled_from([0.3, 0.5, 0.7, 0.9]), st.booleans()), min_size=1, max_size=7)


def slow_aurc(confidence, right):
    """The mean over all orders of tied rows, each order written out."""
    areas = []
    for order in itertools.permutations(range(len(right))):
        if any(confidence[a] < confidence[b] for a, b in itertools.pairwise(order)):
            continue
        risks = [np.mean([1 - right[row] for row in order[:k]]) for k in range(1, len(order) + 1)]
        areas.append(np.mean(risks))
    return float(np.mean(areas))


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_aurc_is_the_mean_over_orders_of_ties(rows):
    confidence, right = [row[0] for row in rows], [int(row[1]) for row in rows]
    assert aurc_of(confidence, right) == pytest.approx(slow_aurc(confidence, right))
    perfect = slow_aurc([float(ok) for ok in right], right)
    assert excess_aurc_of(confidence, right) == pytest.approx(slow_aurc(confidence, right) - perfect, abs=1e-9)


def test_by_hand():
    # Risks 0, 1/2, 1/3: the second row is wrong.
    assert aurc_of([0.9, 0.8, 0.7], [1, 0, 1]) == pytest.approx((0 + 1 / 2 + 1 / 3) / 3)
    assert excess_aurc_of([0.9, 0.8, 0.7], [1, 0, 1]) == pytest.approx((1 / 2) / 3)
    assert aurc_of([0.5, 0.5], [1, 1]) == excess_aurc_of([0.1, 0.5], [1, 1]) == 0.0
    assert aurc_of([0.5, 0.4], [0, 0]) == 1.0 and excess_aurc_of([0.5, 0.4], [0, 0]) == 0.0
    assert error_auroc_of([0.9, 0.8], [1, 1]) == error_auroc_of([0.9, 0.8], [0, 0]) == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_error_detection_against_scikit_learn(seed):
    draw = np.random.default_rng(seed)
    right = (draw.random(200) < 0.7).astype(float)
    confidence = (draw.random(200) + 0.3 * right).round(1)  # many ties
    assert error_auroc_of(confidence, right) == pytest.approx(roc_auc_score(right, confidence))
    assert auroc(confidence[:150], confidence[150:]) == pytest.approx(roc_auc_score([1] * 150 + [0] * 50, confidence))


@settings(max_examples=30, deadline=None)
@given(ROWS)
def test_only_the_order_counts(rows):
    confidence, right = np.array([row[0] for row in rows]), np.array([int(row[1]) for row in rows])
    for score in (aurc_of, excess_aurc_of, error_auroc_of):
        assert score(confidence, right) == pytest.approx(score(confidence**3, right))
        assert score(confidence[::-1], right[::-1]) == pytest.approx(score(confidence, right))


def test_a_temperature_changes_nothing():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 4, 90)
    logits = draw.normal(size=(90, 4)) + np.eye(4)[labels]
    plain, scaled = measure(logits, labels), measure(logits, labels, temperature=2.5)
    for name in ("aurc", "excess_aurc", "error_auroc"):
        assert plain[name] == scaled[name]


def test_false_accepts():
    own = np.arange(1, 101) / 100
    assert false_accept_rate(own, [0.01, 0.05, 0.06, 0.5]) == 0.5  # 95 of 100 are at least 0.06
    assert false_accept_rate(own, [0.0, 0.0]) == 0.0 and false_accept_rate([0.3], [0.3, 0.2]) == 0.5
    assert false_accept_rate(own, own, coverage=1.0) == 1.0
