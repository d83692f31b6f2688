"""The probe, the folds, and what held-out rows decide, each against a slow or independent version."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixwell.metrics.measure import measure
from mixwell.metrics.scores import row_nll, softmax
from mixwell.metrics.temperature import fit_temperature
from mixwell.training import probe
from mixwell.training.folds import assign_folds, seen_elsewhere
from mixwell.training.held_out import (
    HeldOut,
    best_epoch,
    fine_tuning_is_better,
    probe_is_better,
    standard_error,
    validation_parts,
)


def blobs(rows: int = 90, classes: int = 3, width: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    centres = draw.normal(size=(classes, width))
    return centres[y] + draw.normal(size=(rows, width)), y


# --- folds -----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=4, max_size=80),
    st.integers(2, 6),
    st.integers(0, 3),
)
def test_folds_keep_equal_texts_together_and_classes_apart(rows: list, folds: int, seed: int) -> None:
    texts, labels = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    found = assign_folds(texts, labels, folds, seed)
    assert set(found) <= set(range(folds))
    for text in set(texts):
        assert len(set(found[texts == text])) == 1
    order = np.random.default_rng(0).permutation(len(rows))
    assert np.array_equal(assign_folds(texts[order], labels[order], folds, seed), found[order])


def test_folds_of_different_texts_are_stratified_and_of_one_size() -> None:
    labels = np.repeat([0, 1, 2], [50, 33, 7])
    found = assign_folds(np.arange(90), labels, 5, 1)
    assert np.ptp(np.bincount(found)) <= 1
    for label in range(3):
        assert np.ptp(np.bincount(found[labels == label], minlength=5)) <= 1
    assert not np.array_equal(found, assign_folds(np.arange(90), labels, 5, 2))


# --- the probe -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_probe_is_scikit_learns(classes: int) -> None:
    """Same optimum as a logistic regression on centred features, fitted to the end."""
    from sklearn.linear_model import LogisticRegression

    x, y = blobs(120, classes)
    found = probe.fit_probe(x, y, "single_label", classes, strength=1.0)
    wanted = LogisticRegression(C=1.0, max_iter=10_000, tol=1e-10).fit(x - x.mean(0), y)
    ours = softmax(found.outputs(x))
    assert np.allclose(ours, wanted.predict_proba(x - x.mean(0)), atol=5e-3)


def test_held_out_rows_are_not_seen() -> None:
    """Changing a row's own label does not change its held-out prediction."""
    x, y = blobs()
    folds = assign_folds(np.arange(len(y)), y, 5)
    before = probe.fit_probe(x, y, "single_label", 3, folds, strength=1.0).held_out
    other = y.copy()
    other[7] = (other[7] + 1) % 3
    after = probe.fit_probe(x, other, "single_label", 3, folds, strength=1.0).held_out
    mine = folds == folds[7]
    assert np.array_equal(before[mine], after[mine])
    assert not np.array_equal(before[~mine], after[~mine])


def test_the_strength_with_the_lowest_held_out_loss_is_chosen() -> None:
    x, y = blobs(60, 3, 20)
    folds = assign_folds(np.arange(len(y)), y, 4)
    chosen = probe.fit_probe(x, y, "single_label", 3, folds)
    losses = {}
    for strength in probe.STRENGTHS:
        held = probe.fit_probe(x, y, "single_label", 3, folds, strength).held_out
        losses[strength] = min(row_nll(held / t, y).mean() for t in np.geomspace(0.05, 20, 400))
    assert losses[chosen.strength] <= min(losses.values()) + 1e-3


def test_a_class_that_a_fold_lacks_is_possible_but_unlikely() -> None:
    x, y = blobs(30, 2)
    y[4] = 2
    folds = assign_folds(np.arange(30), y, 3)
    found = probe.fit_probe(x, y, "single_label", 3, folds)
    assert np.isfinite(found.held_out).all()
    assert found.held_out[4].argmax() != 2
    assert not seen_elsewhere(y, folds, "single_label")[4]
    assert seen_elsewhere(y, folds, "single_label").sum() == 29


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_other_tasks(task: str) -> None:
    x, y = blobs(100, 2)
    target = np.stack([y, 1 - y, np.ones(100)], axis=1).astype(float) if task == "multi_label" else x @ np.arange(6.0)
    folds = assign_folds(np.arange(100), np.zeros(100), 5)
    found = probe.fit_probe(x, target, task, 3 if task == "multi_label" else 1, folds)
    metrics = measure(found.held_out if task == "multi_label" else found.held_out[:, 0], target, task)
    assert metrics["micro_f1"] > 0.9 if task == "multi_label" else metrics["mse"] < 0.1


def test_a_humble_start_is_as_sure_as_it_is_right() -> None:
    x, y = blobs(40, 4, 30)
    x = x + 3 * np.random.default_rng(1).normal(size=x.shape)
    folds = assign_folds(np.arange(40), y, 5)
    found = probe.fit_probe(x, y, "single_label", 4, folds, strength=100.0)
    assert 0 < found.start_scale < 1
    start = row_nll(found.start_scale * found.outputs(x), y).mean()
    held = min(row_nll(found.held_out / t, y).mean() for t in np.geomspace(0.05, 20, 400))
    assert start == pytest.approx(held, abs=2e-3)


# --- pairs -----------------------------------------------------------------------------------------------------------


def test_the_loss_of_pairs_by_hand() -> None:
    import torch

    from mixwell.training.pair_loss import pair_loss

    draw = torch.Generator().manual_seed(0)
    features = torch.randn(7, 5, generator=draw, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 2, 1, 0, 3])
    same, other = [], []
    for one in range(7):
        for two in range(7):
            if one == two:
                continue
            cosine = float(features[one] @ features[two] / features[one].norm() / features[two].norm())
            if labels[one] == labels[two]:
                same.append((1 - cosine) ** 2)
            else:
                other.append(cosine**2)
    assert float(pair_loss(features, labels)) == pytest.approx(np.mean(same) + np.mean(other))
    alone = pair_loss(features[:1].requires_grad_(), labels[:1])
    assert float(alone.detach()) == 0 and alone.requires_grad


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 16), st.integers(0, 5))
def test_pairs_of_rows(sizes: list[int], pairs: int, seed: int) -> None:
    """Every other pair is of one class; where there is one class only, all are."""
    from mixwell.training.contrastive import draw_pairs

    labels = np.repeat(np.arange(len(sizes)), sizes)
    first, second, one_class = draw_pairs(labels, pairs, np.random.default_rng(seed))
    assert len(first) == len(second) == len(one_class) == pairs
    assert np.array_equal(labels[first] == labels[second], one_class)
    assert one_class.sum() == (pairs if len(sizes) == 1 else (pairs + 1) // 2)


def test_cosine_loss_by_hand() -> None:
    import torch

    from mixwell.training.contrastive import cosine_loss

    first, second = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    one_class = torch.tensor([True, False, True, True, False])
    expected = [
        (np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)) - float(same)) ** 2
        for a, b, same in zip(first.numpy(), second.numpy(), one_class.numpy(), strict=True)
    ]
    assert float(cosine_loss(first, second, one_class)) == pytest.approx(np.mean(expected))


def test_the_strength_is_chosen_by_the_loss_that_would_be_applied() -> None:
    """A penalty that is right as it is wins over one that is too sure and has too few rows for a temperature."""
    logits, y = world(9, 1.0)
    calibrated, sharp = held(logits, y), held(8 * logits, y)
    assert sharp.temperature()[0] == 1.0  # too few rows for one
    losses = [-np.log(np.exp(row[label]) / np.exp(row).sum()) for row, label in zip(8 * logits, y)]
    losses = [loss for loss, known in zip(losses, sharp.known()) if known]
    assert sharp.careful_loss() == pytest.approx(np.mean(losses) + np.std(losses, ddof=1) / len(losses) ** 0.5)
    assert probe.best_strength({1.0: calibrated, 100.0: sharp}) == 1.0


def test_a_lucky_candidate_does_not_win_on_few_rows() -> None:
    """Fifteen rows right and one badly wrong is a little better on average than a candidate that is never far off."""
    y = np.arange(16) % 2
    right = np.where(np.eye(2, dtype=bool)[y], 1.0, -1.0)
    sure, modest = 3.0 * right, 0.35 * right
    sure[0] *= -1
    lucky, careful = held(sure, y), held(modest, y)
    assert lucky.losses().mean() < careful.losses().mean()
    assert lucky.careful_loss() > careful.careful_loss()


# --- what held-out rows decide ----------------------------------------------------------------------------------------


def held(logits: np.ndarray, y: np.ndarray) -> HeldOut:
    return HeldOut("out_of_fold", logits, y, "single_label", validation_parts(len(y)))


def world(rows: int, sharpness: float, seed: int = 0, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose softmax is right at sharpness 1, and labels drawn from them."""
    draw = np.random.default_rng(seed)
    logits = 2 * draw.normal(size=(rows, classes))
    y = np.array([draw.choice(classes, p=row) for row in softmax(logits)])
    return sharpness * logits, y


def test_a_temperature_that_helps_is_taken() -> None:
    temperature, note = held(*world(400, 3.0)).temperature()
    assert temperature == pytest.approx(3, rel=0.2)
    assert note is None


@pytest.mark.parametrize("rows", [15, 40, 400])
def test_a_temperature_within_noise_is_not(rows: int) -> None:
    taken = [held(*world(rows, 1.0, seed)).temperature()[0] != 1.0 for seed in range(40)]
    assert np.mean(taken) <= 0.15
    temperature, note = held(*world(rows, 1.0, 0)).temperature()
    assert temperature == 1.0
    assert "no temperature" in note


def test_scaled_losses_by_hand() -> None:
    logits, y = world(50, 2.0)
    one = held(logits, y)
    for part in range(5):
        out = one.parts == part
        t = fit_temperature(logits[~out], y[~out])
        assert np.allclose(one.scaled_losses()[out], row_nll(logits[out] / t, y[out]))


def test_the_best_epoch_is_not_the_least_sure_one() -> None:
    """Confidence alone does not decide: a temperature would take it away."""
    good, y = world(300, 1.0)
    poor = good + 2 * np.random.default_rng(1).normal(size=good.shape)
    assert best_epoch(np.stack([0.3 * poor, 6 * good, poor]), held(good, y)) == 2


def test_the_probe_wins_only_when_it_is_better() -> None:
    good, y = world(300, 1.0)
    poor = good + 2 * np.random.default_rng(1).normal(size=good.shape)
    assert probe_is_better(held(poor, y), held(good, y))
    assert not probe_is_better(held(good, y), held(poor, y))
    assert not probe_is_better(held(good, y), held(good, y))
    assert standard_error(np.array([1.0])) == np.inf


def test_fine_tuning_has_to_show_that_it_is_better() -> None:
    """A gain within noise is not enough, in the loss or in the accuracy; the probe is cheaper and less lucky."""
    good, y = world(300, 1.0)
    poor = good + 2 * np.random.default_rng(1).normal(size=good.shape)
    alike = good + 0.05 * np.random.default_rng(2).normal(size=good.shape)
    assert fine_tuning_is_better(held(good, y), held(poor, y))
    assert not fine_tuning_is_better(held(poor, y), held(good, y))
    assert not fine_tuning_is_better(held(good, y), held(good, y))
    for tuned, other in ((good, alike), (alike, good)):
        gain = held(other, y).scaled_losses() - held(tuned, y).scaled_losses()
        assert fine_tuning_is_better(held(tuned, y), held(other, y)) == (gain.mean() > standard_error(gain))


def test_more_right_rows_decide_where_the_loss_does_not() -> None:
    """The tuned model is right where the probe is nearly undecided, and as sure: the loss gains less than its error."""
    y = np.zeros(100, dtype=int)
    y[50:] = 1
    sign = np.where(y == 0, 1.0, -1.0)
    sure = 2.0 * sign
    sure[::10] *= -1  # the same mistakes of both
    probe = np.stack([sure, -sure], axis=1)
    tuned = probe.copy()
    probe[5::10] = np.stack([-0.01 * sign[5::10], 0.01 * sign[5::10]], axis=1)
    tuned[5::10] = -probe[5::10]
    gain = held(probe, y).scaled_losses() - held(tuned, y).scaled_losses()
    assert gain.mean() > 0
    assert fine_tuning_is_better(held(tuned, y), held(probe, y))
    assert not fine_tuning_is_better(held(probe, y), held(tuned, y))
