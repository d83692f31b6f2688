"""The pooled classifier: how it pools, where it is loaded, and what it is to the rest of the world."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mixwell
import zoo
from mixwell.training import heads
from mixwell.training.modeling_pooled import pool, split_pairs
from mixwell.utils.errors import OptionError


def pooled_folder(folder: Path, **pooling: Any) -> Path:
    """A tiny encoder with the files by which sentence-transformers says how it is pooled."""
    from test_training import make_model

    make_model(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    modules += [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def test_pooling_by_hand() -> None:
    hidden = torch.randn(3, 5, 4)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    for row in range(3):
        real = [at for at in range(5) if mask[row, at]]
        expected = {"mean": hidden[row, real].mean(0), "cls": hidden[row, real[0]], "last": hidden[row, real[-1]]}
        for kind, wanted in expected.items():
            assert torch.allclose(pool(hidden, mask, kind)[row], wanted, atol=1e-6), kind
    assert torch.allclose(pool(hidden, None, "mean"), hidden.mean(1), atol=1e-6)
    nothing = torch.zeros(1, 5, dtype=torch.long)
    assert torch.equal(pool(hidden[:1], nothing, "mean"), torch.zeros(1, 4))


@pytest.mark.parametrize("double", [False, True])
def test_pairs_are_taken_apart(double: bool) -> None:
    sep = [2, 2] if double else [2]
    rows = [[1, 7, 8, *sep, 9, 2], [1, 5, *sep, 6, 6, 6, 2]]
    ids = torch.tensor([[*row, *[0] * (9 - len(row))] for row in rows])
    mask = torch.tensor([[int(at < len(row)) for at in range(9)] for row in rows])
    apart, kept = split_pairs(ids, mask, 2)
    found = [[int(word) for word, real in zip(row, place) if real] for row, place in zip(apart, kept)]
    assert found == [[1, 7, 8, 2], [1, 5, 2], [1, 9, 2], [1, 6, 6, 6, 2]]


@pytest.mark.parametrize(
    ("stated", "kind"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode_max_tokens": True}, "mean"),
    ],
)
def test_auto_reads_what_the_encoder_says(tmp_path: Path, stated: dict[str, Any], kind: str) -> None:
    folder = pooled_folder(tmp_path / "encoder", **stated)
    chosen = heads.choose_pooling("auto", str(folder))
    assert chosen.kind == kind
    assert bool(chosen.note) == ("pooling_mode_max_tokens" in stated)


def test_without_a_word_the_architecture_decides(tmp_path: Path) -> None:
    from test_training import make_model

    folder = make_model(tmp_path)
    assert heads.choose_pooling("auto", str(folder)).kind == "model"
    (folder / "modules.json").write_text("{")  # damaged
    assert heads.choose_pooling("auto", str(folder)).kind == "model"
    with pytest.raises(OptionError, match="did you mean 'mean'"):
        heads.choose_pooling("maen", str(folder))


def test_minilm_is_pooled_as_it_was_trained() -> None:
    """The features are those of sentence-transformers, but for the length that its last module sets to 1."""
    from sentence_transformers import SentenceTransformer

    from mixwell.training import models
    from mixwell.training.probe import features

    loaded = models.load("minilm", labels=["a", "b"], pooling="auto")
    assert loaded.pooling == "mean"
    texts = ["where is my parcel", "a much longer text about nothing in particular, with some more words", "refund"]
    encoded = [dict(loaded.tokenizer(text)) for text in texts]
    found = features(loaded.model, loaded.tokenizer, encoded)
    wanted = SentenceTransformer(str(zoo.minilm_folder()), device="cpu").encode(texts)
    assert np.allclose(found / np.linalg.norm(found, axis=1, keepdims=True), wanted, atol=1e-5)


def test_every_method_fits_and_lora_too() -> None:
    from peft import LoraConfig, get_peft_model

    model = zoo.tiny("pooled")
    assert not any(mixwell.inspect(model).methods.values())
    tuned = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], r=2))
    with mixwell.attach(tuned, "amplify", draw="beta", alpha=1.0):
        tuned.train()
        tuned(**zoo.batch("pooled")).loss.backward()
    assert any(p.grad is not None for n, p in tuned.named_parameters() if "lora" in n)


@pytest.mark.parametrize("task", ["single_label", "multi_label", "regression"])
def test_its_loss_is_that_of_transformers(task: str) -> None:
    """Same logits and labels give what BertForSequenceClassification computes."""
    problem = {"single_label": "single_label_classification", "multi_label": "multi_label_classification"}
    options = {"num_labels": 1 if task == "regression" else 3, "problem_type": problem.get(task, "regression")}
    ours, theirs = zoo.tiny("pooled", **options), zoo.tiny("bert", **options)
    batch = zoo.batch("pooled", task=task)
    logits = ours.eval()(**batch).logits
    theirs.classifier.forward = lambda pooled: logits  # type: ignore[method-assign]
    assert torch.equal(ours(**batch).loss, theirs.eval()(**batch).loss)


@pytest.mark.parametrize("kind", ["bert", "pooled", "roberta", "distilbert", "gpt2", "t5"])
def test_scaled_logits_by_weights(kind: str) -> None:
    model = zoo.tiny(kind).eval()
    batch = {name: value for name, value in zoo.batch(kind).items() if name != "labels"}
    before = model(**batch).logits
    assert heads.scale_logits(model, 0.5)
    assert torch.allclose(model(**batch).logits, before / 2, atol=1e-6)


IMPORTS = {
    "mixwell first": "import mixwell; from transformers import pipeline",
    "transformers first": "from transformers import pipeline; import transformers.models.auto.modeling_auto, mixwell",
}


@pytest.mark.parametrize("order", IMPORTS)
def test_the_auto_classes_know_it(tmp_path: Path, order: str) -> None:
    from mixwell.training import models

    folder = pooled_folder(tmp_path / "encoder", pooling_mode_mean_tokens=True)
    loaded = models.load(str(folder), labels=["neg", "pos"], pooling="auto")
    loaded.model.save_pretrained(tmp_path / "saved")
    loaded.tokenizer.save_pretrained(tmp_path / "saved")
    code = f"{IMPORTS[order]}; print(pipeline('text-classification', {str(tmp_path / 'saved')!r})('a good film'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "score" in done.stdout
    assert str(tmp_path) not in (tmp_path / "saved" / "config.json").read_text()
