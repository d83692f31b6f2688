"""sentence-transformers and SetFit: their trainers, unmodified, train mixed after one line."""

from __future__ import annotations

import copy
import random
import warnings
from types import SimpleNamespace

import pytest
import reference
import torch
import torch.nn.functional as F
from foreign import bert_by_hand
from torch import nn

import mixwell
from mixwell.utils.errors import AttachError, LabelsNotMixedError, UnsupportedModelError

LAM, PERM = 0.3, torch.tensor([2, 0, 1, 3])
TEXTS = ["the film was good", "a bad plot and it was dull", "one lovely scene", "the actor was awful"]
ANSWERS = ["great story", "a poor one", "fine", "bad bad time"]
LABELS = torch.tensor([0, 1, 2, 1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
    from make_model import make_model

    return make_model(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(autouse=True)
def _quiet():
    from accelerate.state import AcceleratorState, GradientState

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def still(model):
    """Without dropout, so that the reference needs none; weights large enough for mixing to show."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.Linear):
            module.weight.data.mul_(4)
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "attention_probs_dropout_prob"):
            config.attention_probs_dropout_prob = config.hidden_dropout_prob = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    return model


def mixing(kind):
    return lambda point, x: LAM * x + (1 - LAM) * x[PERM] if point == kind else x


def two_terms(loss, target):
    return LAM * loss(target) + (1 - LAM) * loss(target[PERM])


# --- CrossEncoder ------------------------------


def cross_encoder(folder, labels=3):
    from sentence_transformers import CrossEncoder

    torch.manual_seed(0)
    return still(CrossEncoder(str(folder), num_labels=labels, device="cpu").double())


def logits_by_hand(model, mix):
    """What a CrossEncoder says of the pairs, by the reference implementation."""
    tokens = model.preprocess(list(zip(TEXTS, ANSWERS)))
    inner = model[0].model
    whole = SimpleNamespace(bert=inner.bert, config=inner.config)
    ids, mask = tokens["input_ids"], tokens["attention_mask"].bool()
    x = mix("embeddings", reference._embed(whole, ids, tokens.get("token_type_ids", torch.zeros_like(ids))))
    for index in range(len(inner.bert.encoder.layer)):
        x = reference._block(whole, index, x, mask, lambda point, _, y: mix(point, y))
    return inner.classifier(mix("sentence", torch.tanh(inner.bert.pooler.dense(x[:, 0]))))


def train(model, loss, labels, folder):
    """One step of plain gradient descent by the library's trainer: afterwards each weight has lost its gradient."""
    from datasets import Dataset
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments

    args = CrossEncoderTrainingArguments(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=4, optim="sgd", learning_rate=1.0,
        lr_scheduler_type="constant", max_grad_norm=0.0, report_to="none", save_strategy="no", use_cpu=True,
        disable_tqdm=True,
    )  # fmt: skip
    rows = Dataset.from_dict({"text": TEXTS, "answer": ANSWERS, "label": labels.tolist()})
    trainer = CrossEncoderTrainer(model=model, args=args, train_dataset=rows, loss=loss)
    trainer.get_train_dataloader = lambda: trainer.accelerator.prepare(  # rows in their order
        torch.utils.data.DataLoader(rows, batch_size=4, collate_fn=trainer.data_collator)
    )
    trainer.train()


@pytest.mark.parametrize("name", ["amplify", "sentencemix"])
@pytest.mark.parametrize("kind", ["cross_entropy", "binary"])
def test_cross_encoder_trainer(name, kind, folder, tmp_path):
    from sentence_transformers.cross_encoder import losses

    model = cross_encoder(folder, 3 if kind == "cross_entropy" else 1)
    twin, keys = copy.deepcopy(model), list(model.state_dict())
    labels = LABELS if kind == "cross_entropy" else torch.tensor([1.0, 0.0, 0.25, 1.0])
    before = model.predict(list(zip(TEXTS, ANSWERS)))
    mixer = mixwell.attach(model, name)
    assert (model.predict(list(zip(TEXTS, ANSWERS))) == before).all()
    loss = losses.CrossEntropyLoss(model) if kind == "cross_entropy" else losses.BinaryCrossEntropyLoss(model)
    with mixer.pin(lam=LAM, permutation=PERM):
        train(model, loss, labels, tmp_path)
    assert mixer.last.mixed and mixer.stats()["steps"] == 1
    mixer.detach()
    assert list(model.state_dict()) == keys
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    site = {"amplify": "attention", "sentencemix": "sentence"}[name]
    logits = logits_by_hand(twin, mixing(site))
    own = F.cross_entropy if kind == "cross_entropy" else F.binary_cross_entropy_with_logits
    logits = logits if kind == "cross_entropy" else logits.view(-1)
    two_terms(lambda y: own(logits, y), labels).backward()
    moved = 0.0
    for (key, found), wanted in zip(model.named_parameters(), twin.parameters()):
        step = torch.zeros_like(wanted) if wanted.grad is None else wanted.grad
        torch.testing.assert_close(found.detach(), wanted.detach() - step, rtol=1e-6, atol=1e-9, msg=key)
        moved = max(moved, float(step.abs().max()))
    assert moved > 1e-3


def test_a_loss_of_another_kind_is_an_error(folder, tmp_path):
    """Lists of answers are compared with each other: rows of other texts were mixed into them."""
    from sentence_transformers.cross_encoder import losses

    model = cross_encoder(folder, 1)
    mixwell.attach(model, "amplify")
    with pytest.raises(LabelsNotMixedError):
        train(model, losses.MultipleNegativesRankingLoss(model, num_negatives=1), torch.ones(4), tmp_path)


def test_the_model_inside_is_called_around_its_hooks(folder):
    model = cross_encoder(folder)
    mixwell.attach(model[0].model, "amplify")
    with pytest.raises(AttachError, match="outside a forward of the attached.*call the attached model itself"):
        model.train()(model.preprocess(list(zip(TEXTS, ANSWERS))))


# --- SentenceTransformer and a head ------------------------------


class Classifier(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, nn.Linear(16, 3)

    def forward(self, features):
        return self.head(self.body(features)["sentence_embedding"])


def body(folder):
    from sentence_transformers import SentenceTransformer

    return still(SentenceTransformer(str(folder), device="cpu"))


def embedding_by_hand(model, mix, features):
    hidden = bert_by_hand(model[0].model, mix, features["input_ids"], features["attention_mask"])
    real = features["attention_mask"].unsqueeze(-1)
    return mix("sentence", (hidden * real).sum(1) / real.sum(1))


@pytest.mark.parametrize("name", ["amplify", "sentencemix"])
def test_sentence_transformer_and_head(name, folder):
    torch.manual_seed(0)
    model = Classifier(body(folder)).double()
    features = dict(model.body.preprocess(TEXTS))
    plain = model.eval()(dict(features))
    with mixwell.attach(model, name, example=features) as mixer:
        assert torch.equal(model(dict(features)), plain)
        model.train()
        with mixer.pin(lam=LAM, permutation=PERM):
            logits = model(dict(features))
        mixer.loss(logits, LABELS).backward()
    found = {key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    site = {"amplify": "attention", "sentencemix": "sentence"}[name]
    wanted = model.head(embedding_by_hand(model.body, mixing(site), features))
    assert (logits - wanted).abs().max() < 1e-9
    two_terms(lambda y: F.cross_entropy(wanted, y), LABELS).backward()
    for key, value in model.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(found[key], value.grad, rtol=1e-6, atol=1e-9)
    assert torch.equal(model.eval()(dict(features)), plain)


# --- SetFit ------------------------------


def setfit_model(folder):
    from setfit import SetFitHead, SetFitModel

    torch.manual_seed(0)
    head = SetFitHead(in_features=16, out_features=3, device="cpu")
    return SetFitModel(model_body=body(folder), model_head=head, labels=["a", "b", "c"])


@pytest.mark.parametrize("end_to_end", [True, False])
@pytest.mark.parametrize("name", ["amplify", "sentencemix"])
def test_setfit_head(name, end_to_end, folder):
    model = setfit_model(folder)
    model.model_body.double(), model.model_head.double()
    twin = copy.deepcopy(model)
    before = model.predict_proba(TEXTS)
    gradients = {}

    def keep(key):
        def hook(parameter):
            gradients[key] = parameter.grad.clone()

        return hook

    mixer = mixwell.attach(model, name)
    assert mixwell.mixer_of(model) is mixer
    assert torch.equal(model.predict_proba(TEXTS), before)
    names = [f"body.{key}" for key, _ in model.model_body.named_parameters()]
    names += [f"head.{key}" for key, _ in model.model_head.named_parameters()]
    parameters = [*model.model_body.parameters(), *model.model_head.parameters()]
    for key, parameter in zip(names, parameters):
        parameter.register_post_accumulate_grad_hook(keep(key))
    seen = []
    original = model._prepare_dataloader

    def in_order(*args, **kwargs):
        loader = original(*args, **{**kwargs, "shuffle": False})
        seen.extend(loader)
        return loader

    model._prepare_dataloader = in_order
    with mixer.pin(lam=LAM, permutation=PERM):
        model.fit(TEXTS, LABELS.tolist(), 1, batch_size=4, head_learning_rate=0.1, body_learning_rate=0.1,
                  end_to_end=end_to_end, show_progress_bar=False)  # fmt: skip
    assert mixer.stats()["mixed"] == 1
    mixwell.detach(model)
    assert "fit" not in vars(model) and mixwell.mixer_of(model) is None
    site = {"amplify": "attention", "sentencemix": "sentence"}[name]
    ((features, labels),) = seen
    embedding = embedding_by_hand(twin.model_body, mixing(site), features)
    logits = twin.model_head(embedding)[0]
    two_terms(lambda y: F.cross_entropy(logits, y), labels).backward()
    wanted = dict(zip(names, [*twin.model_body.parameters(), *twin.model_head.parameters()]))
    assert any(key.startswith("body") for key in gradients) == end_to_end
    for key, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[key].grad, rtol=1e-6, atol=1e-9, msg=key)


def test_setfit_trainer_mixes_the_head_and_leaves_pairs_alone(folder, tmp_path):
    """The whole of their trainer: pairs of embeddings first, which have no labels to mix, then the head."""
    from datasets import Dataset
    from setfit import Trainer, TrainingArguments

    model = setfit_model(folder)
    random.seed(0)
    rows = Dataset.from_dict({"text": TEXTS * 2, "label": LABELS.tolist() * 2})
    args = TrainingArguments(
        output_dir=str(tmp_path), batch_size=4, num_epochs=(1, 3), max_steps=2, end_to_end=True, report_to="none",
        save_strategy="no", show_progress_bar=False,
    )  # fmt: skip
    mixer = mixwell.attach(model, "amplify", draw="beta", alpha=1.0)
    trainer = Trainer(model=model, args=args, train_dataset=rows)
    start = copy.deepcopy(model.model_head.state_dict())
    trainer.train()
    assert mixer.stats()["steps"] == mixer.stats()["mixed"] == 6  # 2 batches, 3 times; none of the pairs
    assert any(not torch.equal(value, start[key]) for key, value in model.model_head.state_dict().items())
    mixer.detach()
    assert len(model.predict(TEXTS)) == 4


def test_setfit_with_a_head_of_scikit_learn(folder):
    from setfit import SetFitModel
    from sklearn.linear_model import LogisticRegression

    model = SetFitModel(model_body=body(folder), model_head=LogisticRegression())
    with pytest.raises(UnsupportedModelError, match="use_differentiable_head=True"):
        mixwell.attach(model, "amplify")
