"""Any loss by the plan of the last forward; and every loss that goes around the mixer raises or warns."""

from __future__ import annotations

import warnings

import foreign
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mixwell
import zoo
from mixwell.utils.errors import BatchError, LabelsNotMixedError, LossMismatchError, OptionError

LAM, PERM = 0.3, torch.tensor([2, 0, 1, 4, 5, 3])
LABELS = torch.arange(6) % 3
OTHER = torch.tensor([1, 1, 0, 0, 1, 0])


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = foreign.TimmViT()
        self.body.head = nn.Identity()
        self.topic, self.tone = nn.Linear(16, 3), nn.Linear(16, 2)

    def forward(self, x):
        features = self.body(x)
        return {"topic": self.topic(features), "tone": self.tone(features)}

    def by_hand(self, x):
        """Both outputs, with the stream after attention mixed by hand."""
        body = self.body
        x = body.embed(x)
        for block in body.blocks:
            x = x + block.attn(block.norm1(x))
            x = LAM * x + (1 - LAM) * x[PERM]
            x = x + block.mlp(block.norm2(x))
        features = body.norm(x)[:, 0]
        return self.topic(features), self.tone(features)


X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def model():
    return TwoHeads().double().train()


def quiet(loss):
    """Backward with warnings as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss.backward()


def compare(model, wanted):
    found = zoo.gradients(model)
    model.zero_grad()
    wanted.backward()
    for key, gradient in zoo.gradients(model).items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-6, atol=1e-9, msg=key)


def two_terms(loss, target):
    """lam l(y) + (1 - lam) l(y[perm])."""
    return LAM * loss(target) + (1 - LAM) * loss(target[PERM])


@pytest.mark.parametrize("how", ["loss", "rows", "mean"])
def test_two_heads(model, how):
    """By mixer.loss for each, by losses of rows, by losses that are one number."""
    with mixwell.attach(model, "amplify", example=X) as mixer, mixer.pin(lam=LAM, permutation=PERM):
        out = model(X)
        if how == "loss":
            loss = mixer.loss(out["topic"], LABELS) + mixer.loss(out["tone"], OTHER)
        else:

            def own(logits, labels):
                return F.cross_entropy(logits, labels, reduction="none" if how == "rows" else "mean")

            loss = mixer.mixed(own, out["topic"], LABELS) + mixer.mixed(own, out["tone"], OTHER)
    quiet(loss)
    topic, tone = model.by_hand(X)
    assert (out["topic"] - topic).abs().max() < 1e-9
    wanted = two_terms(lambda y: F.cross_entropy(topic, y), LABELS) + two_terms(
        lambda y: F.cross_entropy(tone, y), OTHER
    )
    compare(model, wanted)


def test_one_loss_of_both_heads(model):
    """Outputs and targets may be nested as they are."""

    def both(out, targets):
        return F.cross_entropy(out["topic"], targets["topic"]) + F.mse_loss(out["tone"], targets["tone"])

    tone = torch.randn(6, 2, dtype=torch.float64)
    with mixwell.attach(model, "amplify", example=X) as mixer, mixer.pin(lam=LAM, permutation=PERM):
        quiet(mixer.mixed(both, model(X), {"topic": LABELS, "tone": tone}))
    first, second = model.by_hand(X)
    wanted = two_terms(lambda y: F.cross_entropy(first, y), LABELS) + two_terms(lambda y: F.mse_loss(second, y), tone)
    compare(model, wanted)


@pytest.mark.parametrize("how", ["mixed", "targets"])
def test_distillation(model, how):
    """The teacher sees the rows unmixed; what it says of them is mixed as the student's rows are."""
    teacher = foreign.TimmViT().double().eval()
    with torch.no_grad():
        said = F.softmax(teacher(X) / 2, -1)

    def divergence(logits, target):
        return F.kl_div(F.log_softmax(logits / 2, -1), target, reduction="none").sum(-1)

    with mixwell.attach(model, "amplify", example=X) as mixer, mixer.pin(lam=LAM, permutation=PERM):
        out = model(X)
        if how == "mixed":
            quiet(mixer.loss(out["topic"], LABELS) + mixer.mixed(divergence, out["topic"], said))
        else:  # cross-entropy is linear in its targets, and the divergence is it up to a constant
            soft = mixer.mix_targets(said)
            hard = mixer.mix_targets(LABELS, num_classes=3)
            quiet(F.cross_entropy(out["topic"], hard.double())
                  - (soft * F.log_softmax(out["topic"] / 2, -1)).sum(-1).mean())  # fmt: skip
    topic, _ = model.by_hand(X)
    wanted = two_terms(lambda y: F.cross_entropy(topic, y), LABELS)
    compare(model, wanted + two_terms(lambda y: divergence(topic, y).mean(), said))


@pytest.mark.parametrize("how", ["loss", "mixed", "targets"])
def test_soft_targets(model, how):
    """timm's and torchvision's kind: cross-entropy with probabilities, not a multi-label loss."""
    soft = F.one_hot(LABELS, 3).double() * 0.9 + 0.1 / 3
    with mixwell.attach(model, "amplify", example=X) as mixer, mixer.pin(lam=LAM, permutation=PERM):
        logits = model(X)["topic"]
        if how == "loss":
            loss = mixer.loss(logits, soft)
        elif how == "mixed":
            loss = mixer.mixed(F.cross_entropy, logits, soft)
        else:
            loss = F.cross_entropy(logits, mixer.mix_targets(soft))
    quiet(loss)
    topic, _ = model.by_hand(X)
    compare(model, two_terms(lambda y: -(y * F.log_softmax(topic, -1)).sum(-1).mean(), soft))


def test_soft_targets_of_transformers_are_not_taken_for_multi_label():
    model, batch = zoo.sharpen(zoo.tiny("bert")).train(), zoo.batch()
    del batch["labels"]
    soft = F.one_hot(LABELS, 3) * 0.9 + 0.1 / 3
    mixer = mixwell.attach(model, "cls")
    with pytest.raises(LossMismatchError, match="probabilities.*problem='soft_label'"):
        mixer.loss(model(**batch).logits, soft)
    mixer.detach()
    mixer = mixwell.attach(model, "cls", problem="soft_label")
    with mixer.pin(lam=LAM, permutation=PERM):
        logits = model(**batch).logits
        found = mixer.loss(logits, soft)
        given = model(**batch, labels=soft).loss
    torch.testing.assert_close(found, two_terms(lambda y: F.cross_entropy(logits, y), soft))
    torch.testing.assert_close(given, found)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (F.one_hot(LABELS, 3).double(), "problem='soft_label'"),
        (torch.randn(6, 3).double(), "may be of several kinds"),
    ],
)
def test_targets_that_could_be_two_things(model, labels, words):
    mixer = mixwell.attach(model, "amplify", example=X)
    with pytest.raises(OptionError, match=words):
        mixer.loss(model(X)["topic"], labels)


def test_kinds_of_targets():
    from mixwell.core.loss import kind_of_targets

    many = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert kind_of_targets(torch.zeros(2, 3), many) == "multi_label"
    assert kind_of_targets(torch.zeros(2, 3), torch.tensor([0, 1])) == "single_label"
    assert kind_of_targets(torch.zeros(2, 1), torch.tensor([0.2, 3.0])) == "regression"
    assert kind_of_targets(torch.zeros(2), torch.tensor([0.2, 3.0])) == "regression"
    with pytest.raises(OptionError, match="binary cross-entropy"):
        kind_of_targets(torch.zeros(2, 1), torch.tensor([0.0, 1.0]))


def test_binary_classes_of_one_logit():
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).train()
    x, labels = torch.randn(6, 4), OTHER.float()
    with mixwell.attach(module, "cls", example=x, problem="multi_label") as mixer:
        with mixer.pin(lam=LAM, permutation=PERM):
            logits = module(x)
        found = mixer.loss(logits, labels)
    wanted = two_terms(lambda y: F.binary_cross_entropy_with_logits(logits.squeeze(1), y), labels)
    torch.testing.assert_close(found, wanted)


def test_pairs_of_forwards_share_a_draw(model):
    """Rewards: chosen and rejected answers meet those of the same partner."""
    mixer = mixwell.attach(model, "cls", example=X)
    with mixer.same_draw():
        chosen = model(X)["topic"][:, 0]
        first = mixer.last
        rejected = model(X + 1)["topic"]
        assert mixer.last.lam == first.lam and torch.equal(mixer.last.permutation, first.permutation)
    with mixer.same_draw():
        model(X)
        assert mixer.last.lam != first.lam
    with mixer.same_draw():
        out = {"chosen": model(X)["topic"], "rejected": model(X + 1)["topic"]}
    quiet(mixer.mixed(lambda o: -F.logsigmoid(o["chosen"][:, 0] - o["rejected"][:, 0]), out))
    with pytest.raises(LabelsNotMixedError, match="mixed differently.*same_draw"):
        mixer.mixed(lambda o: o[0] - o[1], (model(X)["topic"], rejected))
    assert chosen.requires_grad


def test_any_loss_in_eval_and_without_mixing_is_plain(model):
    mixer = mixwell.attach(model, "amplify", example=X, prob=0.0)
    want = F.cross_entropy(model(X)["topic"], LABELS)
    assert torch.equal(mixer.mixed(F.cross_entropy, model(X)["topic"], LABELS), want)
    assert torch.equal(mixer.mix_targets(LABELS, 3), F.one_hot(LABELS, 3).float())
    model.eval()
    assert torch.equal(mixer.mixed(F.cross_entropy, model(X)["topic"], LABELS), want)
    assert torch.equal(mixer.mix_targets(LABELS), F.one_hot(LABELS, 3).float())


def test_losses_that_cannot_be_mixed_say_so(model):
    mixer = mixwell.attach(model, "nonlinear", example=X, point="sentence")
    with pytest.raises(OptionError, match="one number, but 'nonlinear' weighs each row.*reduction='none'"):
        mixer.mixed(F.cross_entropy, model(X)["topic"], LABELS)
    quiet(mixer.mixed(lambda a, y: F.cross_entropy(a, y, reduction="none"), model(X)["topic"], LABELS))
    mixwell.detach(model)
    mixer = mixwell.attach(model, "amplify", example=X, regularise=True)
    with pytest.raises(OptionError, match="regularise=True has two losses"):
        mixer.mixed(F.cross_entropy, model(X)["topic"], LABELS)
    mixwell.detach(model)
    mixer = mixwell.attach(model, "amplify", example=X)
    with pytest.raises(OptionError, match="has shape"):
        mixer.mixed(lambda a, y: a.new_zeros(4), model(X)["topic"], LABELS)
    with pytest.raises(BatchError, match="labels have shape"):
        mixer.mixed(F.cross_entropy, model(X)["topic"], LABELS[:4])
    single = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).train()
    mixer = mixwell.attach(single, "batchmixup", example=torch.randn(6, 4))
    with pytest.raises(OptionError, match="mixes the whole batch"):
        mixer.mixed(F.cross_entropy, single(torch.randn(6, 4)), LABELS)


# --- around the mixer ------------------------------

BERT = zoo.batch()


@pytest.fixture
def bert():
    return zoo.sharpen(zoo.tiny("bert")).train()


def caught(loss):
    with pytest.warns(mixwell.LabelsNotMixedWarning, match=r"mixer\.mixed\(loss_fn, outputs, targets\)"):
        loss.backward()


def test_a_loss_beside_a_mixed_one_that_counts_for_nothing(bert):
    mixwell.attach(bert, "cls")
    out = bert(**BERT)
    caught(0.0 * out.loss + F.cross_entropy(out.logits, LABELS))


def test_an_unmixed_teacher(bert):
    mixwell.attach(bert, "cls")
    out = bert(**BERT)
    caught(out.loss + F.kl_div(F.log_softmax(out.logits, -1), torch.full((6, 3), 1 / 3), reduction="batchmean"))


def test_a_second_head(model):
    mixer = mixwell.attach(model, "amplify", example=X)
    out = model(X)
    caught(mixer.loss(out["topic"], LABELS) + F.cross_entropy(out["tone"], OTHER))


def test_a_head_on_hidden_states(bert):
    mixwell.attach(bert, "amplify")
    out = bert(**BERT, output_hidden_states=True)
    caught(out.loss + out.hidden_states[-1].mean())


def test_a_second_head_alone(model):
    mixer = mixwell.attach(model, "amplify", example=X)
    out = model(X)
    mixer.loss(out["topic"], LABELS)
    with pytest.raises(LabelsNotMixedError, match=r"mixer\.mixed"):
        F.cross_entropy(out["tone"], OTHER).backward()


def test_a_head_outside_a_frozen_body():
    """No gradient flows into the body: it is asked for, so that the loss is seen."""
    body = foreign.TimmViT().requires_grad_(False).train()
    body.head = nn.Identity()
    head, x = nn.Linear(16, 3), X.float()
    mixer = mixwell.attach(body, "amplify", example=x)
    with pytest.raises(LabelsNotMixedError, match="does not mix its labels"):
        F.cross_entropy(head(body(x)), LABELS).backward()
    quiet(mixer.mixed(lambda f, y: F.cross_entropy(head(f), y), body(x), LABELS))
    assert head.weight.grad is not None


def test_warned_once_and_not_where_it_is_said_how(bert):
    mixer = mixwell.attach(bert, "cls")
    out = bert(**BERT)
    quiet(out.loss + mixer.mixed(lambda logits: 0.01 * logits.pow(2), out.logits))  # a penalty without targets
    out = bert(**BERT)
    caught(out.loss + out.logits.mean())
    out = bert(**BERT)
    quiet(out.loss + out.logits.mean())
    with mixwell.attach(zoo.tiny("bert").train(), "none") as plain:
        out = plain.model(**BERT)
        quiet(out.loss + out.logits.mean())  # nothing is mixed
    with mixwell.attach(zoo.tiny("bert").train(), "amplify", regularise=True) as both:
        out = both.model(**BERT)
        quiet(out.loss + F.cross_entropy(out.logits, LABELS))  # these logits are the plain ones


def test_the_warning_can_be_an_error(bert):
    mixwell.attach(bert, "cls")
    out = bert(**BERT)
    with warnings.catch_warnings():
        warnings.simplefilter("error", mixwell.LabelsNotMixedWarning)
        with pytest.raises(mixwell.LabelsNotMixedWarning):
            (out.loss + out.logits.mean()).backward()


def test_outputs_are_views_that_can_be_saved(bert, tmp_path):
    mixwell.attach(bert, "cls")
    out = bert(**BERT)
    torch.save(out.logits.detach(), tmp_path / "logits.pt")
    assert torch.equal(torch.load(tmp_path / "logits.pt"), out.logits)
    out.loss.backward()


# --- losses of torch, tracked ------------------------------

WEIGHT = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
TORCH_LOSSES = {
    "cross_entropy": (lambda a, y: F.cross_entropy(a, y), LABELS),
    "weighted": (nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1), LABELS),
    "ignored": (nn.CrossEntropyLoss(), torch.tensor([0, 1, -100, 0, 1, 2])),
    "nll": (lambda a, y: nn.NLLLoss()(a.log_softmax(-1), y), LABELS),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), LABELS),
    "rows": (lambda a, y: F.cross_entropy(a, y, reduction="none").mean(), LABELS),
    "bce": (lambda a, y: F.binary_cross_entropy_with_logits(a, y), torch.rand(6, 3, dtype=torch.float64)),
    "sigmoid": (lambda a, y: F.binary_cross_entropy(torch.sigmoid(a), y), torch.rand(6, 3, dtype=torch.float64)),
    "mse": (nn.MSELoss(), torch.randn(6, 3, dtype=torch.float64)),
    "reversed": (lambda a, y: F.mse_loss(y, a), torch.randn(6, 3, dtype=torch.float64)),
    "kl": (lambda a, y: F.kl_div(F.log_softmax(a / 2, -1), y, reduction="batchmean"),
           torch.rand(6, 3, dtype=torch.float64)),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TORCH_LOSSES))
def test_losses_of_torch_are_mixed_where_they_are_computed(model, name):
    loss_fn, labels = TORCH_LOSSES[name]
    with mixwell.attach(model, "amplify", example=X, auto_loss=True) as mixer, mixer.pin(lam=LAM, permutation=PERM):
        loss = loss_fn(model(X)["topic"], labels)
    assert type(loss) is torch.Tensor
    quiet(loss)
    topic, _ = model.by_hand(X)
    if name == "ignored":  # a row counts where its own, or its partner's, label does; divided by the labels there are
        rows = [F.cross_entropy(topic, y, reduction="none") for y in (labels, labels[PERM])]
        compare(model, (LAM * rows[0] + (1 - LAM) * rows[1]).sum() / 5)
    else:
        compare(model, two_terms(lambda y: loss_fn(topic, y), labels))


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda a, y: F.cross_entropy(a[torch.randperm(6)], y),  # other rows
        lambda a, y: -F.log_softmax(a, -1).gather(1, y[:, None]).mean(),  # written out
        lambda a, y: F.cross_entropy(a + torch.zeros(6, 3, dtype=a.dtype), y),  # something with rows of its own
        lambda a, y: F.cross_entropy(a.detach().requires_grad_() * 0 + a.t().t(), y),
    ],
)
def test_what_cannot_be_followed_is_an_error(model, loss_fn):
    mixwell.attach(model, "amplify", example=X, auto_loss=True)
    with pytest.raises(LabelsNotMixedError):
        loss_fn(model(X)["topic"], LABELS).backward()


def test_tracked_outputs_are_plain_in_eval(model):
    mixwell.attach(model, "amplify", example=X, auto_loss=True)
    assert type(model.eval()(X)["topic"]) is torch.Tensor
