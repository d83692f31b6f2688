"""Code that comes with a model runs by a flag typed now, and by nothing that a file says. In processes of their own."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_training import calm, data_file, rows, tiny, write_csv  # noqa: F401

from forked import Command

CODE = """
from pathlib import Path
from transformers import BertConfig, BertForSequenceClassification

Path({mark!r}).write_text("it ran")


class OddConfig(BertConfig):
    model_type = "odd"


class OddForSequenceClassification(BertForSequenceClassification):
    config_class = OddConfig
"""


@pytest.fixture
def foreign(tiny: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A model that brings code, and the file which that code writes."""
    mark = tmp_path / "mark"
    folder = Path(shutil.copytree(tiny, tmp_path / "foreign"))
    (folder / "odd.py").write_text(CODE.format(mark=str(mark)))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "odd",
        "auto_map": {
            "AutoConfig": "odd.OddConfig",
            "AutoModelForSequenceClassification": "odd.OddForSequenceClassification",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder, mark


def run(*words: Any, cwd: Path) -> tuple[int, str]:
    done = Command(words, cwd=cwd).wait()
    said = [line for line in done.stderr.splitlines() if line.startswith("mixwell: ")]
    if done.returncode == 2:
        assert len(said) == 1 and "Traceback" not in done.stderr, done.stderr
    return done.returncode, said[0] if said else done.stderr


@pytest.mark.parametrize("value", ['"false"', "true", "1", '"no"'])
def test_a_grid_cannot_allow_code(foreign: tuple[Path, Path], tmp_path: Path, value: str) -> None:
    folder, mark = foreign
    write_csv(tmp_path / "films.csv", rows(60))
    (tmp_path / "grid.toml").write_text(
        f'data = "films.csv"\nmodel = "{folder}"\nmethods = ["amplify"]\nseeds = 1\ntrust_remote_code = {value}\n'
    )
    code, said = run("compare", "--grid", "grid.toml", "--workers", 0, cwd=tmp_path)
    assert (code, mark.exists()) == (2, False)
    assert "grid.toml" in said and "--trust-remote-code" in said


def test_resume_needs_the_flag_again(foreign: tuple[Path, Path], tmp_path: Path) -> None:
    folder, mark = foreign
    write_csv(tmp_path / "films.csv", rows(60))
    words = ["train", "films.csv", "-m", folder, "--method", "none", "--folds", 0, "--epochs", 1, "--batch-size", 8]
    code, _ = run(*words, "-o", "out", cwd=tmp_path)
    assert (code, mark.exists()) == (2, False)
    code, said = run(*words, "-o", "out", "--trust-remote-code", cwd=tmp_path)
    assert (code, mark.exists()) == (0, True), said
    mark.unlink()
    (tmp_path / "out" / "metrics.json").unlink()  # as if it had been killed at the very end
    code, said = run("train", "--resume", "out", cwd=tmp_path)
    assert (code, mark.exists()) == (2, False)
    assert "--trust-remote-code" in said
    code, said = run("train", "--resume", "out", "--trust-remote-code", cwd=tmp_path)
    assert (code, mark.exists()) == (0, True), said


def test_a_forged_record_cannot_allow_code(foreign: tuple[Path, Path], tmp_path: Path) -> None:
    """A run folder from elsewhere: an honest run whose record was changed to name another model, and to trust it."""
    folder, mark = foreign
    write_csv(tmp_path / "films.csv", rows(60))
    plain = tmp_path / "tiny"
    shutil.copytree(folder, plain)
    config = json.loads((plain / "config.json").read_text())
    config = {**{name: value for name, value in config.items() if name != "auto_map"}, "model_type": "bert"}
    (plain / "config.json").write_text(json.dumps(config))
    words = ["train", "films.csv", "-m", plain, "--method", "none", "--folds", 0, "--epochs", 1, "--batch-size", 8]
    assert run(*words, "-o", "out", cwd=tmp_path)[0] == 0
    (tmp_path / "out" / "metrics.json").unlink()
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    for trusted in (True, "false", 1):
        record["settings"] |= {"model": str(folder), "trust_remote_code": trusted}
        (tmp_path / "out" / "run.json").write_text(json.dumps(record))
        code, said = run("train", "--resume", "out", cwd=tmp_path)
        assert (code, mark.exists()) == (2, False), said
    record["settings"]["trust_remote_code"] = False
    (tmp_path / "out" / "run.json").write_text(json.dumps(record))
    code, said = run("train", "--resume", "out", "--trust-remote-code", cwd=tmp_path)
    assert (code, mark.exists()) == (2, False), said  # the run was not begun so
