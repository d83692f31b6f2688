"""How fast a comparison is: its runs, its workers, and its end.

Parts, chosen with `--part`:

- against: the same grid with an earlier commit and with this tree, one worker of one thread each, alternating, and the
  ratio of runs per hour; says whether the outputs of all runs are the same, bit for bit;
- workers: one worker with one thread against several that share the cores, and whether the records are the same;
- end: what is left after the last run of a large grid (12 methods x 20 data sets x 10 seeds of stored outputs): reading
  all records, statistics, tables and the page.

Run: python benchmarks/compare.py --part against --commit HEAD~20
     python benchmarks/compare.py --part workers --workers 2
     python benchmarks/compare.py --part end
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np

from mixwell.compare.engines.local import LocalEngine, cores
from mixwell.compare.grid import Grid
from mixwell.compare.live import make_view
from mixwell.compare.planning import plan
from mixwell.compare.records import CellResult, Records
from mixwell.compare.schedule import execute
from mixwell.compare.spec import CellSpec, DataSource, Sample
from mixwell.data import sample_folder

ROOT = Path(__file__).resolve().parent.parent


def the_grid(a: argparse.Namespace) -> Grid:
    settings = {"epochs": a.epochs, "batch_size": 16, "max_length": 64, "patience": 0}
    return Grid([a.data], list(a.methods), a.seeds, max_train=a.max_train, max_test=a.max_test, model=[a.model],
                settings=settings)  # fmt: skip


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


def workers_part(a: argparse.Namespace) -> None:
    cells = plan(the_grid(a))
    threads = max(1, cores() // a.workers)
    print(f"{len(cells)} runs of {a.model} on {cores()} cores")
    with tempfile.TemporaryDirectory() as folder:
        measure(cells[:1], Path(folder) / "warm", 1, 1)  # texts are tokenised, files are in memory
        one = measure(cells, Path(folder) / "one", 1, 1)
        print(f"1 worker, 1 thread: {one:.1f} s")
        many = measure(cells, Path(folder) / "many", a.workers, threads)
        print(f"{a.workers} workers, {threads} thread{'s' if threads > 1 else ''} each: {many:.1f} s")
        print(f"{one / many:.2f} times faster (wanted: 1.5 with 2 workers on 2 idle cores)")
        same = outputs(Path(folder) / "one") == outputs(Path(folder) / "many")
        print(f"records are {'the same, bit for bit' if same else 'not the same bit for bit'}")


# --- against an earlier commit ----------------------------------------------------------------------------------------

# Runs in a process of its own, with the code of either tree: only names that both have.
_TIMED = """
import json, sys, time
from pathlib import Path
from mixwell.compare.engines.local import LocalEngine
from mixwell.compare.grid import Grid
from mixwell.compare.live import make_view
from mixwell.compare.planning import plan
from mixwell.compare.records import Records
from mixwell.compare.schedule import execute
if __name__ == "__main__":
    values, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    cells = plan(Grid(**values))
    records = Records(folder)
    records.create()
    began = time.perf_counter()
    outcome = execute(cells, records, LocalEngine(1, 1), make_view(1, quiet=True))
    print(json.dumps([len(cells), time.perf_counter() - began, [f.reason for f in outcome.failed.values()]]))
"""


def timed(source: Path, script: Path, grid: Grid, folder: Path) -> tuple[int, float]:
    values = {"data": grid.data, "methods": grid.methods, "seeds": grid.seeds, "max_train": grid.max_train,
              "max_test": grid.max_test, "model": grid.model, "settings": grid.settings}  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, str(script), json.dumps(values), str(folder)], env=environment,
                          capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    count, seconds, failed = json.loads(done.stdout.splitlines()[-1])
    if failed:
        raise SystemExit(failed[0])
    return count, seconds


def against_part(a: argparse.Namespace) -> None:
    grid = the_grid(a)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", a.commit, "src"], capture_output=True, check=False)
        if archive.returncode:
            raise SystemExit(archive.stderr.decode())
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(folder / "before", filter="data")
        script = folder / "timed.py"
        script.write_text(_TIMED, encoding="utf-8")
        trees = {"before": folder / "before" / "src", "now": ROOT / "src"}
        warm = Grid([a.data], ["amplify"], 1, max_train=64, max_test=32, model=[a.model],
                    settings={**grid.settings, "epochs": 1})  # fmt: skip
        for name, source in trees.items():
            timed(source, script, warm, folder / f"warm-{name}")
        seconds: dict[str, list[float]] = {name: [] for name in trees}
        for number in range(a.rounds):
            for name in list(trees)[:: 1 if number % 2 == 0 else -1]:
                count, took = timed(trees[name], script, grid, folder / f"{name}-{number}")
                seconds[name].append(took)
                print(f"{name}: {count} runs in {took:.1f} s, {3600 * count / took:.0f} per hour", flush=True)
        ratio = float(np.median(np.array(seconds["before"]) / np.array(seconds["now"])))
        print(f"runs per hour: {ratio:.2f} times those of {a.commit} (wanted: 1.25)")
        before, now = (outputs(folder / f"{name}-0") for name in trees)
        same = sum(before[key] == now[key] for key in before.keys() & now.keys())
        print(f"{same} of {len(before)} runs have the same outputs, bit for bit")


# --- the end of a large grid ------------------------------------------------------------------------------------------


def fill(folder: Path, a: argparse.Namespace) -> Records:
    """Made-up records: methods x data sets x seeds."""
    from mixwell.compare.stats.simulate import World, simulate
    from mixwell.metrics.measure import measure as metrics_of

    records = Records(folder)
    records.create()
    draw = np.random.default_rng(0)
    names = ["none", *(f"method{number}" for number in range(1, a.end_methods))]
    for number in range(a.end_sets):
        runs = simulate(a.end_seeds, draw, World(examples=a.end_rows), methods=len(names))
        for name, results in zip(names, runs):
            for one in results:
                z = one.logits.astype(np.float32)
                spec = CellSpec(
                    name=f"set{number}", source=DataSource(f"set{number}.csv"), fingerprint=f"set{number}",
                    sampled=f"set{number}-{one.seed}", sample=Sample(max_train=100, seed=one.seed), max_test=None,
                    task="single_label", model="m", weights="w", trust_remote_code=False, method=name, options={},
                    label=name, settings={"epochs": 1}, seed=one.seed,
                )  # fmt: skip
                test = {"rows": len(z), "before": metrics_of(z, one.labels), "after": metrics_of(z, one.labels)}
                result = {
                    "temperature": 1.3, "test": test, "labels": list("abcd"), "versions": {}, "train_rows": 100,
                    "history": [{"epoch": 1, "step": 4, "train_loss": 0.7, "validation": {"loss": 0.6}}],
                    "timing": {"seconds": 1.0, "seconds_per_step": 0.1},
                }  # fmt: skip
                records.write(spec, CellResult(result, {"test_logits": z, "test_labels": one.labels}))
    return records


def end_part(a: argparse.Namespace) -> None:
    from mixwell.compare.summary import read_summary
    from mixwell.report.compare import export

    with tempfile.TemporaryDirectory() as folder:
        records = fill(Path(folder) / "out", a)
        count = len(records.names())
        began = time.perf_counter()
        summary = read_summary(records, shown_only=True)  # as the command does
        read = time.perf_counter()
        page = export(summary, "html")
        done = time.perf_counter()
        print(f"{count} records of {a.end_rows} test rows: reading and statistics {read - began:.1f} s, page "
              f"({len(page) / 1e6:.1f} MB) {done - read:.1f} s, in all {done - began:.1f} s (wanted: 20)")  # fmt: skip


PARTS = {"against": against_part, "workers": workers_part, "end": end_part}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--part", nargs="+", default=["workers", "end"], choices=list(PARTS))
    p.add_argument("--data", default=str(sample_folder()))
    p.add_argument("--model", default="minilm")
    p.add_argument("--methods", nargs="+", default=["amplify", "tmix"])
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--max-train", type=int, default=256)
    p.add_argument("--max-test", type=int, default=200)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--commit", default="HEAD~1", help="what to measure against")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--end-methods", type=int, default=12)
    p.add_argument("--end-sets", type=int, default=20)
    p.add_argument("--end-seeds", type=int, default=10)
    p.add_argument("--end-rows", type=int, default=400)
    a = p.parse_args()
    for part in a.part:
        PARTS[part](a)


if __name__ == "__main__":
    main()
