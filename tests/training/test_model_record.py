"""What a model folder says is checked against what the model is, and no prediction is made of numbers that are none."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import csv
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_training import calm, data_file, rows, run, settings, tiny, write_csv  # noqa: F401

from forked import run_forked
from mixwell.utils.cells import harmless
from mixwell.utils.errors import MixwellError, RunError


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    """A copy of the model folder of a finished run."""
    return Path(shutil.copytree(run / "model", tmp_path / "model"))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"labels": ["pos", "neg"]}, "not those of config.json"),
        ({"labels": ["neg", "neg"]}, "named twice"),
        ({"labels": ["neg"]}, "1 labels where config.json has 2"),
        ({"labels": ["neg", "pos", "odd"]}, "3 labels where config.json has 2"),
        ({"labels": "np"}, "labels must be a list"),
        ({"labels": None}, "labels must be a list"),
        ({"labels": [0, 1]}, "labels must be a list of texts"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"temperature": -1}, "temperature must be"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"temperature": float("inf")}, "temperature must be"),
        ({"temperature": "hot"}, "temperature must be"),
        ({"temperature": True}, "temperature must be"),
        ({"task": "regression"}, "where config.json has 2"),
        ({"task": "multi_label"}, "its task multi_label is not that of config.json"),
        ({"task": "ranking"}, "task 'ranking' is none of"),
        ({"task": []}, "is none of"),
        ({"max_length": 0}, "max_length must be"),
        ({"max_length": "9"}, "max_length must be"),
        ({"max_length": 10_000}, "more than the 32 tokens"),
        ({"columns": []}, "columns must name"),
        ({"columns": {"text": 3}}, "columns must name"),
        ({"pairs": "no"}, "pairs must be true or false"),
        ({"temperature_in_weights": "no"}, "temperature_in_weights must be"),
    ],
)
def test_a_changed_record_is_refused(folder: Path, values: dict[str, Any], message: str) -> None:
    from mixwell.training.predict import Classifier

    Classifier.load(folder)
    change(folder / "mixwell.json", **values)
    with pytest.raises(RunError, match=message) as caught:
        Classifier.load(folder)
    assert "mixwell.json" in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["classifier.weight", "word_embeddings"])
def test_weights_that_are_not_finite(folder: Path, name: str, value: float) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    key = next(key for key in weights if name in key)
    weights[key] = weights[key].copy()
    weights[key].flat[5] = value
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for words in (["predict", folder, "a film"], ["attention", folder, "a good film"], ["inspect", folder]):
        code, told = run_forked(words)
        said = told.strip().splitlines()
        assert code == 2 and len(said) == 1 and key in said[0] and "not finite" in said[0]


def test_logits_that_are_not_finite(folder: Path) -> None:
    from mixwell.training.predict import Classifier

    made = Classifier.load(folder)
    for odd in ([[np.nan, 0.0]], [[0.0, 1.0], [np.inf, 0.0]]):
        with pytest.raises(RunError, match="not finite"):
            made.decide(np.array(odd, dtype=np.float32))
    with pytest.raises(RunError, match="expected 2"):
        made.decide(np.zeros((1, 3), dtype=np.float32))


def test_tokenizers_that_cannot_be_used(folder: Path, tiny: Path, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "films.csv", rows(40))
    model = Path(shutil.copytree(tiny, tmp_path / "tiny"))
    for place in (folder, model):
        content = json.loads((place / "tokenizer.json").read_text())
        content["model"] = {"type": "WordPieceOfTomorrow", "vocab": {}}
        (place / "tokenizer.json").write_text(json.dumps(content))
    train = ["train", source, "-m", model, "-o", tmp_path / "out"]
    assert run_forked(["predict", folder, "a film"])[0] == 2
    assert run_forked(train)[0] == 2
    shutil.copy(tiny / "tokenizer.json", model / "tokenizer.json")
    for odd in ("many", -5, 0, [], True):
        change(model / "tokenizer_config.json", model_max_length=odd)
        code, told = run_forked(train)
        assert code == 2 and "model_max_length" in told, odd


def test_files_of_a_model_can_be_read_by_all(run: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (run / "model").iterdir() if path.is_file()}
    assert set(modes.values()) == {0o666 & ~umask}, modes


def test_the_card_and_the_page_give_nothing_away(tiny: Path, tmp_path: Path) -> None:
    from mixwell import api

    odd = "[x](javascript:alert`1`)<img src=y>.csv"
    source = write_csv(tmp_path / odd, rows(40))
    done = api.train(
        settings(tiny, source, tmp_path / "out", epochs=1, validation=str(write_csv(tmp_path / "v.csv", rows(9, 3)))),
        quiet=True,
    )
    card = (done.folder / "model" / "README.md").read_text()
    assert "<img" not in card.replace("\\<img", "") and "](" not in card.split("## Use")[0]
    page = (done.folder / "report.html").read_text()
    assert str(tmp_path) not in page and str(tiny) not in page


# --- formulas in CSV --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["=1+1", "+cmd|'/C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "=", "-"])
def test_formulas_are_made_harmless(text: str) -> None:
    assert harmless(text) == f"'{text}"


@pytest.mark.parametrize("value", ["-1.5", "+3", "-2e-05", "-.5", "a=1", "", " x", 3, -1.5, None, "it's", "1-2"])
def test_other_cells_stay(value: Any) -> None:
    assert harmless(value) == value


def test_predict_writes_no_formulas(run: Path, tmp_path: Path) -> None:
    from mixwell.cli import main

    source = tmp_path / "new.jsonl"
    source.write_text(json.dumps({"text": "=HYPERLINK(1)", "@note": "-1.5", "more": "+a"}) + "\n")

    def written(*more: str) -> tuple[list[str], list[str]]:
        assert main(["predict", str(run), str(source), "-o", str(tmp_path / "out.csv"), *more]) == 0
        with open(tmp_path / "out.csv", newline="") as stream:
            head, row = csv.reader(stream)
        return head, row

    head, row = written()
    assert "'@note" in head and {"'=HYPERLINK(1)", "-1.5", "'+a"} <= set(row)
    head, row = written("--raw-csv")
    assert "@note" in head and {"=HYPERLINK(1)", "-1.5", "+a"} <= set(row)


def test_predict_to_a_place_that_takes_no_files(run: Path) -> None:
    for place in ("/proc/x.csv", "/proc/self/x.csv", "/sys/x.csv", "/dev/null/x.csv"):
        code, told = run_forked(["predict", run, "a film", "-o", place])
        assert code == 2 and len(told.strip().splitlines()) == 1


def test_class_weights_must_be_finite() -> None:
    from mixwell.methods import build

    for odd in ([1.0, float("nan")], [float("inf"), 1.0], ["a", 1.0], [None, 1.0], [10**400, 1.0]):
        with pytest.raises(MixwellError, match="class_weights must be finite"):
            build("amplify", {"class_weights": odd})
    for odd in (10**30, 300_000_000, 10**5000):
        with pytest.raises(MixwellError, match="samples="):
            build("amplify", {"samples": odd})
    with pytest.raises(MixwellError, match="alpha="):
        build("amplify", {"alpha": 10**400})
