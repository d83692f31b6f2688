"""The methods since 2020 against slow references, float64, 1e-9, and what they draw against what the papers say."""

from __future__ import annotations

import dataclasses

import pytest
import reference
import torch
import torch.nn.functional as F
from test_reference import PAIRS, PERM, batch, check, model  # noqa: F401 - fixtures

import mixwell
import zoo
from mixwell.utils.errors import BatchError, OptionError

# ruff: noqa: F811 - fixtures are imported by name

SEP_FILL = dict(padding="sep", fill_id=None, partner_fill="pair")


# --- regmixup ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["regmixup", "input"])
def test_regmixup(model, batch, name):
    """The plain loss and that of `input`; the option `regularise` is the same thing."""

    def expected(plan):
        plain = reference.plain(model, batch)
        mixed = reference.input_mixup(model, batch, lam=0.45, perm=PERM, **SEP_FILL)
        return dataclasses.replace(plain, loss=plain.loss + mixed.loss)

    options = {} if name == "regmixup" else {"regularise": True}
    check(model, batch, name, options, expected, pin=dict(lam=0.45, permutation=PERM))


def test_regmixup_draws_beta_10():
    rng = torch.Generator().manual_seed(0)
    method = mixwell.methods.build("regmixup", {})
    drawn = torch.tensor([method.draw_lam(rng) for _ in range(4000)])
    assert abs(drawn.mean() - 0.5) < 0.01
    assert abs(drawn.var() - 1 / (4 * 21)) < 0.002  # of Beta(a, a): 1 / (4 (2 a + 1))


# --- mit --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lam", "used"), [(0.9, 0.9), (0.1, 0.9), (0.6, 0.75)])
def test_mit(model, batch, lam, used):
    """Two rows mixed both ways give back each its own logits, and the loss is the plain one."""

    def expected(plan):
        found = reference.input_mixup(model, batch, lam=used, perm=PAIRS, **SEP_FILL)
        apart = torch.stack([
            (used * found.logits[row] - (1 - used) * found.logits[other]) / (2 * used - 1)
            for row, other in enumerate(PAIRS.tolist())
        ])  # fmt: skip
        return dataclasses.replace(found, loss=F.cross_entropy(apart, batch["labels"]))

    check(model, batch, "mit", {}, expected, pin=dict(lam=lam, permutation=PAIRS))


def test_a_linear_model_gets_its_plain_loss_from_mit():
    """What is mixed and taken apart again is what it was."""
    torch.manual_seed(0)
    linear = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)).double()
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    weight = torch.full((6, 1), 0.8, dtype=torch.float64)
    z = linear(weight * x + (1 - weight) * x[PAIRS])
    apart = z + (1 - weight) / (2 * weight - 1) * (z - z[PAIRS])
    torch.testing.assert_close(F.cross_entropy(apart, y), F.cross_entropy(linear(x), y))


def test_mit_draws_far_from_one_half():
    rng = torch.Generator().manual_seed(0)
    method = mixwell.methods.build("mit", {"margin": 0.3})
    drawn = torch.tensor([method.draw_lam(rng) for _ in range(500)])
    assert drawn.min() >= 0.65 - 1e-9 and drawn.min() < 0.67 and drawn.max() > 0.98


# --- remix ------------------------------------------------------------------------------------------------------------


def remix_weight(lam: float, own: int, other: int, kappa: float, tau: float) -> float:
    """Eq. 4 of the paper, as written there: the weight of the row's own label."""
    if own / other >= kappa and lam < tau:
        return 0.0
    if own / other <= 1 / kappa and 1 - lam < tau:
        return 1.0
    return lam


@pytest.mark.parametrize("lam", [0.2, 0.4, 0.55, 0.9])
@pytest.mark.parametrize("options", [{}, {"kappa": 1.0, "tau": 0.7}, {"kappa": 50.0}], ids=str)
def test_remix(model, batch, lam, options):
    counts = [100, 10, 30, 300]
    labels = batch["labels"].tolist()

    def expected(plan):
        found = reference.input_mixup(model, batch, lam=lam, perm=PERM, **SEP_FILL)
        weights = [
            remix_weight(lam, counts[labels[row]], counts[labels[other]], options.get("kappa", 3.0),
                         options.get("tau", 0.5))
            for row, other in enumerate(PERM.tolist())
        ]  # fmt: skip
        weight = torch.tensor(weights, dtype=torch.float64)
        assert len(set(weights)) > 1 or "kappa" in options or lam in (0.55,)
        return dataclasses.replace(found, loss=reference.mixed_loss(model, found.logits, batch["labels"], PERM, weight))

    check(model, batch, "remix", {"counts": counts, **options}, expected, pin=dict(lam=lam, permutation=PERM))


def test_remix_counts_labels_as_they_come(model, batch):
    with mixwell.attach(model.train(), "remix") as mixer:
        for _ in range(3):
            model(**batch).loss.backward()
        seen = mixer.method.state()["seen"]
    assert torch.equal(seen, 3 * torch.bincount(batch["labels"], minlength=len(seen)))


def test_remix_leaves_rows_without_a_label_alone(model, batch):
    labels = batch["labels"].clone()
    labels[PERM[0]] = -100
    with mixwell.attach(model.train(), "remix", counts=torch.tensor([1, 100, 100, 100])) as mixer:
        with mixer.pin(lam=0.3, permutation=PERM):
            model(**{**batch, "labels": labels})
        assert mixer.last.label_weight[0] == pytest.approx(0.3)
    assert mixer.method.options()["counts"] == [1, 100, 100, 100]


def test_remix_refuses(model):
    for options, message in (
        ({"kappa": 0.5}, "kappa=0.5"), ({"tau": 2.0}, "tau=2.0"), ({"counts": [1, 2]}, "counts has 2 numbers"),
        ({"counts": [0, 1, 2, 3]}, "counts must be at least 1"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=message):
            mixwell.attach(model, "remix", **options)


# --- cmixup -----------------------------------------------------------------------------------------------------------


def test_cmixup_mixes_with_the_partners_it_drew(model, batch):
    def expected(plan):
        chosen = plan.permutation.tolist()
        plain = reference.plain(model, batch)
        lam = torch.tensor([1.0 if row == other else 0.7 for row, other in enumerate(chosen)], dtype=torch.float64)
        mixed = torch.stack([
            lam[row] * plain.sentence[row] + (1 - lam[row]) * plain.sentence[other] for row, other in enumerate(chosen)
        ])  # fmt: skip
        logits = mixed @ model.classifier.weight.T + model.classifier.bias
        losses = [
            lam[row] * F.cross_entropy(logits[row], batch["labels"][row])
            + (1 - lam[row]) * F.cross_entropy(logits[row], batch["labels"][other])
            for row, other in enumerate(chosen)
        ]
        return dataclasses.replace(plain, logits=logits, loss=torch.stack(losses).mean())

    torch.manual_seed(4)
    plan = check(model, batch, "cmixup", {}, expected, pin=dict(lam=0.7))
    assert len(set(plan.permutation.tolist())) < 6  # two rows have one partner, which a permutation cannot give


@pytest.mark.parametrize("bandwidth", [0.5, 2.0])
def test_cmixup_prefers_near_labels(bandwidth):
    """Partners come as often as eq. 6 says."""
    model = zoo.tiny("bert", num_labels=1)
    inputs = zoo.batch("bert", task="regression")
    values = torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0, 4.0])
    inputs["labels"] = values
    counts, draws = torch.zeros(6, 6), 1500
    with mixwell.attach(model.train(), "cmixup", bandwidth=bandwidth) as mixer, torch.no_grad():
        step = type("Step", (), {"labels": values, "size": 6, "device": torch.device("cpu")})()
        for seed in range(draws):
            rng = torch.Generator().manual_seed(seed)
            counts[torch.arange(6), mixer.method.draw_partners(step, rng)] += 1
    spread = values.var(unbiased=False)
    wanted = torch.stack([torch.exp(-((y - values) ** 2) / (2 * bandwidth**2 * spread)) for y in values])
    wanted = wanted / wanted.sum(1, keepdim=True)
    error = (wanted * (1 - wanted) / draws).sqrt()
    assert ((counts / draws - wanted).abs() <= 4.5 * error + 1e-3).all()


# --- nfm --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [0, 3, 6])
def test_nfm(model, batch, layer):
    def expected(plan):
        partners, lam = PERM.tolist(), 0.35
        rows = torch.full((6,), lam, dtype=torch.float64)
        inputs = reference._filled(reference._inputs(batch), rows, partners, "pair", None, "pair")
        place = ("embeddings", 0) if layer == 0 else ("block", layer - 1)
        add, times = plan.extra["level"].tolist()
        site = layer  # the embeddings and all blocks, in this order

        def noisy(x):
            mixed = torch.stack([lam * x[row] + (1 - lam) * x[other] for row, other in enumerate(partners)])
            rng = torch.Generator().manual_seed(int(plan.extra["seed"]) + site)
            normal = torch.randn(x.shape, generator=rng).double()
            uniform = torch.rand(x.shape, generator=rng).double()
            return (1 + times * (2 * uniform - 1)) * mixed + add * normal

        change = reference._at(place[0], [place[1]], noisy)
        return reference._finish(model, batch, inputs, change, partners, rows)

    plan = check(model, batch, "nfm", {}, expected, pin=dict(lam=0.35, permutation=PERM, layer=layer))
    assert 0 < plan.extra["level"][0] < 0.4 and 0 < plan.extra["level"][1] < 0.2


def test_nfm_without_noise_is_manifold(model, batch):
    pin = dict(lam=0.35, permutation=PERM, layer=3)
    found = []
    for name, options in (("nfm", {"add_noise": 0.0, "mult_noise": 0.0}), ("manifold", {})):
        with mixwell.attach(model.train(), name, **options) as mixer, mixer.pin(**pin):
            found.append(model(**batch).logits.detach())
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_the_strength_of_the_noise_is_a_beta_2_5(model, batch):
    levels = []
    with mixwell.attach(zoo.tiny("bert").train(), "nfm") as mixer:
        for seed in range(150):
            torch.manual_seed(seed)
            mixer.model(**zoo.batch("bert")).loss.backward()
            levels.append(mixer.last.extra["level"] / torch.tensor([0.4, 0.2]))
    values = torch.stack(levels).flatten()
    assert abs(values.mean() - 2 / 7) < 0.03  # mean and variance of Beta(2, 5)
    assert abs(values.var() - 10 / (49 * 8)) < 0.008


# --- eda --------------------------------------------------------------------------------------------------------------


def spied(model, seen):
    """Keep the ids and the mask that the encoder is called with."""

    def keep(module, args, kwargs):
        seen.append((kwargs.get("input_ids", *args[:1]).clone(), kwargs.get("attention_mask", *args[1:2]).clone()))

    return model.bert.register_forward_pre_hook(keep, with_kwargs=True)


def augmented(change: str, rate: float = 0.25, **options):
    """The token ids and the mask that the model saw, and the batch."""
    model, batch, seen = zoo.tiny("bert").train(), zoo.batch("bert"), []
    with mixwell.attach(model, "eda", changes=change, rate=rate, **options):
        spy = spied(model, seen)
        torch.manual_seed(1)
        model(**batch).loss.backward()
        spy.remove()
    return *seen[-1], batch


def inside(batch, row: int) -> list[int]:
    """The places of a row's words, without [CLS], [SEP] and padding."""
    return list(range(1, int(batch["attention_mask"][row].sum()) - 1))


@pytest.mark.parametrize("change", ["delete", "swap", "replace", "mask"])
@pytest.mark.parametrize("rate", [0.01, 0.25, 1.0])
def test_eda_changes_as_many_words_as_it_says(change, rate):
    ids, mask, batch = augmented(change, rate, **({"mask_token_id": 4} if change == "mask" else {}))
    words = set(batch["input_ids"][batch["attention_mask"].bool()].tolist()) - {zoo.CLS, zoo.SEP}
    for row in range(6):
        before, places = batch["input_ids"][row].tolist(), inside(batch, row)
        after = ids[row].tolist()
        wanted = max(1, int(rate * len(places)))
        outside = [place for place in range(len(before)) if place not in places]
        assert [after[place] for place in outside] == [before[place] for place in outside]
        hidden = [place for place in places if not mask[row, place]]
        assert len(hidden) == (wanted if change == "delete" else 0)
        moved = [place for place in places if before[place] != after[place]]
        if change == "delete":
            assert not moved
        elif change == "swap":
            assert sorted(after) == sorted(before) and len(moved) <= min(wanted + 1, len(places))
        elif change == "mask":
            assert len(moved) == wanted and all(after[place] == 4 for place in moved)
        else:
            assert len(moved) <= wanted and all(after[place] in words for place in moved)


def test_eda_draws_one_change_for_each_row_anew():
    model, batch, seen = zoo.tiny("bert").train(), zoo.batch("bert"), []
    with mixwell.attach(model, "eda", rate=0.5) as mixer:
        spy = spied(model, seen)
        for _ in range(30):
            model(**batch).loss.backward()
        assert torch.equal(mixer.last.label_weight, torch.ones(6))
        spy.remove()
    deleted = torch.stack([(mask != batch["attention_mask"]).any(1) for _, mask in seen])
    changed = torch.stack([(ids != batch["input_ids"]).any(1) for ids, _ in seen])
    assert not (deleted & changed).any()
    assert 0.15 < deleted.float().mean() < 0.5  # a third
    assert len({tuple(ids.flatten().tolist()) for ids, _ in seen}) >= 30  # and the plain ones of the first check


def test_eda_draws_words_of_the_batch_evenly():
    from mixwell.core.tokens import draw_from_batch

    ids = torch.arange(12).view(3, 4)
    content = torch.isin(ids, torch.tensor([1, 2, 8, 9, 11]))
    drawn = draw_from_batch(ids, content, torch.linspace(0, 1, 13)[:-1].view(3, 4))
    assert drawn.flatten().tolist() == [1, 1, 1, 2, 2, 8, 8, 8, 9, 9, 11, 11]


def test_eda_refuses():
    model, batch = zoo.tiny("bert").train(), zoo.batch("bert")
    for options, message in (
        ({"rate": 0.0}, "rate=0.0 must lie in"), ({"changes": "delete,sawp"}, "'sawp' is unknown .did you mean 'swap'"),
        ({"changes": "mask"}, "needs mask_token_id="), ({"changes": 3}, "changes=3 must be a text"),
        ({"mask_token_id": -5}, "mask_token_id=-5 must be at least 0"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=message):
            mixwell.attach(model, "eda", **options)
    assert mixwell.attach(model, "eda", changes=["delete", "swap"]).detach() is model
    with pytest.raises(OptionError, match="reads a text a second time"):
        mixwell.attach(zoo.tiny("bart"), "eda")
    del batch["attention_mask"]
    with mixwell.attach(model, "eda"), pytest.raises(BatchError, match="pass one with the batch"):
        model(**batch)
