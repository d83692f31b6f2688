"""`mixwell compare` and `mixwell report` from the command line."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_compare import FakeEngine, calm, finished, place  # noqa: F401
from test_training import rows, run_command, write_csv

from forked import Command, fork_workers
from mixwell.cli import main
from mixwell.compare import run as runs

FAST = (
    "--epochs",
    "1",
    "--batch-size",
    "16",
    "--learning-rate",
    "0.003",
    "--patience",
    "0",
    "--seeds",
    "2",
    "--no-references",
)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "make_engine", lambda *args: FakeEngine())


def words(place: Path, output: Path, *more: Any) -> list[str]:  # noqa: F811
    methods = [] if "--methods" in more else ["--methods", "amplify"]
    line = ("compare", place / "films.csv", "-m", place / "tiny", "-o", output, *FAST, *methods, *more)
    return [str(word) for word in line]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--methods", "amplifi"], "method 'amplifi' is unknown (did you mean 'amplify'?)"),
        (["--methods", "tmix:alfa=1"], "option 'alfa' is unknown (did you mean 'alpha'?)"),
        (["--methods", "tmix:alpha=much"], "'much' is not a value of type float"),
        (["--methods", "amplify:layers=[7]"], "method amplify[layers=[7]] does not go with model"),
        (["--methods", ""], "the grid is empty: name at least one method"),
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--fractions", "0.1,x"], "--fractions: '0.1,x' is not a list of numbers"),
        (["--fractions", "0"], "fractions must lie above 0 and at most at 1, got 0.0"),
        (["--fractions", "0.05"], "batch size 16 is larger than the"),
        (["--per-class", "0"], "per_class must be whole numbers of at least 1"),
        (["--max-test", "0"], "max_test must be a whole number of at least 1"),
        (["--epochs", "0"], "epochs must be a whole number of at least 1, got 0"),
        (["--best-metric", "acuracy"], "best_metric 'acuracy' is unknown"),
        (["--scheduler", "cosin"], "cosin"),
        (["--weight-decay", "-1"], "weight_decay must be at least 0"),
        (["--grid", "nowhere.toml"], "grid nowhere.toml: No such file"),
        (["--engine", "roy"], "engine 'roy' is unknown"),
        (["--level", "2"], "level must be from 0.5 to below 1"),
        (["--set", "epochs=3"], "--set 'epochs' is unknown"),
        (["--model", "no/where/at/all"], "model no/where/at/all: no such folder"),
    ],
)
def test_mistakes(
    place: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    assert main(words(place, tmp_path / "out", *more)) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
    assert len(errors) == 1 and errors[0].startswith("mixwell: ") and message in errors[0]
    assert not (tmp_path / "out" / "cells").exists() or not list((tmp_path / "out" / "cells").iterdir())


def test_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare"]) == 2
    assert "name at least one data set" in capsys.readouterr().err


@pytest.mark.usefixtures("fake")
def test_changed_data_and_versions(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    file, out = write_csv(tmp_path / "d.csv", rows(90)), tmp_path / "out"
    command = ["compare", str(file), "-m", str(place / "tiny"), "-o", str(out), "--methods", "amplify", *FAST]
    assert main(command) == 0
    before = sorted(path.name for path in (out / "cells").iterdir())
    write_csv(file, rows(90, seed=3))
    capsys.readouterr()
    assert main(command) == 2
    assert "the data changed since the records" in capsys.readouterr().err
    assert sorted(path.name for path in (out / "cells").iterdir()) == before
    assert main([*command, "--new-data"]) == 0 and len(list((out / "cells").iterdir())) == 12
    (out / "compare.json").write_text(json.dumps({"format": "mixwell compare 0"}))
    for line in (command, ["report", str(out)]):
        capsys.readouterr()
        assert main(line) == 2
        assert "written by another version of mixwell" in capsys.readouterr().err


@pytest.mark.usefixtures("fake")
def test_plain_lines(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert main(words(place, tmp_path / "out", "--fractions", "0.5,1", "--methods", "amplify:consistent=true")) == 0
    printed = capsys.readouterr()
    assert len(re.findall(r"^finished films.csv, .*about|^finished films.csv", printed.err, re.M)) == 12
    assert "12 of 12 finished, 0 running, 0 waiting" in printed.err and "ahead so far: " in printed.err
    assert "AMPLIFY, consistent" in printed.out and printed.out.count("baseline") == 2
    assert printed.out.count("A temperature alone") == 2


def test_failed_cells(
    place: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mixwell.compare.engines.base import Failed

    fails = lambda spec: Failed(spec.key, "no memory") if spec.label == "amplify" and spec.seed == 1 else None  # noqa: E731
    monkeypatch.setattr(runs, "make_engine", lambda *args: FakeEngine(fails))
    assert main(words(place, tmp_path / "out")) == 2
    printed = capsys.readouterr()
    assert "1 of 6 runs failed (first amplify, seed 1: no memory)" in printed.err and "baseline" in printed.out
    monkeypatch.setattr(runs, "make_engine", lambda *args: FakeEngine())
    assert main(words(place, tmp_path / "out")) == 2
    assert main(words(place, tmp_path / "out", "--retry-failed")) == 0


def test_methods_may_be_given_several_times(
    place: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(runs, "make_engine", lambda *args: FakeEngine())
    assert main(words(place, tmp_path / "out", "--methods", "tmix:alpha=0.5,amplify", "--methods", "manifold")) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path / "out"), "-f", "csv"]) == 0
    found = {row["method"] for row in csv.DictReader(capsys.readouterr().out.splitlines())}
    assert {"tmix[alpha=0.5]", "amplify", "manifold"} <= found, found


def test_report(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert main(["report", str(finished), "-f", "md"]) == 0
    assert capsys.readouterr().out.startswith("# Comparison")
    assert main(["report", str(finished)]) == 0
    assert (finished / "report.html").read_text().startswith("<!doctype html>")
    assert str(finished / "report.html") in capsys.readouterr().err
    assert main(["report", str(finished), "-o", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    for line in (["report", str(tmp_path)], ["report", str(finished), "-f", "pdf"], ["report", str(tmp_path / "x")]):
        capsys.readouterr()
        assert main(line) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_real_thing(place: Path, tmp_path: Path) -> None:  # noqa: F811
    """In a process of its own, with spawned workers."""
    line = words(place, tmp_path / "out", "--workers", "2", "--seeds", "1", "--max-test", "10")
    done = run_command(*line)
    assert done.returncode == 0, done.stderr
    assert "10 test rows" in done.stdout and "with one seed nothing can be said" in done.stdout
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr
    results = [json.loads(path.read_text()) for path in (tmp_path / "out" / "cells").glob("*/result.json")]
    assert len(results) == 3 and {result["test"]["rows"] for result in results} == {10}


def test_the_same_command_twice_at_once(place: Path, tmp_path: Path) -> None:  # noqa: F811
    """What the recipes for SLURM and ssh do: the command on every machine, one shared folder."""
    line = words(place, tmp_path / "out", "--methods", "amplify,tmix", "--quiet", "--workers", "1", "--threads", "1")
    both = [Command(line, fork_workers) for _ in range(2)]
    done = [each.wait() for each in both]
    assert [each.returncode for each in done] == [0, 0], done
    log = [json.loads(text) for text in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    finished_cells = [each["cell"] for each in log if each["event"] == "finished"]
    assert len(finished_cells) == len(set(finished_cells)) == 8
    assert len({each["process"] for each in log if each["event"] == "command"}) == 2
    # Both come to the same conclusion from the same records.
    assert done[0].stdout == done[1].stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('drop_leaks = "no"', "drop_leaks must be true or false, got 'no'"),
        ('sample_seed = "a"', "sample_seed must be a whole number"),
        ("sample_seed = 1.5", "sample_seed must be a whole number"),
        ("sample_seed = -1", "sample_seed must be a whole number of at least 0"),
        ("split_seed = true", "split_seed must be a whole number"),
        ("split_seed = -1", "split_seed must be a whole number of at least 0"),
        ("text = 1", "text must be a text or nothing, got 1"),
        ("label = []", "label must be a text or nothing, got []"),
        ("validation = [0.1]", "validation must be a text or a number or nothing"),
        ("task = false", "task must be a text or nothing, got False"),
        ('references = "no"', "references must be true or false, got 'no'"),
        ('max_train = "10"', "max_train must be a whole number or nothing, got '10'"),
        ('settings.freeze_words = "no"', "setting freeze_words must be true or false or nothing, got 'no'"),
        ("settings.arguments = 3", "setting arguments must be a table of names and values, got 3"),
        ("settings.learning_rate = 123456789012345678901234567890", "setting learning_rate is too large"),
    ],
)
def test_every_key_of_a_grid_has_a_type(
    place: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    line: str,
    message: str,
) -> None:
    (tmp_path / "grid.toml").write_text(f'methods = ["amplify"]\n{line}\n')
    assert main(["compare", str(place / "films.csv"), "--grid", str(tmp_path / "grid.toml"), "--workers", "0"]) == 2
    assert message in capsys.readouterr().err
