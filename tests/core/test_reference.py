"""Every method against the slow reference, float64, pinned draws, 1e-9: MiniLM once, all options on a narrow BERT."""

from __future__ import annotations

import pytest
import reference
import torch

import mixwell
import parts
import zoo

PERM = torch.tensor([2, 0, 1, 4, 5, 3])
PAIRS = torch.tensor([3, 2, 1, 0, 5, 4])
FIXED = torch.tensor([1, 0, 2, 5, 4, 3])
SEP, UNUSED, PAD = 102, 1, 0


@pytest.fixture(scope="module")
def model():
    return zoo.narrow()  # with scaled dot product attention, the default


@pytest.fixture(scope="module")
def minilm():
    return zoo.minilm()


@pytest.fixture(scope="module")
def batch():
    return zoo.text_batch()


def check(model, batch, method, options, expected, *, pin=None, hidden=True):
    """Compare hidden states, logits, loss and gradients of one training forward with `expected()`."""
    model.train()
    model.zero_grad(set_to_none=True)
    with mixwell.attach(model, method, **options) as mixer:
        with mixer.pin(**(pin or {})):
            out = model(**batch, output_hidden_states=True)
        out.loss.backward()
        plan = mixer.last
    ours = zoo.gradients(model)
    model.zero_grad(set_to_none=True)
    want = expected(plan)
    want.loss.backward()
    theirs = zoo.gradients(model)
    torch.testing.assert_close(out.logits, want.logits, rtol=0, atol=1e-9)
    torch.testing.assert_close(out.loss, want.loss, rtol=0, atol=1e-9)
    if hidden:
        for mine, other in zip(out.hidden_states, want.hidden_states, strict=True):
            difference = ((mine - other).abs() * want.mask.unsqueeze(-1)).max()
            assert difference < 1e-9
    assert ours.keys() >= theirs.keys()
    for name in ours:
        # BatchMixup's dot loss does not read the head's bias; it gets a gradient of 0 all the same, for DDP.
        want_gradient = theirs.get(name, torch.zeros_like(ours[name]))
        assert (ours[name] - want_gradient).abs().max() <= 1e-9, name
    return plan


SEP_FILL = dict(padding="sep", fill_id=None, partner_fill="pair")
# The reference, what is pinned in both, its other arguments, and what it takes from our draw.
REAL = {
    "none": (reference.plain, {}, {}, ()),
    "amplify": (reference.amplify, dict(lam=0.7, perm=PERM), {}, ()),
    "embedmix": (reference.embedmix, dict(lam=0.7, perm=PERM), {}, ()),
    "sentencemix": (reference.sentencemix, dict(lam=0.7, perm=PERM), {}, ()),
    "cls": (reference.sentencemix, dict(lam=0.7, perm=PERM), {}, ()),
    "tmix": (reference.tmix, dict(lam=0.6, perm=PERM, layer=4), {}, ()),
    "input": (reference.input_mixup, dict(lam=0.35, perm=PERM), SEP_FILL, ()),
    "manifold": (reference.manifold, dict(lam=0.35, perm=PERM, point=3), SEP_FILL, ()),
    "attentionmix": (reference.attentionmix, dict(perm=PERM), {}, ()),
    "batchmixup": (reference.batchmixup, {}, {}, ("policy",)),
    "nonlinear": (reference.nonlinear, dict(perm=PERM), dict(point="sentence"), ("gate",)),
}
OUR_NAMES = {"perm": "permutation", "point": "layer"}


# The other attention only where a method looks at attention or mixes what it returns.
@pytest.mark.parametrize(
    ("name", "attention"),
    parts.some([*((name, "sdpa") for name in REAL), ("amplify", "eager"), ("attentionmix", "eager")], 2),
)
def test_real_weights(minilm, batch, name, attention):
    slow, pinned, more, drawn = REAL[name]
    minilm.set_attn_implementation(attention)
    check(
        minilm, batch, name, {}, pin={OUR_NAMES.get(key, key): value for key, value in pinned.items()},
        expected=lambda plan: slow(minilm, batch, **pinned, **more, **{key: plan.extra[key] for key in drawn}),
    )  # fmt: skip


def test_none_is_plain(model, batch):
    check(model, batch, "none", {}, lambda plan: reference.plain(model, batch))


@pytest.mark.parametrize("perm", [PERM, PAIRS, FIXED], ids=["cycles", "pairs", "fixed"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layers": [1, 4]},
        {"site": "attention_raw"},
        {"site": "attention_raw", "layers": [0]},
        {"padding": "keep"},
        {"padding": "keep", "site": "attention_raw"},
    ],
    ids=str,
)
def test_amplify(model, batch, options, perm):
    check(
        model, batch, "amplify", options, pin=dict(lam=0.7, permutation=perm),
        expected=lambda plan: reference.amplify(model, batch, lam=0.7, perm=perm, **options),
    )  # fmt: skip


@pytest.mark.parametrize("lam", [0.8, 0.3])
@pytest.mark.parametrize("options", [{}, {"layers": [2, 3, 5]}, {"padding": "keep"}], ids=str)
def test_amplify_consistent(model, batch, options, lam):
    check(
        model, batch, "amplify", {"consistent": True, **options}, pin=dict(lam=lam, permutation=PAIRS),
        expected=lambda plan: reference.amplify(model, batch, lam=lam, perm=PAIRS, consistent=True, **options),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["embedmix", "sentencemix", "cls"])
@pytest.mark.parametrize(
    "lam", [0.7, torch.tensor([0.2, 1.0, 0.5, 0.9, 0.4, 0.6], dtype=torch.float64)], ids=["one", "rows"]
)
def test_embedmix_and_sentencemix(model, batch, name, lam):
    slow = reference.embedmix if name == "embedmix" else reference.sentencemix
    check(
        model, batch, name, {}, pin=dict(lam=lam, permutation=PERM),
        expected=lambda plan: slow(model, batch, lam=lam, perm=PERM),
    )  # fmt: skip


@pytest.mark.parametrize("layer", [3, 4, 5])
def test_tmix(model, batch, layer):
    check(
        model, batch, "tmix", {}, pin=dict(lam=0.6, permutation=PERM, layer=layer),
        expected=lambda plan: reference.tmix(model, batch, lam=0.6, perm=PERM, layer=layer),
    )  # fmt: skip


FILLS = [
    ({"padding": "sep"}, None),
    ({"padding": "sep", "sep_token_id": SEP}, SEP),
    ({"padding": "sep", "extent": "max"}, SEP),
    ({"padding": "unused", "unused_token_id": UNUSED}, UNUSED),
    ({"padding": "unused", "unused_token_id": UNUSED, "extent": "max"}, UNUSED),
    ({"padding": "pad"}, PAD),
    ({"padding": "pad", "extent": "max"}, PAD),
    ({"padding": "none"}, None),
]


@pytest.mark.parametrize("perm", [PERM, PAIRS, FIXED], ids=["cycles", "pairs", "fixed"])
@pytest.mark.parametrize(("options", "fill"), FILLS, ids=str)
def test_input(model, batch, options, fill, perm):
    known = {k: v for k, v in options.items() if k in ("padding", "extent")}
    check(
        model, batch, "input", options, pin=dict(lam=0.35, permutation=perm),
        expected=lambda plan: reference.input_mixup(
            model, batch, lam=0.35, perm=perm, fill_id=fill, partner_fill="pair", **known
        ),
    )  # fmt: skip


@pytest.mark.parametrize("point", range(8))
@pytest.mark.parametrize("padding", ["sep", "none"])
def test_manifold(model, batch, point, padding):
    check(
        model, batch, "manifold", {"padding": padding}, pin=dict(lam=0.35, permutation=PERM, layer=point),
        expected=lambda plan: reference.manifold(
            model, batch, lam=0.35, perm=PERM, point=point, padding=padding, fill_id=None, partner_fill="pair"
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    "options", [{}, {"head": 3}, {"block": 2}, {"block": 5, "head": 0}, {"after": 0}, {"after": 4, "block": 2}], ids=str
)
@pytest.mark.parametrize("perm", [PERM, FIXED], ids=["cycles", "fixed"])
def test_attentionmix(model, batch, options, perm):
    plan = check(
        model, batch, "attentionmix", options, pin=dict(permutation=perm),
        expected=lambda plan: reference.attentionmix(model, batch, perm=perm, **options),
    )  # fmt: skip
    want = reference.attentionmix(model, batch, perm=perm, **options).label_weight
    torch.testing.assert_close(plan.label_weight, want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("weights", ["element", "sample"])
@pytest.mark.parametrize("loss_form", ["cross_entropy", "dot"])
@pytest.mark.parametrize("extra", [{}, {"points": 9}, {"temperature": 0.2}], ids=str)
def test_batchmixup(model, batch, weights, loss_form, extra):
    check(
        model, batch, "batchmixup", {"weights": weights, "loss_form": loss_form, **extra},
        expected=lambda plan: reference.batchmixup(
            model, batch, policy=plan.extra["policy"], weights=weights, loss=loss_form,
            temperature=extra.get("temperature", 1.0),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("point", ["sentence", "embeddings"])
@pytest.mark.parametrize("perm", [PERM, FIXED], ids=["cycles", "fixed"])
def test_nonlinear(model, batch, point, perm):
    check(
        model, batch, "nonlinear", {"point": point}, pin=dict(permutation=perm),
        expected=lambda plan: reference.nonlinear(model, batch, gate=plan.extra["gate"], perm=perm, point=point),
    )  # fmt: skip


@pytest.mark.parametrize("fraction", [0.1, 0.3])
@pytest.mark.parametrize(
    ("which", "perm"),
    [("model", PERM), ("model", PAIRS), ("model", FIXED), ("minilm", PERM)],
    ids=["cycles", "pairs", "fixed", "real weights"],
)
def test_ssmix_picks_the_same_spans(request, batch, which, perm, fraction):
    model = request.getfixturevalue(which)
    special = [101, 102, 0]
    ids, weight, _ = reference.ssmix(model, batch, perm=perm, special_ids=special, fraction=fraction)
    seen = {}
    model.train()
    model.zero_grad(set_to_none=True)
    with mixwell.attach(model, "ssmix", fraction=fraction) as mixer:
        spy = model.bert.register_forward_pre_hook(
            lambda module, args, kwargs: seen.update(ids=args[0] if args else kwargs["input_ids"]), with_kwargs=True
        )
        with mixer.pin(permutation=perm):
            out = model(**batch)
        spy.remove()
        out.loss.backward()
        torch.testing.assert_close(mixer.last.label_weight, weight, rtol=0, atol=1e-12)
    assert torch.equal(seen["ids"], ids)
    ours = zoo.gradients(model)
    model.zero_grad(set_to_none=True)
    want = reference.ssmix_result(model, batch, perm=perm, special_ids=special, fraction=fraction)
    want.loss.backward()
    torch.testing.assert_close(out.loss, want.loss, rtol=0, atol=1e-9)
    theirs = zoo.gradients(model)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize(("task", "labels"), [("multi_label", 4), ("regression", 1)])
@pytest.mark.parametrize("name", ["amplify", "embedmix", "batchmixup"])
def test_other_tasks(task, labels, name):
    model, batch = zoo.narrow(num_labels=labels), zoo.text_batch(labels, task)
    batch["labels"] = batch["labels"].double()
    pin = {} if name == "batchmixup" else dict(lam=0.7, permutation=PERM)
    slow = {
        "amplify": lambda plan: reference.amplify(model, batch, lam=0.7, perm=PERM),
        "embedmix": lambda plan: reference.embedmix(model, batch, lam=0.7, perm=PERM),
        "batchmixup": lambda plan: reference.batchmixup(model, batch, policy=plan.extra["policy"]),
    }[name]
    check(model, batch, name, {}, slow, pin=pin)
