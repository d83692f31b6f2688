"""Random numbers: distributions, repeatability, partners."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import mixwell
import zoo
from mixwell.core.draw import draw_folded, draw_max_of, draw_permutation, generator, sample_beta
from mixwell.methods.registry import build
from mixwell.methods.tmix import scaled_layers

CPU = torch.device("cpu")


def test_max_of_five():
    """Mean 0.9616, P(lam < 1/2) = 1/32, P(lam > 0.99) = 0.855, within four standard errors."""
    rng = generator(1)
    draws = torch.tensor([draw_max_of(0.1, 5, rng) for _ in range(20000)], dtype=torch.float64)
    assert abs(draws.mean() - 0.9616) < 4 * draws.std() / math.sqrt(len(draws))
    for share, want in (((draws < 0.5).double().mean(), 1 / 32), ((draws > 0.99).double().mean(), 0.855)):
        assert abs(share - want) < 4 * math.sqrt(want * (1 - want) / len(draws))


@pytest.mark.parametrize(("schedule", "mixed"), [("late", [0, 0, 1, 1]), ("early", [1, 1, 1, 0])])
def test_a_schedule_mixes_in_a_part_of_training(schedule, mixed):
    model = zoo.tiny("bert").train()
    seen = []
    with mixwell.attach(model, "cls", schedule=schedule, total_steps=4) as mixer:
        for _ in range(4):
            model(**zoo.batch()).loss.backward()
            seen.append(int(not mixer.last.plain))
    assert seen == mixed
    kept = mixer.method.options()
    assert kept["schedule"] == schedule and not {"start", "stop"} & kept.keys()
    assert "schedule" not in build("cls", {}).options()


@pytest.mark.parametrize(("strength", "alpha", "share"), [("mild", 0.1, 6), ("medium", 0.4, 16), ("strong", 1.0, 25)])
def test_strength_in_words(strength, alpha, share):
    """The partner's share as the docs have it, in per cent; a record keeps the word, and is read back from it."""
    for name in ("amplify", "input", "tmix"):
        method = build(name, {"strength": strength})
        assert (method.alpha, method.draw) == (alpha, "folded")
        kept = method.options()
        assert kept["strength"] == strength and not {"alpha", "draw"} & kept.keys()
        assert build(name, kept) == method
    assert "strength" not in build("amplify", {}).options()
    rng = generator(3)
    drawn = torch.tensor([method.draw_lam(rng) for _ in range(20000)], dtype=torch.float64)
    assert abs(100 * (1 - drawn).mean() - share) < 1


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.75, 1.0, 3.0])
def test_beta(alpha):
    draws = sample_beta(alpha, (20000,), generator(int(alpha * 100))).numpy()
    assert stats.kstest(draws, stats.beta(alpha, alpha).cdf).pvalue > 1e-3


def test_tiny_alpha_gives_no_nan():
    draws = sample_beta(1e-3, (5000,), generator(0))
    assert torch.isfinite(draws).all()
    assert 0.4 < draws.mean() < 0.6


def test_folded():
    rng = generator(3)
    assert all(0.5 <= draw_folded(0.2, rng) <= 1 for _ in range(500))


@given(st.integers(2, 33), st.integers(0, 2**62), st.sampled_from(["random", "pairs", "length", "label"]))
@settings(max_examples=200, deadline=None)
def test_partners(size, seed, pairing):
    labels = torch.randint(0, 4, (size,), generator=generator(seed, 1))
    lengths = torch.randint(1, 50, (size,), generator=generator(seed, 2))
    perm = draw_permutation(pairing, size, generator(seed), device=CPU, lengths=lengths, labels=labels, classes=4)
    assert sorted(perm.tolist()) == list(range(size))
    if pairing in ("pairs", "length"):
        assert torch.equal(perm[perm], torch.arange(size))
        assert (perm == torch.arange(size)).sum() == size % 2
    if pairing == "length":
        # The best a mutual pairing can do: neighbours in order of length, one row of even rank left alone.
        ordered = lengths.sort().values
        gap = int((lengths - lengths[perm]).abs().sum()) // 2
        if size % 2 == 0:
            assert gap == int((ordered[1::2] - ordered[::2]).sum())
        else:
            gaps = set()
            for alone in range(0, size, 2):
                rest = torch.cat([ordered[:alone], ordered[alone + 1 :]])
                gaps.add(int((rest[1::2] - rest[::2]).sum()))
            assert gap in gaps
    if pairing == "label":
        longest = int(labels.bincount().max())
        same = int((labels == labels[perm]).sum())
        assert same == 0 if 2 * longest <= size else same <= 2 * longest - size
        assert size == 1 or (perm != torch.arange(size)).all()


@given(st.integers(1, 48))
def test_scaled_layers(depth):
    layers = scaled_layers(depth)
    assert layers == sorted(set(layers))
    assert layers[-1] == depth - 1
    assert layers[0] >= (depth - 1) // 2
    assert scaled_layers(12) == [6, 8, 11]


def test_one_seed_a_forward_whatever_the_method():
    model, batch = zoo.tiny("bert").train(), zoo.batch()
    states = set()
    for name in mixwell.methods():
        with mixwell.attach(model, name):
            torch.manual_seed(4)
            model(**batch)
            states.add(bytes(torch.get_rng_state().numpy()))
    torch.manual_seed(4)
    torch.empty((), dtype=torch.int64).random_()
    assert states == {bytes(torch.get_rng_state().numpy())}


def test_a_restored_random_state_repeats_the_draws():
    model, batch = zoo.tiny("bert").train(), zoo.batch()
    for name in ("amplify", "manifold", "nonlinear", "batchmixup"):
        with mixwell.attach(model, name) as mixer:
            model(**batch)
            state = torch.get_rng_state()

            def draws(mixer=mixer):
                seen = []
                for _ in range(3):
                    model(**batch)
                    plan = mixer.last
                    seen.append((plan.lam, plan.layer, plan.permutation.tolist(), plan.label_weight.tolist()))
                return seen

            first = draws()
            torch.set_rng_state(state)
            assert draws() == first
            assert len({str(draw) for draw in first}) == 3


def test_ranks_draw_differently(monkeypatch):
    from mixwell.core import draw

    seeds = []
    for rank in range(3):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        torch.manual_seed(0)
        seeds.append(draw.take_seed())
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)


@given(lam=st.floats(0.5, 1.0), blocks=st.integers(1, 24))
@settings(deadline=None)
def test_consistent_weights_compound_to_lam(lam, blocks):
    """Mixing a mutual pair K times with the share of each block leaves lam of a row's own."""
    share = (1 + (2 * lam - 1) ** (1 / blocks)) / 2
    own = 1.0
    for _ in range(blocks):
        own = share * own + (1 - share) * (1 - own)
    assert abs(own - lam) < 1e-9


@given(
    lam=st.floats(0, 1),
    seed=st.integers(0, 2**31),
    rows=st.integers(2, 9),
)
@settings(max_examples=50, deadline=None)
def test_mix_properties(lam, seed, rows):
    """A mix lies between its parts, is linear, and keeps the batch mean at any lam."""
    from mixwell.methods import mix

    rng = generator(seed)
    x = torch.randn(rows, 3, 4, generator=rng, dtype=torch.float64)
    perm = torch.randperm(rows, generator=rng)
    weight = torch.full((rows,), lam, dtype=torch.float64)
    mixed = mix(x, perm, weight)
    low, high = torch.minimum(x, x[perm]), torch.maximum(x, x[perm])
    assert ((mixed >= low - 1e-12) & (mixed <= high + 1e-12)).all()
    torch.testing.assert_close(mixed.mean(0), x.mean(0))
    assert torch.equal(mix(x, torch.arange(rows), weight), x)
    assert torch.equal(mix(x, perm, torch.ones(rows, dtype=torch.float64)), x)
