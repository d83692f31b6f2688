"""`--budget`: how it is spent, what is given up, what is kept, and the story of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from test_heads import pooled_folder
from test_training import rows, write_csv

import mixwell
from mixwell.training import TrainSettings, budget, search
from mixwell.training.held_out import HeldOut
from mixwell.training.predict import Classifier
from mixwell.utils.errors import OptionError


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pooled_folder(tmp_path_factory.mktemp("pooled") / "encoder", pooling_mode_mean_tokens=True)


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("films") / "films.csv", rows(130))


def test_plans_by_hand() -> None:
    """Three folds train on two thirds of the rows each; the final training is one."""
    quick, whole = budget.plan(4, 3), budget.plan(12, 3)
    assert (quick.tried, quick.kept) == (2, 1)
    assert quick.most == pytest.approx((2 + 1 + 1) * 2 / 3 + 1)
    assert (whole.tried, whole.kept) == (4, 4)
    assert whole.most == pytest.approx(4 * 3 * 2 / 3 + 1)
    with pytest.raises(OptionError, match=r"budget=3: .* give at least 4"):
        budget.plan(3, 3)


@given(some.floats(3.7, 60), some.integers(2, 10), some.integers(2, 6))
def test_a_plan_keeps_its_budget(amount: float, folds: int, candidates: int) -> None:
    try:
        plan = budget.plan(amount, folds, candidates)
    except OptionError:
        assert (2 + folds - 1) * (folds - 1) / folds + 1 > amount
        return
    assert plan.most <= amount + 1e-9
    assert 1 <= plan.kept <= plan.tried <= candidates and plan.tried >= 2
    more = budget.plan(amount + 1, folds, candidates)
    assert (min(more.kept, 2), more.tried) >= (min(plan.kept, 2), plan.tried)


ROWS, FOLDS = 300, np.arange(300) % 3
LABELS = np.random.default_rng(0).integers(0, 2, ROWS)


@dataclass
class Fake:
    """Trainings that say of each row what they are made to say: the larger `noise`, the worse."""

    noise: float
    done: list[int] = field(default_factory=list)
    cost = 0.0

    def chosen(self, folds: list[int] | None = None) -> tuple[Any, HeldOut]:
        rows = np.isin(FOLDS, folds or self.done)
        score = (2 * LABELS - 1) + self.noise * np.random.default_rng(round(1000 * self.noise)).normal(size=ROWS)
        logits = np.stack([-score, score], axis=1)[rows]
        return None, HeldOut("out_of_fold", logits, LABELS[rows], "single_label", FOLDS[rows])


def trial(name: str, noise: float, folds: int) -> Any:
    return search.Trial(budget.PLAIN if name == "plain" else budget.Way(name, name), Fake(noise, list(range(folds))))  # type: ignore[arg-type]


def test_plain_training_stands_unless_another_is_better_beyond_chance() -> None:
    alike = [trial("plain", 1.0, 3), trial("mixed", 0.99, 3), trial("poor", 2.0, 3)]
    kept, why = search.choose(alike)
    assert kept.way.name == "plain" and "not beyond chance" in why
    better = [trial("plain", 2.0, 3), trial("mixed", 0.8, 3), trial("poor", 3.0, 3)]
    kept, why = search.choose(better)
    assert kept.way.name == "mixed" and why.endswith("beyond chance") and "not" not in why
    mean, error = search.gain_over(kept.held(), better[0].held())
    assert mean > search.needed(2) * error
    assert search.needed(1) == pytest.approx(1.645, abs=1e-3)
    assert search.needed(3) == pytest.approx(2.128, abs=1e-3)


def test_who_is_given_up() -> None:
    going = [trial("plain", 1.0, 2), trial("mixed", 0.98, 2), trial("poor", 3.0, 2)]
    search.give_up(going, 3, behind=True)
    assert [each.given_up is None for each in going] == [True, True, False]
    assert "above that of the best" in going[2].given_up
    going = [trial("plain", 2.0, 1), trial("mixed", 0.9, 1), trial("poor", 3.0, 1)]
    search.give_up(going, 2, behind=False)  # plain goes on beside the best one
    assert [each.given_up is None for each in going] == [True, True, False]
    assert "no room" in going[2].given_up
    behind = [trial("plain", 3.0, 2), trial("mixed", 0.9, 2)]
    search.give_up(behind, 2, behind=True)
    assert behind[0].given_up is None  # what the others are measured against


def test_one_place_for_two() -> None:
    """Where one can go on, it is plain training, unless the other is better beyond chance."""
    better = [trial("plain", 3.0, 1), trial("mixed", 0.5, 1)]
    search.give_up(better, 1, behind=False)
    assert [each.given_up is None for each in better] == [False, True]
    assert search.choose(better)[0].way.name == "mixed"
    alike = [trial("plain", 1.0, 1), trial("mixed", 0.99, 1)]
    search.give_up(alike, 1, behind=False)
    assert [each.given_up is None for each in alike] == [True, False]
    assert search.choose(alike)[0].way.name == "plain"


def test_a_run_tells_the_story(encoder: Path, films: Path, tmp_path: Path, capsys: Any) -> None:
    """The run folder and the page say what was tried, what it cost and what is kept; it can be loaded."""
    place = tmp_path / "run"
    done = mixwell.train(
        str(films), output=str(place), model=str(encoder), budget=12, epochs=2, folds=3, max_length=16, max_train=90
    )
    story = json.loads((place / "metrics.json").read_text())["search"]
    assert [each["name"] for each in story["candidates"]] == ["plain", "manifold", "amplify", "label smoothing"]
    assert story["spent"] <= story["most"] <= story["budget"] == 12
    first = story["candidates"][0]
    assert first["folds"] == 3 and "gain" not in first
    assert all("gain" in each for each in story["candidates"][1:])
    said = capsys.readouterr().err
    assert "4 ways to train: plain, manifold, amplify, label smoothing" in said
    page = (place / "report.html").read_text()
    assert "What was tried" in page and "label smoothing" in page
    kept = {each["name"]: each for each in story["candidates"]}[story["chosen"]]
    if done.metrics["method"]["method"] != "probe":
        assert done.metrics["method"]["method"] == kept["method"]
    assert len(Classifier.load(place).predict(["a fine film", "a dull one"]).labels) == 2


def test_a_budget_that_cannot_be_used(films: Path, encoder: Path, tmp_path: Path) -> None:
    for given_settings, words in (
        ({"budget": 2}, "give at least 4"),
        ({"budget": 0}, "above 0"),
        ({"budget": 12, "method": "manifold"}, "method auto"),
        ({"budget": 12, "label_smoothing": 0.1}, "label_smoothing"),
        ({"budget": 12, "validation": 0.2}, "folds"),
    ):
        with pytest.raises(OptionError, match=words):
            mixwell.train(str(films), output=str(tmp_path / "run"), model=str(encoder), max_length=16, **given_settings)
        assert not (tmp_path / "run").exists()
    assert TrainSettings("x").budget is None
