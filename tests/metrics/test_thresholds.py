"""Thresholds, energies and AUROC against slow references."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixwell.metrics.thresholds import LEAST_ANSWERS, MOST_POINTS, auroc, choose_point, confidences, energy, frontier

ROWS = st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=80)


@given(ROWS, st.floats(0.01, 1.0))
def test_choice_against_all_thresholds(rows: list[tuple[int, bool]], wanted: float) -> None:
    confidence, right = np.array([c / 20 for c, _ in rows]), np.array([ok for _, ok in rows])
    fit = []
    for threshold in set(confidence.tolist()):
        chosen = right[confidence >= threshold]
        if len(chosen) >= LEAST_ANSWERS and chosen.mean() >= wanted:
            fit.append(threshold)
    point = choose_point(frontier(confidence, right), wanted)
    assert (point is None) == (not fit)
    if point is not None:
        assert point.threshold == min(fit)
        assert point.coverage == pytest.approx((confidence >= point.threshold).mean())
        assert point.precision == pytest.approx(right[confidence >= point.threshold].mean())


def test_many_rows_make_few_points() -> None:
    draw = np.random.default_rng(0)
    confidence = draw.random(50_000)
    points = frontier(confidence, draw.random(50_000) < confidence)
    assert 10 < len(points) <= MOST_POINTS
    assert all(a.precision < b.precision and a.coverage > b.coverage for a, b in itertools.pairwise(points))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_auroc(inside: list[int], outside: list[int]) -> None:
    pairs = [(b > a) + (b == a) / 2 for a in inside for b in outside]
    assert auroc(inside, outside) == pytest.approx(np.mean(pairs))


def test_energy_and_confidence() -> None:
    logits = np.array([[1.0, -2.0, 0.5], [300.0, -300.0, 0.0]])
    assert energy(logits)[0] == pytest.approx(-np.log(np.exp(logits[0]).sum()))
    assert energy(logits)[1] == pytest.approx(-300.0)
    assert energy(logits, "multi_label")[0] == pytest.approx(-np.log1p(np.exp(logits[0])).sum())
    p = np.array([[0.7, 0.2]])
    assert confidences(p)[0] == 0.7 and confidences(p, "multi_label")[0] == pytest.approx(0.7 * 0.8)
