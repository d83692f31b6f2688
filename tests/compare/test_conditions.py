"""Conditions: noise, typing mistakes, imbalance, further tests, foreign texts, training to the end."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_compare import FakeEngine, calm, make_grid, place  # noqa: F401
from test_compare_cli import words
from test_training import rows, write_csv

from mixwell import data as texts
from mixwell.cli import main
from mixwell.compare import grid as grids
from mixwell.compare import run as runs
from mixwell.compare.cell import Cache, run_cell
from mixwell.compare.conditions import CHOSEN, Conditions, TestFile, read_tests
from mixwell.compare.engines.inline import InlineEngine
from mixwell.compare.planning import plan
from mixwell.compare.records import Records
from mixwell.compare.run import run
from mixwell.compare.spec import CellSpec
from mixwell.compare.summary import read_summary
from mixwell.data import regimes
from mixwell.report import compare as export
from mixwell.utils.errors import DataError, MixwellError, OptionError


@pytest.fixture(scope="session")
def data(place: Path) -> texts.TextData:  # noqa: F811
    return texts.load(place / "films.csv")


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> texts.TextData:
    """Three classes; `sea` and `lake` share most words, `law` none."""
    draw = np.random.default_rng(0)
    wet, dry = ["water", "wave", "boat", "fish", "shore", "swim"], ["judge", "court", "trial", "jury", "case", "oath"]
    lines = []
    for number in range(150):
        name = ("sea", "lake", "law")[number % 3]
        pool = dry if name == "law" else wet
        lines.append((" ".join(draw.choice(pool, 6)) + f" {number}", name))
    path = tmp_path_factory.mktemp("topics") / "topics.csv"
    return texts.load(write_csv(path, lines))


def labels(of: texts.TextData) -> list[int]:
    return of.train["label"].to_pylist()


# --- the regimes themselves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", regimes.NOISES)
def test_label_noise(topics: texts.TextData, kind: str) -> None:
    noisy = regimes.with_label_noise(topics, 0.3, kind, seed=3)
    changed = [row for row, (a, b) in enumerate(zip(labels(topics), labels(noisy))) if a != b]
    assert len(changed) == round(0.3 * topics.train.num_rows)
    assert noisy.train["text"].equals(topics.train["text"]) and noisy.fingerprint != topics.fingerprint
    assert noisy.test.equals(topics.test) and noisy.validation.equals(topics.validation)
    assert labels(regimes.with_label_noise(topics, 0.3, kind, seed=3)) == labels(noisy)
    assert labels(regimes.with_label_noise(topics, 0.3, kind, seed=4)) != labels(noisy)
    fewer = labels(regimes.with_label_noise(topics, 0.1, "uniform", seed=3))
    more = labels(regimes.with_label_noise(topics, 0.3, "uniform", seed=3))
    wrong = {row for row, (a, b) in enumerate(zip(labels(topics), fewer)) if a != b}
    assert wrong <= {row for row, (a, b) in enumerate(zip(labels(topics), more)) if a != b}  # nested


def test_noise_by_confusion_follows_what_is_confused(topics: texts.TextData) -> None:
    def pairs(kind: str) -> Counter[tuple[str, str]]:
        noisy = regimes.with_label_noise(topics, 0.5, kind, seed=0)
        names = topics.labels
        return Counter((names[a], names[b]) for a, b in zip(labels(topics), labels(noisy)) if a != b)

    confused, uniform = pairs("confusion"), pairs("uniform")
    near = [("sea", "lake"), ("lake", "sea")]
    far = [("sea", "law"), ("lake", "law")]
    assert sum(confused[pair] for pair in near) > 4 * sum(confused[pair] for pair in far)
    assert sum(uniform[pair] for pair in far) > 0.5 * sum(uniform[pair] for pair in near)


def test_typos(data: texts.TextData) -> None:
    wrong = regimes.with_typos(data, 0.5, ("train",), seed=1)
    before = [word for text in data.train["text"].to_pylist() for word in text.split(" ")]
    after = [word for text in wrong.train["text"].to_pylist() for word in text.split(" ")]
    assert len(before) == len(after)
    long = [(a, b) for a, b in zip(before, after) if len(a) > 2]
    assert all(a == b for a, b in zip(before, after) if len(a) < 3)
    changed = np.mean([a != b for a, b in long])
    assert 0.3 < changed <= 0.6  # some swaps and keys leave a word as it was
    assert all(abs(len(a) - len(b)) <= 1 for a, b in long)
    assert wrong.test.equals(data.test) and labels(wrong) == labels(data)
    both = regimes.with_typos(data, 0.5, ("train", "test"), seed=1)
    other = regimes.with_typos(data, 0.5, ("train", "test"), seed=2)
    assert both.train["text"].equals(wrong.train["text"]) and not both.test.equals(data.test)
    assert both.test.equals(other.test) and not both.train["text"].equals(other.train["text"])


def test_imbalance(topics: texts.TextData) -> None:
    tailed = regimes.with_imbalance(topics, 5, seed=0)
    counts = sorted(Counter(labels(tailed)).values())
    assert counts[-1] == pytest.approx(5 * counts[0], abs=4) and counts[1] ** 2 == pytest.approx(
        counts[0] * counts[2], rel=0.25
    )
    assert set(tailed.train["row_id"].to_pylist()) <= set(topics.train["row_id"].to_pylist())
    orders = {max(Counter(labels(regimes.with_imbalance(topics, 5, seed=seed))).items(), key=lambda kv: kv[1])[0]
              for seed in range(8)}  # fmt: skip
    assert len(orders) > 1  # which class is large depends on the seed
    with pytest.raises(DataError, match="imbalance 1000 leaves a class without rows"):
        regimes.with_imbalance(topics, 1000)


def test_rows_may_change_places(topics: texts.TextData, tmp_path: Path) -> None:
    """The same texts are changed in the same way wherever they stand."""
    table = topics.train
    lines = list(zip(table["text"].to_pylist(), (topics.labels[k] for k in labels(topics))))
    one, two = (
        texts.load(write_csv(tmp_path / name, part), validation="none", test="none")
        for name, part in (("a.csv", lines), ("b.csv", lines[::-1]))
    )
    for change in (
        lambda d: regimes.with_label_noise(d, 0.3, "uniform", 5),
        lambda d: regimes.with_typos(d, 0.4, ("train",), 5),
        lambda d: regimes.with_imbalance(d, 3, 5),
    ):
        first, second = (
            sorted(zip(d.train["text"].to_pylist(), (d.labels[k] for k in labels(d)))) for d in map(change, (one, two))
        )
        assert first == second


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: regimes.with_label_noise(d, 0.0), "label_noise must be a share above 0"),
        (lambda d: regimes.with_label_noise(d, 0.2, "odd"), "noise must be one of uniform, confusion"),
        (lambda d: regimes.with_typos(d, 2), "typos must be a share of the words"),
        (lambda d: regimes.with_imbalance(d, 1), "imbalance must be a ratio above 1"),
    ],
)
def test_bad_values(topics: texts.TextData, call: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call(topics)


# --- in a specification -----------------------------------------------------------------------------------------------


def test_specifications_without_conditions_are_as_before(place: Path) -> None:  # noqa: F811
    first = plan(make_grid(place, seeds=1))[0]
    assert "conditions" not in first.to_dict() and "conditions" not in first.identity()
    assert CellSpec.from_dict(json.loads(json.dumps(first.to_dict()))) == first
    assert replace(first, conditions=Conditions(noise="uniform")).key == first.key


def test_conditions_are_part_of_the_specification(place: Path, tmp_path: Path) -> None:  # noqa: F811
    other = write_csv(tmp_path / "other.csv", rows(30, seed=5))
    plain = plan(make_grid(place, seeds=2))
    keys = {cell.key for cell in plain}
    for change in (
        {"label_noise": 0.3}, {"label_noise": 0.3, "noise": "confusion"}, {"typos": 0.1},
        {"typos": 0.1, "typos_in": "both"}, {"imbalance": 3}, {"overtrain": True}, {"tests": {"other": str(other)}},
        {"ood": str(other)},
    ):  # fmt: skip
        cells = plan(make_grid(place, seeds=2, **change))
        assert [cell.key for cell in cells] == [cell.key for cell in plan(make_grid(place, seeds=2, **change))]
        assert not keys & {cell.key for cell in cells}
        assert len({cell.group_key for cell in cells}) == 1 and cells[0].group_key != plain[0].group_key
        back = CellSpec.from_dict(json.loads(json.dumps(cells[0].to_dict())))
        assert back == cells[0] and back.key == cells[0].key
        keys |= {cell.key for cell in cells}
    noisy = plan(make_grid(place, seeds=2, label_noise=0.3))
    assert len({cell.sampled for cell in noisy}) == 2  # each seed has its own noise,
    fixed = plan(make_grid(place, seeds=2, label_noise=0.3, sample_seed=1))
    assert len({cell.sampled for cell in fixed}) == 1  # or all the same
    both = plan(make_grid(place, seeds=1, label_noise=[0.0, 0.3]))
    assert len({cell.group_key for cell in both}) == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--label-noise", "1.5"], "label_noise must be a share from 0 to below 1"),
        (["--label-noise", "much"], "--label-noise: 'much' is not a list of numbers"),
        (["--noise", "unifrom"], "noise must be one of uniform, confusion, got 'unifrom' (did you mean 'uniform'?)"),
        (["--typos", "-0.1"], "typos must be a share from 0 to below 1"),
        (["--typos", "0.1", "--typos-in", "tests"], "typos_in must be one of train, test, both"),
        (["--imbalance", "0.5"], "imbalance must be a ratio of at least 1"),
        (["--imbalance", "5000"], "imbalance 5000 leaves a class without rows"),
        (["--test", "news=nowhere.csv"], "nowhere.csv"),
        (["--test", "a=x.csv", "--test", "a=y.csv"], "'a' is named twice"),
        (["--test", "0.2", "--test", "0.3"], "the test rows are named twice"),
        (["--test", "a/b=x.csv"], "test 'a/b': the name must be of letters"),
        (["--ood", "nowhere.csv"], "nowhere.csv: no such file"),
    ],
)
def test_mistakes(place: Path, tmp_path: Path, capsys: Any, more: list[str], message: str) -> None:  # noqa: F811
    assert main(words(place, tmp_path / "out", *more)) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
    assert len(errors) == 1 and message in errors[0], errors


def test_unknown_classes_and_tasks(place: Path, tmp_path: Path) -> None:  # noqa: F811
    strange = write_csv(tmp_path / "strange.csv", [("a film", "so-so"), ("a plot", "pos")])
    with pytest.raises(DataError, match="label 'so-so' of test news is no class of the training data"):
        plan(make_grid(place, tests={"news": str(strange)}))
    numbers = write_csv(tmp_path / "numbers.csv", [(text, f"{at % 7 / 2}") for at, (text, _) in enumerate(rows(90))])
    for change, message in (({"label_noise": 0.2}, "label_noise needs"), ({"ood": str(strange)}, "ood needs classes")):
        with pytest.raises(OptionError, match=message):
            plan(make_grid(place, data=str(numbers), task="regression", **change))
    assert read_tests(["0.2", "a=b.csv"]) == ("0.2", {"a": "b.csv"}) and read_tests(None) == (None, None)


def test_grid_files_take_them(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(
        'data = "x.csv"\nlabel_noise = [0.0, 0.3]\nnoise = "confusion"\ntypos = 0.1\ntypos_in = "both"\n'
        'imbalance = 10\novertrain = true\nood = "o.csv"\n[tests]\nnews = "n.csv"\n'
    )
    grid = grids.make_grid(grids.read_grid(tmp_path / "grid.toml"), {})
    one, two = grid.conditions()
    assert (one.label_noise, two.label_noise, two.noise, one.noise) == (0.0, 0.3, "confusion", "uniform")
    assert two.tests == (TestFile("news", "n.csv"),) and two.ood == TestFile("ood", "o.csv") and two.overtrain
    assert two.title == "imbalance 10, 30 % label noise by confusion, 10 % typos in train and test, last epoch"
    with pytest.raises(OptionError, match="tests must be a table"):
        grids.make_grid({"data": "x.csv", "tests": "n.csv"}, {}).conditions()


# --- trained ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def everything(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:  # noqa: F811
    """A grid with all conditions at once."""
    folder = tmp_path_factory.mktemp("conditions")
    other = write_csv(folder / "other.csv", rows(24, seed=7))
    foreign = write_csv(folder / "foreign.csv", [("zebra quantum mortgage", "x"), ("xylophone tax return", "y")] * 6)
    return {
        "seeds": 2, "label_noise": 0.2, "typos": 0.2, "typos_in": "both", "imbalance": 2, "overtrain": True,
        "tests": {"other": str(other)}, "ood": str(foreign), "references": True,
    }  # fmt: skip


@pytest.fixture(scope="session")
def trained(place: Path, everything: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("trained") / "out"
    done = run(make_grid(place, **everything), folder, engine=InlineEngine)
    assert not done.outcome.failed, next(iter(done.outcome.failed.values())).reason
    return folder


def test_records_hold_all_tests(trained: Path) -> None:
    records = Records(trained)
    found = [records.read(key) for key in records.names()]
    assert {record.spec.label for record in found} >= {"none", "amplify", "probe", "tfidf"}
    for record in found:
        outputs, result = record.outputs(), record.result
        assert outputs["test.other_logits"].shape == (24, 2) and outputs["test.other_labels"].shape == (24,)
        assert outputs["ood_logits"].shape == (12, 2)
        assert result["tests"]["other"]["rows"] == 24 and 0 <= result["ood"]["auroc"] <= 1
        assert 0 <= result["ood"]["false_accept"] <= 1
        if not record.spec.is_reference:
            assert result["tests"][CHOSEN]["rows"] == result["test"]["rows"] and result["epochs"] == 2
            last = result["best_epoch"] == result["epochs"]
            same = np.array_equal(outputs["test_logits"], outputs[f"test.{CHOSEN}_logits"])
            assert same or not last


def test_runs_under_conditions_are_reproducible(place: Path, everything: Any, trained: Path) -> None:  # noqa: F811
    records = Records(trained)
    cell = next(cell for cell in plan(make_grid(place, **everything)) if (cell.label, cell.seed) == ("amplify", 1))
    again = run_cell(cell, Cache())
    for name, array in records.read(cell.key).outputs().items():
        assert array.tobytes() == again.outputs[name].tobytes(), name
    assert not run(make_grid(place, **everything), trained, engine=FakeEngine).outcome.trained  # resumed: nothing left


def test_they_are_shown(trained: Path) -> None:
    summary = read_summary(Records(trained))
    (group,) = summary.groups
    assert "20 % label noise" in group.title and "imbalance 2" in group.title
    assert set(group.tests) == {"other", CHOSEN} and "ood_auroc" in group.comparison.metrics
    page = export.export(summary, "html")
    for text in ("20 % typos in train and test", "Tested on other", "the chosen epoch", "OOD AUROC", "foreign.csv"):
        assert text in page, text
    lines = list(csv.DictReader(io.StringIO(export.export(summary, "csv"))))
    assert {line["test_set"] for line in lines} == {"", "other", CHOSEN}
    assert lines[0]["conditions"].startswith("imbalance 2") and "ood_false_accept" in {line["metric"] for line in lines}
    values = json.loads(export.export(summary, "json"))["comparisons"][0]
    assert values["conditions"]["label_noise"] == 0.2 and set(values["tests"]) == {"other", CHOSEN}
    assert "### other" in export.export(summary, "md")


def test_the_last_epoch_is_that_of_a_run_without_choice(place: Path) -> None:  # noqa: F811
    """`overtrain` gives what the usual run gives as its chosen epoch, and the last one besides."""
    usual, over = (plan(make_grid(place, seeds=1, overtrain=over))[0] for over in (False, True))
    one, two = run_cell(usual, Cache()), run_cell(over, Cache())
    assert one.outputs["test_logits"].tobytes() == two.outputs[f"test.{CHOSEN}_logits"].tobytes()
    assert two.result["tests"][CHOSEN]["temperature"] == pytest.approx(one.result["temperature"])


def test_changed_files_are_noticed(place: Path, tmp_path: Path) -> None:  # noqa: F811
    other = write_csv(tmp_path / "other.csv", rows(20, seed=7))
    cell = plan(make_grid(place, seeds=1, tests={"other": str(other)}))[0]
    write_csv(other, rows(20, seed=8))
    with pytest.raises(MixwellError, match="the file changed while the comparison was running"):
        run_cell(cell, Cache())


def test_command_line(place: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(runs, "make_engine", lambda *args: FakeEngine())
    more = ["--label-noise", "0,0.3", "--noise", "confusion", "--typos", "0.1", "--typos-in", "test"]
    assert main(words(place, tmp_path / "out", *more)) == 0
    printed = capsys.readouterr().out
    assert "films.csv, all of train, 10 % typos in test:" in printed
    assert "films.csv, all of train, 30 % label noise by confusion, 10 % typos in test:" in printed
