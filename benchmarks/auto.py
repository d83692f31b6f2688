"""`mixwell train --budget` against plain training, each single way to train, and the best of them in hindsight.

    python benchmarks/auto.py run --data DATA --records auto.jsonl [--sets ...] [--noise 0,0.3] [--seeds 5] [--fast]
    python benchmarks/auto.py table --records auto.jsonl

DATA is that of `rivals.py`. One line of the records is one draw of 300 rows: all ways to train are trained on the same
three folds and then on all rows, with the epoch and the temperature that the folds chose, and tested on at most 1,000
rows. What `auto` keeps with a budget of 4 and of 12 is found by the search itself, on the same folds. `--fast` trains
in bfloat16, all ways alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from rivals import call, claimed, draw, lines, two_commands, written

SETS = "trec,sst2,sst5,trec_fine,banking77,cola"
BUDGETS = (4.0, 12.0)
METRICS = {"accuracy": (100, "accuracy"), "aurc": (100, "AURC, %"), "nll": (1, "NLL")}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    """A file for `mixwell train`."""
    path.write_text("\n".join(json.dumps({"text": row["text"], "label": row["label"]}) for row in rows), "utf-8")
    return str(path)


def with_noise(rows: list[dict[str, Any]], share: float, seed: int) -> list[dict[str, Any]]:
    """The rows with another class for a share of them."""
    rng, labels = random.Random(seed), sorted({row["label"] for row in rows})
    wrong = set(rng.sample(range(len(rows)), round(share * len(rows))))
    return [
        {**row, "label": rng.choice([label for label in labels if label != row["label"]])} if at in wrong else row
        for at, row in enumerate(rows)
    ]


def one(job: dict[str, Any], data: Path, folder: Path) -> dict[str, Any]:
    """All ways to train on one draw of rows, and what `auto` keeps."""
    import torch

    from mixwell.training import TrainSettings
    from mixwell.training.baseline import Probing
    from mixwell.training.finetune import train_final
    from mixwell.training.held_out import fine_tuning_is_better
    from mixwell.training.predict import logits
    from mixwell.training.prepare import prepare
    from mixwell.training.run_folder import RunFolder
    from mixwell.training.search import candidates, search
    from mixwell.utils.console import Reporter

    torch.set_num_threads(1)
    train, test = draw(data, job["data"], str(job["rows"]), job["seed"])
    train = with_noise(train, job["noise"], job["seed"])
    known = {row["label"] for row in train}  # wrong labels may leave a class without rows
    fast = {"arguments": {"bf16": True}} if job["fast"] else {}
    settings = TrainSettings(
        write_rows(folder / "train.jsonl", train),
        test=write_rows(folder / "test.jsonl", [row for row in test if row["label"] in known]),
        output=str(folder / "run"), text="text", label="label", seed=job["seed"], max_length=64, budget=max(BUDGETS),
        cache_dir=str(folder / "cache"), **fast,
    )  # fmt: skip
    quiet = Reporter()
    ready = prepare(settings, RunFolder(folder / "run"), quiet, None)
    base, place = Probing(ready), folder / "folds"
    y = ready.labels("test")
    probe = base.out_of_fold()
    ways = {"probe": measured(base.whole.outputs(base.features["test"]), y, probe)}
    kept: dict[str, Any] = {}
    for budget in sorted(BUDGETS, reverse=True):  # the larger one trains the folds that the smaller one reads
        one_budget = dataclasses.replace(ready, settings=dataclasses.replace(ready.settings, budget=budget))
        found = search(one_budget, base, place, quiet)
        probe_wins = not fine_tuning_is_better(found.held, probe)
        kept[f"{budget:g}"] = {
            "chosen": found.summary["chosen"], "spent": found.summary["spent"], "kept": "probe" if probe_wins else
            found.summary["chosen"],
        }  # fmt: skip
    for trial in candidates(ready, base, place):
        for fold in range(trial.training.count):
            trial.training.train(fold, quiet)
        fitted, held = trial.training.chosen()
        train_final(trial.training.ready, base, fitted, RunFolder(folder / trial.way.name), quiet)
        z = logits(ready.loaded.model, ready.loaded.tokenizer, ready.rows["test"], batch_size=64)
        ways[trial.way.name] = {**measured(z, y, held), "epoch": fitted.best_epoch, "cost": trial.training.cost}
    return {"ways": ways, "auto": kept, "test": len(y), "epochs": ready.settings.epochs}


def measured(z: Any, y: Any, held: Any) -> dict[str, Any]:
    """The metrics of test rows after the temperature that held-out rows chose, and that loss of theirs."""
    from mixwell.metrics.measure import measure

    temperature = held.temperature()[0]
    found = measure(z, y, "single_label", temperature)
    return {
        **{name: float(found[name]) for name in (*METRICS, "ece")}, "temperature": temperature,
        "nll_before": float(measure(z, y)["nll"]), "held_out": float(held.scaled_losses().mean()),
    }  # fmt: skip


def run(args: argparse.Namespace) -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    jobs = [
        {"data": name, "noise": noise, "seed": seed, "rows": args.rows, "fast": args.fast}
        for seed in range(args.seeds)
        for noise in map(float, args.noise.split(","))
        for name in args.sets.split(",")
    ]
    for job in jobs:
        if claimed(Path(args.records), job):
            with tempfile.TemporaryDirectory() as folder:
                written(Path(args.records), job, one(job, Path(args.data), Path(folder)))
            print(job, flush=True)


def outcomes(record: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What each row of the table got on one draw: single ways, `auto`, and the best in hindsight."""
    ways = record["result"]["ways"]
    made = dict(ways)
    for budget, about in record["result"]["auto"].items():
        made[f"auto, budget {budget}"] = ways[about["kept"]]
    made["best in hindsight"] = {
        name: (max if name == "accuracy" else min)(way[name] for way in ways.values()) for name in METRICS
    }
    return made


def table(args: argparse.Namespace) -> None:
    """Means, differences to plain with standard errors over seeds, mean ranks, and what was chosen."""
    import numpy as np

    records = [json.loads(line) for line in lines(Path(args.records))]
    if not records:
        raise SystemExit(f"{args.records} has no records yet")
    groups: dict[tuple[str, float], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["job"]["data"], record["job"]["noise"]].append(record)
    ranks: dict[str, dict[str, list[float]]] = {metric: defaultdict(list) for metric in METRICS}
    for metric, (scale, title) in METRICS.items():
        names: list[str] = []
        body = []
        for (data, noise), members in groups.items():
            found = [outcomes(record) for record in members]
            names = list(found[0])
            plain = np.array([each["plain"][metric] for each in found]) * scale
            cells = []
            for name in names:
                values = np.array([each[name][metric] for each in found]) * scale
                gap = values - plain
                error = f" ± {gap.std(ddof=1) / len(gap) ** 0.5:.2f}" if len(gap) > 1 else ""
                cells.append(f"{values.mean():.2f}" if name == "plain" else f"{gap.mean():+.2f}{error}")
            body.append(
                f"| {data}{f', {noise:.0%} wrong labels' if noise else ''} | {len(found)} | {' | '.join(cells)} |"
            )
            fixed = [name for name in names if name != "best in hindsight"]
            means = np.array([np.mean([each[name][metric] for each in found]) for name in fixed])
            order = (-means if metric == "accuracy" else means).round(9)
            for name, value in zip(fixed, order):
                ranks[metric][name].append((order < value).sum() + ((order == value).sum() + 1) / 2)
        print(f"\n{title}: plain, and differences to it\n\n| data | draws | {' | '.join(names)} |")
        print("|---|---:|" + "---:|" * len(names))
        print("\n".join(body))
    print(
        "\nMean rank, 1 is best\n\n| rank in | " + " | ".join(ranks["nll"]) + " |\n|---|" + "---:|" * len(ranks["nll"])
    )
    for metric, (_, title) in METRICS.items():
        print(f"| {title} | " + " | ".join(f"{np.mean(values):.2f}" for values in ranks[metric].values()) + " |")
    for budget in map("{:g}".format, BUDGETS):
        about = [record["result"]["auto"][budget] for record in records]
        counts = {name: sum(each["kept"] == name for each in about) for name in {each["kept"] for each in about}}
        most = max(each["spent"] for each in about)
        print(f"\nbudget {budget}: at most {most:.1f} plain trainings spent; kept: {counts}")


def main() -> None:
    parser, runs, _ = two_commands(__doc__, run, table)
    runs.add_argument("--data", required=True)
    runs.add_argument("--sets", default=SETS)
    runs.add_argument("--noise", default="0")
    runs.add_argument("--rows", type=int, default=300)
    runs.add_argument("--seeds", type=int, default=5)
    runs.add_argument("--fast", action="store_true")
    call(parser)


if __name__ == "__main__":
    main()
