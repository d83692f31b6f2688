"""A run that is killed, at any moment, ends as if it had not been."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from test_training import calm, data_file, settings, tiny  # noqa: F401

import forked
import parts

KILLS = int(os.environ.get("MIXWELL_KILLS", "10" if parts.ALL else "5"))


def job(kind: str, values: dict[str, Any] | None, folder: str, blow: str, code: Any) -> None:
    """Train or resume in a child process; `blow` says where it kills itself."""
    import torch

    forked.spare_collector()
    torch.set_num_threads(1)
    from mixwell import api, training
    from mixwell.training import artefacts, checkpoints, finetune, run_folder
    from mixwell.training.run_folder import RunFolder
    from mixwell.utils.errors import MixwellError

    def die(*args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if blow.startswith("torch.save"):
        left = [int(blow.split()[1])]
        save = torch.save

        def half(value: Any, file: Any, *args: Any, **kwargs: Any) -> None:
            save(value, file, *args, **kwargs)
            left[0] -= 1
            if not left[0]:
                os.truncate(file, os.path.getsize(file) // 2)
                die()

        torch.save = half
    elif blow.startswith("fold"):
        turns, write = [int(blow.split()[1])], finetune.write_json

        def at_turn(*args: Any, **kwargs: Any) -> None:
            turns[0] -= 1
            (die if not turns[0] else write)(*args, **kwargs)

        finetune.write_json = at_turn
    elif blow == "manifest":
        checkpoints.write_json = die
    elif blow == "model":
        artefacts.write_json = die
    elif blow == "metrics":
        RunFolder.finish = die  # type: ignore[method-assign]
    elif blow == "cleaning":
        run_folder.remove_checkpoints = die
    elif blow.startswith("late signal"):
        evaluate = artefacts.logits

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            os.kill(os.getpid(), int(blow.split()[2]))
            return evaluate(*args, **kwargs)

        artefacts.logits = interrupted
    elif blow.startswith("signal"):
        number, step = int(blow.split()[1]), int(blow.split()[2])
        from transformers import TrainerCallback
        from transformers.trainer_callback import DefaultFlowCallback

        del TrainerCallback
        flow = DefaultFlowCallback.on_step_begin

        def send(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if state.global_step == step:
                os.kill(os.getpid(), number)
            return flow(self, args, state, control, **kwargs)

        DefaultFlowCallback.on_step_begin = send  # type: ignore[method-assign]
    try:
        if kind == "train":
            api.train(training.TrainSettings(**(values or {})), quiet=True)
        else:
            api.resume(folder, quiet=True)
        code.value = 0
    except MixwellError as error:
        code.value = 100 + int(getattr(error, "signal", 0))
        print(error)


@pytest.fixture(scope="session")
def processes() -> Any:
    return forked.processes()


def start(processes: Any, kind: str, wanted: Any, blow: str = "") -> tuple[Any, Any]:
    code = processes.Value("i", -1)
    child = processes.Process(target=job, args=(kind, wanted.to_dict(), wanted.output, blow, code))
    child.start()
    return child, code


def finish(processes: Any, kind: str, wanted: Any, blow: str = "") -> int:
    """Run to the end; returns 0, 100 + signal for a stop, or -9 when killed."""
    child, code = start(processes, kind, wanted, blow)
    child.join(120)
    assert not child.is_alive()
    return code.value if child.exitcode == 0 else child.exitcode


def same(one: Path, other: Path, exact: bool = True) -> None:
    assert not (other / "checkpoints").exists()
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in other.iterdir())
    for name in ("model/model.safetensors", "model/config.json", "predictions.parquet", "splits.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    if exact:
        assert (one / "metrics.json").read_bytes() == (other / "metrics.json").read_bytes()
        return
    first, second = (json.loads((path / "metrics.json").read_text()) for path in (one, other))
    # A stop at a step that is no checkpoint of the other run sums the training loss up in other portions.
    for a, b in zip(first.pop("history"), second.pop("history"), strict=True):
        assert a.pop("train_loss") == pytest.approx(b.pop("train_loss"), abs=1e-6)
        assert a == b
    assert first == second


@pytest.fixture(scope="session")
def undisturbed(processes: Any, tiny: Path, data_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    wanted = settings(tiny, data_file, tmp_path_factory.mktemp("runs") / "whole", save_steps=4, epochs=3, patience=2)
    assert finish(processes, "resume", wanted) == 100  # no such run; starts the server
    began = time.monotonic()
    assert finish(processes, "train", wanted) == 0
    return wanted, Path(wanted.output), time.monotonic() - began


def disturbed(undisturbed: Any, output: Path, **changes: Any) -> Any:
    import dataclasses

    return dataclasses.replace(undisturbed[0], output=str(output), **changes)


@pytest.mark.parametrize("seed", range(KILLS))
def test_random_kills(processes: Any, undisturbed: Any, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    wanted = disturbed(undisturbed, tmp_path / "run")
    kills, patience = 0, undisturbed[2]
    while True:
        kind = "resume" if (tmp_path / "run" / "run.json").exists() else "train"
        child, code = start(processes, kind, wanted)
        child.join(draw.uniform(0.2, 1.0) * patience if kills < 3 else 120)
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            kills += 1
        elif code.value == 0 and not kills:  # quicker than the undisturbed run: strike earlier
            shutil.rmtree(tmp_path / "run")
            patience /= 2
        elif code.value == 0:
            break
        else:
            pytest.fail(f"exit code {child.exitcode}, {code.value}")
    same(undisturbed[1], tmp_path / "run")


@pytest.mark.parametrize(
    "blow", ["torch.save 1", "torch.save 8", "torch.save 13", "manifest", "model", "metrics", "cleaning"]
)
def test_kill_while_writing(processes: Any, undisturbed: Any, tmp_path: Path, blow: str) -> None:
    wanted = disturbed(undisturbed, tmp_path / "run")
    assert finish(processes, "train", wanted, blow) == -signal.SIGKILL
    kind = "resume" if (tmp_path / "run" / "run.json").exists() else "train"
    assert finish(processes, kind, wanted) == 0
    same(undisturbed[1], tmp_path / "run")


# In mid-epoch; the last of an epoch of 11 steps; a checkpoint's. Both signals take the same path.
@pytest.mark.parametrize(
    ("number", "step"), [(signal.SIGINT, 2), (signal.SIGINT, 10), (signal.SIGINT, 21), (signal.SIGTERM, 2)]
)
def test_stop_by_signal(processes: Any, undisturbed: Any, tmp_path: Path, number: int, step: int) -> None:
    wanted = disturbed(undisturbed, tmp_path / "run")
    assert finish(processes, "train", wanted, f"signal {int(number)} {step}") == 100 + number
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert finish(processes, "resume", wanted) == 0
    same(undisturbed[1], tmp_path / "run", exact=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_after_training(processes: Any, undisturbed: Any, tmp_path: Path, number: int) -> None:
    """While the trained model is evaluated there is nothing to save, but the user is told how to go on."""
    wanted = disturbed(undisturbed, tmp_path / "run")
    assert finish(processes, "train", wanted, f"late signal {int(number)}") == 100 + number
    assert finish(processes, "resume", wanted) == 0
    same(undisturbed[1], tmp_path / "run")


def test_nothing_held_out_and_killed_between_epochs(processes: Any, undisturbed: Any, tmp_path: Path) -> None:
    """Without an evaluation, too, the next epoch begins with the random state that a checkpoint has."""
    options = {"folds": None, "validation": "none", "test": 0.2, "epochs": 3, "save_steps": None}
    whole = disturbed(undisturbed, tmp_path / "whole", **options)
    assert finish(processes, "train", whole) == 0
    wanted = disturbed(undisturbed, tmp_path / "run", **options)
    steps = -(-96 // wanted.batch_size)
    assert finish(processes, "train", wanted, f"signal {int(signal.SIGTERM)} {steps - 1}") == 100 + signal.SIGTERM
    assert finish(processes, "resume", wanted) == 0
    same(tmp_path / "whole", tmp_path / "run")


FOLDED = {"folds": 3, "epochs": 2, "patience": 0, "save_steps": None}


@pytest.fixture(scope="module")
def folded(processes: Any, undisturbed: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with folds that nothing disturbed."""
    output = tmp_path_factory.mktemp("folded") / "whole"
    assert finish(processes, "train", disturbed(undisturbed, output, **FOLDED)) == 0
    return output


# After a fold's numbers and before its mark; while the final training writes; when all is trained.
@pytest.mark.parametrize(
    "blow", parts.some(["fold 1", "torch.save 1", "fold 3", "model", "manifest", "cleaning", "metrics"], 2)
)
def test_kill_with_folds(processes: Any, undisturbed: Any, folded: Path, tmp_path: Path, blow: str) -> None:
    wanted = disturbed(undisturbed, tmp_path / "run", **FOLDED)
    assert finish(processes, "train", wanted, blow) == -signal.SIGKILL
    kind = "resume" if (tmp_path / "run" / "run.json").exists() else "train"
    assert finish(processes, kind, wanted) == 0
    same(folded, tmp_path / "run")


@pytest.mark.parametrize("seed", range(max(2, KILLS // 4)))
def test_random_kills_with_folds(processes: Any, undisturbed: Any, folded: Path, tmp_path: Path, seed: int) -> None:
    draw = random.Random(100 + seed)
    wanted = disturbed(undisturbed, tmp_path / "run", **FOLDED)
    for _ in range(3):
        kind = "resume" if (tmp_path / "run" / "run.json").exists() else "train"
        child, _ = start(processes, kind, wanted)
        child.join(draw.uniform(0.2, 1.0) * undisturbed[2])
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            child.join()
    kind = "resume" if (tmp_path / "run" / "run.json").exists() else "train"
    assert finish(processes, kind, wanted) == 0
    same(folded, tmp_path / "run")


def test_a_search_is_killed_and_goes_on(processes: Any, undisturbed: Any, tmp_path: Path) -> None:
    """What was tried before the kill is not tried again, and the same is kept; in low precision too."""
    options = {**FOLDED, "method": "auto", "method_options": {}, "label_smoothing": 0.0, "budget": 4.0}
    options["arguments"] = {"bf16": True}
    assert finish(processes, "train", disturbed(undisturbed, tmp_path / "whole", **options)) == 0
    wanted = disturbed(undisturbed, tmp_path / "run", **options)
    assert finish(processes, "train", wanted, "fold 3") == -signal.SIGKILL
    assert len(list((tmp_path / "run" / "folds").glob("*/*.json"))) == 2
    assert finish(processes, "resume", wanted) == 0
    same(tmp_path / "whole", tmp_path / "run")
    stories = [json.loads((tmp_path / name / "metrics.json").read_text())["search"] for name in ("whole", "run")]
    assert stories[0] == stories[1] and stories[0]["spent"] <= 4


def test_grouping_accumulation_and_early_stopping(processes: Any, undisturbed: Any, tmp_path: Path) -> None:
    options = {"group_by_length": True, "learning_rate": 0.02, "patience": 1, "epochs": 8, "best_metric": "accuracy",
               "arguments": {"gradient_accumulation_steps": 2}}  # fmt: skip
    whole = disturbed(undisturbed, tmp_path / "whole", **options)
    assert finish(processes, "train", whole) == 0
    assert json.loads((tmp_path / "whole" / "metrics.json").read_text())["stopped_early"]
    for blow in ("torch.save 5", "metrics"):
        wanted = disturbed(undisturbed, tmp_path / blow, **options)
        assert finish(processes, "train", wanted, blow) == -signal.SIGKILL
        assert finish(processes, "resume", wanted) == 0
        same(tmp_path / "whole", tmp_path / blow)


def test_corrupt_checkpoint(
    processes: Any, undisturbed: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from mixwell.training.checkpoints import newest_checkpoint
    from mixwell.training.run_folder import RunFolder

    wanted = disturbed(undisturbed, tmp_path / "run")
    assert finish(processes, "train", wanted, "metrics") == -signal.SIGKILL
    folder = RunFolder(tmp_path / "run")
    newest, notes = newest_checkpoint(folder.checkpoints)
    assert newest is not None
    assert not notes
    weights = newest / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    older, notes = newest_checkpoint(folder.checkpoints)
    assert older is not None
    assert older != newest
    assert "model.safetensors was changed" in notes[0]
    assert finish(processes, "resume", wanted) == 0
    same(undisturbed[1], tmp_path / "run")


def test_the_best_checkpoint_is_lost(processes: Any, undisturbed: Any, tmp_path: Path) -> None:
    """Without the weights of the best epoch the run goes back far enough to make them again."""
    from mixwell.training.checkpoints import newest_checkpoint, read_state
    from mixwell.training.run_folder import RunFolder

    options = {"learning_rate": 0.02, "patience": 3, "epochs": 8, "average": 2}
    whole = disturbed(undisturbed, tmp_path / "whole", **options)
    assert finish(processes, "train", whole) == 0
    wanted = disturbed(undisturbed, tmp_path / "run", **options)
    assert finish(processes, "train", wanted, "metrics") == -signal.SIGKILL
    folder = RunFolder(tmp_path / "run")
    newest, _ = newest_checkpoint(folder.checkpoints)
    assert newest is not None
    best = read_state(newest)["best_global_step"]
    assert newest.name != f"checkpoint-{best}"
    shutil.rmtree(folder.checkpoints / f"checkpoint-{best}")
    start, notes = newest_checkpoint(folder.checkpoints)
    assert start is None or int(start.name.split("-")[1]) < best
    assert f"the best before it, checkpoint {best}, is lost" in notes[0]
    assert finish(processes, "resume", wanted) == 0
    same(tmp_path / "whole", tmp_path / "run")


def test_weights_under_other_names(processes: Any, undisturbed: Any, tiny: Path, tmp_path: Path) -> None:
    """Old BERTs have LayerNorm.gamma; transformers saves what it loaded by the names it found."""
    from safetensors.torch import load_file, save_file

    old = Path(shutil.copytree(tiny, tmp_path / "old"))
    found = load_file(str(tiny / "model.safetensors"))
    for ours, theirs in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        found = {name.replace(ours, theirs): value for name, value in found.items()}
    assert any(name.endswith("gamma") for name in found)
    save_file(found, str(old / "model.safetensors"), {"format": "pt"})
    options = {"learning_rate": 0.02, "patience": 3, "epochs": 8, "average": 2}
    modern = disturbed(undisturbed, tmp_path / "modern", **options)
    assert finish(processes, "train", modern) == 0
    ends = json.loads((tmp_path / "modern" / "metrics.json").read_text())
    assert ends["best_epoch"] < ends["epochs"]  # else the last epoch's weights would do
    wanted = disturbed(undisturbed, tmp_path / "run", model=str(old), **options)
    assert finish(processes, "train", wanted, "torch.save 9") == -signal.SIGKILL
    assert finish(processes, "resume", wanted) == 0
    assert (tmp_path / "run" / "predictions.parquet").read_bytes() == (
        tmp_path / "modern" / "predictions.parquet"
    ).read_bytes()
    kept = load_file(str(tmp_path / "run" / "model" / "model.safetensors"))
    assert any(name.endswith("gamma") for name in kept)  # as it came


def test_one_process_at_a_time(processes: Any, undisturbed: Any, tmp_path: Path) -> None:
    wanted = disturbed(undisturbed, tmp_path / "run", epochs=60, patience=0)
    child, _ = start(processes, "train", wanted)
    while not (tmp_path / "run" / "run.json").exists():
        time.sleep(0.02)
        assert child.is_alive()
    try:
        assert finish(processes, "resume", wanted) == 100
        assert finish(processes, "train", wanted) == 100
        assert child.is_alive()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.join()


def test_changed_data_is_refused(processes: Any, undisturbed: Any, tmp_path: Path) -> None:
    from test_training import rows, write_csv

    source = write_csv(tmp_path / "films.csv", rows(60))
    wanted = disturbed(undisturbed, tmp_path / "run", data=str(source))
    assert finish(processes, "train", wanted, "torch.save 1") == -signal.SIGKILL
    write_csv(source, rows(61))
    assert finish(processes, "resume", wanted) == 100
