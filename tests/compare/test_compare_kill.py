"""A comparison that is killed, in whole or in part, ends as if it had not been; two processes share one folder."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from test_compare import calm, make_grid, place  # noqa: F401

import forked
import parts
from mixwell.compare.records import Records

KILLS = 10 if parts.ALL else 3


def job(folder: str, place: str, workers: int, changes: dict[str, Any]) -> None:  # noqa: F811
    """All of `mixwell compare` but the words; workers are forked, as importing takes long."""
    import torch

    from mixwell.compare.engines.local import LocalEngine
    from mixwell.compare.run import run

    torch.set_num_threads(1)
    grid = make_grid(Path(place), **changes)
    done = run(grid, folder, engine=lambda: LocalEngine(workers, 1, start_method="fork"))
    raise SystemExit(0 if not done.outcome.failed else 3)


@pytest.fixture(scope="session")
def processes() -> Any:
    return forked.processes()


def start(processes: Any, folder: Path, place: Path, workers: int = 2, **changes: Any) -> Any:  # noqa: F811
    child = processes.Process(target=job, args=(str(folder), str(place), workers, changes))
    child.start()
    return child


def finish(child: Any) -> None:
    child.join(180)
    assert child.exitcode == 0


def log(folder: Path) -> list[dict[str, Any]]:
    path = folder / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def content(folder: Path) -> dict[str, tuple[bytes, dict[str, Any]]]:
    """All of the finished records that does not depend on the clock."""
    records = Records(folder)
    found = {}
    for key in records.names():
        result = records.read(key).result
        found[key] = ((records.cells / key / "outputs.safetensors").read_bytes(), {**result, "timing": None})
    return found


def identity(folder: Path) -> dict[str, tuple[int, int]]:
    """Which files the finished records are: a record that is written again has other ones."""
    cells = folder / "cells"
    if not cells.is_dir():
        return {}
    names = [path for path in cells.iterdir() if not path.name.startswith(".")]
    return {path.name: ((stat := (path / "result.json").stat()).st_ino, stat.st_mtime_ns) for path in names}


@pytest.fixture(scope="session")
def undisturbed(processes: Any, place: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:  # noqa: F811
    start(processes, tmp_path_factory.mktemp("warm") / "out", place, seeds=1).join()  # the server has imported all
    folder = tmp_path_factory.mktemp("whole") / "out"
    began = time.monotonic()
    finish(start(processes, folder, place))
    assert len(content(folder)) == 6
    return folder, time.monotonic() - began


@pytest.mark.parametrize("seed", range(KILLS))
def test_kill_the_whole(processes: Any, undisturbed: Any, place: Path, tmp_path: Path, seed: int) -> None:  # noqa: F811
    draw, folder = random.Random(seed), tmp_path / "out"
    known: dict[str, tuple[int, int]] = {}
    lines = 0
    for turn in range(20):
        child = start(processes, folder, place)
        child.join(draw.uniform(0.15, 1.0) * undisturbed[1] if turn < 3 else 180)
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        now = identity(folder)
        assert known.items() <= now.items()  # nothing lost, nothing written again
        again = {line["cell"] for line in log(folder)[lines:] if line["event"] in ("submitted", "started")}
        assert not again & set(known)  # nothing that was finished ran again
        known, lines = now, len(log(folder))
        if child.exitcode == 0:
            break
    assert child.exitcode == 0
    assert content(folder) == content(undisturbed[0])
    assert not [path for path in (folder / "cells").iterdir() if path.name.startswith(".")]


def test_workers_end_with_the_parent(processes: Any, place: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "out"
    child = start(processes, folder, place, seeds=4)
    pids = wait_for_workers(folder, 2)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    limit = time.monotonic() + 20
    while any(alive(pid) for pid in pids) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for_workers(folder: Path, count: int) -> list[int]:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        found = [re.findall(r"process (\d+)", line["worker"]) for line in log(folder) if line["event"] == "started"]
        pids = list(dict.fromkeys(int(pid) for each in found for pid in each))
        if len(pids) >= count:
            return pids
        time.sleep(0.01)
    raise AssertionError("no worker started")


def test_kill_workers(processes: Any, undisturbed: Any, place: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "out"
    child = start(processes, folder, place)
    for pid in wait_for_workers(folder, 2)[:2]:
        os.kill(pid, signal.SIGKILL)
    finish(child)
    events = [line["event"] for line in log(folder)]
    assert 1 <= events.count("lost") <= 2 and events.count("finished") == 6
    assert content(folder) == content(undisturbed[0])


def test_two_processes_share_a_folder(processes: Any, undisturbed: Any, place: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "out"
    both = [start(processes, folder, place, workers=1) for _ in range(2)]
    for child in both:
        finish(child)
    submitted = [line for line in log(folder) if line["event"] == "submitted"]
    assert len(submitted) == len({line["cell"] for line in submitted}) == 6  # each once
    assert {line["process"] for line in submitted} == {child.pid for child in both}  # and both had a part
    assert content(folder) == content(undisturbed[0])


def test_a_dead_process_leaves_its_cells_to_the_other(
    processes: Any,
    undisturbed: Any,
    place: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = tmp_path / "out"
    first = start(processes, folder, place, workers=1)
    wait_for_workers(folder, 1)
    second = start(processes, folder, place, workers=1)
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    finish(second)
    assert content(folder) == content(undisturbed[0])
