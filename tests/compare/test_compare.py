"""The compare room in one process: candidates, grids, pairing, records, schedule, summary and exports."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_training import BASE, calm, make_model, rows, write_csv  # noqa: F401

from mixwell.compare import grid as grids
from mixwell.compare import records as records_module
from mixwell.compare import references, tables
from mixwell.compare.cell import Cache, run_cell
from mixwell.compare.engines import inline, worker
from mixwell.compare.engines.base import Failed, Finished, Started
from mixwell.compare.engines.inline import InlineEngine
from mixwell.compare.live import PlainView, Progress
from mixwell.compare.planning import plan
from mixwell.compare.records import CellResult, CorruptRecord, Records
from mixwell.compare.run import run
from mixwell.compare.schedule import execute
from mixwell.compare.spec import CellSpec, DataSource, Sample, candidate, chosen_test_rows
from mixwell.compare.stats.learned import GUESSING
from mixwell.compare.summary import TEMPERATURE, read_summary, seed_result
from mixwell.report import compare as export
from mixwell.utils.errors import MixwellError, OptionError, RunError
from mixwell.utils.locks import CellLocks

SETTINGS = {**BASE, "epochs": 2, "batch_size": 16, "patience": 0}


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and a data set."""
    folder = tmp_path_factory.mktemp("compare")
    make_model(folder / "tiny")
    write_csv(folder / "films.csv", rows(90))
    return folder


def make_grid(place: Path, **changes: Any) -> grids.Grid:
    values = {"data": str(place / "films.csv"), "model": str(place / "tiny"), "seeds": 2, "methods": ["amplify"]}
    return grids.make_grid({}, {**values, "references": False, "settings": SETTINGS, **changes})


@pytest.fixture(scope="session")
def cells(place: Path) -> list[CellSpec]:
    return plan(make_grid(place))


@pytest.fixture(scope="session")
def finished(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of a whole comparison: three methods, two seeds."""
    folder = tmp_path_factory.mktemp("records") / "out"
    done = run(make_grid(place), folder, engine=InlineEngine)
    assert len(done.outcome.trained) == 6 and not done.outcome.failed
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Records:
    shutil.copytree(finished, tmp_path / "out")
    return Records(tmp_path / "out")


class FakeEngine:
    """Gives made-up results at once; `ends` may give another event for a cell."""

    def __init__(self, ends: Any = None, slots: int = 2) -> None:
        self.slots, self.ends, self.events, self.ran = slots, ends, [], []  # type: ignore[var-annotated]
        self.closed = False

    def submit(self, spec: CellSpec) -> None:
        self.ran.append(spec.key)
        end = self.ends(spec) if self.ends else None
        self.events += [Started(spec.key, "fake"), end or Finished(spec.key, made_up(spec))]

    def wait(self, timeout: float) -> list[Any]:
        found, self.events = self.events, []
        return found

    def close(self) -> None:
        self.closed = True


def made_up(spec: CellSpec) -> CellResult:
    from mixwell.metrics.measure import measure

    draw = np.random.default_rng(int(spec.key[:8], 16))
    labels = np.arange(40) % 2
    logits = (draw.normal(size=(40, 2)) + 2 * np.eye(2)[labels]).astype(np.float32)
    metrics = {"rows": 40, "before": measure(logits, labels), "after": measure(logits, labels)}
    result = {
        "temperature": 1.5,
        "test": metrics,
        "labels": ["bad", "good"],
        "history": [{"epoch": 1, "step": 4, "train_loss": 0.7, "validation": {"loss": 0.6}}],
        "versions": {"mixwell": "0"},
        "train_rows": 60,
        "timing": {"seconds": 1.0, "seconds_per_step": 0.1},
    }
    return CellResult(result, {"test_logits": logits, "test_labels": labels})


# --- candidates, samples and grids ------------------------------------------------------------------------------------


def test_labels() -> None:
    assert candidate("amplify", {}).label == "amplify"
    assert candidate("amplify", {"consistent": True}).label == "amplify[consistent=true]"
    assert candidate("amplify", {"layers": (0, 1), "alpha": 0.5}).label == "amplify[alpha=0.5,layers=[0,1]]"
    assert candidate("amplify", {"alpha": 0.1}) == candidate("amplify", {})  # the default, said aloud
    assert candidate("tmix", {"alpha": 1}) == candidate("tmix", {"alpha": 1.0})


def test_plain_training_and_label_smoothing_are_always_there() -> None:
    made = grids.Grid(methods=["tmix", "none:label_smoothing=0.1"]).candidates("single_label")
    assert [each.label for each in made] == ["none", "none[label_smoothing=0.1]", "probe", "tfidf", "tmix"]
    made = grids.Grid(methods=["tmix"]).candidates("regression")
    assert [each.label for each in made] == ["none", "probe", "tfidf", "tmix"]
    made = grids.Grid(methods=["tmix", "probe"], references=False).candidates("regression")
    assert [each.label for each in made] == ["none", "tmix", "probe"]
    with pytest.raises(OptionError, match="has no option"):
        candidate("tfidf", {"alpha": 1})


def test_methods_as_texts() -> None:
    assert grids.split_methods("none, amplify:layers=[0,1]:alpha=0.5,tmix") == [
        "none",
        "amplify:layers=[0,1]:alpha=0.5",
        "tmix",
    ]


def test_grid_file(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(
        'data = ["a.csv", "b.csv"]\nseeds = [3, 5]\nfractions = [0.1, 1.0]\nper_class = 8\nmax_test = 9\ntext = "t"\n'
        'methods = ["tmix:alpha=0.5", {name = "amplify", alpha = [0.2, 0.4], layers = [0, 1]}]\n'
        "[settings]\nepochs = 3\nlearning_rate = [1e-4, 2e-4]\n[settings.arguments]\nmax_grad_norm = 0.5\n"
    )
    grid = grids.make_grid(grids.read_grid(file), {"seeds": None, "max_test": 10, "settings": {"epochs": 4}})
    assert grid.sources() == [DataSource(name, text="t", keep_together=True) for name in ("a.csv", "b.csv")]
    assert grid.seed_list() == [3, 5] and grid.max_test == 10
    assert [each.title for each in grid.samples()] == ["10 % of train", "all of train", "8 rows per class"]
    settings = grid.settings_list()
    assert [(s["epochs"], s["learning_rate"]) for s in settings] == [(4, 1e-4), (4, 2e-4)]
    assert settings[0]["arguments"] == {"max_grad_norm": 0.5}
    assert [each.label for each in grid.candidates("single_label")][4:] == [
        "tmix[alpha=0.5]",
        "amplify[alpha=0.2,layers=[0,1]]",
        "amplify[alpha=0.4,layers=[0,1]]",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the grid is empty"),
        ("data = [", "not a TOML file"),
        ("sedes = 3", "did you mean 'seeds'"),
        ("data = []", "the grid is empty: name at least one data set"),
        ('data = "x.csv"\nmethods = []', "the grid is empty: name at least one method"),
        ('data = "x.csv"\nseeds = 0', "seeds must be at least 1"),
        ('data = "x.csv"\nseeds = [1, 1]', "name one twice"),
        ('data = "x.csv"\nfractions = [1.5]', "fractions must lie above 0"),
        ('data = "x.csv"\n[settings]\nepochs = []', "setting 'epochs' has no values"),
        ('data = "x.csv"\n[settings]\nepochs = "two"', "setting epochs must be a whole number"),
        ('data = "x.csv"\n[settings]\nepoch = 2', "did you mean 'epochs'"),
        ('data = "x.csv"\nmethods = [{alpha = 1.0}]', "a table with a name"),
        ('data = "x.csv"\nmethods = ["amplifi"]', "did you mean 'amplify'"),
        ('data = "x.csv"\nmethods = [{name = "tmix", alpha = []}]', "an option without values"),
        ('data = "x.csv"\nmethods = ["tmix:total_steps=3"]', "training knows it"),
    ],
)
def test_bad_grids(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(OptionError, match=message) as caught:
        plan(grids.make_grid(grids.read_grid(tmp_path / "grid.toml"), {}))
    assert "\n" not in str(caught.value)


def test_test_rows_are_a_fixed_choice() -> None:
    chosen = chosen_test_rows(100, 10)
    assert chosen == chosen_test_rows(100, 10) == sorted(set(chosen or [])) and len(chosen or []) == 10
    assert chosen_test_rows(100, 100) is None and chosen_test_rows(100, None) is None


# --- cells -----------------------------------------------------------------------------------------------------------


def test_keys(place: Path, cells: list[CellSpec], tmp_path: Path) -> None:
    assert len({cell.key for cell in cells}) == len(cells) == 6
    assert [(c.seed, c.label) for c in cells[:4]] == [
        (0, "none"), (0, "none[label_smoothing=0.1]"), (0, "amplify"), (1, "none"),
    ]  # fmt: skip
    assert CellSpec.from_dict(json.loads(json.dumps(cells[2].to_dict()))).key == cells[2].key
    first = cells[0]
    for change in ({"seed": 7}, {"max_test": 5}, {"weights": "x"}, {"sampled": "x"}, {"sample": Sample(max_train=3)}):
        assert replace(first, **change).key != first.key
    assert replace(first, settings={**first.settings, "epochs": 9}).key != first.key
    # Elsewhere, with the same content, they are the same cells.
    shutil.copytree(place / "tiny", tmp_path / "model")
    shutil.copy(place / "films.csv", tmp_path / "copy.csv")
    moved = plan(make_grid(tmp_path, data=str(tmp_path / "copy.csv"), model=str(tmp_path / "model")))
    assert [cell.key for cell in moved] == [cell.key for cell in cells]


def test_samples_by_seed(place: Path) -> None:
    own = plan(make_grid(place, fractions=[0.5]))
    assert {(c.seed, c.sample.seed) for c in own} == {(0, 0), (1, 1)} and len({c.sampled for c in own}) == 2
    assert len({c.group_key for c in own}) == 1
    fixed = plan(make_grid(place, fractions=[0.5], sample_seed=4))
    assert {c.sample.seed for c in fixed} == {4} and len({c.sampled for c in fixed}) == 1
    for seed in (0, 1):
        assert len({c.sampled for c in own if c.seed == seed}) == 1


def test_lam_1_is_plain_training(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that mixes nothing gives the very record of `none`: all else is shared, to the bit."""
    from mixwell.methods import load_all
    from mixwell.methods.amplify import Amplify
    from mixwell.methods.registry import REGISTRY

    load_all()

    @dataclass
    class AlwaysOne(Amplify):
        name = "always-one"

        def draw_lam(self, rng: Any) -> float:
            super().draw_lam(rng)
            return 1.0

    monkeypatch.setitem(REGISTRY, "always-one", AlwaysOne)
    found = plan(make_grid(place, methods=["always-one", "amplify"], seeds=[3], fractions=[0.8]))
    by_label = {cell.label: run_cell(cell, cache) for cache in [Cache()] for cell in found}
    plain, same, mixed = (by_label[name] for name in ("none", "always-one", "amplify"))
    assert plain.outputs.keys() == same.outputs.keys()
    for name, array in plain.outputs.items():
        assert array.tobytes() == same.outputs[name].tobytes(), name
    assert plain.result["history"] == same.result["history"]
    assert plain.result["test"] == same.result["test"] and plain.result["temperature"] == same.result["temperature"]
    assert plain.outputs["test_logits"].tobytes() != mixed.outputs["test_logits"].tobytes()
    # Whatever ran before in the worker, and in a fresh one.
    again = run_cell(next(cell for cell in found if cell.label == "amplify"), Cache())
    assert again.outputs["test_logits"].tobytes() == mixed.outputs["test_logits"].tobytes()


def test_initial_weights(cells: list[CellSpec]) -> None:
    import torch

    from mixwell.training import models

    cache = Cache()
    first = {name: value.clone() for name, value in cache.model(cells[0]).model.state_dict().items()}
    head = next(name for name in first if "classifier" in name and "weight" in name)
    other = next(cell for cell in cells if cell.seed == 1)
    assert not torch.equal(cache.model(other).model.state_dict()[head], first[head])
    fresh = models.load(other.model, task=other.task, labels=cache.data(other).labels, seed=1).model.state_dict()
    for name, value in cache.model(other).model.state_dict().items():
        assert torch.equal(value, fresh[name])
    with torch.no_grad():
        cache.model(other).model.get_parameter(head).zero_()
    for name, value in cache.model(cells[0]).model.state_dict().items():
        assert torch.equal(value, first[name])


def test_a_cell_is_a_run_of_train(place: Path, finished: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from mixwell.api import train
    from mixwell.training import TrainSettings

    records = Records(finished)
    found = [records.read(key) for key in records.names()]
    record = next(r for r in found if r.spec.label == "amplify" and r.spec.seed == 1)
    settings = TrainSettings(
        data=str(place / "films.csv"), model=str(place / "tiny"), method="amplify", seed=1,
        output=str(tmp_path / "run"), folds=0, average=0, **SETTINGS,
    )  # fmt: skip
    train(settings, quiet=True)
    table = pq.read_table(tmp_path / "run" / "predictions.parquet").to_pylist()
    logits = np.array([row["logits"] for row in table if row["split"] == "test"], dtype=np.float32)
    assert logits.tobytes() == record.outputs()["test_logits"].tobytes()


def test_data_and_weights_must_be_those_of_the_plan(cells: list[CellSpec]) -> None:
    with pytest.raises(MixwellError, match="the data changed while"):
        run_cell(replace(cells[0], sampled="other"), Cache())
    with pytest.raises(MixwellError, match="its files changed while"):
        run_cell(replace(cells[0], weights="other"), Cache())


def test_divergence_fails_one_cell_only(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mixwell.methods.amplify import Amplify
    from mixwell.methods.registry import REGISTRY

    @dataclass
    class Diverges(Amplify):
        name = "diverges"

        def loss(self, *args: Any) -> Any:
            return super().loss(*args) * float("nan")

    monkeypatch.setitem(REGISTRY, "diverges", Diverges)
    done = run(make_grid(place, seeds=1, methods=["diverges", "amplify"]), tmp_path / "out", engine=InlineEngine)
    assert [each.spec.label for each in done.outcome.failed.values()] == ["diverges"]
    assert "training diverged" in next(iter(done.outcome.failed.values())).reason
    assert {each.spec.label for each in done.outcome.finished.values()} == {
        "none", "none[label_smoothing=0.1]", "amplify",
    }  # fmt: skip


# --- records ---------------------------------------------------------------------------------------------------------


def test_records_round_trip(finished: Path) -> None:
    records = Records(finished)
    for key in records.names():
        record = records.read(key)
        outputs = record.outputs()
        assert outputs["test_logits"].shape == (18, 2) and outputs["test_labels"].shape == (18,)
        assert outputs["validation_logits"].shape == (9, 2) and len(record.result["history"]) == 2
        assert record.result["versions"]["torch"] and record.result["timing"]["seconds_per_step"] > 0
        assert {path.name for path in record.path.iterdir()} == {"spec.json", "result.json", "outputs.safetensors"}


def damage(folder: Path, how: str) -> None:
    if how == "short outputs":
        data = (folder / "outputs.safetensors").read_bytes()
        (folder / "outputs.safetensors").write_bytes(data[:-3])
    elif how == "a flipped bit":
        data = bytearray((folder / "outputs.safetensors").read_bytes())
        data[-1] ^= 1
        (folder / "outputs.safetensors").write_bytes(bytes(data))
    elif how == "other metrics":
        text = (folder / "result.json").read_text()
        (folder / "result.json").write_text(text.replace('"accuracy": ', '"accuracy": 1', 1))
    elif how == "no result":
        (folder / "result.json").unlink()
    elif how == "half a spec":
        (folder / "spec.json").write_text((folder / "spec.json").read_text()[:100])
    elif how == "another seed":
        (folder / "spec.json").write_text((folder / "spec.json").read_text().replace('"seed": 0', '"seed": 5'))


@pytest.mark.parametrize(
    "how", ["short outputs", "a flipped bit", "other metrics", "no result", "half a spec", "another seed"]
)
def test_corrupt_records_are_moved_aside_and_made_again(
    copied: Records, cells: list[CellSpec], how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = cells[0].key
    damage(copied.cells / key, how)
    with pytest.raises(CorruptRecord):
        copied.read(key)
    told = read_summary(copied)
    assert len(told.notes) == 1 and key[:12] in told.notes[0]
    engine = FakeEngine()
    outcome = execute(cells, copied, engine, PlainView())
    assert engine.ran == [key] and engine.closed and len(outcome.finished) == 6
    assert [path.name for path in (copied.path / "corrupt").iterdir()] == [f"{key}-0"]
    assert "is corrupt" in capsys.readouterr().err
    copied.read(key)


def test_records_of_another_version(copied: Records, cells: list[CellSpec], place: Path) -> None:
    path = copied.cells / cells[0].key / "spec.json"
    path.write_text(path.read_text().replace("mixwell cell 1", "mixwell cell 0"))
    with pytest.raises(RunError, match="'mixwell cell 0'.*another version"):
        run(make_grid(place), copied.path)
    assert copied.has(cells[0].key)
    (copied.path / "compare.json").write_text('{"format": "mixwell compare 9"}')
    with pytest.raises(RunError, match="another version"):
        run(make_grid(place), copied.path)


def test_folders_of_others_are_left_alone(tmp_path: Path, place: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="holds no comparison"):
        run(make_grid(place), tmp_path)
    with pytest.raises(RunError, match="is a file"):
        run(make_grid(place), tmp_path / "notes.txt")
    with pytest.raises(RunError, match="no such folder"):
        read_summary(Records(tmp_path / "nowhere"))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_changed_data(place: Path, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "films.csv", rows(90))
    grid = make_grid(place, data=str(file), seeds=1)
    assert len(run(grid, tmp_path / "out", engine=FakeEngine).outcome.trained) == 3
    write_csv(file, rows(90, seed=1))
    with pytest.raises(RunError, match="the data changed since the records .* --new-data"):
        run(grid, tmp_path / "out", engine=FakeEngine)
    done = run(grid, tmp_path / "out", engine=FakeEngine, new_data=True)
    assert len(done.outcome.trained) == 3 and len(Records(tmp_path / "out").names()) == 6
    titles = [group.title for group in read_summary(Records(tmp_path / "out")).groups]
    assert len(set(titles)) == 2 and all("data " in title for title in titles)
    assert not run(grid, tmp_path / "out", engine=FakeEngine).outcome.trained


# --- the schedule -----------------------------------------------------------------------------------------------------


def test_only_what_is_missing(place: Path, finished: Path, copied: Records, cells: list[CellSpec]) -> None:
    engine = FakeEngine()
    execute(cells, copied, engine, PlainView())
    assert engine.ran == []
    more = plan(make_grid(place, seeds=3, methods=["amplify", "tmix"]))
    execute(more, copied, engine, PlainView())
    assert set(engine.ran) == {cell.key for cell in more} - {cell.key for cell in cells}
    for key in Records(finished).names():  # the old ones are as they were
        for name in ("spec.json", "result.json", "outputs.safetensors"):
            assert (copied.cells / key / name).read_bytes() == (finished / "cells" / key / name).read_bytes()


def test_failures_and_retry(cells: list[CellSpec], tmp_path: Path) -> None:
    records = Records(tmp_path / "out")
    records.create()
    bad = cells[2].key
    engine = FakeEngine(lambda spec: Failed(spec.key, "loss is nan", "Traceback") if spec.key == bad else None)
    outcome = execute(cells, records, engine, PlainView())
    assert list(outcome.failed) == [bad] and len(outcome.finished) == 5
    failure = records.failure(bad)
    assert failure is not None and (failure.reason, failure.attempts) == ("loss is nan", 1)
    engine = FakeEngine()
    assert list(execute(cells, records, engine, PlainView()).failed) == [bad] and engine.ran == []
    engine = FakeEngine(lambda spec: Failed(spec.key, "again"))
    again = execute(cells, records, engine, PlainView(), retry_failed=True)
    assert engine.ran == [bad] and again.failed[bad].attempts == 2
    outcome = execute(cells, records, FakeEngine(), PlainView(), retry_failed=True)
    assert len(outcome.finished) == 6 and records.failure(bad) is None


def test_a_lost_worker_is_forgiven_once(cells: list[CellSpec], tmp_path: Path) -> None:
    records = Records(tmp_path / "out")
    records.create()
    lost: list[str] = []

    def ends(spec: CellSpec) -> Failed | None:
        times = 1 if spec.key == cells[0].key else 2 if spec.key == cells[1].key else 0
        if lost.count(spec.key) < times:
            lost.append(spec.key)
            return Failed(spec.key, "its worker was killed by SIGKILL", lost=True)
        return None

    outcome = execute(cells, records, FakeEngine(ends), PlainView())
    assert list(outcome.failed) == [cells[1].key] and cells[0].key in outcome.finished
    assert "SIGKILL" in outcome.failed[cells[1].key].reason


def test_defects_are_recorded_with_a_traceback(cells: list[CellSpec], monkeypatch: pytest.MonkeyPatch) -> None:

    def broken(spec: CellSpec, cache: Cache) -> CellResult:
        raise MemoryError if spec.seed else ZeroDivisionError("by\nzero")

    monkeypatch.setattr(inline, "run_cell", broken)
    engine = InlineEngine()
    reasons = []
    for cell in (cells[0], cells[-1]):
        engine.submit(cell)
        assert isinstance(engine.wait(0)[0], Started)
        event = engine.wait(0)[0]
        assert isinstance(event, Failed) and "Traceback" in event.detail
        reasons.append(event.reason)
    assert reasons[0] == "ZeroDivisionError: by zero" and reasons[1].startswith("out of memory")


def test_locks_in_one_process(tmp_path: Path) -> None:
    with CellLocks(tmp_path).opened() as locks:
        assert locks.take("ab" * 20) and not locks.take("ab" * 20) and locks.take("cd" * 20)
        locks.release("ab" * 20)
        assert locks.take("ab" * 20)
        with pytest.raises(RunError, match="in use by this process"), CellLocks(tmp_path).opened():
            pass


def test_threads_and_devices() -> None:
    environment: dict[str, str] = {}
    worker.set_threads(environment, 1)
    assert environment["OMP_NUM_THREADS"] == "1" and environment["TOKENIZERS_PARALLELISM"] == "false"
    environment = {"MALLOC_MMAP_MAX_": "7"}
    worker.set_allocator(environment)  # what the user has set stays
    assert environment == {"MALLOC_MMAP_MAX_": "7", "MALLOC_TRIM_THRESHOLD_": "68719476736"}
    for number, device in ((0, "4"), (1, "5"), (2, "4")):
        environment = {"CUDA_VISIBLE_DEVICES": "4,5"}
        worker.set_device(environment, number, 2)
        assert environment["CUDA_VISIBLE_DEVICES"] == device


def test_progress(finished: Path, cells: list[CellSpec]) -> None:
    records = Records(finished)
    progress = Progress(cells, slots=2)
    assert progress.left() is None and progress.waiting == 6
    progress.finish(records.read(cells[0].key), measured=True)
    progress.start(cells[1].key, "w")
    label, _, seeds = progress.leader(cells[0].group_key) or ("", 0, 0)
    assert (label, seeds, progress.waiting) == ("none", 1, 4) and (progress.left() or 0) > 0
    progress.fail(cells[1].key)
    assert "1 of 6 finished, 0 running, 4 waiting, 1 failed" in progress.line()


# --- summary and exports ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def told(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Records:
    """Made-up records of two samples, with one failure and names that try to break out."""
    records = Records(tmp_path_factory.mktemp("told") / "out")
    records.create()
    grid = make_grid(place, seeds=3, fractions=[0.5, 1.0], methods=["amplify", "tmix:alpha=0.5"])
    planned = [replace(cell, name="<b>a_b & c|d</b>") for cell in plan(grid)]
    bad = planned[2].key
    execute(planned, records, FakeEngine(lambda s: Failed(s.key, "<i>nan</i>") if s.key == bad else None), PlainView())
    return records


def test_summary(told: Records) -> None:
    summary = read_summary(told)
    assert [group.title.split(", ")[1] for group in summary.groups] == ["50 % of train", "all of train"]
    for group in summary.groups:
        assert group.comparison is not None and group.comparison.baseline == "none" and len(group.seeds) == 3
        trained = {"none", "none[label_smoothing=0.1]", "amplify", "tmix[alpha=0.5]"}
        assert set(group.methods) == {GUESSING, TEMPERATURE, *trained}
        # The temperature is no part of the family of methods.
        assert TEMPERATURE not in group.comparison.methods
        plain, calibrated = group.row("none", "nll_after"), group.row(TEMPERATURE, "nll")
        assert plain is not None and calibrated is not None
        assert plain.mean == pytest.approx(calibrated.mean, abs=1e-6)
        assert len(group.sentences) == 3 and "temperature alone" in group.sentences[1]
        assert group.sentences[2].startswith("Pairing by seed: accuracy of the methods")
    row = summary.groups[0].row("amplify", "accuracy")
    assert row is not None and row.seeds == 2 and summary.groups[0].failed[0].reason == "<i>nan</i>"


def test_two_ways_of_sampling_in_one_folder(place: Path, tmp_path: Path) -> None:
    """The same seeds with samples of their own and with a fixed one are two comparisons; seed 0 belongs to both."""
    records = Records(tmp_path / "out")
    records.create()
    for more in ({}, {"sample_seed": 0}):
        execute(plan(make_grid(place, seeds=3, max_train=40, **more)), records, FakeEngine(), PlainView())
    summary = read_summary(records)
    assert [group.title.split(", ")[-1] for group in summary.groups] == ["one sample per seed", "sample seed 0"]
    for group in summary.groups:
        assert group.comparison is not None and group.seeds == (0, 1, 2)
    for format in export.FORMATS:
        assert export.export(summary, format)


def test_an_engine_without_slots_is_asked_all_the_same(cells: list[CellSpec], tmp_path: Path) -> None:
    """While no node is there the engine may tell of it, or give up; cells of other processes are seen."""

    class Empty(FakeEngine):
        waits = 0

        def wait(self, timeout: float) -> list[Any]:
            Empty.waits += 1
            if Empty.waits == 2:
                other = Records(tmp_path / "out")
                other.write(cells[0], made_up(cells[0]))
            if Empty.waits == 4:
                raise RunError("no node came")
            return []

    records = Records(tmp_path / "out")
    records.create()
    view = PlainView()
    with pytest.raises(RunError, match="no node came"):
        execute(cells[:2], records, Empty(slots=0), view)
    assert cells[0].key in view.progress.done


def test_statistics_get_the_records(finished: Path) -> None:
    records = Records(finished)
    for key in records.names():
        record = records.read(key)
        result = seed_result(record)
        from mixwell.compare.stats.bootstrap import values

        found = values(result, ["accuracy", "nll_after"], "single_label")
        assert found["accuracy"] == record.result["test"]["before"]["accuracy"]
        assert found["nll_after"] == pytest.approx(record.result["test"]["after"]["nll"])


def test_exports(told: Records) -> None:
    summary = read_summary(told)
    text = export.export(summary, "md")
    assert "training rows" in tables.about(summary.groups[0])
    assert tables.about(replace(summary.groups[0], train_rows=(0, 0))) == "no training finished"
    assert r"\<b\>a\_b & c\|d\</b\>" in text and "failed: AMPLIFY, seed 0" in text
    lines = list(csv.DictReader(io.StringIO(export.export(summary, "csv"))))
    assert {line["metric"] for line in lines} >= {"accuracy", "nll", "nll_after", "ece", "seconds_per_step"}
    assert {line["verdict"] for line in lines} <= {
        "",
        "better",
        "worse",
        "practically equal",
        "no significant difference",
    }
    assert {line["verdict"] for line in lines if line["metric"] in ("nll", "ece", "ece_after")} == {""}
    assert {line["metric"] for line in lines} >= {"aurc", "excess_aurc", "error_auroc"}
    guessed = {line["metric"]: line for line in lines if line["method"] == GUESSING}
    assert float(guessed["accuracy"]["mean"]) == 0.5 and guessed["accuracy"]["difference"] == ""
    values = json.loads(export.export(summary, "json"))
    assert values["format"] == tables.JSON_FORMAT and len(values["comparisons"]) == 2
    latex = export.export(summary, "latex")
    assert r"a\_b \& c|d" in latex and latex.count(r"\begin{tabular}") == 2
    narrow = tables.table(summary.groups[0], 60).splitlines()
    assert narrow[0].split()[-1] == "verdict"


def test_page(told: Records) -> None:
    page = export.export(read_summary(told), "html")
    assert "<b>a_b" not in page and "&lt;b&gt;a_b" in page and "<i>nan" not in page
    assert "http:" not in page and "https:" not in page and page.count("<script") == 1
    assert page == export.export(read_summary(told), "html")


def test_a_page_reads_each_record_once(told: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def counted(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
        reads.append(folder.name)
        return read_outputs(folder, result)

    read_outputs = records_module._read_outputs
    monkeypatch.setattr(records_module, "_read_outputs", counted)
    assert export.export(read_summary(told), "html")
    assert sorted(reads) == told.names()


def test_nothing_yet(cells: list[CellSpec], tmp_path: Path) -> None:
    records = Records(tmp_path / "out")
    records.create()
    for format in export.FORMATS:
        assert export.export(read_summary(records), format)
    only = [cell for cell in cells if cell.label == "amplify"]
    execute(only, records, FakeEngine(), PlainView())
    summary = read_summary(records)
    assert summary.groups[0].comparison is None and "nothing to compare with" in summary.groups[0].sentences[0]
    for format in export.FORMATS:
        assert export.export(summary, format)


def test_formats() -> None:
    assert export.choose_format(None, "a.tex") == "latex" and export.choose_format(None, None) == "html"
    assert export.choose_format("csv", "a.html") == "csv"
    with pytest.raises(OptionError, match="did you mean 'html'"):
        export.choose_format("htm1", None)


@pytest.mark.parametrize("task", ["single_label", "multi_label", "regression"])
def test_what_needs_no_fine_tuning_is_a_row_too(place: Path, tmp_path: Path, task: str) -> None:
    """The probe and TF-IDF, on every task, with outputs as any cell has."""
    source = tmp_path / "films.csv"
    value = {"single_label": "{}", "multi_label": "{}|film", "regression": "{}"}[task]
    numbers = {"neg": "0.5", "pos": "1.5"} if task == "regression" else {"neg": "neg", "pos": "pos"}
    lines = [(text, value.format(numbers[label])) for text, label in rows(90)]
    write_csv(source, lines)
    grid = make_grid(place, data=str(source), seeds=1, methods=["tmix"], references=True, task=task)
    done = run(grid, tmp_path / "out", engine=InlineEngine)
    assert not done.outcome.failed
    records = Records(tmp_path / "out")
    found = {record.spec.label: record for record in (records.read(key) for key in records.names())}
    assert {"none", "probe", "tfidf", "tmix"} <= found.keys()
    for name in ("probe", "tfidf"):
        test = found[name].result["test"]["before"]
        assert test.get("accuracy", test.get("micro_f1", 1 - test.get("mse", 0))) > 0.6


def test_features_of_held_out_rows_are_made_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all seeds and samples of a data set, and with the same outputs to the bit."""
    calls: list[int] = []

    def counted(loaded: Any, rows: Any, *args: Any, **options: Any) -> Any:
        calls.append(len(rows))
        return made(loaded, rows, *args, **options)

    made = references.frozen_features
    monkeypatch.setattr(references, "frozen_features", counted)
    grid = make_grid(place, seeds=3, fractions=[0.5], methods=["amplify"], references=True)
    probes = [cell for cell in plan(grid) if cell.label == "probe"]
    cache = Cache()
    results = [run_cell(cell, cache) for cell in probes]
    assert sorted(calls) == sorted([9, 18, *(cell_rows(cell) for cell in probes)])  # validation and test once
    fresh = run_cell(probes[-1], Cache())
    for name, array in fresh.outputs.items():
        assert array.tobytes() == results[-1].outputs[name].tobytes()


def cell_rows(cell: CellSpec) -> int:
    return cell.sample.of(cell.source.load()).train.num_rows


def test_a_comparison_needs_held_out_rows_and_a_head_that_can_start(place: Path) -> None:
    for split in ("validation", "test"):
        with pytest.raises(OptionError, match=f"needs {split} rows"):
            plan(make_grid(place, **{split: "none"}))
    with pytest.raises(OptionError, match="start=probe"):
        plan(make_grid(place, settings={**SETTINGS, "start": "probe"}))
    with pytest.raises(OptionError, match="has no option"):
        plan(make_grid(place, methods=["probe:alpha=1"]))
    with pytest.raises(OptionError, match="references must be true or false"):
        make_grid(place, references="no")


def test_settings_that_came_later_do_not_rename_older_cells(cells: list[CellSpec]) -> None:
    from mixwell.training.settings import BEFORE

    now = replace(cells[0], settings={**cells[0].settings, **{k: BEFORE[k] for k in ("pooling", "start", "head_rate",
                                                                                     "freeze_words")}})  # fmt: skip
    older = replace(now, settings={name: value for name, value in now.settings.items() if name not in BEFORE})
    assert now.key == older.key
    assert replace(now, settings={**now.settings, "pooling": "mean"}).key != now.key


def test_auto_is_a_method_of_a_comparison(place: Path, tmp_path: Path) -> None:
    """It chooses on folds of the training rows, then trains like the method it chose, bit for bit."""
    cells = plan(make_grid(place, methods=["auto:budget=4", "manifold"], seeds=1))
    by = {cell.label: cell for cell in cells}
    assert by["auto[budget=4]"].options == {"budget": 4.0}
    cache = Cache(str(tmp_path))
    chosen, manifold, plain = (run_cell(by[name], cache) for name in ("auto[budget=4]", "manifold", "none"))
    story = chosen.result["search"]
    assert [each["name"] for each in story["candidates"]] == ["plain", "manifold"]
    assert story["spent"] <= 4 and chosen.result["timing"]["seconds"] > 0
    twin = {"plain": plain, "manifold": manifold}[story["chosen"]]
    assert np.array_equal(chosen.outputs["test_logits"], twin.outputs["test_logits"])
    assert "search" not in plain.result


def test_wrong_budgets_of_auto() -> None:
    assert candidate("auto", {}).label == "auto"
    assert candidate("auto", {"budget": 12}).label == "auto"
    for options, words in (({"budget": 2}, "at least 4"), ({"alpha": 1}, "takes budget"), ({"budget": True}, "number")):
        with pytest.raises(OptionError, match=words):
            candidate("auto", options)
