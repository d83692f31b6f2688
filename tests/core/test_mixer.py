"""The mixer's rules: who pays, who may attach, what is refused and in which words."""

from __future__ import annotations

import copy
import gc
import json
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mixwell
import zoo
from mixwell.methods import load_all
from mixwell.utils.errors import (
    AttachError,
    BatchError,
    LabelsNotMixedError,
    LossMismatchError,
    OptionError,
    UnsupportedModelError,
)

PERM = torch.tensor([2, 0, 1, 4, 5, 3])


@pytest.fixture
def model():
    return zoo.sharpen(zoo.tiny("bert")).train()


@pytest.fixture
def batch():
    return zoo.batch()


def without_labels(batch):
    return {k: v for k, v in batch.items() if k != "labels"}


# --- payment --------------------------------------------------------------------------------------------------------


def test_loss_for_loops_that_keep_the_labels(model, batch):
    mixer = mixwell.attach(model, "amplify")
    with mixer.pin(lam=0.6, permutation=PERM):
        want = model(**batch).loss
        out = model(**without_labels(batch))
    got = mixer.loss(out.logits, batch["labels"])
    assert torch.equal(got, want)
    got.backward()


def test_compute_loss_is_plain_in_eval(model, batch):
    mixer = mixwell.attach(model, "amplify")
    with torch.no_grad():
        out = model(**without_labels(batch))
    assert torch.equal(mixer.compute_loss(out, batch["labels"]), F.cross_entropy(out.logits, batch["labels"]))


def test_unpaid_backward_raises_and_names_the_way_out(model, batch):
    mixwell.attach(model, "sentencemix")
    logits = model(**without_labels(batch)).logits
    with pytest.raises(LabelsNotMixedError, match=r"mixer\.loss.*label_smoothing"):
        F.cross_entropy(logits, batch["labels"]).backward()


def test_two_unpaid_forwards_are_paid_by_their_own_logits(model, batch):
    mixer = mixwell.attach(model, "cls")
    with mixer.pin(lam=0.2, permutation=PERM):
        first = model(**without_labels(batch)).logits
        want = model(**batch).loss
    with mixer.pin(lam=0.9, permutation=PERM.flip(0)):
        second = model(**without_labels(batch)).logits
    with pytest.raises(LabelsNotMixedError, match="2 forwards wait"):
        mixer.loss(first * 1.0, batch["labels"])
    assert torch.equal(mixer.loss(first, batch["labels"]), want)
    mixer.loss(second * 1.0, batch["labels"])  # the only one left
    with pytest.raises(LabelsNotMixedError, match="no forward waits"):
        mixer.loss(second, batch["labels"])


def test_forgotten_forwards_are_not_kept(model, batch):
    mixer = mixwell.attach(model, "amplify")
    for _ in range(5):
        model(**without_labels(batch))
    gc.collect()
    assert len(mixer.flow._waiting) <= 1  # the latest may still be paid for


def test_a_dropped_model_is_collected():
    model = zoo.tiny("bert")
    mixwell.attach(model, "amplify")
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_leaving_pin_before_backward(model, batch):
    model.gradient_checkpointing_enable({"use_reentrant": False})
    mixer = mixwell.attach(model, "amplify")

    def gradients(inside):
        model.zero_grad(set_to_none=True)
        with mixer.pin(lam=0.6, permutation=PERM):
            loss = model(**batch).loss
            if inside:
                loss.backward()
        if not inside:
            with mixer.pin(lam=0.1, permutation=PERM.flip(0)):
                loss.backward()
        return zoo.gradients(model)

    assert zoo.same(gradients(True), gradients(False))


# --- outputs ---------------------------------------------------------------------------------------------------------


def test_loss_comes_first_and_tuples_stay_tuples(model, batch):
    with mixwell.attach(model, "amplify") as mixer, mixer.pin(lam=0.6, permutation=PERM):
        out = model(**batch)
        assert next(iter(out.keys())) == "loss"
        assert out[0] is out.loss
        parts = model(**batch, return_dict=False)
        assert isinstance(parts, tuple)
        assert torch.equal(parts[0], out.loss)
        assert torch.equal(parts[1], out.logits)
        positional = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"])
        assert torch.equal(positional.loss, out.loss)


def test_hidden_states_show_what_was_mixed(model, batch):
    model.eval()
    with torch.no_grad():
        model(**batch, output_hidden_states=True)  # transformers installs its capture hooks now, before ours
    model.train()
    with mixwell.attach(model, "tmix", layers=[1]) as mixer, mixer.pin(lam=0.0, permutation=PERM):
        mixed = model(**batch, output_hidden_states=True).hidden_states
    model.eval()
    with torch.no_grad():
        plain = model(**batch, output_hidden_states=True).hidden_states
    assert torch.equal(mixed[1], plain[1])
    assert torch.equal(mixed[2], plain[2][PERM])


def test_pin_in_eval(model, batch):
    model.eval()
    state = torch.get_rng_state()
    with torch.no_grad(), mixwell.attach(model, "embedmix") as mixer:
        plain = model(**batch).logits
        with mixer.pin(lam=0.5, permutation=PERM, in_eval=True):
            mixed = model(**batch).logits
        assert torch.equal(model(**batch).logits, plain)
    assert not torch.equal(mixed, plain)
    assert torch.equal(torch.get_rng_state(), state)


def test_training_in_eval_mode_is_told_once(model, batch):
    """from_pretrained gives models in eval mode: a loop without model.train() would train plain and never know."""
    mixwell.attach(model, "amplify")
    model.eval()
    with pytest.warns(UserWarning, match=r"eval mode, so nothing was mixed.*model\.train\(\)"):
        model(**batch).loss.backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(**batch).loss.backward()


def test_gradients_in_eval_mode_between_steps_are_nobodys_mistake(model, batch):
    mixwell.attach(model, "amplify")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(**batch).loss.backward()
        model.eval()
        model(**batch).loss.backward()


def test_low_precision_keeps_small_shares():
    """In bfloat16 a weight of 0.9984 is 1: nothing would be mixed while the labels are."""
    from mixwell.core.blend import blend, mix

    x = torch.tensor([[1.0], [300.0]], dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([0.9984, 0.9984])
    mixed = mix(x, torch.tensor([1, 0]), weight)
    assert mixed.dtype == torch.bfloat16
    assert mixed[0, 0].item() == pytest.approx(0.9984 + 0.0016 * 300, rel=4e-3)
    assert torch.equal(blend(x.flip(0), x, torch.ones(2)), x)
    mixed.sum().backward()
    assert torch.allclose(x.grad, torch.ones_like(x))


def test_mixing_is_the_two_plain_operations_to_the_bit():
    """Forward, backward and twice backward, also with rows that are their own partners."""
    from mixwell.core.blend import blend, mix

    draw = torch.Generator().manual_seed(0)
    for shape in ((6, 5, 4), (6, 4)):
        permutation = torch.tensor([2, 0, 1, 3, 5, 4])
        weight = torch.rand(shape[:-1] if len(shape) == 3 else shape[:1], generator=draw)
        seen = []
        for form in (mix, lambda x, p, w: blend(x.index_select(0, p), x, w)):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(1), requires_grad=True)
            out = form(x, permutation, weight)
            (gradient,) = torch.autograd.grad((out**3).sum(), x, create_graph=True)
            (twice,) = torch.autograd.grad((gradient**2).sum(), x)
            seen.append((out, gradient, twice))
        for ours, plain in zip(*seen):
            assert torch.equal(ours, plain) or torch.allclose(ours, plain, rtol=1e-6)
        assert torch.equal(seen[0][0], seen[1][0]) and torch.equal(seen[0][1], seen[1][1])


def test_one_row_trains_plain(model, batch):
    one = {k: v[:1] for k, v in batch.items()}
    want = model(**one).loss
    for name in mixwell.methods():
        with mixwell.attach(model, name) as mixer:
            assert torch.equal(model(**one).loss, want)
            assert mixer.last.plain


def test_last_and_to_dict(model, batch):
    mixer = mixwell.attach(model, "tmix", layers=[0, 2], alpha=0.4)
    model(**batch)
    assert 0.5 <= mixer.last.lam <= 1
    assert mixer.last.layer in (0, 2)
    assert sorted(mixer.last.permutation.tolist()) == list(range(6))
    told = json.loads(json.dumps(mixer.to_dict()))
    assert told["method"] == "tmix"
    assert told["options"]["alpha"] == 0.4
    assert told["mixwell_version"] == mixwell.__version__
    again = mixwell.attach(zoo.tiny("bert"), told["method"], **told["options"])
    assert again.to_dict() == told


# --- options of all methods -----------------------------------------------------------------------------------------


def test_label_smoothing_and_class_weights_act_inside_each_term(model, batch):
    weights = [1.0, 2.0, 0.5]
    with mixwell.attach(model, "cls", label_smoothing=0.1, class_weights=weights) as mixer:
        with mixer.pin(lam=0.3, permutation=PERM):
            out = model(**batch)

    def rows(labels):
        w = torch.tensor(weights)
        return F.cross_entropy(out.logits, labels, weight=w, label_smoothing=0.1, reduction="none")

    labels = batch["labels"]
    want = (0.3 * rows(labels) + 0.7 * rows(labels[PERM])).mean()
    torch.testing.assert_close(out.loss, want)


def test_custom_loss(model, batch):
    def focal(logits, labels):
        p = logits.softmax(-1).gather(1, labels[:, None]).squeeze(1)
        return -((1 - p) ** 2) * p.log()

    with mixwell.attach(model, "cls", loss_fn=focal) as mixer, mixer.pin(lam=0.3, permutation=PERM):
        out = model(**batch)
    want = 0.3 * focal(out.logits, batch["labels"]) + 0.7 * focal(out.logits, batch["labels"][PERM])
    torch.testing.assert_close(out.loss, want.mean())
    mixwell.attach(model, "cls", loss_fn=lambda logits, labels: focal(logits, labels).mean())
    with pytest.raises(OptionError, match="one value a row"):
        model(**batch)


def test_a_model_with_an_auxiliary_loss_is_refused(model, batch):
    class Auxiliary(type(model)):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            if out.loss is not None and self.training:
                out.loss = out.loss + 1.0
            return out

    model.__class__ = Auxiliary
    mixwell.attach(model, "amplify")
    for _ in range(2):  # again in the same notebook cell
        with pytest.raises(LossMismatchError, match="auxiliary or custom loss.*loss_fn"):
            model(**batch)


def test_start_and_stop(model, batch):
    mixer = mixwell.attach(model, "cls", start=0.5, stop=0.9)
    with pytest.raises(OptionError, match=r"total_steps=.*mixer\.progress.*callback"):
        model(**batch)
    for progress, on in ((0.0, False), (0.49, False), (0.5, True), (0.89, True), (0.9, False), (1.0, False)):
        mixer.progress = progress
        model(**batch)
        assert mixer.last.plain is not on
    mixer.detach()
    mixer = mixwell.attach(model, "cls", start=0.5, total_steps=4)
    seen = []
    for _ in range(6):
        model(**batch)
        seen.append(mixer.last.plain)
    assert seen == [True, True, False, False, False, False]  # stop=1 never stops


def test_regularise_is_plain_plus_mixed(model, batch):
    plain = model(**batch)
    for name in ("amplify", "embedmix", "batchmixup", "ssmix"):
        pin = {} if name == "batchmixup" else dict(permutation=PERM)
        with mixwell.attach(model, name) as mixer, mixer.pin(**pin):
            torch.manual_seed(3)
            mixed = model(**batch).loss
        with mixwell.attach(model, name, regularise=True) as mixer, mixer.pin(**pin):
            torch.manual_seed(3)
            out = model(**batch)
        assert torch.equal(out.logits, plain.logits)
        torch.testing.assert_close(out.loss, plain.loss + mixed)
        out.loss.backward()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["amplify", "tmix", "manifold"])
def test_regularise_with_checkpointing(name, reentrant):
    """The plain forward is recomputed plain and the mixed one mixed."""
    seen = []
    for checkpointing in (False, True):
        model = zoo.sharpen(zoo.tiny("bert")).double().train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        mixer = mixwell.attach(model, name, regularise=True)
        torch.manual_seed(1)
        with mixer.pin(lam=0.4, permutation=PERM):
            model(**zoo.batch()).loss.backward()
        seen.append(zoo.gradients(model))
    for key in seen[0]:
        torch.testing.assert_close(seen[0][key], seen[1][key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"regularise": True}], ids=str)
@pytest.mark.parametrize("backward", [True, False])
def test_steps_are_let_go(model, batch, options, backward):
    from mixwell.core.step import Step

    def alive():
        gc.collect()
        return sum(isinstance(thing, Step) for thing in gc.get_objects())

    before = alive()  # other tests' mixers may hold some
    mixwell.attach(model, "amplify", **options)
    for _ in range(10):
        loss = model(**batch).loss
        if backward:
            loss.backward()
    del loss
    assert alive() <= before + 2


def test_an_interrupted_forward_leaves_nothing_behind(model, batch):
    plain = copy.deepcopy(model).eval()
    mixer = mixwell.attach(model, "amplify")
    model(**batch)

    def stop(*args):
        raise KeyboardInterrupt

    handle = model.bert.encoder.layer[1].register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt), mixer.pin(lam=0.4, permutation=PERM):
        model(**batch)
    handle.remove()
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, plain(**batch).logits)


def test_detach_before_backward(model, batch):
    with mixwell.attach(model, "amplify"):
        loss = model(**batch).loss
    loss.backward()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with mixwell.attach(model, "amplify"):
        loss = model(**batch).loss
    with pytest.raises(AttachError, match="call backward before detach"):
        loss.backward()


def test_own_loss_on_mixed_logits_is_refused(model, batch):
    """The labels were in the batch, but the loss that is trained on does not mix them."""
    mixwell.attach(model, "cls")
    out = model(**batch)
    with pytest.raises(LabelsNotMixedError, match=r"does not come from out\.loss"):
        F.cross_entropy(out.logits, batch["labels"]).backward()
    out = model(**batch)
    with pytest.warns(mixwell.LabelsNotMixedWarning):  # a penalty besides the mixed loss is fine; it might be none
        (out.loss + 0.01 * out.logits.pow(2).mean()).backward()


def test_loss_in_eval_is_plain_even_if_a_forward_waits(model, batch):
    mixer = mixwell.attach(model, "cls")
    with mixer.pin(lam=0.2, permutation=PERM):
        waiting = model(**without_labels(batch)).logits
    model.eval()
    logits = model(**without_labels(batch)).logits
    assert torch.equal(mixer.loss(logits, batch["labels"]), F.cross_entropy(logits, batch["labels"]))
    model.train()
    mixer.loss(waiting, batch["labels"]).backward()


def test_loss_of_a_pinned_picture_is_mixed(model, batch):
    model.eval()
    mixer = mixwell.attach(model, "cls")
    with torch.no_grad(), mixer.pin(lam=0.2, permutation=PERM, in_eval=True):
        want = model(**batch).loss
        logits = model(**without_labels(batch)).logits
        assert torch.equal(mixer.loss(logits, batch["labels"]), want)


def test_nested_pins_add_up(model, batch):
    mixer = mixwell.attach(model, "cls")
    with mixer.pin(permutation=PERM), mixer.pin(lam=0.25):
        model(**batch)
    assert mixer.last.lam == 0.25
    assert torch.equal(mixer.last.permutation, PERM)


def test_a_bad_pin_leaves_the_random_state_alone(model, batch):
    mixer = mixwell.attach(model, "cls")
    model(**batch)
    state = torch.get_rng_state()
    with pytest.raises(BatchError), mixer.pin(permutation=[1, 0]):
        model(**batch)
    assert torch.equal(torch.get_rng_state(), state)


def test_copies_of_a_mixer_are_detached(model, batch):
    mixer = mixwell.attach(model, "amplify")
    model(**batch)
    twin = copy.deepcopy(mixer)
    assert not twin.attached
    assert twin.model is not model
    assert "detached" in repr(twin)
    mixwell.attach(twin.model, "amplify")


def test_one_method_object_on_two_models(batch):
    method = load_all()["manifold"]()
    deep, flat = zoo.tiny("bert").train(), zoo.tiny("bert", num_labels=2).train()
    first, second = mixwell.attach(deep, method), mixwell.attach(flat, method)
    assert first.method is not second.method


def test_the_papers_option_names(model, batch):
    mixer = mixwell.attach(model, "batchmixup", loss="dot", n=7)
    assert model(**batch).logits.shape == (7, 3)
    assert mixer.to_dict()["options"]["loss_form"] == "dot"


def test_replicas_of_data_parallel(model, batch):
    mixwell.attach(model, "amplify")
    with pytest.raises(AttachError, match="DataParallel"):
        model._replicate_for_data_parallel()(**batch)


def test_ssmix_notices_a_call_around_the_hooks(model, batch):
    mixwell.attach(model, "ssmix")
    with pytest.raises(AttachError, match="outside a forward"):
        model.forward(**batch)


def test_unlabelled_rows(model, batch):
    batch["labels"][:3] = -100
    for name, options in (("cls", {"pairing": "label"}), ("batchmixup", {}), ("batchmixup", {"loss": "dot"})):
        with mixwell.attach(model, name, **options):
            assert torch.isfinite(model(**batch).loss)


# --- wrong uses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("amplifi", {}, r"'amplifi' is unknown \(did you mean 'amplify'\?\)"),
        ("amplify", {"aplha": 1}, r"no option 'aplha' \(did you mean 'alpha'\?\)"),
        ("amplify", {"alpha": 0}, "alpha=0 must be above 0"),
        ("amplify", {"layers": [7]}, r"7 is not one of 0\.\.2"),
        ("amplify", {"layers": []}, "mixes nowhere"),
        ("amplify", {"layers": [1, 1]}, "names one twice"),
        ("amplify", {"site": "attn"}, "site='attn' is unknown"),
        ("amplify", {"consistent": True, "site": "attention_raw"}, "needs site='attention'"),
        ("amplify", {"consistent": True, "pairing": "label"}, "needs mutual partners"),
        ("amplify", {"regularise": "no"}, "regularise='no' must be true or false"),
        ("amplify", {"alpha": float("inf")}, "alpha=inf must be a finite number"),
        ("amplify", {"samples": 2.5}, "samples=2.5 must be a whole number"),
        ("amplify", {"class_weights": []}, "class_weights must be at least 0"),
        ("amplify", {"draw": "uniform"}, "draw='uniform' is unknown"),
        ("amplify", {"strength": "strongest"}, r"strength='strongest' is unknown for amplify \(did you mean 'strong'"),
        ("attentionmix", {"after": 9}, r"after=\[9\]: 9 is not one of 0\.\."),
        ("cls", {"schedule": "lat"}, r"schedule='lat' is unknown for cls \(did you mean 'late'"),
        ("cls", {"schedule": "late", "start": 0.2}, r"schedule='late' sets start=0\.5, but start=0\.2 is given too"),
        ("tmix", {"strength": "mild", "alpha": 0.7}, r"sets alpha=0\.1, but alpha=0\.7 is given too"),
        ("input", {"strength": "mild", "draw": "max_of"}, "sets draw='folded', but draw='max_of' is given too"),
        ("amplify", {"pairing": "partner"}, "pairing='partner' is unknown"),
        ("amplify", {"start": 0.5, "stop": 0.5}, "must be less than stop"),
        ("amplify", {"label_smoothing": 2}, "label_smoothing=2 must lie between 0 and 1"),
        ("amplify", {"loss_fn": len, "label_smoothing": 0.1}, "inside it"),
        ("amplify", {"class_weights": [0, -1]}, "class_weights must be at least 0"),
        ("tmix", {"layers": [3]}, r"3 is not one of 0\.\.2"),
        ("manifold", {"layers": [5]}, r"5 is not one of 0\.\.4"),
        ("input", {"padding": "unused"}, "needs unused_token_id"),
        ("input", {"padding": "zero"}, "padding='zero' is unknown"),
        ("attentionmix", {"head": 2}, r"head=2 is not one of 0\.\.1"),
        ("attentionmix", {"block": 3}, r"3 is not one of 0\.\.2"),
        ("batchmixup", {"points": 0}, "points=0 must be at least 1"),
        ("batchmixup", {"pairing": "pairs"}, "mixes the whole batch"),
        ("batchmixup", {"loss_form": "dot", "label_smoothing": 0.1}, "loss_form='dot' takes no label_smoothing"),
        ("nonlinear", {"label_policy": "learned", "point": "embeddings"}, "needs point='sentence'"),
        ("ssmix", {"fraction": 0}, r"fraction=0 must lie in \(0, 1\]"),
    ],
)
def test_wrong_options(model, name, options, words):
    with pytest.raises(OptionError, match=words):
        mixwell.attach(model, name, **options)
    mixwell.attach(model, "none").detach()  # nothing was left behind


def test_attaching_twice_or_inside(model):
    mixer = mixwell.attach(model, "amplify")
    assert mixwell.inspect(model).fits("amplify") == "yes" and mixer.attached  # a copy is looked at
    with pytest.warns(UserWarning, match="which 'cls' replaces"):
        mixer = mixwell.attach(model, "cls")
    with pytest.raises(AttachError, match="is a part of BertForSequenceClassification"):
        mixwell.attach(model.bert, "none")
    mixer.detach()

    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.config = inner, inner.config

        def forward(self, **kwargs):
            return self.inner(**kwargs)

    mixwell.attach(model, "cls")
    with pytest.raises(AttachError, match="a part of this model"):
        mixwell.attach(Wrapper(model), "cls")


def test_two_separate_models(model, batch):
    other = zoo.tiny("roberta").train()
    mixwell.attach(model, "amplify")
    mixwell.attach(other, "embedmix")
    (model(**batch).loss + other(**batch).loss).backward()


def test_calling_a_part_of_the_model_in_training(model, batch):
    mixwell.attach(model, "amplify")
    with pytest.raises(AttachError, match="outside a forward of the attached"):
        model.bert(batch["input_ids"])
    model.eval()
    model.bert(batch["input_ids"])


def test_wrapped_or_compiled_models(model):
    with pytest.raises(AttachError, match="DataParallel"):
        mixwell.attach(nn.DataParallel(model), "amplify")
    with pytest.raises(AttachError, match=r"attach first, then torch\.compile"):
        mixwell.attach(torch.compile(model), "amplify")


def test_models_that_cannot_be_mixed():
    with pytest.raises(UnsupportedModelError, match="no transformers config"):
        mixwell.attach(nn.Linear(2, 2), "amplify")
    import transformers as tf

    config = tf.FNetConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, intermediate_size=24, tpu_short_seq_length=8
    )
    fnet = tf.FNetForSequenceClassification(config)
    with pytest.raises(UnsupportedModelError, match="no usable 'attention' point"):
        mixwell.attach(fnet, "amplify")
    assert "no: " in str(mixwell.inspect(fnet))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b.update(labels=b["labels"][:4]), "labels have shape"),
        (lambda b: b.update(attention_mask=torch.ones(6, 1, 13, 13)), "one of shape"),
        (lambda b: b.pop("input_ids"), "none of input_ids"),
    ],
)
def test_bad_batches(model, batch, change, words):
    mixwell.attach(model, "embedmix")
    change(batch)
    with pytest.raises(BatchError, match=words):
        model(**batch)


def test_bad_pins(model, batch):
    mixer = mixwell.attach(model, "tmix", layers=[0, 1])
    with pytest.raises(OptionError, match=r"in \[0, 1\]"), mixer.pin(lam=1.5):
        pass
    with pytest.raises(OptionError, match="layer=2 is not one of"), mixer.pin(layer=2):
        pass
    with pytest.raises(BatchError, match="not a permutation"), mixer.pin(permutation=[0, 0, 1, 2, 3, 4]):
        model(**batch)
    with pytest.raises(BatchError, match="6 rows"), mixer.pin(permutation=[1, 0]):
        model(**batch)
    with pytest.raises(BatchError, match="6 rows"), mixer.pin(lam=torch.rand(3)):
        model(**batch)
    model(**batch).loss.backward()  # an error inside a forward leaves nothing behind


def test_ambiguous_separator(model, batch):
    batch["input_ids"][0, 12] = 33
    with mixwell.attach(model, "input"), pytest.raises(BatchError, match="different tokens.*sep_token_id"):
        model(**batch)
    with mixwell.attach(model, "manifold") as mixer:  # also if the first forwards had nothing to fill
        with mixer.pin(layer=4):
            model(**batch)
        with pytest.raises(BatchError, match="different tokens"), mixer.pin(layer=0):
            model(**batch)
    with mixwell.attach(model, "input", sep_token_id=zoo.SEP):
        model(**batch).loss.backward()
    with mixwell.attach(model, "ssmix"), pytest.raises(BatchError, match="different tokens.*special_ids"):
        model(**batch)
    with mixwell.attach(model, "ssmix", special_ids=[0, 101, zoo.SEP]):
        model(**batch).loss.backward()


def test_consistent_takes_mutual_partners_only(model, batch):
    with mixwell.attach(model, "amplify", consistent=True) as mixer:
        with pytest.raises(BatchError, match="consistent=True needs mutual"), mixer.pin(permutation=[1, 2, 3, 4, 5, 0]):
            model(**batch)
        with mixer.pin(permutation=[1, 0, 3, 2, 4, 5]):
            model(**batch).loss.backward()


@pytest.mark.parametrize("form", ["dot", "cross_entropy"])
def test_batchmixup_leaves_rows_without_a_label_out(model, batch, form):
    """They are no class 0; where nothing has a label there is no loss."""
    labels, losses = batch.pop("labels"), []
    with mixwell.attach(model, "batchmixup", loss_form=form) as mixer:
        for first in ([-100, -100], [0, 0], [1, 1]):
            torch.manual_seed(0)
            losses.append(model(**batch, labels=torch.cat([torch.tensor(first), labels[2:]])).loss)
        torch.manual_seed(0)
        logits = model(**batch).logits
        assert mixer.loss(logits, torch.full_like(labels, -100)).item() == 0
    assert len({loss.item() for loss in losses}) == 3


def test_a_loss_of_no_label_proves_nothing(model, batch):
    """The check of the first step waits for a batch that has labels."""
    plain = type(model).forward

    def forward(*args, **kwargs):
        output = plain(model, *args, **kwargs)
        if output.loss is not None:
            output.loss = output.loss + 5
        return output

    model.forward = forward
    with mixwell.attach(model, "cls"):
        model(**{**batch, "labels": torch.full_like(batch["labels"], -100)})
        with pytest.raises(LossMismatchError):
            model(**batch)


def test_ssmix_needs_labels(model, batch):
    mixwell.attach(model, "ssmix")
    with pytest.raises(BatchError, match="needs the labels before the forward"):
        model(**without_labels(batch))


def test_learned_label_policy_moves(model, batch):
    with mixwell.attach(model, "nonlinear", label_policy="learned") as mixer:
        for _ in range(3):
            model(**batch).loss.backward()
        assert mixer.method.policy.theta.abs().max() > 0


def test_state_of_a_mixer(batch):
    """A loop that goes on from weights, random state and the mixer's state ends where it would have."""

    def steps(model, mixer, count):
        for _ in range(count):
            model.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
        return loss.item(), mixer.state_dict()

    def begin():
        model = zoo.tiny("bert", dropout=0.1).train()
        return model, mixwell.attach(model, "nonlinear", label_policy="learned", stop=0.9, total_steps=8)

    torch.manual_seed(3)
    model, mixer = begin()
    steps(model, mixer, 3)
    kept = copy.deepcopy((model.state_dict(), mixer.state_dict(), torch.get_rng_state()))
    assert kept[1].keys() == {"steps", "theta", "theta_grad"} and int(kept[1]["steps"]) == 3
    wanted, end = steps(model, mixer, 5)
    model, mixer = begin()
    model.load_state_dict(kept[0])
    mixer.load_state_dict(kept[1])
    torch.set_rng_state(kept[2])
    found, again = steps(model, mixer, 5)
    assert found == wanted and all(torch.equal(end[key], again[key]) for key in end)


def test_methods_of_other_packages(tmp_path, monkeypatch):
    """An entry point adds a method; a clash of names is an error."""
    import subprocess
    import sys

    package = tmp_path / "other_mix"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from dataclasses import dataclass\n"
        "from mixwell.methods import DrawsLam, register\n"
        "@register\n@dataclass\nclass Mine(DrawsLam):\n"
        "    name = 'mine'\n    summary = 'a method of another package'\n"
        "    def sites(self, points):\n        return list(points.get('sentence'))\n"
    )
    info = tmp_path / "other_mix-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-mix\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mixwell.methods]\nother = other_mix\n")
    script = "import mixwell; print(mixwell.methods()['mine'])"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "a method of another package"
