"""How much faster several workers finish a grid than one worker with one thread.

Trains the same cells twice, into two fresh folders: with one worker of one thread, and with several workers that
share the cores. Starting the workers is part of the time. Says whether the records are the same, bit for bit (they are
when each worker has one thread).

Run: python benchmarks/compare.py --workers 2
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from mixwell.compare.engines.local import LocalEngine, cores
from mixwell.compare.grid import Grid
from mixwell.compare.live import make_view
from mixwell.compare.planning import plan
from mixwell.compare.records import Records
from mixwell.compare.schedule import execute
from mixwell.compare.spec import CellSpec
from mixwell.data import sample_folder


def measure(cells: list[CellSpec], folder: Path, workers: int, threads: int) -> float:
    records = Records(folder)
    records.create()
    began = time.perf_counter()
    outcome = execute(cells, records, LocalEngine(workers, threads), make_view(workers, quiet=True))
    seconds = time.perf_counter() - began
    if outcome.failed:
        raise SystemExit(next(iter(outcome.failed.values())).reason)
    return seconds


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.glob("cells/*/outputs.safetensors")}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", default=str(sample_folder()))
    p.add_argument("--model", default="minilm")
    p.add_argument("--methods", nargs="+", default=["amplify", "tmix"])
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--max-train", type=int, default=256)
    p.add_argument("--max-test", type=int, default=200)
    p.add_argument("--workers", type=int, default=2)
    a = p.parse_args()
    settings = {"epochs": a.epochs, "batch_size": 16, "max_length": 64, "patience": 0}
    grid = Grid([a.data], list(a.methods), a.seeds, max_train=a.max_train, max_test=a.max_test, model=[a.model],
                settings=settings)  # fmt: skip
    cells = plan(grid)
    threads = max(1, cores() // a.workers)
    print(f"{len(cells)} cells of {a.model} on {cores()} cores")
    with tempfile.TemporaryDirectory() as folder:
        measure(cells[:1], Path(folder) / "warm", 1, 1)  # texts are tokenised, files are in memory
        one = measure(cells, Path(folder) / "one", 1, 1)
        print(f"1 worker, 1 thread: {one:.1f} s")
        many = measure(cells, Path(folder) / "many", a.workers, threads)
        print(f"{a.workers} workers, {threads} thread{'s' if threads > 1 else ''} each: {many:.1f} s")
        print(f"{one / many:.2f} times faster (wanted: 1.5 with 2 workers on 2 idle cores)")
        same = outputs(Path(folder) / "one") == outputs(Path(folder) / "many")
        print(f"records are {'the same, bit for bit' if same else 'not the same bit for bit'}")


if __name__ == "__main__":
    main()
