"""Kill real commands at random moments, go on with the same words, and compare the end with an undisturbed one.

    python tests/kills/campaign.py [--moments 20] [--kinds train,folds,compare,race,ray] [--seed 1]

`make kills` runs it. Each kind of command is ended by SIGKILL, with all the processes it started, at the given number
of moments, up to four times on the way to one end. The moments are drawn evenly over the time that an undisturbed run
takes from the first file it writes. Everything that a run leaves but clock times must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "golden"), str(HERE.parents[1] / "src")]

KILLS_PER_END = 4
LIMIT = 300
CLOCK = ("timing", "seconds", "time", "date", "started", "finished", "when", "created", "elapsed", "duration", "output")


class Kind:
    """A command, how it goes on, and what of its folder counts."""

    def __init__(self, words: list[str], again: Callable[[Path], list[str]], about: Callable[[Path], object]) -> None:
        self.words, self.again, self.about = words, again, about


def run_folder(folder: Path) -> object:
    """What a training leaves: weights, predictions, metrics."""
    files = ("model/model.safetensors", "model/config.json", "predictions.parquet", "splits.json", "metrics.json")
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}


def comparison(folder: Path) -> object:
    """What a comparison leaves: the outputs and numbers of each run, the looks, the table."""
    from mixwell.compare.records import Records

    records = Records(folder)
    cells = {}
    for key in records.names():
        outputs = (records.cells / key / "outputs.safetensors").read_bytes()
        cells[key] = (hashlib.sha256(outputs).hexdigest(), without_clock(records.read(key).result))
    tables = {path.name: without_clock(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))}
    return {"cells": cells, "looks": records.looks(), "tables": tables}


def without_clock(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_clock(each) for key, each in value.items() if key not in CLOCK}
    return [without_clock(each) for each in value] if isinstance(value, list) else value


def kinds(place: Path, address: Callable[[], str]) -> dict[str, Callable[[], Kind]]:
    from make_model import make_model, write_rows

    model = make_model(place / "model")
    train = write_rows(place / "train.csv", 240, random.Random(1))
    test = write_rows(place / "test.csv", 60, random.Random(2))
    tiny = ["--model", str(model), "--start", "random", "--cache-dir", str(place / "cache")]
    one = ["train", str(train), *tiny, "--method", "amplify", "--save-steps", "5", "--pooling", "model"]
    many = ["compare", str(train), "--test", str(test), *tiny, "--epochs", "2", "--seeds", "3"]
    many += ["--methods", "amplify", "--no-references"]

    def resumed(folder: Path) -> list[str]:
        return ["train", "--resume", str(folder)] if (folder / "run.json").exists() else []

    def same(folder: Path) -> list[str]:
        return []

    return {
        "train": lambda: Kind([*one, "--folds", "0", "--validation", "0.2", "--epochs", "20"], resumed, run_folder),
        "folds": lambda: Kind([*one, "--folds", "3", "--epochs", "8"], resumed, run_folder),
        "compare": lambda: Kind([*many, "--workers", "2"], same, comparison),
        "race": lambda: Kind([*many, "--race", "--budget", "15 runs", "--workers", "2"], same, comparison),
        "ray": lambda: Kind([*many, "--engine", "ray", "--address", address()], same, comparison),
    }


def start(words: list[str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    output = [] if "--resume" in words else ["--output", str(folder)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with open(log, "ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "mixwell", *words, *output], stdout=stream, stderr=stream, stdin=subprocess.DEVNULL,
            start_new_session=True, env=environment,
        )  # fmt: skip


def wait(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether it came to its end within the time."""
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def undisturbed(kind: Kind, folder: Path, log: Path) -> tuple[float, float]:
    """Seconds from the start to the first file, and to the end."""
    began = time.monotonic()
    child = start(kind.words, folder, log)
    while not folder.exists() and child.poll() is None:
        time.sleep(0.01)
    first = time.monotonic() - began
    if not wait(child, LIMIT) or child.returncode:
        child.kill()
        raise SystemExit(f"the undisturbed run ended with {child.returncode}:\n{log.read_text()[-3000:]}")
    return first, time.monotonic() - began


def campaign(name: str, kind: Kind, moments: int, place: Path, draw: random.Random) -> int:
    """Returns how many ends differed."""
    log = place / f"{name}.log"
    whole = place / name / "whole"
    whole.parent.mkdir()
    first, last = undisturbed(kind, whole, log)
    wanted = kind.about(whole)
    kills = ends = wrong = 0
    while kills < moments:
        folder, here = place / name / f"killed-{ends}", 0
        while True:
            began = time.monotonic()
            child = start(kind.again(folder) or kind.words, folder, log)
            more = here < KILLS_PER_END and kills < moments
            if wait(child, draw.uniform(first, last) if more else LIMIT):
                if not here:  # the machine is quicker than it was: later kills would come too late
                    last = min(last, time.monotonic() - began)
                break
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if not more:
                print(f"{name}: no end within {LIMIT} s", flush=True)
                return wrong + 1
            kills, here = kills + 1, here + 1
        ends += 1
        equal = child.returncode == 0 and kind.about(folder) == wanted
        wrong += not equal
        if not equal:
            print(f"{name}: exit {child.returncode} after {here} kills, differs: {folder}\n{log.read_text()[-2000:]}")
        else:
            shutil.rmtree(folder)
        print(f"{name}: {kills} of {moments} kills, {ends} ends, {wrong} differ", flush=True)
    return wrong


@contextmanager
def ray_cluster() -> Iterator[Callable[[], str]]:
    """A cluster on the loopback address, started when it is first asked for."""
    started: list[object] = []

    def address() -> str:
        from ray.cluster_utils import Cluster

        paths = os.pathsep.join(sys.path[:2])
        memory = {"object_store_memory": 80 << 20, "env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}}
        cluster = Cluster()
        started.append(cluster)
        cluster.add_node(num_cpus=1, include_dashboard=False, **memory)
        cluster.add_node(num_cpus=1, **memory)
        return str(cluster.address)

    try:
        yield address
    finally:
        for cluster in started:
            cluster.shutdown()  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=20, help="kills per kind (20)")
    parser.add_argument("--kinds", default="train,folds,compare,race,ray")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, ray_cluster() as address:
        available = kinds(Path(folder), address)
        for name in args.kinds.split(","):
            draw = random.Random(f"{args.seed} {name}")
            wrong += campaign(name, available[name](), args.moments, Path(folder), draw)
    print("all ends are equal" if not wrong else f"{wrong} ends differ")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
