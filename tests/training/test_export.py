"""Models as ONNX files, by themselves and behind a server."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_heads import pooled_folder
from test_training import calm, data_file, rows, run, settings, tiny, write_csv  # noqa: F401

import mixwell
import parts
from mixwell.training.export import _rows, export_onnx
from mixwell.training.onnx import OnnxClassifier, open_classifier
from mixwell.utils.errors import OptionError, RunError

TEXTS = [text for text, _ in rows(50, seed=9)]


def main(*words: Any) -> int:
    from mixwell.cli import main

    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_onnx(run, tmp_path_factory.mktemp("served") / "model.onnx").file


def test_same_outputs_for_any_batch_and_length(run: Path, exported: Path) -> None:
    """By hand, with nothing of ours on the side of onnxruntime."""
    import onnxruntime
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(exported.parent)
    session = onnxruntime.InferenceSession(exported)
    assert all(each.shape == ["batch", "tokens"] for each in session.get_inputs())
    assert {"input_ids", "attention_mask"} <= {each.name for each in session.get_inputs()}
    for texts in (TEXTS[:1], ["film"], TEXTS, [*TEXTS[:3], " ".join(TEXTS)]):
        batch = tokenizer(texts, padding=True, truncation=True, max_length=32, return_tensors="pt")
        with torch.no_grad():
            wanted = model(**batch).logits
        given = {each.name: batch[each.name].numpy() for each in session.get_inputs()}
        logits, probabilities = session.run(None, given)
        assert np.abs(logits - wanted.numpy()).max() < 1e-5
        assert np.abs(probabilities - wanted.softmax(-1).numpy()).max() < 1e-5
        about = json.loads((exported.parent / "mixwell.json").read_text())
        assert about["labels"] == [model.config.id2label[at] for at in range(2)]


def test_the_temperature_is_inside(run: Path, tmp_path: Path) -> None:
    """Also that of older folders, which have it beside the weights."""
    folder = Path(shutil.copytree(run / "model", tmp_path / "model"))
    about = json.loads((folder / "mixwell.json").read_text())
    about |= {"temperature": 3.0, "temperature_in_weights": False}
    (folder / "mixwell.json").write_text(json.dumps(about))
    done = export_onnx(folder, tmp_path / "out" / "model.onnx")
    wanted = mixwell.Classifier.load(folder, device="cpu").predict(TEXTS)
    found = OnnxClassifier.load(done.file).predict(TEXTS, batch_size=7)
    assert np.abs(found.probabilities - wanted.probabilities).max() < 1e-5
    assert found.labels == wanted.labels


def test_predict_reads_an_export(run: Path, exported: Path, tmp_path: Path, capsys: Any) -> None:
    source = write_csv(tmp_path / "new.csv", rows(60, seed=5))
    assert main("predict", run, source, "-f", "csv", "--device", "cpu") == 0
    wanted = capsys.readouterr().out
    assert main("predict", exported.parent, source, "-f", "csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[:3] for line in lines] == [line.split(",")[:3] for line in wanted.splitlines()]
    assert main("predict", exported, "a film") == 0
    assert main("predict", exported, "a film", "--device", "cuda") == 2
    assert isinstance(open_classifier(exported), OnnxClassifier)
    with pytest.raises(RunError, match="another version"):
        mixwell.Classifier.load(exported.parent)


def test_int8_is_measured(run: Path, data_file: Path, tmp_path: Path, capsys: Any) -> None:
    from mixwell import data

    assert main("export", run, "--onnx", tmp_path / "a" / "model.onnx", "--int8") == 0
    assert "test rows" in capsys.readouterr().out
    about = json.loads((tmp_path / "a" / "mixwell.json").read_text())["onnx"]["int8"]
    test = data.load(data_file, hold_out_from=0, keep_together=True).test
    found = OnnxClassifier.load(tmp_path / "a").predict(test["text"].to_pylist())
    truth = ["neg", "pos"]
    right = [one == truth[two] for one, two in zip(found.labels, test["label"].to_pylist())]
    assert about["rows"] == len(right) and about["accuracy_int8"] == pytest.approx(np.mean(right))
    assert 0.5 < about["agreement"] <= 1
    assert (tmp_path / "a" / "model.onnx").stat().st_size > 0
    turned = [(text, {"pos": "a new label"}.get(label, label)) for text, label in rows(40, seed=8)]
    other = write_csv(tmp_path / "other.csv", turned)  # whose labels have other numbers
    split, columns, labels = _rows(run / "model", other, mixwell.Classifier.load(run))
    assert (split, len(columns[0]), set(labels.tolist())) == ("given rows", 40, {-1, 0})
    assert main("export", run / "model", "--onnx", tmp_path / "c" / "m.onnx", "--int8") == 2
    assert "--data" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("kind", parts.some(["pairs", "numbers", "several labels"], 2))
def test_other_tasks(kind: str, tmp_path: Path) -> None:
    encoder = pooled_folder(tmp_path / "encoder", pooling_mode_cls_token=True)
    lines: list[dict[str, Any]] = [{"text": text, "label": label} for text, label in rows(60)]
    if kind == "pairs":
        lines = [{"text_pair": "that film", **line} for line in lines]
    elif kind == "several labels":
        lines = [{**line, "label": [line["label"], *(["long"] if len(line["text"]) > 30 else [])]} for line in lines]
    else:
        lines = [{**line, "label": len(line["text"]) + 0.5} for line in lines]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = mixwell.train(
        tmp_path / "rows.jsonl", model=str(encoder), method="probe", quiet=True, output=str(tmp_path / "run"),
        task="regression" if kind == "numbers" else None,
    )  # fmt: skip
    file = export_onnx(done.folder, tmp_path / "out" / "model.onnx", int8=kind == "several labels").file
    texts: tuple[Any, ...] = (TEXTS, ["a plot"] * 50) if kind == "pairs" else (TEXTS,)
    wanted, found = done.classifier(device="cpu").predict(*texts), OnnxClassifier.load(file).predict(*texts)
    if kind == "several labels":
        assert json.loads((tmp_path / "out" / "mixwell.json").read_text())["onnx"]["int8"]["rows"] == 60
    else:
        assert np.allclose(found.logits, wanted.logits, atol=1e-5, rtol=1e-5)


def test_what_cannot_be_exported(
    run: Path, exported: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main("export", run, "--onnx", tmp_path / "model.bin") == 2
    assert ".onnx" in capsys.readouterr().err
    assert main("export", tmp_path / "none", "--onnx", tmp_path / "model.onnx") == 2
    assert main("export", run, "--onnx", run / "model" / "model.onnx") == 2
    assert "another folder" in capsys.readouterr().err
    assert not (run / "model" / "model.onnx").exists()
    monkeypatch.setattr("mixwell.training.export.TOLERANCE", 0.0)
    monkeypatch.setattr("mixwell.training.export._write", lambda classifier, file: shutil.copy(exported, file))
    with pytest.raises(RunError, match="differs from PyTorch"):
        export_onnx(run, tmp_path / "out" / "model.onnx")
    assert not list((tmp_path / "out").iterdir())
    (tmp_path / "mixwell.json").write_text('{"format": "mixwell onnx 1", "onnx": {"file": "model.onnx"}}')
    assert main("predict", tmp_path, "a film") == 2
    assert "model.onnx is missing" in capsys.readouterr().err


def test_without_the_extra(run: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixwell.training.export.NEEDED", ("onnx", "not_a_package"))
    with pytest.raises(OptionError, match=r"not_a_package.*mixwell\[onnx\]"):
        export_onnx(run, tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(OptionError, match=r"mixwell\[onnx\]"):
        OnnxClassifier.load(exported)
