"""A run that is killed, at any moment, ends as if it had not been."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from test_training import calm, data_file, settings, tiny  # noqa: F401

KILLS = int(os.environ.get("MIXWELL_KILLS", "3"))
PRELOAD = ["transformers", "transformers.models.bert.modeling_bert", "transformers.trainer", "datasets",
           "mixwell.training", "mixwell.modelcard", "mixwell.data", "mixwell.mixer", "matplotlib.figure"]  # fmt: skip


def job(kind: str, values: dict[str, Any] | None, folder: str, blow: str, code: Any) -> None:
    """Train or resume in a child process; `blow` says where it kills itself."""
    import torch

    torch.set_num_threads(1)
    from mixwell import modelcard, runs, training
    from mixwell.errors import MixwellError

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
    elif blow == "manifest":
        runs.write_json = die
    elif blow == "model":
        modelcard.write_json = die
    elif blow == "metrics":
        runs.RunFolder.finish = die  # type: ignore[method-assign]
    elif blow == "cleaning":
        runs.remove_checkpoints = die
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
            training.train(training.TrainSettings(**(values or {})), quiet=True)
        else:
            training.resume(folder, quiet=True)
        code.value = 0
    except MixwellError as error:
        code.value = 100 + int(getattr(error, "signal", 0))
        print(error)


@pytest.fixture(scope="session")
def processes() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


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
    for name in ("model/model.safetensors", "model/config.json", "predictions.parquet", "splits.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    first, second = (json.loads((path / "metrics.json").read_text()) for path in (one, other))
    if exact:
        assert (one / "metrics.json").read_bytes() == (other / "metrics.json").read_bytes()
    else:  # a stop at a step that is no checkpoint of the other run sums the training loss up in other portions
        for a, b in zip(first.pop("history"), second.pop("history"), strict=True):
            assert a.pop("train_loss") == pytest.approx(b.pop("train_loss"), abs=1e-6)
            assert a == b
        assert first == second
    assert not (other / "checkpoints").exists()


@pytest.fixture(scope="session")
def undisturbed(processes: Any, tiny: Path, data_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: F811
    wanted = settings(tiny, data_file, tmp_path_factory.mktemp("runs") / "whole", save_steps=4, epochs=6, patience=2)
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
    kills = 0
    for _ in range(30):
        kind = "resume" if (tmp_path / "run" / "run.json").exists() else "train"
        child, code = start(processes, kind, wanted)
        child.join(draw.uniform(0.1, 1.2) * undisturbed[2] if kills < 3 else 120)
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            kills += 1
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
