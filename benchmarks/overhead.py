"""What a mixed training step costs against a plain one.

    python benchmarks/overhead.py                      # the table: MiniLM, batch 32 x 64 tokens
    python benchmarks/overhead.py --grow               # lengths 32-256 and batches 8-64
    python benchmarks/overhead.py --memory             # peak memory, one process a method

Clocks of shared machines are noisy, so nothing is timed alone: every round runs one training step (forward, backward,
AdamW) of every method and of plain training, in random order, in one process, each on a copy of the model. Two copies
of one model differ by up to a per cent, by where they lie in memory: so the methods change places after some rounds,
until each has been at every copy. A method's cost is the ratio of its time to plain training's; the interval is a
bootstrap over places and rounds of the ratio of trimmed means. Plain training is in the table a second time: its ratio
shows what the noise does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

PLAIN, TWIN = "plain", "plain again"
METHODS = (
    "none", "amplify", "embedmix", "sentencemix", "cls", "tmix", "input", "manifold", "nonlinear", "batchmixup",
    "attentionmix", "ssmix", "nfm", "mit", "remix", "cmixup", "eda", "regmixup",
)  # fmt: skip
# regmixup has two forwards and two backwards.
TARGETS = {
    "batchmixup": 1.03, "attentionmix": 1.08, "ssmix": 2.2, "nfm": 1.03, "mit": 1.03, "remix": 1.03, "cmixup": 1.03,
    "eda": 1.03, "regmixup": 2.05,
}  # fmt: skip


def make_batch(rows: int, length: int, seed: int = 0):
    """Token ids of random words; row lengths between half and all of `length`, as dynamic padding gives."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(1000, 20000, (rows, length), generator=rng)
    lengths = torch.randint(length // 2, length + 1, (rows,), generator=rng)
    lengths[0] = length
    mask = (torch.arange(length) < lengths.unsqueeze(1)).long()
    ids[:, 0] = 101
    ids[torch.arange(rows), lengths - 1] = 102
    ids = torch.where(mask.bool(), ids, torch.zeros_like(ids))
    labels = torch.randint(0, 6, (rows,), generator=rng)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Copy:
    """A copy of MiniLM with an optimiser, at which methods take turns."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification

        from mixwell.training import quiet_libraries
        from mixwell.training.models import resolve

        torch.manual_seed(0)
        with quiet_libraries():
            self.model = AutoModelForSequenceClassification.from_pretrained(resolve("minilm"), num_labels=6).train()
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.mixer: Any = None

    def take(self, method: str) -> None:
        """Attach a method, or nothing for plain training; one small step checks the loss and warms up."""
        import mixwell

        if self.mixer is not None:
            self.mixer.detach()
        self.mixer = None if method in (PLAIN, TWIN) else mixwell.attach(self.model, method)
        self.step(make_batch(4, 16))

    def step(self, batch: dict) -> None:
        """One training step."""
        self.optimiser.zero_grad(set_to_none=True)
        self.model(**batch).loss.backward()
        self.optimiser.step()


def ratio_with_interval(times: list, plain: list, draws: int = 2000) -> tuple[float, float, float]:
    """Return the ratio of trimmed means and its 95 % bootstrap interval.

    Args:
        times: (turns, rounds) seconds of the method.
        plain: (turns, rounds) seconds of plain training in the same turns.
        draws: how often turns, and rounds within them, are drawn again.
    """
    import numpy as np

    both = np.array([times, plain])
    turns, rounds = both.shape[1:]
    rng = np.random.default_rng(0)

    def ratio(sample: np.ndarray) -> np.ndarray:
        ordered = np.sort(sample.reshape(*sample.shape[:-2], -1), axis=-1)
        cut = ordered.shape[-1] // 5  # pauses of the machine lie in the upper tail
        kept = ordered[..., : ordered.shape[-1] - cut].mean(-1)
        return kept[0] / kept[1]

    at = rng.integers(0, turns, (draws, turns, 1))
    spread = ratio(both[:, at, rng.integers(0, rounds, (draws, turns, rounds))])
    return float(ratio(both)), float(np.quantile(spread, 0.025)), float(np.quantile(spread, 0.975))


def measure(methods: list[str], rows: int, length: int, rounds: int) -> list[dict]:
    """Time all methods against plain training, interleaved step by step."""
    names = [PLAIN, TWIN, *methods]
    copies = [Copy() for _ in names]
    batches = [make_batch(rows, length, seed) for seed in range(4)]
    wall: dict[str, list[list[float]]] = {name: [] for name in names}
    cpu: dict[str, list[list[float]]] = {name: [] for name in names}
    order = random.Random(0)
    each = max(1, math.ceil(rounds / len(names)))
    for copy in copies:
        copy.step(batches[0])
    for turn in range(len(names)):
        places = {name: copies[(at + turn) % len(names)] for at, name in enumerate(names)}
        for name, copy in places.items():
            copy.take(name)
            wall[name].append([])
            cpu[name].append([])
        for number in range(each):
            for name in order.sample(names, len(names)):
                start, busy = time.perf_counter(), time.process_time()
                places[name].step(batches[number % len(batches)])
                wall[name][-1].append(time.perf_counter() - start)
                cpu[name][-1].append(time.process_time() - busy)
    result = []
    for name in [TWIN, *methods]:
        row: dict = {"method": name, "rows": rows, "length": length, "rounds": each * len(names)}
        row["cpu"] = ratio_with_interval(cpu[name], cpu[PLAIN])
        row["wall"] = ratio_with_interval(wall[name], wall[PLAIN])
        row["plain_seconds"] = statistics.median(itertools.chain(*wall[PLAIN]))
        target = TARGETS.get(name, 1.01)
        row["target"], row["reached"] = target, max(row["cpu"][1], row["wall"][1]) <= target
        result.append(row)
    return result


def traced_peak(method: str, rows: int, length: int) -> float:
    """Return the peak MiB of tensors, weights and optimiser included, over three steps.

    As torch's allocator counts them: the resident memory of a process jumps by 4 % from run to run.
    """
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            copy = Copy()
            copy.take(method)
            for seed in range(3):
                copy.step(make_batch(rows, length, seed))
        found.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    return max(event["args"]["Total Allocated"] for event in events if event["name"] == "[memory]") / 2**20


def peak_memory(method: str, rows: int, length: int) -> float:
    """Return the peak of a fresh process, since the weights of another method would count too."""
    command = [sys.executable, __file__, "--one", method, "--rows", str(rows), "--length", str(length)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def show(rows: list[dict], *, head: bool = True) -> None:
    if head:
        print("| method | batch | CPU time | 95 % | wall time | 95 % | to reach | reached |")
        print("|---|---|---:|---|---:|---|---:|---|")
    for row in rows:
        c, w = row["cpu"], row["wall"]
        print(
            f"| {row['method']} | {row['rows']} x {row['length']} | {c[0]:.3f} | {c[1]:.3f}-{c[2]:.3f} | {w[0]:.3f} "
            f"| {w[1]:.3f}-{w[2]:.3f} | {row['target']:.2f} | {'yes' if row['reached'] else 'no'} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=40, help="at least; as many in each place")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as torch chooses")
    parser.add_argument("--grow", action="store_true", help="lengths 32-256 and batches 8-64")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--json", type=Path, help="also write the figures to a file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    methods = options.methods.split(",")
    if options.one:
        print(traced_peak(options.one, options.rows, options.length))
        return
    if options.memory:
        peaks = {name: peak_memory(name, options.rows, options.length) for name in [PLAIN, *methods]}
        print("| method | peak MiB | ratio |\n|---|---:|---:|")
        for name, peak in peaks.items():
            print(f"| {name} | {peak:.0f} | {peak / peaks[PLAIN]:.3f} |")
        result: list[dict] = [{"method": name, "peak_mib": peak} for name, peak in peaks.items()]
    elif options.grow:
        result = []
        for rows, length in ((8, 64), (32, 64), (64, 64), (32, 32), (32, 128), (32, 256)):
            found = measure(methods, rows, length, options.rounds)
            show(found, head=not result)
            result += found
    else:
        result = measure(methods, options.rows, options.length, options.rounds)
        show(result)
    if options.json:
        from mixwell.utils.files import write_json

        write_json(options.json, result)


if __name__ == "__main__":
    main()
