"""Which choice of the epoch decides with the fewest seeds: the lowest loss, the best accuracy, or the last one?

    python benchmarks/epoch_choice.py run --data DATA/trec --data DATA/sst2 --records choice.jsonl
    python benchmarks/epoch_choice.py table --records choice.jsonl

Each training is tested after every epoch, so that one training serves all three choices. One line of the records is one
training; it is not run again, and several processes may share the file. The smaller the spread of the paired
difference to plain training, the fewer seeds a comparison needs: their number grows with its square.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from rivals import call, claimed, lines, two_commands, written

METHODS = ["embedmix", "manifold"]
CHOICES = ("lowest validation loss", "best validation accuracy", "last epoch")


def run(args: argparse.Namespace) -> None:
    import torch

    from mixwell.compare.cell import Cache, run_cell
    from mixwell.compare.grid import Grid
    from mixwell.compare.planning import plan

    torch.set_num_threads(1)
    # Every epoch counts here, so none may be left out because the loss has stopped to fall.
    grid = Grid(
        args.data, METHODS, args.seeds, max_train=args.rows, max_test=300, references=False,
        settings={"max_length": 32, "patience": 0},
    )  # fmt: skip
    cache, path = Cache(), Path(args.records)
    for spec in sorted(plan(grid), key=lambda spec: spec.seed):
        spec = dataclasses.replace(spec, settings={**spec.settings, "watch_test": True})
        job = {"data": spec.name, "method": spec.label, "seed": spec.seed}
        if spec.label not in ("none", *METHODS) or not claimed(path, job):
            continue
        history = run_cell(spec, cache).result["history"]
        epochs = [
            {"validation": {name: epoch["validation"][name] for name in ("accuracy", "loss")}, "test": epoch["test"]}
            for epoch in history
        ]
        written(path, job, {"epochs": epochs})
        print(job, flush=True)


def chosen(epochs: list[dict[str, Any]], choice: str) -> float:
    """The test accuracy, in points, of the epoch that a rule chooses; the first one of several that are equal."""
    by = {
        "lowest validation loss": lambda at: (epochs[at]["validation"]["loss"], at),
        "best validation accuracy": lambda at: (-epochs[at]["validation"]["accuracy"], at),
        "last epoch": lambda at: -at,
    }[choice]
    return 100 * epochs[min(range(len(epochs)), key=by)]["test"]["accuracy"]


def table(args: argparse.Namespace) -> None:
    import numpy as np

    found: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = defaultdict(dict)
    for line in lines(Path(args.records)):
        record = json.loads(line)
        job = record["job"]
        found[job["data"], job["method"]][job["seed"]] = record["result"]["epochs"]
    print("| data | method | seeds | choice | plain % | difference | its spread | correlation | seeds for 2 points |")
    print("|---|---|---:|---|---:|---:|---:|---:|---:|")
    for data, method in sorted(found):
        if method == "none":
            continue
        seeds = sorted(found[data, method].keys() & found[data, "none"].keys())
        for choice in CHOICES:
            plain = np.array([chosen(found[data, "none"][seed], choice) for seed in seeds])
            mixed = np.array([chosen(found[data, method][seed], choice) for seed in seeds])
            spread = (mixed - plain).std(ddof=1)
            # Of a two-sided test at 5 % with a power of 80 %: (1.96 + 0.84)^2 times the variance over the square.
            need = (1.96 + 0.84) ** 2 * spread**2 / 2**2
            print(
                f"| {data} | {method} | {len(seeds)} | {choice} | {plain.mean():.1f} | {(mixed - plain).mean():+.1f} | "
                f"{spread:.2f} | {np.corrcoef(plain, mixed)[0, 1]:+.2f} | {need:.0f} |"
            )


def main() -> None:
    parser, runs, _ = two_commands(__doc__, run, table)
    runs.add_argument("--data", action="append", required=True)
    runs.add_argument("--seeds", type=int, default=8)
    runs.add_argument("--rows", type=int, default=150)
    call(parser)


if __name__ == "__main__":
    main()
