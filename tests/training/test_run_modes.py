"""Whole runs with folds, without held-out rows, and of a probe; and that their folders say the same everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_heads import pooled_folder
from test_training import BASE, calm, rows, write_csv  # noqa: F401

import parts
from mixwell.utils.errors import OptionError


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pooled_folder(tmp_path_factory.mktemp("pooled") / "encoder", pooling_mode_mean_tokens=True)


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("films") / "films.csv", rows(130))


# Settings of fine-tuning left to the recipe.
AUTO = {"epochs": None, "head_rate": None}


def wanted(encoder: Path, data: Path, output: Path, **changes: Any) -> Any:
    from mixwell.training import TrainSettings
    from mixwell.training.settings import TUNING, USED

    places = {"data": str(data), "model": str(encoder), "output": str(output)}
    values = {**BASE, "head_rate": 1.0, "batch_size": 16, **places}
    unused = set(TUNING) - set(USED.get(changes.get("method", ""), TUNING))
    return TrainSettings(**{name: value for name, value in values.items() if name not in unused} | changes)


def trained(*args: Any, **changes: Any) -> tuple[Path, dict[str, Any]]:
    from mixwell.api import train

    done = train(wanted(*args, **changes), quiet=True)
    return done.folder, done.metrics


@pytest.fixture(scope="session")
def folded(encoder: Path, films: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(encoder, films, tmp_path_factory.mktemp("folded") / "run", method="none", folds=3)[0]


def test_folds_hold_every_row_out_once(folded: Path, films: Path) -> None:
    import pyarrow.parquet as pq

    metrics = json.loads((folded / "metrics.json").read_text())
    assert metrics["folds"] == 3
    assert "test" not in metrics and "validation" not in metrics
    assert metrics["out_of_fold"]["rows"] == 130
    assert len(metrics["history"]) == 4
    assert 1 <= metrics["best_epoch"] <= 4
    table = pq.read_table(folded / "predictions.parquet").to_pylist()
    assert sorted(row["row_id"] for row in table) == sorted(f"train:{at}" for at in range(1, 131))
    right = np.mean([row["label"] == row["predicted"] for row in table])
    assert right == pytest.approx(metrics["out_of_fold"]["before"]["accuracy"])
    assert not (folded / "folds").exists() and not (folded / "checkpoints").exists()
    assert {"guessing", "probe"} <= metrics["baselines"].keys()
    page = (folded / "report.html").read_text()
    assert "130 rows, each held out once" in page


def test_the_final_model_is_trained_on_all_rows(encoder: Path, films: Path, tmp_path: Path) -> None:
    """With one epoch to choose from it is the model of a run that holds nothing out, but for the temperature."""
    from safetensors.numpy import load_file

    usual = {"method": "none", "start": "random", "epochs": 1}
    first, metrics = trained(encoder, films, tmp_path / "folds", folds=2, **usual)
    second, plain = trained(encoder, films, tmp_path / "none", validation="none", **usual)
    assert plain["temperature"] == 1.0
    one, two = (load_file(str(each / "model" / "model.safetensors")) for each in (first, second))
    for name, value in one.items():
        scale = metrics["temperature"] if name.startswith("classifier") else 1
        assert np.allclose(value * scale, two[name], atol=1e-6), name


def test_nothing_held_out(encoder: Path, films: Path, tmp_path: Path) -> None:
    folder, metrics = trained(encoder, films, tmp_path / "run", validation="none", method="manifold", epochs=2)
    assert not {"test", "validation", "out_of_fold"} & metrics.keys()
    assert metrics["temperature"] == 1.0
    assert "no rows were held out" in metrics["temperature_note"]
    assert "nothing was measured" in (folder / "report.html").read_text()
    assert "nothing was measured" in (folder / "model" / "README.md").read_text()


@pytest.mark.parametrize("pairs", [False, True])
def test_few_rows_have_methods_of_their_own(encoder: Path, tmp_path: Path, pairs: bool) -> None:
    few = write_csv(tmp_path / "few.csv", rows(24))
    if pairs:
        few.write_text("text,text_pair,label\n" + "".join(f"{text},so,{label}\n" for text, label in rows(24)))
    _, metrics = trained(encoder, few, tmp_path / "run", batch_size=8, validation="none", **AUTO)
    assert metrics["method"]["method"] == ("probe" if pairs else "contrastive")
    assert metrics["folds"] == 0
    if not pairs:
        _, metrics = trained(encoder, few, tmp_path / "measured", batch_size=8, **AUTO)
        assert metrics["folds"] == 3 and metrics["out_of_fold"]["rows"] == 24
        assert metrics["method"]["method"] in ("contrastive", "probe")


def test_folds_end_when_the_loss_stops_falling(encoder: Path, tmp_path: Path) -> None:
    """Labels that nothing predicts: the first fold ends early, the others and the history are as long."""
    texts = [text for text, _ in rows(60)]
    labels = np.random.default_rng(0).permutation(["good", "bad"] * 30)
    noise = write_csv(tmp_path / "noise.csv", list(zip(texts, labels, strict=True)))
    usual: dict[str, Any] = {"method": "none", "epochs": 12, "learning_rate": 0.003, "folds": 3}
    _, metrics = trained(encoder, noise, tmp_path / "run", **usual)
    assert metrics["best_epoch"] <= len(metrics["history"]) < 12
    assert len(metrics["history"]) >= 4
    _, whole = trained(encoder, noise, tmp_path / "whole", patience=0, **usual)
    assert len(whole["history"]) == 12


@pytest.mark.parametrize("options", [{"folds": 2}, {"validation": 0.2, "test": 0.2}, {"validation": "none"}])
def test_tuned_by_pairs(encoder: Path, films: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """The saved model is an encoder whose features have length 1, and the same twice over."""
    from safetensors.numpy import load_file

    from mixwell.training.predict import Classifier

    made = []
    for name in ("one", "two") if parts.ALL or "folds" in options else ("one",):
        folder, metrics = trained(encoder, films, tmp_path / name, method="contrastive", learning_rate=0.001, **options)
        assert metrics["method"]["method"] == "contrastive"
        made.append(load_file(str(folder / "model" / "model.safetensors")))
    assert all(np.array_equal(value, made[-1][name]) for name, value in made[0].items())
    assert Classifier.load(tmp_path / "one").model.config.normalize
    if "folds" in options:
        assert metrics["out_of_fold"]["before"]["accuracy"] > 0.6


@pytest.mark.parametrize("pairs", [False, True])
def test_a_probe_is_deployed_like_any_other_run(encoder: Path, tmp_path: Path, pairs: bool) -> None:
    from mixwell.training.predict import Classifier

    lines = rows(120)
    source = tmp_path / "films.csv"
    if pairs:
        source.write_text("text,text_pair,label\n" + "".join(f"{text},it is so,{label}\n" for text, label in lines))
    else:
        write_csv(source, lines)
    folder, metrics = trained(encoder, source, tmp_path / "run", method="probe")
    assert metrics["method"]["method"] == "probe"
    assert metrics["steps"] == 0
    assert metrics["out_of_fold"]["before"]["accuracy"] > 0.6
    found = Classifier.load(folder)
    assert found.model.config.pair_separator == (3 if pairs else None)
    assert found.model.classifier.in_features == (64 if pairs else 16)
    texts = [text for text, _ in lines]
    said = found.predict(texts, ["it is so"] * 120 if pairs else None)
    right = np.mean([one == two for one, (_, two) in zip(said.labels, lines)])
    assert right >= metrics["out_of_fold"]["before"]["accuracy"] - 0.1


def test_auto_takes_the_probe_where_it_is_better(encoder: Path, films: Path, tmp_path: Path) -> None:
    """A learning rate at which fine-tuning learns nothing and forgets what was there."""
    _, metrics = trained(encoder, films, tmp_path / "run", folds=2, epochs=2, learning_rate=0.5, start="random")
    assert metrics["method"]["method"] == "probe"
    assert "fine_tuned" in metrics["baselines"]
    assert "so the probe is kept" in metrics["sentences"][-1]


ANYWHERE = """
import json, sys
from transformers import pipeline
assert "mixwell" not in sys.modules
made = pipeline("text-classification", sys.argv[1], trust_remote_code=True, top_k=None)
print(json.dumps([{each["label"]: each["score"] for each in row} for row in made(json.loads(sys.argv[2]))]))
"""


def test_the_same_probabilities_everywhere(folded: Path, tmp_path: Path) -> None:
    """`mixwell predict`, a pipeline beside mixwell, and a pipeline in a process without it."""
    from transformers import pipeline

    from mixwell.training.predict import Classifier

    texts = [text for text, _ in rows(12, seed=9)]
    found = Classifier.load(folded)
    ours = found.predict(texts).probabilities
    beside = pipeline("text-classification", str(folded / "model"), top_k=None)(texts)
    done = subprocess.run(
        [sys.executable, "-c", ANYWHERE, str(folded / "model"), json.dumps(texts)],
        capture_output=True, text=True, env={**os.environ, "HF_MODULES_CACHE": str(tmp_path), "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    far = json.loads(done.stdout)
    for at in range(len(texts)):
        for number, label in enumerate(found.labels):
            near = {each["label"]: each["score"] for each in beside[at]}
            assert near[label] == pytest.approx(ours[at, number], abs=1e-6)
            assert far[at][label] == pytest.approx(ours[at, number], abs=1e-6)


WRONG = {
    "steps with folds": (["--folds", 2, "--set", "max_steps=3"], "max_steps"),
    "metric with folds": (["--folds", 2, "--best-metric", "accuracy"], "best_metric"),
    "numbers by pairs": (["--method", "contrastive", "--task", "regression", "--label", "label"], "label"),
    "one fold": (["--folds", 1], "folds"),
    "folds and validation": (["--folds", 3, "--validation", 0.2], "leave one of them out"),
    "more folds than texts": (["--folds", 100], "fewer folds"),
    "unknown pooling": (["--pooling", "avg"], "pooling"),
    "unknown start": (["--start", "prob"], "did you mean 'probe'"),
    "unknown rare": (["--rare", "keep"], "rare"),
    "head rate": (["--head-rate", 0], "head_rate"),
    "a probe of a head": (["--method", "probe", "--pooling", "model"], "pooling model"),
    "start without pooling": (["--start", "probe", "--pooling", "model"], "start=probe"),
    "smoothing a probe": (["--method", "probe", "--label-smoothing", 0.1], "label_smoothing"),
    "epochs of a probe": (["--method", "probe", "--epochs", 3], "epochs"),
    "rate of a probe": (["--method", "probe", "--learning-rate", 1e-4], "learning_rate"),
    "start of pairs": (["--method", "contrastive", "--start", "probe"], "start"),
    "option of a probe": (["--method", "probe", "--option", "pairing=pairs"], "option"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_are_one_line(
    case: str, encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mixwell.cli import main

    few = write_csv(tmp_path / "few.csv", rows(40))
    words, part = WRONG[case]
    code = main([str(each) for each in ["train", few, "--model", encoder, "-o", tmp_path / "run", *words]])
    said = capsys.readouterr().err
    assert code == 2
    assert part in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_start_probe_needs_a_pooled_head(encoder: Path, films: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="start=probe"):
        trained(encoder, films, tmp_path / "run", start="probe", pooling="model")


@pytest.mark.parametrize("rare", ["drop", "merge"])
def test_rare_classes(encoder: Path, tmp_path: Path, rare: str) -> None:
    source = write_csv(tmp_path / "films.csv", [*rows(130), ("a odd film", "odd"), ("the queer plot", "queer")])
    folder, _ = trained(encoder, source, tmp_path / "run", method="probe", rare=rare, folds=0)
    labels = json.loads((folder / "run.json").read_text())["data"]["labels"]
    assert labels == (["neg", "pos"] if rare == "drop" else ["neg", "other", "pos"])


def test_held_out_rows_that_exist_are_used(encoder: Path, tmp_path: Path) -> None:
    """Few training rows, but a validation file: method auto chooses by it, and the temperature is fitted on it."""
    few, held = write_csv(tmp_path / "few.csv", rows(60)), write_csv(tmp_path / "held.csv", rows(120, seed=5))
    _, metrics = trained(encoder, few, tmp_path / "run", validation=str(held), epochs=2)
    assert metrics["method"]["method"] in ("none", "probe")
    assert metrics["validation"]["rows"] == 120


def test_equal_texts_are_nothing_to_learn_from(encoder: Path, tmp_path: Path) -> None:
    from mixwell.utils.errors import DataError

    same = write_csv(tmp_path / "same.csv", [("a film", "pos"), ("a film", "neg")] * 10)
    with pytest.raises(DataError, match="all training texts are the same"):
        trained(encoder, same, tmp_path / "run")


def test_truncation_elsewhere_cuts_where_training_did(encoder: Path, films: Path, tmp_path: Path) -> None:
    from transformers import pipeline

    from mixwell.training.predict import Classifier

    folder, _ = trained(encoder, films, tmp_path / "run", method="probe", max_length=8)
    text = "the film was so very good and the plot is a scene that was too bright it is"
    ours = Classifier.load(folder).predict(text)
    theirs = pipeline("text-classification", str(folder / "model"))(text, truncation=True)[0]
    assert theirs["label"] == ours.labels[0]
    assert theirs["score"] == pytest.approx(ours.confidence(0), abs=1e-6)
