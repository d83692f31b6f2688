"""Predictions of a finished run, for texts and files."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import csv
import io
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_training import calm, data_file, rows, run, settings, tiny, write_csv  # noqa: F401

from mixwell.utils.errors import MixwellError, OptionError, RunError


@pytest.fixture(scope="module")
def classifier(run: Path) -> Any:
    from mixwell.training.predict import Classifier

    return Classifier.load(run)


def main(*words: Any) -> int:
    from mixwell.cli import main

    return main([str(word) for word in words])


def test_same_probabilities_as_in_the_run(classifier: Any, run: Path, data_file: Path) -> None:
    import pyarrow.parquet as pq

    from mixwell import data

    table = pq.read_table(run / "predictions.parquet").to_pylist()
    wanted = {row["row_id"]: row for row in table if row["split"] == "test"}
    test = data.load(data_file).test
    found = classifier.predict(test["text"].to_pylist())
    for at, row_id in enumerate(test["row_id"].to_pylist()):
        assert found.labels[at] == wanted[row_id]["predicted"]
        assert np.allclose(found.probabilities[at], wanted[row_id]["calibrated"], atol=1e-6)


@pytest.mark.parametrize("inside", [None, False, True])
def test_the_temperature_is_used_once(classifier: Any, inside: bool | None) -> None:
    """Folders of older versions have it beside the weights, newer ones inside."""
    from mixwell.metrics.scores import softmax
    from mixwell.training.predict import Classifier

    record = {"task": "single_label", "labels": ["neg", "pos"], "temperature": 2.5, "max_length": 32}
    if inside is not None:
        record["temperature_in_weights"] = inside
    logits = np.array([[2.0, -1.0]], dtype=np.float32)
    found = Classifier(classifier.model, classifier.tokenizer, record).decide(logits)
    assert np.allclose(found.probabilities, softmax(logits if inside else logits / 2.5))


def test_formats(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow.parquet as pq

    source = write_csv(tmp_path / "new.csv", rows(150, seed=5))
    assert main("predict", run, source, "--output", tmp_path / "out.csv", "--batch-size", 4) == 0
    assert main("predict", run, source, "--output", tmp_path / "out.jsonl") == 0
    assert main("predict", run, source, "--output", tmp_path / "out.parquet", "--batch-size", 4) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "out.csv", "out.jsonl", "out.parquet"]
    with open(tmp_path / "out.csv", newline="") as stream:
        from_csv = list(csv.DictReader(stream))
    from_json = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    from_parquet = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(from_csv) == len(from_json) == len(from_parquet) == 150
    for a, b, c in zip(from_csv, from_json, from_parquet):
        assert a["label"] == b["label"] == c["label"]
        assert int(a["row"]) == b["row"] == c["row"]
        assert float(a["p_pos"]) == pytest.approx(b["probabilities"]["pos"], abs=1e-6)
        assert c["p_pos"] == pytest.approx(b["probabilities"]["pos"], abs=1e-6)
        assert b["probability"] == max(b["probabilities"].values())
        assert sum(b["probabilities"].values()) == pytest.approx(1)
    capsys.readouterr()
    assert main("predict", run, source, "--format", "csv") == 0
    assert len(list(csv.reader(io.StringIO(capsys.readouterr().out)))) == 151


def test_a_text_and_stdin(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main("predict", run, "a great film") == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2
    assert " pos " in out[1]
    monkeypatch.setattr("sys.stdin", io.StringIO("good film\nawful plot\n"))
    assert main("predict", run, "-", "--format", "jsonl") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["label"] for one in found] == ["pos", "neg"]


def test_files_are_streamed(classifier: Any) -> None:
    """An endless source gives results: nothing waits for its end."""
    endless = ({"text": text} for text, _ in itertools.cycle(rows(10)))
    batches = classifier.records(endless, batch_size=8, chunk=2)
    taken = list(itertools.islice(batches, 5))
    assert [len(batch) for batch in taken] == [16] * 5
    assert taken[-1][-1]["row"] == 80


def test_a_fault_in_the_midst_leaves_no_file(run: Path, tmp_path: Path) -> None:
    source = tmp_path / "new.jsonl"
    lines = [json.dumps({"text": text}) for text, _ in rows(40)]
    source.write_text("\n".join([*lines, "{broken"]) + "\n")
    assert main("predict", run, source, "--output", tmp_path / "out.csv", "--batch-size", 1) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["new.jsonl"]


def test_what_cannot_be_predicted(run: Path, classifier: Any, tmp_path: Path) -> None:
    from mixwell.training.predict import Classifier
    from mixwell.training.prediction_files import choose_format

    with pytest.raises(RunError, match="no such run folder"):
        Classifier.load(tmp_path / "nowhere")
    with pytest.raises(RunError, match="not a run"):
        Classifier.load(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RunError, match="--resume"):
        Classifier.load(tmp_path)
    with pytest.raises(OptionError, match="single texts"):
        classifier.predict(["a"], ["b"])
    with pytest.raises(OptionError, match="unknown"):
        choose_format("xml", None)
    with pytest.raises(OptionError, match="--output"):
        choose_format("parquet", None)
    with pytest.raises(MixwellError):
        list(classifier.records(tmp_path / "none.csv"))
    for name in ("none.csv", "none.CSV.gz", "none.tab", "none.xlsx"):
        assert main("predict", run, tmp_path / name) == 2
    assert main("predict", run, "please read notes.txt") == 0  # a text
    assert main("predict", run, " ") == 2
    assert main("predict", run, "a film", "-o", tmp_path / "out.xlsx") == 2
    assert main("predict", run, "a film", "--device", "meta") == 2
    assert main("predict", "~nobody-at-all/run", "a film") == 2
    assert classifier.predict([]).labels == []


def test_a_damaged_model(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(run / "model", folder)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {f"other.{name}": value for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    assert main("predict", folder, "a film") == 2
    assert "weights lack" in capsys.readouterr().err
    shutil.copy(run / "model" / "model.safetensors", folder)
    record = json.loads((folder / "mixwell.json").read_text())
    (folder / "mixwell.json").write_text(json.dumps({"format": record["format"]}))
    assert main("predict", folder, "a film") == 2
    assert "mixwell.json: damaged" in capsys.readouterr().err


def test_pairs(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mixwell.api import train

    lines = [{"text": text, "text_pair": "that film", "label": label} for text, label in rows(60)]
    source = tmp_path / "pairs.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)) + "\n")
    train(settings(tiny, source, tmp_path / "run", epochs=1, text_pair="text_pair"), quiet=True)
    assert main("predict", tmp_path / "run", source, "--text-pair", "text_pair", "-f", "jsonl") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["text_pair"] == "that film"
    # The columns of training are known, so the same file needs no options.
    assert main("predict", tmp_path / "run", source, "-f", "jsonl") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["text_pair"] == "that film"
    source.write_text(json.dumps({"text": "a film", "other": "a plot"}) + "\n")
    assert main("predict", tmp_path / "run", source) == 2
    assert "--text-pair" in capsys.readouterr().err


def test_columns_of_training_are_known(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mixwell.api import train

    source = tmp_path / "two.csv"
    write_csv(source, [("nothing here", f"{text},{label}") for text, label in rows(60)], "text,body,label")
    train(settings(tiny, source, tmp_path / "run", epochs=1, text="body"), quiet=True)
    assert main("predict", tmp_path / "run", source, "-f", "jsonl") == 0
    said = capsys.readouterr()
    found = json.loads(said.out.splitlines()[0])
    assert (found["text"], found["body"]) == ("nothing here", rows(60)[0][0])
    assert "predicted_text" not in found
    assert said.err == ""
    write_csv(source, [("a great film", "pos")], "sentence,label")
    assert main("predict", tmp_path / "run", source) == 0
    assert "note: columns found: text = 'sentence'" in capsys.readouterr().err
    assert main("predict", tmp_path / "run", source, "--text-pair", "label") == 2
    assert "single texts" in capsys.readouterr().err


def test_odd_texts_and_outputs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("predict", run, "~5 minutes late again") == 0
    source = tmp_path / "new.jsonl"
    source.write_text('{"text": "a film"}\n{"text": "x \\ud83d"}\n')
    assert main("predict", run, source) == 2
    assert "row 2: not valid text" in capsys.readouterr().err
    write_csv(tmp_path / "new.csv", [("a film", "pos")])
    (tmp_path / "folder").mkdir()
    assert main("predict", run, tmp_path / "new.csv", "-o", tmp_path / "folder") == 2
    assert "folder: Is a directory" in capsys.readouterr().err
    assert main("predict", run, tmp_path / "new.csv", "-o", tmp_path / "new.csv" / "out.csv") == 2
    assert "Traceback" not in capsys.readouterr().err
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    assert main("predict", run, tmp_path / "new.csv", "-o", tmp_path / "link.csv") == 0
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "real.csv").is_file()
    assert main("predict", run, tmp_path / "new.csv", "-o", "/dev/null", "-f", "csv") == 0
    assert Path("/dev/null").is_char_device()
    if Path("/proc/self").is_dir():  # a folder that takes no files
        assert main("predict", run, tmp_path / "new.csv", "-o", "/proc/out.csv") == 2
        assert "/proc/out.csv: Permission denied" in capsys.readouterr().err
    assert main("predict", run, "a film", "--device", "nonsense") == 2
    assert "device 'nonsense'" in capsys.readouterr().err


def test_stdin_in_another_encoding(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("a film\ncafé\n".encode("cp1252")), "utf-8"))
    assert main("predict", run, "-") == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_code_of_the_model_runs_only_if_asked(run: Path, tmp_path: Path) -> None:
    import shutil

    from mixwell.training.predict import Classifier

    copy = Path(shutil.copytree(run / "model", tmp_path / "model"))
    about = json.loads((copy / "mixwell.json").read_text())
    (copy / "mixwell.json").write_text(json.dumps({**about, "trust_remote_code": True}))
    with pytest.raises(OptionError, match="--trust-remote-code"):
        Classifier.load(copy)
    assert Classifier.load(copy, trust_remote_code=True).predict(["a film"]).labels


def test_other_columns_are_kept_and_never_taken_for_ours(run: Path, tmp_path: Path) -> None:
    """Names that we would use, a title that equals the text, rows without a column, types that change."""
    import pyarrow.parquet as pq

    source = tmp_path / "new.csv"
    source.write_text("id,title,text,label,predicted_label,probability\n7,a good film,a good film,mine,theirs,0.5\n")
    assert main("predict", run, source, "-o", tmp_path / "out.csv") == 0
    with open(tmp_path / "out.csv", newline="") as stream:
        (found,) = csv.DictReader(stream)
    assert (found["id"], found["title"], found["label"], found["probability"]) == ("7", "a good film", "mine", "0.5")
    assert found["predicted_label"] in ("pos", "neg") and float(found["predicted_probability"]) >= 0.5
    assert main("predict", run, source, "-o", tmp_path / "out.parquet") == 0
    assert pq.read_table(tmp_path / "out.parquet").to_pylist()[0]["id"] == "7"
    assert main("predict", run, source, "-o", tmp_path / "only.csv", "--only-predictions") == 0
    assert (tmp_path / "only.csv").read_text().startswith("row,text,label,probability,p_neg,p_pos\n")
    ragged = tmp_path / "ragged.jsonl"
    ragged.write_text('{"text": "good", "a": 1}\n{"text": "bad", "b": [1]}\n{"text": "dull", "a": "x"}\n')
    assert main("predict", run, ragged, "-o", tmp_path / "ragged.csv") == 0
    assert main("predict", run, ragged, "-o", tmp_path / "again.jsonl") == 0
    assert json.loads((tmp_path / "again.jsonl").read_text().splitlines()[1])["b"] == [1]
    assert main("predict", run, ragged, "-o", tmp_path / "ragged.parquet") == 2
    assert not (tmp_path / "ragged.parquet").exists()


def test_rows_without_text_are_skipped_if_asked(
    run: Path, classifier: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    source = tmp_path / "new.csv"
    source.write_text("text,id\n" + ",1\n" * 20 + "a good film,2\n,3\nan awful plot,4\n")
    assert main("predict", run, source, "-o", tmp_path / "out.parquet") == 2
    assert main("predict", run, source, "-o", tmp_path / "out.parquet", "--on-empty", "skip", "--batch-size", 1) == 0
    assert "skipped: column 'text' is empty" in capsys.readouterr().err
    assert pq.read_table(tmp_path / "out.parquet")["row"].to_pylist() == [21, 23]
    assert sum(len(batch) for batch in classifier.records(source, on_empty="skip")) == 2
    assert main("predict", run, source, "--on-empty", "drop") == 2


def test_one_text_several_and_columns_of_pandas(run: Path, classifier: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import pandas as pd

    one = classifier.predict("a good film")
    assert len(one.labels) == 1
    for many in (
        pd.Series(["a good film", "so dull"]),
        np.array(["a good film", "so dull"]),
        ("a good film", "so dull"),
    ):
        found = classifier.predict(many)
        assert len(found.labels) == 2
        assert np.allclose(found.probabilities[0], one.probabilities[0], atol=1e-6)
    for wrong in (None, 3, ["a", 4], pd.DataFrame({"text": ["a"]})):
        with pytest.raises(OptionError):
            classifier.predict(wrong)
    assert main("predict", run, "a good film", "so dull") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main("predict", run, "a good film", "new.csv") == 2
