"""What a cell costs besides its training: scheduling on a Ray cluster, the record, the live table, the statistics.

Starts a Ray cluster of two nodes on this machine, runs cells that do nothing through the whole schedule (locks, log,
records), and prints the time for each and the memory of the driver as it goes. Then times, without a cluster, what a
comparison of 12 methods, 20 data sets and 10 seeds asks of the driver: writing and reading records, drawing the live
table, and the statistics; and of a node: the imports of a worker, and loading a model of BERT-base's size.

Run: python benchmarks/cluster.py --cells 2000
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

METHODS, SETS, SEEDS = 12, 20, 10


def empty(spec: Any, cache: Any) -> Any:
    """Run in the workers in place of a training."""
    import numpy as np

    from mixwell.compare.records import CellResult

    metrics = {"rows": 4, "before": {"accuracy": 0.5}}
    result = {"temperature": None, "test": metrics, "train_rows": 4, "timing": {"seconds": 0.0}}
    return CellResult(result, {"test_logits": np.zeros((4, 2), np.float32), "test_labels": np.arange(4) % 2})


def cell(name: str = "data", method: str = "none", seed: int = 0) -> Any:
    from mixwell.compare.spec import CellSpec, DataSource, Sample

    settings = {"epochs": 5, "batch_size": 32, "eval_batch_size": 64, "learning_rate": 2e-5, "warmup": 0.06}
    return CellSpec(
        name, DataSource(f"{name}.csv"), name, name, Sample(), None, "single_label", "some/model", "0", False, "none",
        {"label_smoothing": 0.0}, method, settings | {"max_length": 128, "patience": 3}, seed,
    )  # fmt: skip


def memory() -> float:
    """The memory of this process that no other shares, in MB."""
    text = Path("/proc/self/smaps_rollup").read_text()
    parts = (line.split() for line in text.splitlines())
    return sum(int(each[1]) for each in parts if each[0] in ("Private_Clean:", "Private_Dirty:")) / 1024


def scheduling(count: int, nodes: int, cpus: int) -> None:
    from ray.cluster_utils import Cluster as RayCluster

    from mixwell.compare.engines.cluster import Cluster
    from mixwell.compare.engines.ray import RayEngine
    from mixwell.compare.live import LiveView
    from mixwell.compare.records import Records
    from mixwell.compare.schedule import execute

    class Watch(LiveView):
        """Notes the time and the memory now and then."""

        marks: list[tuple[int, float, float]] = []  # noqa: RUF012

        def finished(self, record: Any, elsewhere: bool = False) -> None:
            super().finished(record, elsewhere)
            done = len(self.progress.done)
            if done == cpus * nodes or done % max(count // 8, 1) == 0:
                self.marks.append((done, time.perf_counter(), memory()))

    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(paths)}
    cluster = RayCluster()
    try:
        for number in range(nodes):
            more: dict[str, Any] = {"include_dashboard": False} if number == 0 else {}
            cluster.add_node(num_cpus=cpus, object_store_memory=80 << 20, env_vars=environment, **more)
        with tempfile.TemporaryDirectory() as folder:
            records = Records(Path(folder) / "out")
            records.create()
            view = Watch()
            began = time.perf_counter()
            cells = [cell(seed=seed) for seed in range(count)]
            outcome = execute(cells, records, RayEngine(Cluster(cluster.address), job="cluster:empty"), view)
            seconds = time.perf_counter() - began
        assert len(outcome.trained) == count, next(iter(outcome.failed.values())).reason
        (first, start, _), (last, end, _) = view.marks[0], view.marks[-1]
        print(f"{count} empty cells on {nodes} nodes of {cpus} CPU: {seconds:.1f} s, start of the workers included")
        print(f"a cell: {1000 * (end - start) / (last - first):.1f} ms, once workers are there (wanted: below 50)")
        quarters = [(view.marks[at], view.marks[at + 2]) for at in (1, -3)]
        early, late = (1000 * (b[1] - a[1]) / (b[0] - a[0]) for a, b in quarters)
        print(f"over a quarter of them early on {early:.1f} ms, in the last quarter {late:.1f} ms")
        print("memory of the driver (MB): " + ", ".join(f"{mb:.0f} at {done}" for done, _, mb in view.marks))
    finally:
        import ray

        ray.shutdown()
        cluster.shutdown()


def middle(times: list[float]) -> str:
    return f"{1000 * statistics.median(times):.1f} ms (slowest {1000 * max(times):.0f} ms)"


def driver(rows: int, classes: int) -> None:
    import numpy as np

    from mixwell.compare.live import TerminalView
    from mixwell.compare.records import CellResult, Records
    from mixwell.compare.stats.simulate import World, simulate
    from mixwell.compare.summary import read_summary, summarise
    from mixwell.metrics.measure import measure

    made = simulate(SEEDS, np.random.default_rng(0), World(rows, classes), methods=METHODS)
    writes, reads = [], []
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder) / "out")
        records.create()
        for at, method in enumerate(made):
            for each in method:
                logits = each.logits.astype(np.float32)
                part = {"rows": rows, "before": measure(logits, each.labels)}
                part["after"] = part["before"]
                result = {
                    "temperature": 1.5, "test": part, "validation": part, "train_rows": 4 * rows,
                    "labels": [str(name) for name in range(classes)],
                    "history": [{"epoch": epoch, "loss": 0.1, "accuracy": 0.5} for epoch in range(5)],
                    "timing": {"seconds": 300.0, "seconds_per_step": 0.1},
                }  # fmt: skip
                outputs = {f"{split}_logits": logits for split in ("validation", "test")}
                outputs |= {f"{split}_labels": each.labels for split in ("validation", "test")}
                spec = cell(method=f"method {at}" if at else "none", seed=each.seed)
                spec = type(spec)(**{**vars(spec), "options": {"at": at}})
                began = time.perf_counter()
                records.write(spec, CellResult(result, outputs))
                writes.append(time.perf_counter() - began)
        files = [path for path in records.cells.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files) / len(writes)
        found = []
        for key in records.names():
            began = time.perf_counter()
            found.append(records.read(key))
            reads.append(time.perf_counter() - began)
        began = time.perf_counter()
        summarise(found)
        one = time.perf_counter() - began
        began = time.perf_counter()
        read_summary(records)
        whole = time.perf_counter() - began
    print(f"a record of {rows} test and {rows} validation rows, {classes} classes: {size / 1000:.0f} kB in 3 files")
    print(f"writing it, on the disk before it counts: {middle(writes)}; reading and checking it: {middle(reads)}")
    print(f"statistics of one comparison ({METHODS} methods, {SEEDS} seeds): {one:.1f} s; with reading {whole:.1f} s")
    cells = [
        cell(f"data {data}", f"method {method}", seed)
        for data in range(SETS) for seed in range(SEEDS) for method in range(METHODS)
    ]  # fmt: skip
    view = TerminalView()
    from mixwell.compare.live import Progress

    view.progress = Progress(cells, 64)
    times = []
    for at, each in enumerate(cells):
        values = {"timing": {"seconds": 1.0}, "test": {"before": {"accuracy": at % 7 / 7}}}
        view.progress.finish(type(found[0])(each, values, Path()), measured=True)
    for _ in range(20):
        began = time.perf_counter()
        view.table()
        times.append(time.perf_counter() - began)
    print(f"drawing the live table of {len(cells)} cells: {middle(times)}")


def node() -> None:
    """Time what a worker does before its first cell, and with the weights of a model of BERT-base's size."""
    import subprocess
    import sys

    code = "import time; t = time.perf_counter(); from mixwell.compare.cell import preload; preload(); "
    code += "print(time.perf_counter() - t)"
    took = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    print(f"imports of a worker: {took:.1f} s")
    from transformers import AutoTokenizer, BertConfig, BertModel

    from mixwell.compare.weights import weights_fingerprint
    from mixwell.training import models, quiet_libraries

    times: dict[str, list[float]] = {"loading": [], "checking its SHA-256": [], "initial weights of a cell": []}
    with tempfile.TemporaryDirectory() as folder, quiet_libraries():
        BertModel(BertConfig()).save_pretrained(folder)
        AutoTokenizer.from_pretrained(models.resolve("minilm")).save_pretrained(folder)
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        for _ in range(3):
            marks = [time.perf_counter()]
            loaded = models.load(folder, labels=("a", "b"), seed=1)
            marks.append(time.perf_counter())
            weights_fingerprint(folder, None)
            marks.append(time.perf_counter())
            state = {name: value.clone() for name, value in loaded.model.state_dict().items()}
            began = time.perf_counter()
            loaded.model.load_state_dict(state)
            marks.append(marks[-1] + time.perf_counter() - began)
            for name, start, end in zip(times, marks, marks[1:]):
                times[name].append(end - start)
    words = ", ".join(f"{name} {statistics.median(found):.1f} s" for name, found in times.items())
    print(f"a model of BERT-base's size ({size:.0f} MB): {words}")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cells", type=int, default=2000)
    p.add_argument("--nodes", type=int, default=2)
    p.add_argument("--cpus", type=int, default=1, help="of each node")
    p.add_argument("--rows", type=int, default=2000, help="of the test sets")
    p.add_argument("--classes", type=int, default=4)
    p.add_argument("--only", choices=["scheduling", "driver", "node"])
    a = p.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if a.only in (None, "scheduling"):
        scheduling(a.cells, a.nodes, a.cpus)
    if a.only in (None, "driver"):
        driver(a.rows, a.classes)
    if a.only in (None, "node"):
        node()


if __name__ == "__main__":
    main()
