"""Folders of runs, comparisons and tokens that were damaged, changed or removed: one line and exit code 2."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_compare import finished, place  # noqa: F401
from test_training import calm, data_file, rows, run, settings, tiny, write_csv  # noqa: F401

from forked import Command, run_forked
from mixwell.cli import main


@pytest.fixture
def one_line() -> Any:
    """Run a command line, in a process of its own, that must fail in one line; returns the line."""

    def attempt(*words: Any, code: int = 2, before: Any = None) -> str:
        end, told = run_forked(words, before)
        assert end == code and "Traceback" not in told, told
        said = [line for line in told.splitlines() if line.startswith("mixwell: ")]
        assert len(said) == (1 if code else 0), said
        return said[0] if said else ""

    return attempt


def change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text())
    content.update(values)
    path.write_text(json.dumps({name: value for name, value in content.items() if value != "GONE"}))


# --- a run ------------------------------------------------------------------------------------------------------------


def test_pages_of_damaged_runs(run: Path, tmp_path: Path, one_line: Any) -> None:
    copies = iter(range(1000))

    def copy() -> Path:
        return Path(shutil.copytree(run, tmp_path / f"copy{next(copies)}"))

    folder = copy()
    (folder / "predictions.parquet").unlink()
    assert "damaged" in one_line("report", folder)
    folder = copy()
    os.truncate(folder / "predictions.parquet", 200)
    assert "damaged" in one_line("report", folder)
    for name in ("temperature", "method", "history", "task", "epochs", "best_epoch"):
        folder = copy()
        change(folder / "metrics.json", **{name: "GONE"})
        assert "metrics.json" in one_line("report", folder)
        assert "metrics.json" in one_line("train", "--resume", folder)
    for name, odd in (("test", 3), ("test", {"rows": 5}), ("history", [3]), ("method", {}), ("temperature", "x")):
        folder = copy()
        change(folder / "metrics.json", **{name: odd})
        assert "damaged" in one_line("report", folder)
    for name, odd in (("settings", []), ("data", 3), ("versions", None), ("model", "x"), ("notes", 5)):
        folder = copy()
        change(folder / "run.json", **{name: odd})
        assert "damaged" in one_line("report", folder)
    folder = copy()
    (folder / "run.json").write_text("[" * 100_000)
    assert "run.json" in one_line("report", folder)


def test_damaged_settings_of_a_run(run: Path, tmp_path: Path, one_line: Any) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "copy"))
    (folder / "metrics.json").unlink()
    before = json.loads((folder / "run.json").read_text())
    for name, odd in (("epochs", "many"), ("text", 3), ("arguments", []), ("strange", 1), ("model", None)):
        (folder / "run.json").write_text(json.dumps({**before, "settings": {**before["settings"], name: odd}}))
        one_line("train", "--resume", folder)


class Forged:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_forged_pickle_in_a_checkpoint(tiny: Path, data_file: Path, tmp_path: Path, one_line: Any, name: str) -> None:
    from mixwell import api
    from mixwell.training.checkpoints import MANIFEST, write_manifest

    done = api.train(settings(tiny, data_file, tmp_path / "out", epochs=3, keep_checkpoints=True), quiet=True)
    (done.folder / "metrics.json").unlink()
    checkpoints = sorted((done.folder / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    shutil.rmtree(checkpoints.pop())  # the last: nothing would be left to train
    for checkpoint in checkpoints:
        state = json.loads((checkpoint / "trainer_state.json").read_text())
        state["best_global_step"] = state["global_step"]
        (checkpoint / "trainer_state.json").write_text(json.dumps(state))
        with open(checkpoint / name, "wb") as stream:
            pickle.dump(Forged(str(tmp_path / "mark")), stream)
        (checkpoint / MANIFEST).unlink()
        write_manifest(checkpoint)
    assert "checkpoint-" in one_line("train", "--resume", done.folder)
    assert not (tmp_path / "mark").exists()


def diverge() -> None:
    """Let every loss that is reported be NaN."""
    from mixwell.training import callbacks

    check = callbacks._check_finite
    callbacks._check_finite = lambda logs, *more: check({**logs, "loss": float("nan")}, *more)


def test_divergence_makes_room(tiny: Path, data_file: Path, tmp_path: Path, one_line: Any) -> None:
    """The same command with another rate starts anew; the folder that diverged is kept aside."""
    words = ["train", data_file, "-m", tiny, "-o", tmp_path / "out", "--method", "none", "--epochs", 1]
    words += ["--batch-size", 8, "--folds", 0, "-q"]
    said = one_line(*words, "--learning-rate", 0.5, before=diverge)
    assert "diverged" in said and "starts anew" in said
    assert "lower --learning-rate" in one_line("train", "--resume", tmp_path / "out")
    assert main([str(word) for word in [*words, "--learning-rate", 0.001]]) == 0
    assert (tmp_path / "out" / "metrics.json").is_file()
    kept = json.loads((tmp_path / "out.diverged-1" / "run.json").read_text())
    assert kept["settings"]["learning_rate"] == 0.5 and "diverged" in kept
    assert "finished run" in one_line(*words)


def remove_the_run(folder: Path) -> None:
    """Let a folder vanish before the training begins."""
    from mixwell.training import run as runs

    learn = runs.learn

    def removing(*args: Any) -> Any:
        shutil.rmtree(folder)
        return learn(*args)

    runs.learn = removing


def test_a_run_folder_removed_midway(tiny: Path, data_file: Path, tmp_path: Path, one_line: Any) -> None:
    before = partial(remove_the_run, tmp_path / "out")
    for method in ("probe", "none"):
        words = ["train", data_file, "-m", tiny, "-o", tmp_path / "out", "--method", method, "--pooling", "mean", "-q"]
        more = ["--epochs", 1, "--folds", 0] if method == "none" else []
        assert "removed" in one_line(*words, *more, before=before)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_bad_arguments_of_trainer(tiny: Path, data_file: Path, tmp_path: Path, one_line: Any) -> None:
    words = ["train", data_file, "-m", tiny, "-o", tmp_path / "out", "--method", "none", "--folds", 0, "-q"]
    for odd in ("accelerator_config=abc", "deepspeed=abc", "optim=abc"):
        assert odd.split("=")[0] in one_line(*words, "--set", odd)
    for odd in ("samples=300000000", "samples=" + "9" * 30, "alpha=1e400"):
        one_line("train", data_file, "-m", tiny, "--method", "amplify", "--option", odd)


# --- a comparison -----------------------------------------------------------------------------------------------------


def sealed(folder: Path, **values: Any) -> None:
    """Change result.json and give it the right checksum again."""
    from mixwell.compare.records import _checksum

    content = {**json.loads((folder / "result.json").read_text()), **values}
    content = {name: value for name, value in content.items() if name != "checksum" and value != "GONE"}
    (folder / "result.json").write_text(json.dumps({**content, "checksum": _checksum(content)}))


def test_damaged_comparisons(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import load_file, save

    copies = iter(range(1000))

    def damaged(harm: Any) -> str:
        """What `report` prints about a copy whose first record was harmed; the other records must survive."""
        folder = Path(shutil.copytree(finished, tmp_path / f"copy{next(copies)}"))
        harm(sorted((folder / "cells").iterdir())[0])
        capsys.readouterr()
        for format in ("html", "json", "csv", "md"):
            assert main(["report", str(folder), "-f", format, "-o", str(tmp_path / "page")]) == 0
        assert main(["report", str(folder)]) == 0
        return (folder / "report.html").read_text()

    def outputs(**changes: Any) -> Any:
        def harm(cell: Path) -> None:
            arrays = {**load_file(cell / "outputs.safetensors"), **changes}
            data = save({name: value for name, value in arrays.items() if value is not None})
            (cell / "outputs.safetensors").write_bytes(data)
            sealed(cell, outputs_sha256=hashlib.sha256(data).hexdigest())

        return harm

    harms = [lambda cell, odd=odd: sealed(cell, **odd) for odd in (
        {"temperature": "x"}, {"temperature": None}, {"history": [3]}, {"history": 3}, {"history": [{"step": "x"}]},
        {"train_rows": "many"}, {"test": []}, {"test": {"rows": 5}}, {"timing": {}}, {"timing": 3}, {"labels": "x"},
        {"labels": ["a"]}, {"versions": 5}, {"task": "regression"}, {"notes": 3}, {"history": "GONE"},
    )]  # fmt: skip
    harms += [
        outputs(test_logits=None),
        outputs(test_logits=np.zeros((2, 2), np.float32)),
        outputs(test_logits=np.zeros(5, np.float32)),
        outputs(test_labels=np.full(18, 7)),
        outputs(test_labels=np.full(18, -1)),
        lambda cell: (cell / "outputs.safetensors").write_bytes(b"x" * 100),
        lambda cell: (shutil.rmtree(cell), cell.write_text("a file")),
        lambda cell: (cell / "spec.json").write_text("[" * 100_000),
    ]
    for harm in harms:
        assert "is corrupt" in damaged(harm)

    def bad_byte(cell: Path) -> None:
        with open(cell.parents[1] / "log.jsonl", "ab") as stream:
            stream.write(b'{"event": "\xff\xfe"}\n[[[\n3\n')

    assert "is corrupt" not in damaged(bad_byte)


def remove_the_comparison(folder: Path) -> None:
    """Let a folder vanish before each of its runs."""
    from mixwell.compare import cell
    from mixwell.compare.engines import inline

    def removing(spec: Any, cache: Any) -> Any:
        shutil.rmtree(folder, ignore_errors=True)
        return cell.run_cell(spec, cache)

    inline.run_cell = removing


def test_a_comparison_removed_midway(place: Path, tmp_path: Path, one_line: Any) -> None:
    words = ["compare", place / "films.csv", "-m", place / "tiny", "-o", tmp_path / "out", "--workers", 0, "-q"]
    words += ["--methods", "amplify", "--seeds", 1, "--epochs", 1, "--no-references"]
    assert "removed" in one_line(*words, before=partial(remove_the_comparison, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_compare_says_something_on_sigterm(place: Path, tmp_path: Path) -> None:
    words = ["compare", "films.csv", "-m", place / "tiny", "-o", tmp_path / "out", "--workers", 0, "--seeds", 50]
    words += ["--methods", "amplify", "--epochs", 5, "--batch-size", 8]
    child = Command(words, cwd=place)
    cells, since = tmp_path / "out" / "cells", time.monotonic()
    while not (cells.is_dir() and any(cells.iterdir())) and time.monotonic() - since < 120 and child.process.is_alive():
        time.sleep(0.1)
    child.process.terminate()
    done = child.wait(60)
    assert done.returncode == 143, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("mixwell: stopped by SIGTERM") and "the same command does the rest" in last
    assert not list((tmp_path / "out" / "failed").iterdir())


# --- the cache of tokens, and files that grow when they are unpacked -------------------------------------------------


def test_a_changed_cache_is_not_used(tiny: Path, data_file: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    from transformers import AutoTokenizer

    from mixwell import data

    table, tokenizer = data.load(data_file).train, AutoTokenizer.from_pretrained(tiny)

    def tokens() -> Any:
        return data.tokenise(table, tokenizer, max_length=16, cache_dir=tmp_path)["input_ids"][:]

    before = tokens()
    (entry,) = (tmp_path / "tokens").iterdir()
    file = entry / "data.arrow"
    with pa.ipc.open_stream(pa.OSFile(str(file))) as stream:
        whole = stream.read_all()
    flipped = bytearray(file.read_bytes())
    place = flipped.rindex(np.asarray(before[-1], dtype=np.int32).tobytes())
    flipped[place + 4] ^= 1  # another word, and a file that is whole in all other respects
    file.write_bytes(bytes(flipped))
    assert tokens() == before
    other = whole.set_column(0, "input_ids", whole["input_ids"].cast(pa.list_(pa.int64())))
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, other.schema) as writer:
        writer.write_table(other)
    (entry / "data.sha256").write_text(hashlib.sha256(file.read_bytes()).hexdigest())
    assert tokens() == before


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_field_that_is_huge_when_unpacked(tmp_path: Path, suffix: str) -> None:
    """300 MB in one field: refused early, with little memory."""
    source = tmp_path / f"bomb.{suffix}.gz"
    with gzip.open(source, "wb", compresslevel=1) as stream:
        stream.write(b"text,label\na,b\n" if suffix == "csv" else b'{"text": "a", "label": "b"}\n{"text": "')
        for _ in range(300):
            stream.write(b"x" * 1_000_000)
    command = Command(["train", source, "-o", tmp_path / "out"])
    done = command.wait()
    assert done.returncode == 2, done.stderr
    assert "characters" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    assert 0 < command.memory < 900
