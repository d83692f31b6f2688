"""Every method on every model of the family: what must hold bit for bit, and no silent skip."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F

import mixwell
import parts
import zoo
from mixwell.methods import load_all
from mixwell.utils.errors import BatchError, MixwellError, OptionError

METHODS = sorted(load_all())
PERM = torch.tensor([2, 0, 1, 4, 5, 3])
IDENTITY = torch.arange(6)
FITTING = [(kind, name) for kind in zoo.KINDS for name in METHODS if zoo.fits(kind, name)]
# These mix where older methods do, by the same code: a quarter of the models does for each.
NEWER = ("cmixup", "eda", "mit", "nfm", "regmixup", "remix")
MOST = [
    (kind, name)
    for kind, name in FITTING
    if parts.ALL or name not in NEWER or (zoo.KINDS.index(kind) + NEWER.index(name)) % 4 == 0
]
# Every second pair, so that every model has half of the methods and every method half of the models.
HALF = [each for each in MOST if parts.ALL or (zoo.KINDS.index(each[0]) + METHODS.index(each[1])) % 2 == 0]


def spread(offset, *values):
    """A quarter of all pairs of model and method, another one for each offset, for what hardly depends on the pair.

    Every model has each fourth method and every method each fourth model; each pair has one of the values, in turn.
    MIXWELL_SLOW_TESTS=1 has all pairs with all values.
    """
    cases = []
    for kind, name in FITTING:
        i, j = zoo.KINDS.index(kind), METHODS.index(name)
        if parts.ALL:
            cases += [(kind, name, *value) for value in values or ((),)]
        elif (i + j) % 4 == offset:
            cases.append((kind, name, *(values[(i // 4 + j // 4) % len(values)] if values else ())))
    return cases


def on_some(offset):
    return pytest.mark.parametrize(("kind", "name"), spread(offset), ids=lambda value: value)


def pins(name: str, **wanted):
    """Keep the pins a method takes; the others must be refused (see test_refused_pins)."""
    method = load_all()[name]
    if not method.has_lam:
        wanted.pop("lam", None)
    if not method.has_permutation:
        wanted.pop("permutation", None)
    return wanted


def partners(kind: str, name: str) -> torch.Tensor:
    """Return a permutation; where no others are taken, it and its reverse are their own inverses."""
    return torch.tensor([2, 4, 0, 5, 1, 3]) if kind == "deberta-v2" or name == "mit" else PERM


def both_losses(name: str, plain):
    """What a method is compared with that mixes nothing: plain training; RegMixup has its loss twice."""
    logits, loss, gradients = plain
    if name != "regmixup":
        return plain
    return logits, 2 * loss, {key: 2 * value for key, value in gradients.items()}


def run(model, batch, name=None, pin=None, seed=5):
    """One training forward and backward; returns logits, loss and gradients. Name None: not attached."""
    options = {} if name is None else {**zoo.options(model.config.model_type, name), **zoo.strong(name)}
    model.train()
    model.zero_grad(set_to_none=True)
    zoo.seed(seed)
    if name is None:
        out = model(**batch)
        out.loss.backward()
    else:
        with mixwell.attach(model, name, **options) as mixer:
            zoo.seed(seed)
            with mixer.pin(**(pin or {})):
                out = model(**batch)
            plan = mixer.last
            assert pin or plan.plain or not mixer.sites or any(plan.active)  # else there is nothing to see
            out.loss.backward()
    return out.logits.detach(), out.loss.detach(), zoo.gradients(model)


@pytest.fixture(scope="module")
def models():
    return {kind: zoo.sharpen(zoo.tiny(kind)) for kind in zoo.KINDS}


@pytest.mark.parametrize(
    ("kind", "name", "pairs"), [(*each, False) for each in MOST] + [(*each, True) for each in spread(0)]
)
def test_plain_at_lam_one_and_identity(models, kind, name, pairs):
    model, batch = models[kind], zoo.batch(kind, pairs=pairs)
    plain = run(model, batch)
    method = load_all()[name]
    cases = []
    if method.has_lam:
        cases.append(pins(name, lam=1.0, permutation=partners(kind, name)))
    if method.has_permutation:
        cases.append(pins(name, lam=0.3, permutation=IDENTITY))
    if name == "none":
        cases.append({})
    if name in ("batchmixup", "eda"):  # no lam and no partner: plain with one row
        batch = {key: value[:1] for key, value in batch.items()}
        plain = run(model, batch)
        cases.append({})
    assert cases
    plain = both_losses(name, plain)
    for pin in cases:
        logits, loss, gradients = run(model, batch, name, pin)
        assert torch.equal(logits, plain[0])
        assert torch.equal(loss, plain[1])
        if name == "regmixup":  # where a weight is used twice, four gradients are added up in another order than two
            torch.testing.assert_close(gradients, plain[2], rtol=1e-4, atol=1e-6)
        else:
            assert zoo.same(gradients, plain[2])


@pytest.mark.parametrize(
    ("kind", "name"),
    [each for each in spread(1) if each[1] != "regmixup"],  # whose second forward draws a dropout of its own
    ids=lambda value: value,
)
def test_same_random_stream_as_none(kind, name):
    """With dropout on, a method that mixes nothing equals `none` bit for bit."""
    model, batch = zoo.tiny(kind, dropout=0.2), zoo.batch(kind)
    if name in ("batchmixup", "eda"):
        batch = {key: value[:1] for key, value in batch.items()}
    base = run(model, batch, "none")
    pin = pins(name, lam=1.0, permutation=IDENTITY)
    logits, loss, gradients = run(model, batch, name, pin)
    assert torch.equal(logits, base[0])
    assert torch.equal(loss, base[1])
    assert zoo.same(gradients, base[2])


@on_some(1)
def test_mixing_changes_the_output(models, kind, name):
    model, batch = models[kind], zoo.batch(kind)
    logits, loss, gradients = run(model, batch, name, pins(name, lam=0.3, permutation=partners(kind, name)))
    assert torch.isfinite(loss)
    assert gradients
    assert all(torch.isfinite(g).all() for g in gradients.values())
    plain, own, _ = both_losses(name, run(model, batch))
    if name in ("none", "regmixup"):  # whose first forward is plain, and gives the logits
        assert torch.equal(plain, logits)
    else:
        assert (plain - logits).abs().max() > 1e-4
    assert (loss != own) == (name != "none")


@on_some(2)
def test_eval_and_no_grad_are_untouched(models, kind, name):
    model, batch = models[kind], zoo.batch(kind)

    def outputs():
        zoo.seed(2)
        made = []
        for training in (False, True):
            model.train(training)
            with torch.no_grad():
                made.append(model(**batch))
        with torch.enable_grad():
            made.append(model.eval()(**batch))
        return made, torch.get_rng_state()  # models with layer drop draw numbers of their own

    want, state = outputs()
    with mixwell.attach(model, name, **zoo.options(kind, name)) as mixer:
        got, after = outputs()
        assert mixer.last is None
    for mine, other in zip(got, want, strict=True):
        assert torch.equal(mine.logits, other.logits)
        assert torch.equal(mine.loss, other.loss)
    assert torch.equal(after, state)


@pytest.mark.parametrize(("kind", "name", "reentrant"), spread(3, (False,), (True,)))
def test_gradient_checkpointing(kind, name, reentrant):
    model, batch = zoo.sharpen(zoo.tiny(kind, dropout=0.1)), zoo.batch(kind)
    if not model.supports_gradient_checkpointing:
        assert kind in ("albert", "mpnet")
        with pytest.raises(ValueError, match="gradient checkpointing"):
            model.gradient_checkpointing_enable()
        return
    if kind in zoo.DECODERS:
        batch["use_cache"] = False  # checkpointing turns it off, and with it sums come out otherwise, mixed or not
    want = run(model, batch, name)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    got = run(model, batch, name)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
    if reentrant and kind in zoo.ENCODER_DECODERS:
        # Encoder and decoder share their embedding: torch adds its gradients in another order, mixed or not.
        for key in want[2]:
            torch.testing.assert_close(got[2][key], want[2][key], rtol=1e-3, atol=1e-5)
    else:
        assert zoo.same(got[2], want[2])


def test_checkpointing_a_shared_block_by_hand_is_refused():
    """ALBERT calls one block L times; recomputed calls cannot be told apart."""
    from torch.utils.checkpoint import checkpoint

    model = zoo.tiny("albert")
    layer = model.albert.encoder.albert_layer_groups[0]
    inner = layer.forward
    layer.forward = lambda *args, **kwargs: checkpoint(inner, *args, use_reentrant=False, **kwargs)
    mixwell.attach(model, "amplify")
    with pytest.raises(MixwellError, match="shared by 3 blocks"):
        model.train()(**zoo.batch("albert")).loss.backward()


@pytest.mark.parametrize(
    ("kind", "name", "checkpointing"),
    # transformers has no gradient checkpointing for ALBERT and MPNet; test_gradient_checkpointing asserts it.
    [(kind, name, on and kind not in ("albert", "mpnet")) for kind, name, on in spread(0, (False,), (True,))],
)
def test_two_forwards_before_one_backward(kind, name, checkpointing):
    model = zoo.sharpen(zoo.tiny(kind)).double()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    first, second = zoo.batch(kind, seed=1), zoo.batch(kind, seed=2)
    if kind in zoo.IMAGES:
        first["pixel_values"], second["pixel_values"] = first["pixel_values"].double(), second["pixel_values"].double()
    model.train()
    with mixwell.attach(model, name, **zoo.options(kind, name)) as mixer:
        perm = partners(kind, name)
        one, two = pins(name, lam=0.4, permutation=perm), pins(name, lam=0.8, permutation=perm.flip(0))
        zoo.seed(1)
        with mixer.pin(**one):
            a = model(**first)
        with mixer.pin(**two):
            b = model(**second)
        model.zero_grad(set_to_none=True)
        (a.loss + b.loss).backward()
        together = zoo.gradients(model)
        zoo.seed(1)
        model.zero_grad(set_to_none=True)
        with mixer.pin(**one):
            model(**first).loss.backward()
        with mixer.pin(**two):
            model(**second).loss.backward()
        apart = zoo.gradients(model)
    for key in apart:
        torch.testing.assert_close(together[key], apart[key], rtol=1e-10, atol=1e-12)


@on_some(1)
def test_detach_restores(kind, name):
    model, batch = zoo.tiny(kind), zoo.batch(kind)
    keys = {k: v.clone() for k, v in model.state_dict().items()}
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    want = run(model, batch)
    mixer = mixwell.attach(model, name, **zoo.options(kind, name))
    assert model.state_dict().keys() == keys.keys()
    model.train()(**batch).loss.backward()
    assert mixer.detach() is model
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()] == hooks
    assert all(torch.equal(v, keys[k]) for k, v in model.state_dict().items())
    got = run(model, batch)
    assert torch.equal(got[0], want[0])
    assert zoo.same(got[2], want[2])
    mixwell.attach(model, name, **zoo.options(kind, name)).detach()


@pytest.mark.parametrize(("kind", "name"), parts.some(spread(2), 3), ids=lambda value: value)
def test_copies_are_clean(kind, name, tmp_path):
    model, batch = zoo.sharpen(zoo.tiny(kind)), zoo.batch(kind)
    want = run(model, batch)
    with mixwell.attach(model, name, **zoo.options(kind, name)):
        model.train()
        twin = copy.deepcopy(model)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        model.save_pretrained(tmp_path)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    saved = type(model).from_pretrained(tmp_path)
    for other in (twin, loaded, saved):
        got = run(other, batch)
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])
        assert zoo.same(got[2], want[2])
        run(other, batch, name)  # a copy can be attached in its turn


@pytest.mark.parametrize(
    ("kind", "name", "task"), spread(3, ("single_label",), ("multi_label",), ("regression",)), ids=lambda value: value
)
def test_tasks(kind, name, task):
    model = zoo.tiny(kind, num_labels=1 if task == "regression" else 3)
    if kind == "deberta-v2" and task == "multi_label":
        model.config.problem_type = "multi_label_classification"  # its own default is a soft cross-entropy
    batch = zoo.batch(kind, task=task)
    if name == "remix" and task != "single_label":
        with pytest.raises(BatchError, match="remix needs one class number per row"):
            run(model, batch, name)
        return
    plain = both_losses(name, run(model, batch))
    loss = run(model, batch, name)[1]
    assert torch.isfinite(loss)
    if load_all()[name].has_lam:
        assert torch.equal(run(model, batch, name, pins(name, lam=1.0))[1], plain[1])


# --- labels and features share one permutation ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name"),
    # RegMixup gives the logits of its plain forward; what it mixes is mixed by `input`.
    [(kind, name) for kind, name in HALF if load_all()[name].has_permutation and name != "regmixup"],
    ids=lambda value: value,
)
def test_labels_and_features_use_one_permutation(models, kind, name):
    """Labels: constant on the cycles of the pinned permutation, so any other one would change the loss.

    Features: the logits of a row depend on the rows of its own cycle only.
    """
    model, batch = models[kind], zoo.batch(kind)
    perm = torch.tensor([2, 3, 0, 1, 5, 4])
    batch["labels"] = torch.tensor([0, 1, 0, 1, 2, 2])
    model.eval()  # gradients of bare logits are refused in training
    kept = []
    handles = [
        module.register_forward_hook(lambda m, a, out: kept.append(out.requires_grad_(True)))
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings == zoo.VOCABULARY
    ]
    if kind in zoo.IMAGES:
        kept.append(batch["pixel_values"].requires_grad_(True))
    with mixwell.attach(model, name, **zoo.options(kind, name)) as mixer:
        kept = [] if kind not in zoo.IMAGES else kept
        with mixer.pin(**pins(name, lam=0.3, permutation=perm), in_eval=True):
            out = model(**batch)
        used = mixer.last.permutation
    for handle in handles:
        handle.remove()
    assert torch.equal(used, perm)
    # MIT takes the logits apart again: lam = 0.75, the nearest it allows, so z + 0.25 / 0.5 (z - z').
    compared = out.logits + 0.5 * (out.logits - out.logits[perm]) if name == "mit" else out.logits
    torch.testing.assert_close(out.loss, F.cross_entropy(compared, batch["labels"]), rtol=1e-6, atol=1e-6)
    wrong = F.cross_entropy(compared, batch["labels"][torch.tensor([1, 2, 3, 4, 5, 0])])
    assert (wrong - out.loss).abs() > 1e-4  # the check can fail
    for row in range(6):
        # Twice in encoder-decoder models; passes before the forward are not part of its graph.
        reach = torch.autograd.grad(out.logits[row, 0], kept, retain_graph=True, allow_unused=True)
        felt = {j for j in range(6) for part in reach if part is not None and part[j].abs().max() > 0}
        if name == "ssmix":  # tokens are copied, not mixed
            assert felt == {row}
        else:
            assert felt == {row, int(perm[row])}


def test_ssmix_takes_tokens_from_the_partner_whose_label_it_takes(models):
    model, batch = models["bert"], zoo.batch("bert")
    seen = {}
    with mixwell.attach(model.train(), "ssmix") as mixer:
        spy = model.bert.embeddings.register_forward_pre_hook(
            lambda m, a, k: seen.update(ids=k["input_ids"]), with_kwargs=True
        )
        with mixer.pin(permutation=PERM):
            model(**batch)
        spy.remove()
        weight = mixer.last.label_weight
    changed = seen["ids"] != batch["input_ids"]
    assert (weight < 1).all()
    for row in range(6):
        partner = set(batch["input_ids"][PERM[row]].tolist())
        assert set(seen["ids"][row][changed[row]].tolist()) <= partner


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_batchmixup_labels_follow_features(models, kind):
    """At a temperature near 0 each new point is one row of the batch, and must carry that row's label."""
    model, batch = models[kind], zoo.batch(kind)
    model.train()
    with torch.no_grad():
        rows = F.cross_entropy(model(**batch).logits, batch["labels"], reduction="none")
    with mixwell.attach(model, "batchmixup", weights="sample", temperature=1e-6) as mixer:
        loss = model(**batch).loss
        source = mixer.last.extra["policy"].argmax(1)
    torch.testing.assert_close(loss, rows[source].mean(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_refused_pins(name):
    mixer = mixwell.attach(zoo.tiny("bert"), name)
    method = load_all()[name]
    for allowed, pin in (
        (method.has_lam, {"lam": 0.5}),
        (method.has_permutation, {"permutation": PERM}),
        (method.has_layer, {"layer": 1 if name == "manifold" else 2}),
    ):
        if allowed:
            with mixer.pin(**pin):
                pass
        else:
            with pytest.raises(OptionError, match="pinned"), mixer.pin(**pin):
                pass
