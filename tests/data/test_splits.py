"""Cuts, samples, leaks and saved splits."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixwell import data
from mixwell.data.splits import KeyMaker, check_classes, cut, fold, sample_rows, shares
from mixwell.utils.errors import DataError, OptionError

SMALL = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path: Path, rows: Any, header: Any = ("text", "label")) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def made(sizes: dict[str, int]) -> list[tuple[str, str]]:
    return [(f"{name} text {at}", name) for name, size in sizes.items() for at in range(size)]


def ids(table: Any) -> set[str]:
    return set(table["row_id"].to_pylist())


def counts(table: Any) -> Counter[int]:
    return Counter(table["label"].to_pylist())


def keys_of(texts: list[str]) -> Any:
    maker = KeyMaker()
    for text in texts:
        maker.add(text, None)
    return maker.finish()


# ---- cuts


def test_default_cut(tmp_path: Path) -> None:
    found = data.load(write(tmp_path / "d.csv", made({"a": 500, "b": 300, "c": 200})))
    assert [found.splits[name].num_rows for name in data.SPLITS] == [700, 100, 200]
    assert list(found.splits) == list(data.SPLITS)
    assert counts(found.test) == {0: 100, 1: 60, 2: 40}
    assert counts(found.validation) == {0: 50, 1: 30, 2: 20}
    assert not ids(found.train) & ids(found.test)
    assert not ids(found.validation) & ids(found.test)
    assert len(ids(found.train) | ids(found.test) | ids(found.validation)) == 1000
    assert any("test (200 rows) and validation (100 rows)" in note for note in found.notes)
    for table in found.splits.values():
        assert table.column_names == ["row_id", "text", "label"]
        numbers = [int(row.split(":")[1]) for row in table["row_id"].to_pylist()]
        assert numbers == sorted(numbers)


def test_rare_classes_are_in_every_split_that_they_can(tmp_path: Path) -> None:
    found = data.load(write(tmp_path / "d.csv", made({"a": 200, "b": 3, "c": 2})))
    assert (counts(found.train)[1], counts(found.validation)[1], counts(found.test)[1]) == (1, 1, 1)
    assert (counts(found.train)[2], counts(found.validation)[2], counts(found.test)[2]) == (1, 0, 1)


def test_seed_and_order(tmp_path: Path) -> None:
    rows = made({"a": 60, "b": 40})
    first = data.load(write(tmp_path / "d.csv", rows))
    again = data.load(tmp_path / "d.csv")
    other = data.load(tmp_path / "d.csv", split_seed=1)
    assert first.fingerprint == again.fingerprint
    assert ids(first.test) == ids(again.test)
    assert ids(first.test) != ids(other.test)
    assert first.fingerprint != other.fingerprint
    assert first.source_fingerprint == other.source_fingerprint
    random.Random(3).shuffle(rows)
    moved = data.load(write(tmp_path / "e.csv", rows))
    for name in data.SPLITS:
        assert sorted(moved.splits[name]["text"].to_pylist()) == sorted(first.splits[name]["text"].to_pylist())


def test_fingerprint_is_fixed(tmp_path: Path) -> None:
    """A changed value means that saved splits and caches of users no longer fit."""
    found = data.load(write(tmp_path / "d.csv", made({"a": 6, "b": 4})))
    code = f"from mixwell import data; print(data.load({str(tmp_path / 'd.csv')!r}).fingerprint)"
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert run.stdout.strip() == found.fingerprint
    assert found.fingerprint == "b42f3139cb848098019445cc5652af69476a8b17ecf795901f19f3c62793c1df"


@pytest.mark.parametrize(("given_", "cut_"), [("test", "validation"), ("validation", "test")])
def test_only_what_is_missing_is_cut(tmp_path: Path, given_: str, cut_: str) -> None:
    write(tmp_path / "train.csv", made({"a": 50, "b": 50}))
    write(tmp_path / f"{given_}.csv", [("x y", "a"), ("z y", "b")])
    found = data.load(tmp_path)
    assert found.splits[given_].num_rows == 2
    assert found.splits[cut_].num_rows == (10 if cut_ == "validation" else 20)
    assert all(row.startswith("train:") for row in ids(found.splits[cut_]))


def test_regression_cut(tmp_path: Path) -> None:
    found = data.load(write(tmp_path / "d.csv", [(f"t {at}", at / 7) for at in range(100)]), task="regression")
    assert [found.splits[name].num_rows for name in data.SPLITS] == [70, 10, 20]


def test_multi_label_cut(tmp_path: Path) -> None:
    draw = random.Random(0)
    names = [f"l{at}" for at in range(6)]
    rows = [(f"text {at}", json.dumps(draw.sample(names, draw.choice([0, 1, 1, 2])))) for at in range(300)]
    rows += [("rare one", '["only"]'), ("rare two", '["l0", "l1", "l2", "l3"]')]
    found = data.load(write(tmp_path / "d.csv", rows))
    assert sum(table.num_rows for table in found.splits.values()) == 302
    assert abs(found.test.num_rows - 60) <= 2
    train = np.array(found.train["label"].to_pylist())
    assert train.shape[1] == 7
    assert (train.sum(axis=0) > 0).all()
    test = np.array(found.test["label"].to_pylist())
    share = test.sum(axis=0) / np.maximum(train.sum(axis=0), 1)
    assert (share[:6] > 0.1).all()


def test_multi_label_rare_label_stays_in_train(tmp_path: Path) -> None:
    rows = [(f"text {at}", f'["k{at}", "all"]') for at in range(30)] + [(f"none {at}", "[]") for at in range(30)]
    found = data.load(write(tmp_path / "d.csv", rows))
    assert (np.array(found.train["label"].to_pylist()).sum(axis=0) > 0).all()
    assert any("rare labels kept in train" in note for note in found.notes)


@SMALL
@given(
    st.lists(st.integers(2, 60), min_size=2, max_size=8), st.floats(0.05, 0.5), st.floats(0.05, 0.4), st.integers(0, 99)
)
def test_cut_keeps_shares(sizes: list[int], test: float, validation: float, seed: int) -> None:
    stratum = np.repeat(np.arange(len(sizes)), sizes)
    keys = keys_of([f"row {at}" for at in range(len(stratum))])
    parts = cut(keys, stratum, {"test": test, "validation": validation}, seed, every_stratum=True)
    assert sorted(np.concatenate(list(parts.values()))) == list(range(len(stratum)))
    for name, fraction in (("test", test), ("validation", validation)):
        got = np.bincount(stratum[parts[name]], minlength=len(sizes))
        for size, count in zip(sizes, got):
            # Within one row of the exact share, unless train must keep its last row.
            assert abs(count - size * fraction) <= 1 or size - count <= 1 + size * test
            assert count >= 1 or name == "validation"
    assert (np.bincount(stratum[parts["train"]], minlength=len(sizes)) >= 1).all()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=10), st.floats(0.01, 0.99))
def test_shares_add_up(sizes: list[int], fraction: float) -> None:
    array = np.array(sizes)
    got = shares(array, fraction, np.zeros_like(array), array)
    assert got.sum() == round(sum(sizes) * fraction)
    assert (np.abs(got - array * fraction) < 1 + 1e-6).all()


def test_one_example_of_a_class(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"d\.csv: column 'label': classes 'b', 'c' have one example.*add examples"):
        data.load(write(tmp_path / "d.csv", made({"a": 10, "b": 1, "c": 1})))
    with pytest.raises(DataError, match="really labels"):
        check_classes("f", "id", np.arange(30), [str(at) for at in range(30)], ["test"])
    write(tmp_path / "train.csv", made({"a": 10, "b": 1}))
    write(tmp_path / "test.csv", made({"a": 2}))
    write(tmp_path / "validation.csv", made({"a": 2}))
    (tmp_path / "d.csv").unlink()
    assert data.load(tmp_path).train.num_rows == 11  # nothing is cut, so one example will do


# ---- saved splits


def test_splits_file(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", made({"a": 60, "b": 40}))
    first = data.load(path, split_seed=5)
    first.save_splits(tmp_path / "s.json")
    again = data.load(path, splits_file=tmp_path / "s.json")
    assert again.fingerprint == first.fingerprint
    assert again.train.equals(first.train)
    small = first.sample(fraction=0.2)
    small.save_splits(tmp_path / "small.json")
    assert data.load(path, splits_file=tmp_path / "small.json").fingerprint == small.fingerprint
    assert json.loads((tmp_path / "s.json").read_text())["splits"]["test"] == first.test["row_id"].to_pylist()

    for change in (made({"a": 60, "b": 41}), [("changed", "a"), *made({"a": 60, "b": 40})[1:]]):
        with pytest.raises(DataError, match="the data changed"):
            data.load(write(path, change), splits_file=tmp_path / "s.json")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda found: found["splits"].pop("test"), "not a splits file"),
        (lambda found: found.update(format="x"), "not a splits file of this version"),
        (lambda found: found["splits"]["test"].append("train:999"), "row id 'train:999' is not a row"),
        (lambda found: found["splits"]["test"].append([1]), "not a row"),
        (lambda found: found["splits"]["test"].append(found["splits"]["train"][0]), "is there twice"),
        (lambda found: found["splits"].update(train=[]), "train has no rows"),
    ],
)
def test_bad_splits_file(tmp_path: Path, change: Any, match: str) -> None:
    path = write(tmp_path / "d.csv", made({"a": 20, "b": 20}))
    data.load(path).save_splits(tmp_path / "s.json")
    found = json.loads((tmp_path / "s.json").read_text())
    change(found)
    (tmp_path / "s.json").write_text(json.dumps(found))
    with pytest.raises(DataError, match=match):
        data.load(path, splits_file=tmp_path / "s.json")


def test_splits_file_faults(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", made({"a": 20, "b": 20}))
    with pytest.raises(DataError, match="no such splits file"):
        data.load(path, splits_file=tmp_path / "none.json")
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(DataError, match="not a splits file"):
        data.load(path, splits_file=tmp_path / "s.json")
    with pytest.raises(OptionError, match="does not go with splits_file"):
        data.load(path, splits_file=tmp_path / "s.json", test=0.3)


# ---- samples


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> data.TextData:
    rows = made({"a": 600, "b": 300, "c": 90, "d": 10})
    return data.load(write(tmp_path_factory.mktemp("d") / "d.csv", rows))


def test_sample_leaves_the_rest(loaded: data.TextData) -> None:
    small = loaded.sample(fraction=0.1, seed=3)
    assert small.train.num_rows == 70
    assert small.test is loaded.test
    assert small.labels == loaded.labels
    assert small.fingerprint != loaded.fingerprint
    assert "train sampled: 70 of 700 rows (fraction 0.1, seed 3)" in small.notes
    assert loaded.sample() is loaded
    assert loaded.sample(fraction=1.0).fingerprint == loaded.fingerprint
    assert ids(small.train) != ids(loaded.sample(fraction=0.1, seed=4).train)


@SMALL
@given(st.floats(0.001, 1), st.floats(0.001, 1), st.integers(0, 9))
def test_fractions_are_nested_and_stratified(loaded: data.TextData, one: float, two: float, seed: int) -> None:
    one, two = sorted((one, two))
    small, large = (loaded.sample(fraction=value, seed=seed).train for value in (one, two))
    assert ids(small) <= ids(large)
    whole = counts(loaded.train)
    for label, size in whole.items():
        got = counts(small)[label]
        assert got >= 1
        # The first row of each class is given before shares are made, so a share may fall short by a row or two.
        assert abs(got - size * one) <= 3


@SMALL
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 9))
def test_per_class_is_nested(loaded: data.TextData, one: int, two: int, seed: int) -> None:
    one, two = sorted((one, two))
    small, large = (loaded.sample(per_class=value, seed=seed).train for value in (one, two))
    assert ids(small) <= ids(large)
    assert counts(small) == {label: min(size, one) for label, size in counts(loaded.train).items()}


@SMALL
@given(st.integers(1, 800), st.integers(1, 800), st.integers(0, 9))
def test_max_train_is_nested(loaded: data.TextData, one: int, two: int, seed: int) -> None:
    one, two = sorted((one, two))
    small, large = (loaded.sample(max_train=value, seed=seed).train for value in (one, two))
    assert ids(small) <= ids(large)
    assert small.num_rows == min(one, 700)
    assert len(counts(small)) == min(one, 4)


def test_sample_combined(loaded: data.TextData) -> None:
    capped = loaded.sample(per_class=20, max_train=30)
    assert capped.train.num_rows == 30
    assert ids(capped.train) <= ids(loaded.sample(per_class=20).train)
    few = loaded.sample(max_train=2)
    assert "classes without a row: 2" in few.notes[-1]


@pytest.mark.parametrize(
    "options",
    [
        {"fraction": 0},
        {"fraction": 1.01},
        {"fraction": -1},
        {"fraction": float("nan")},
        {"fraction": True},
        {"fraction": "0.1"},
        {"per_class": 0},
        {"per_class": 1.5},
        {"max_train": 0},
        {"max_train": True},
        {"fraction": 0.1, "per_class": 3},
        {"fraction": 0.1, "seed": "x"},
    ],
)
def test_sample_options(loaded: data.TextData, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"fraction|per_class|max_train|seed"):
        loaded.sample(**options)


def test_sample_of_regression_and_multi_label(tmp_path: Path) -> None:
    found = data.load(write(tmp_path / "d.csv", [(f"t {at}", at / 7) for at in range(100)]), task="regression")
    assert ids(found.sample(fraction=0.1).train) <= ids(found.sample(fraction=0.5).train)
    assert found.sample(fraction=0.1).train.num_rows == 7
    with pytest.raises(OptionError, match="per_class needs classes"):
        found.sample(per_class=3)
    rows = [(f"text {at}", json.dumps([f"l{at % 5}", "m"][: at % 3])) for at in range(150)]
    multi = data.load(write(tmp_path / "e.csv", rows))
    before: set[str] = set()
    for size in (1, 2, 5, 9):
        small = multi.sample(per_class=size, seed=2).train
        assert before <= ids(small)
        before = ids(small)
        assert (np.array(small["label"].to_pylist()).sum(axis=0) >= min(size, 5)).all()


@SMALL
@given(st.lists(st.sampled_from("aab"), min_size=1, max_size=30), st.integers(1, 30), st.integers(0, 5))
def test_sample_does_not_mind_the_order(texts: list[str], size: int, seed: int) -> None:
    """Also with duplicates: the same texts are chosen whatever the order of the rows."""

    def chosen(order: list[str]) -> list[str]:
        stratum = np.zeros(len(order), dtype=np.int64)
        members = [np.arange(len(order))]
        rows = sample_rows(keys_of(order), stratum, members, seed, fraction=None, per_class=None, max_train=size)
        return sorted(order[row] for row in rows)

    assert chosen(texts) == chosen(texts[::-1]) == chosen(sorted(texts))


# ---- leaks


def test_leaks(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", [*made({"a": 20, "b": 20}), ("Same  Text\n", "a"), ("stra\u00dfe", "b")])
    write(tmp_path / "test.csv", [(" same text", "a"), ("STRASSE", "b"), ("same TEXT", "b"), ("other", "a")])
    write(tmp_path / "validation.csv", [("a text 3", "a"), ("new", "b")])
    found = data.load(tmp_path)
    assert found.leaks == {"validation": 1, "test": 3}
    assert any("1 validation rows and 3 test rows" in note for note in found.notes)
    clean = data.load(tmp_path, drop_leaks=True)
    assert clean.leaks == {"validation": 0, "test": 0}
    assert clean.train.num_rows == found.train.num_rows - 3
    assert clean.test.num_rows == 4
    assert "dropped 3 train rows whose text is also in validation or test" in clean.notes
    assert not any(note.startswith("leaks") for note in clean.notes)


def test_leaks_of_pairs_need_both_texts(tmp_path: Path) -> None:
    header = ("text", "text_pair", "label")
    write(tmp_path / "train.csv", [("a", "b", "x"), ("c", "d", "y"), ("ab", "c", "x")], header)
    write(tmp_path / "test.csv", [("a", "z", "x"), ("C", "D", "y"), ("a", "bc", "x")], header)
    write(tmp_path / "dev.csv", [("b", "a", "x")], header)
    assert data.load(tmp_path).leaks == {"validation": 0, "test": 1}


def test_drop_leaks_that_would_empty_a_class(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", [("a", "x"), ("b", "y"), ("c", "x")])
    write(tmp_path / "test.csv", [("b", "y")])
    write(tmp_path / "dev.csv", [("d", "y")])
    with pytest.raises(DataError, match="every train row of label 'y'"):
        data.load(tmp_path, drop_leaks=True)
    write(tmp_path / "test.csv", [("a", "x"), ("b", "y"), ("c", "x")])
    with pytest.raises(DataError, match="all train rows"):
        data.load(tmp_path, drop_leaks=True)


def test_cut_keeps_duplicates_together(tmp_path: Path) -> None:
    rows = [(f"text {at // 2}" + " " * (at % 2), f"c{at // 2 % 2}") for at in range(400)]
    found = data.load(write(tmp_path / "d.csv", rows))
    assert sum(found.leaks.values()) <= 4  # at most one pair at each border of each class


@given(st.text(max_size=20))
def test_fold(text: str) -> None:
    assert fold(f" {text}\n") == fold(text) == fold(fold(text))


# ---- describe


def test_describe(loaded: data.TextData, tmp_path: Path) -> None:
    lines = dict(loaded.describe())
    assert lines["train"] == "700 rows"
    assert lines["task"] == "single label"
    assert lines["labels"] == "4 (a, b, c, d)"
    assert lines["rows per label in train"] == "fewest d 7, most a 420"
    assert lines["also in train"] == "none"
    found = data.load(write(tmp_path / "d.csv", [(f"t {at}", at / 8) for at in range(100)]), task="regression")
    assert "target in train" in dict(found.describe())
    multi = data.load(write(tmp_path / "e.csv", [(f"t {at}", f'["x{at % 3}"]') for at in range(99)]))
    assert dict(multi.describe())["task"] == "multi label"
