"""Races: rounds, verdicts, budgets, what is shown, and the same end after kills."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_compare import FakeEngine, calm, make_grid, place  # noqa: F401
from test_compare_cli import words

from mixwell.cli import main
from mixwell.compare import run as runs
from mixwell.compare.engines.base import Failed, Finished
from mixwell.compare.live import LiveView, TerminalView
from mixwell.compare.race import Budget, chance_of_verdict, lanes_of, race
from mixwell.compare.records import CellResult, Records
from mixwell.compare.run import run
from mixwell.compare.spec import CellSpec
from mixwell.compare.stats.judge import Rules, difference_of
from mixwell.metrics.measure import measure
from mixwell.utils.errors import OptionError

METHODS = ["amplify", "tmix", "manifold"]
# What each is made to be: its share of right answers and the spread of that over seeds.
SKILL = {"amplify": (0.92, 0.004), "tmix": (0.70, 0.004), "manifold": (0.80, 0.006), "none": (0.80, 0.0005)}


def made(spec: CellSpec, skill: Any = None, rows: int = 2000) -> CellResult:
    """A result with as many mistakes as the method is made to make."""
    mean, spread = (skill or SKILL).get(spec.method, (0.8, 0.0005))
    draw = np.random.default_rng([spec.seed, sum(map(ord, spec.label))])
    labels = np.arange(rows) % 2
    wrong = round(rows * (1 - mean - spread * draw.normal()))
    logits = 2 * np.eye(2, dtype=np.float32)[labels] + draw.random((rows, 2), dtype=np.float32)
    # Mostly the same rows, as models err on the difficult ones.
    picked = np.random.default_rng(0).permutation(rows)[:wrong]
    logits[picked] = logits[picked][:, ::-1]
    metrics = {"rows": rows, "before": measure(logits, labels), "after": measure(logits, labels)}
    result = {
        "temperature": 1.0, "test": metrics, "labels": ["bad", "good"], "history": [], "versions": {},
        "train_rows": 60, "timing": {"seconds": 2.0, "seconds_per_step": 0.1},
    }  # fmt: skip
    return CellResult(result, {"test_logits": logits, "test_labels": labels})


def engine(skill: Any = None) -> FakeEngine:
    return FakeEngine(lambda spec: Finished(spec.key, made(spec, skill)))


def raced(place: Path, folder: Path, budget: Budget | None = None, **changes: Any) -> Any:  # noqa: F811
    values = {"methods": METHODS, "seeds": 12, **changes}
    return run(
        make_grid(place, **values), folder, engine=engine, budget=budget or Budget(), view=changes.pop("view", None)
    )


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("60 runs", Budget(runs=60)), ("60", Budget(runs=60)), ("1 run", Budget(runs=1)), ("30m", Budget(seconds=1800)),
        ("1.5h", Budget(seconds=5400)), ("90 s", Budget(seconds=90)), ("20 minutes", Budget(seconds=1200)),
        (None, Budget()),
    ],
)  # fmt: skip
def test_budgets(text: str | None, budget: Budget) -> None:
    assert Budget.read(text) == budget


@pytest.mark.parametrize("text", ["", "0 runs", "much", "-3", "30x", "0m"])
def test_bad_budgets(text: str) -> None:
    with pytest.raises(OptionError, match=r"budget .* cannot be read; write a time such as 30m"):
        Budget.read(text)


def test_the_clear_ones_are_out_early(place: Path, tmp_path: Path) -> None:  # noqa: F811
    done = raced(place, tmp_path / "out")
    (lane,) = done.race.lanes
    assert lane.out["amplify"].startswith("better (+12") and "after 3 seeds" in lane.out["amplify"]
    assert lane.out["tmix"].startswith("worse (-10")
    assert lane.out["manifold"].startswith("practically equal")
    assert lane.looks[0] == 3 and lane.looks[-1] < 12 and lane.ended == "no method is left"
    trained = {(record.spec.label, record.spec.seed) for record in done.outcome.finished.values()}
    assert len(trained) < 5 * 12 / 2 and ("amplify", 3) not in trained
    group = done.summary.groups[0]
    verdicts = {name: group.row(name, "accuracy").difference.verdict for name in METHODS}
    assert verdicts == {"amplify": "better", "tmix": "worse", "manifold": "practically equal"}
    text = "\n".join(done.race.lines())
    assert "of the 60 runs of the full grid" in text and "rounds at 3" in text


def test_a_race_is_judged_as_its_summary(place: Path, tmp_path: Path) -> None:  # noqa: F811
    """What the race says of a method is what the table says, also when the folder is read again."""
    from mixwell.compare.summary import read_summary

    done = raced(place, tmp_path / "out")
    again = read_summary(Records(tmp_path / "out"))
    for name in METHODS:
        before, after = (s.groups[0].row(name, "accuracy").difference for s in (done.summary, again))
        assert (before.verdict, before.p_holm, before.lo_adjusted) == (after.verdict, after.p_holm, after.lo_adjusted)
        assert done.race.lanes[0].out[name].startswith(after.verdict)
    assert again.groups[0].rules.looks == tuple(done.race.lanes[0].looks)


def test_runs_are_a_limit(place: Path, tmp_path: Path) -> None:  # noqa: F811
    noisy = {"amplify": (0.815, 0.02), "none": (0.8, 0.02), "tmix": (0.78, 0.02), "manifold": (0.82, 0.02)}
    grid = make_grid(place, methods=METHODS, seeds=18)
    done = run(grid, tmp_path / "out", engine=lambda: engine(noisy), budget=Budget(runs=33))
    (lane,) = done.race.lanes
    assert lane.ended == "the budget is used up" and 28 < done.race.spent[0] <= 33
    more = run(grid, tmp_path / "out", engine=lambda: engine(noisy), budget=Budget(runs=45))
    assert 33 < more.race.spent[0] <= 45 and more.race.lanes[0].looks[:2] == lane.looks[:2]
    with pytest.raises(
        OptionError, match="budget 10 runs is too small: the first round, 3 seeds of each method, has 15"
    ):
        run(grid, tmp_path / "small", engine=lambda: engine(noisy), budget=Budget(runs=10))


def test_time_is_a_limit(place: Path, tmp_path: Path) -> None:  # noqa: F811
    noisy = dict.fromkeys(("amplify", "none", "tmix", "manifold"), (0.8, 0.03))
    grid = make_grid(place, methods=METHODS, seeds=12)
    done = run(grid, tmp_path / "out", engine=lambda: engine(noisy), budget=Budget(seconds=70))  # 2 seconds each
    assert 15 <= done.race.spent[0] <= 35 and done.race.spent[1] <= 70


def test_several_data_sets_share_the_budget(place: Path, tmp_path: Path) -> None:  # noqa: F811
    noisy = dict.fromkeys(("amplify", "none", "tmix", "manifold"), (0.8, 0.03))
    grid = make_grid(place, methods=METHODS, seeds=12, fractions=[0.5, 1.0])
    done = run(grid, tmp_path / "out", engine=lambda: engine(noisy), budget=Budget(runs=60))
    assert len(done.race.lanes) == 2 and 30 <= done.race.spent[0] <= 60


def test_failures_and_collapses(place: Path, tmp_path: Path) -> None:  # noqa: F811
    def ends(spec: CellSpec) -> Any:
        if spec.method == "tmix":
            return Failed(spec.key, "no memory")
        if (spec.method, spec.seed) == ("amplify", 1):
            return Finished(spec.key, made(spec, {"amplify": (0.5, 0.0)}))
        return Finished(spec.key, made(spec))

    grid = make_grid(place, methods=METHODS, seeds=12)
    done = run(grid, tmp_path / "out", engine=lambda: FakeEngine(ends), budget=Budget())
    (lane,) = done.race.lanes
    assert "failed (no memory)" in lane.out["tmix"]
    assert lane.out["amplify"].startswith("withheld: 1 of 3 runs of AMPLIFY collapsed")
    assert len(done.outcome.failed) == 3  # three of tmix, no more


def test_nothing_learned_ends_a_race(place: Path, tmp_path: Path) -> None:  # noqa: F811
    lost = dict.fromkeys(("amplify", "none", "tmix", "manifold"), (0.5, 0.0))
    grid = make_grid(place, methods=METHODS, seeds=12)
    done = run(grid, tmp_path / "out", engine=lambda: engine(lost), budget=Budget())
    assert done.race.lanes[0].looks == [3] and "Nothing was learned" in done.race.lanes[0].out["amplify"]


def test_a_hopeless_difference_is_given_up() -> None:
    rules = Rules((3, 5), 0.01)
    draw = np.random.default_rng(0)
    wide = difference_of(0.012 + draw.normal(0, 0.05, 5), None, 0, 0.95, "accuracy")
    clear = difference_of(0.03 + draw.normal(0, 0.01, 5), None, 0, 0.95, "accuracy")
    assert chance_of_verdict(wide, rules, 0.01, 8) < 0.2 < 0.8 < chance_of_verdict(clear, rules, 0.01, 18)
    assert chance_of_verdict(clear, rules, 0.01, 5) == 0.0


def test_the_grid_fills_in(place: Path, tmp_path: Path) -> None:  # noqa: F811
    from rich.console import Console

    shown: list[str] = []

    class Watched(TerminalView):
        def begin(self, *args: Any) -> None:
            LiveView.begin(self, *args)

        def tick(self) -> None:
            console = Console(width=160, record=True, file=io.StringIO())
            console.print(self.table())
            shown.append(console.export_text())

    grid = make_grid(place, methods=METHODS, seeds=12)
    run(grid, tmp_path / "out", engine=engine, budget=Budget(runs=50), view=Watched())
    assert any("+++---" in text.replace(" ", "") for text in shown[-2:]) or "+++" in shown[-1]
    assert "out" in shown[-1] or "better (+12" in shown[-1]
    assert "spent:" in shown[-1] and "of 50 runs" in shown[-1] and "in the race" in shown[0]


def test_command_line(place: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(runs, "make_engine", lambda *args: engine())
    line = words(place, tmp_path / "out", "--methods", "amplify,tmix", "--race", "--budget", "40 runs", "--seeds", "9")
    assert main(line) == 0
    printed = capsys.readouterr()
    assert "Race: " in printed.out and "of 40 runs" in printed.out
    assert "is out after 3 seeds: better" in printed.err
    for more, message in (
        (["--budget", "3m"], "--budget goes with --race"),
        (["--race", "--budget", "soon"], "budget 'soon' cannot be read"),
        (["--race", "--budget", "2 runs"], "is too small: the first round"),
    ):
        assert main(words(place, tmp_path / "other", *more)) == 2
        assert message in capsys.readouterr().err


def test_lanes(place: Path) -> None:  # noqa: F811
    from mixwell.compare.planning import plan

    (lane,) = lanes_of(plan(make_grid(place, methods=["amplify"], seeds=4)))
    assert lane.methods[0] == "none" and lane.next_seeds() == 3
    lane.looks.append(3)
    assert lane.next_seeds() == 4
    lane.wanted = 4
    assert [row[1] for row in lane.grid_rows({lane.cells["amplify", 0].key})] == ["....", "....", ">..."]


# --- kills ------------------------------------------------------------------------------------------------------------


class SlowEngine(FakeEngine):
    """Takes some time for each run, so that a kill may come in the middle."""

    def wait(self, timeout: float) -> list[Any]:
        time.sleep(0.01)
        return super().wait(timeout)


def job(folder: Path, cells: list[CellSpec]) -> None:
    """A race of planned runs; planning takes longer than all of it."""
    ends = lambda spec: Finished(spec.key, made(spec, rows=400))  # noqa: E731
    records = Records(folder)
    records.create()
    place_of_runs = SlowEngine(ends, slots=1)
    done, _ = race(cells, records, place_of_runs, LiveView(), Budget(runs=24), level=0.95, equal_within=1.0)
    (folder / "end.json").write_text(json.dumps(done.lines()))


def test_ten_kills_and_the_same_end(place: Path, tmp_path: Path) -> None:  # noqa: F811
    from mixwell.compare.planning import plan

    cells = plan(make_grid(place, methods=METHODS, seeds=6))
    context = multiprocessing.get_context("fork")

    def start(folder: Path) -> Any:
        child = context.Process(target=job, args=(folder, cells))
        child.start()
        return child

    began = time.monotonic()
    child = start(tmp_path / "whole")
    child.join(120)
    took = time.monotonic() - began
    assert child.exitcode == 0
    draw, folder, kills = random.Random(0), tmp_path / "killed", 0
    while True:
        child = start(folder)
        child.join(draw.uniform(0.1, 0.8) * took if kills < 10 else 120)
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            kills += 1
        elif kills < 10:
            shutil.rmtree(folder)  # it came to its end between kills: once more from the start
        else:
            break
    assert kills == 10 and child.exitcode == 0
    assert json.loads((folder / "end.json").read_text()) == json.loads((tmp_path / "whole" / "end.json").read_text())
    assert Records(folder).names() == Records(tmp_path / "whole").names()
    assert Records(folder).looks() == Records(tmp_path / "whole").looks()


def test_a_real_race(place: Path, tmp_path: Path) -> None:  # noqa: F811
    """A tiny model in this process; run again, nothing is trained and the end is the same."""
    from mixwell.compare.engines.inline import InlineEngine

    grid = make_grid(place, methods=["amplify"], seeds=5, references=True)
    first = run(grid, tmp_path / "out", engine=InlineEngine, budget=Budget(runs=12))
    again = run(grid, tmp_path / "out", engine=InlineEngine, budget=Budget(runs=12))
    assert first.outcome.trained and not again.outcome.trained
    assert first.race.lines() == again.race.lines()
    assert first.summary.groups[0].sentences == again.summary.groups[0].sentences
