"""What the recipe of `mixwell train` rests on: starts of the head, learning rates, updates and methods on real data.

    python benchmarks/recipe.py run --data DATA --records recipe.jsonl --variants 'NAME;NAME' [--rows 300] [--seeds 3]
    python benchmarks/recipe.py table --records recipe.jsonl

DATA holds a folder per data set with train.jsonl.gz and test.jsonl.gz or validation.jsonl.gz. Each training is one line
of the records and is not run again; several processes may share the file. Unless a variant has folds, nothing is held
out and no epoch is chosen: a run is its last step, so that the recipe alone speaks. The table has the NLL as it is
(after the temperature of the folds, where there are folds) and at the best temperature on the test rows: the second is
what a good temperature could reach. `8pc` is 8 rows per class.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from rivals import SETS, call, claimed, draw, lines, two_commands, written

TEST_ROWS = 500
BASE: dict[str, Any] = {
    "pooling": "mean", "start": "humble", "strength": None, "lr": 2e-4, "head_rate": 10.0, "epochs": 6, "batch": 16,
    "least_updates": 60, "freeze_words": True, "method": "none", "options": {}, "length": 64, "pairs": 0.0,
    "folds": 0, "average": False, "stop": 0, "mean_of": 0,
}  # fmt: skip
STRONG = {"method": "amplify", "options": {"consistent": True, "draw": "folded", "alpha": 1.0}}
# `start`: random; probe (as it is, its penalty chosen by folds or fixed by `strength`); humble (scaled down).
# `stop`: end after so many of the epochs, as folds do. `mean_of`: keep the mean of the weights over so many updates.
# `pairs`: weight of the pair loss beside the cross-entropy. `contrastive`: that many updates by pairs of rows alone.
VARIANTS: dict[str, dict[str, Any]] = {
    "probe": {"start": "probe", "epochs": 0, "least_updates": 0},
    "stock head, 10 epochs": {"pooling": "model", "start": "random", "head_rate": 1.0, "epochs": 10},
    "random head, 10 epochs": {"start": "random", "epochs": 10},
    "6 epochs": {},
    "10 epochs": {"epochs": 10},
    "3e-4": {"lr": 3e-4},
    "1e-4": {"lr": 1e-4},
    "1e-4, 10 epochs": {"lr": 1e-4, "epochs": 10},
    "words too": {"freeze_words": False},
    "batch 8, 4 epochs": {"batch": 8, "epochs": 4},
    "manifold": {"method": "manifold"},
    "manifold, 10 epochs": {"method": "manifold", "epochs": 10},
    "amplify strong": STRONG,
    "smoothing": {"options": {"label_smoothing": 0.1}},
    "pairs 1": {"pairs": 1.0},
    "pairs 0.3": {"pairs": 0.3},
    "pairs 1, 10 epochs": {"pairs": 1.0, "epochs": 10},
    "pairs 1, 1e-4, 10 epochs": {"pairs": 1.0, "epochs": 10, "lr": 1e-4},
    "pairs 3, 1e-4, 10 epochs": {"pairs": 3.0, "epochs": 10, "lr": 1e-4},
    "pairs 1, 1e-4, 2 of 10 epochs": {"pairs": 1.0, "epochs": 10, "lr": 1e-4, "stop": 2},
    "pairs 1, 1e-4, 2 of 10 epochs, mean of 40": {"pairs": 1.0, "epochs": 10, "lr": 1e-4, "stop": 2, "mean_of": 40},
    "pairs 1, 1e-4, 4 of 10 epochs": {"pairs": 1.0, "epochs": 10, "lr": 1e-4, "stop": 4},
    "pairs 1, 1e-4, 4 of 10 epochs, mean of 40": {"pairs": 1.0, "epochs": 10, "lr": 1e-4, "stop": 4, "mean_of": 40},
    "pairs 1, 1e-4, 10 epochs, mean of 40": {"pairs": 1.0, "epochs": 10, "lr": 1e-4, "mean_of": 40},
    "pairs 1, 120 updates": {"pairs": 1.0, "least_updates": 120},
    "120 updates": {"least_updates": 120},
    "contrastive 160, 3e-5": {"contrastive": 160, "lr": 3e-5, "batch": 8},
    "contrastive 80, 3e-5, batch 16": {"contrastive": 80, "lr": 3e-5},
    "contrastive 120, 3e-5, batch 16": {"contrastive": 120, "lr": 3e-5},
    "3 folds, average": {"folds": 3, "average": True},
    "4 folds, average": {"folds": 4, "average": True},
    "3 folds, average, pairs 1": {"folds": 3, "average": True, "pairs": 1.0},
}


def load(pooling: str, classes: int, seed: int) -> Any:
    from mixwell.training import models

    return models.load("minilm", labels=[str(at) for at in range(classes)], seed=seed, pooling=pooling)


def encoded(tokenizer: Any, rows: list[dict[str, Any]], length: int) -> list[dict[str, Any]]:
    texts = [[row["text"] for row in rows], *([[row["pair"] for row in rows]] if rows[0]["pair"] else [])]
    made = tokenizer(*texts, truncation=True, max_length=length)
    return [{name: made[name][at] for name in made} for at in range(len(rows))]


def start_head(model: Any, tokenizer: Any, rows: list[dict[str, Any]], y: Any, options: dict[str, Any]) -> float:
    """Fit the probe and start the head from it; returns the strength of its penalty."""
    import numpy as np

    from mixwell.training.folds import assign_folds
    from mixwell.training.probe import features, fit_probe, put_into

    folds = assign_folds(np.arange(len(y)), y, 5)
    x = features(model, tokenizer, rows, 32)
    found = fit_probe(x, y, "single_label", model.config.num_labels, folds, options["strength"])
    put_into(model.classifier, found, found.start_scale if options["start"] == "humble" else 1.0)
    return found.strength


def fit(model: Any, tokenizer: Any, inputs: list[Any], y: Any, options: dict[str, Any], seed: int) -> int:
    """Train a model in place; returns the number of updates."""
    import torch
    from transformers import get_cosine_schedule_with_warmup, set_seed

    import mixwell
    from mixwell.training.averaging import WeightAverage
    from mixwell.training.pair_loss import pair_loss

    set_seed(seed)
    per_epoch = math.ceil(len(inputs) / options["batch"])
    total = max(options["epochs"] * per_epoch, options["least_updates"])
    updates = options["stop"] * per_epoch or total
    groups = [
        {"params": [p for n, p in model.named_parameters() if p.requires_grad and n.startswith("classifier") == head],
         "lr": options["lr"] * (options["head_rate"] if head else 1)} for head in (False, True)
    ]  # fmt: skip
    optimiser = torch.optim.AdamW(groups, weight_decay=0.01, fused=True)
    schedule = get_cosine_schedule_with_warmup(optimiser, round(0.1 * total), total)
    order = torch.Generator().manual_seed(seed)
    labels = torch.tensor(y)
    pooled: list[Any] = []
    watch = (
        model.classifier.register_forward_pre_hook(lambda _, args: pooled.append(args[0])) if options["pairs"] else None
    )
    model.train()
    average = WeightAverage(model, options["mean_of"] or 1)
    average.begin()
    with mixwell.attach(model, options["method"], **options["options"]):
        for step in range(updates):
            if step % per_epoch == 0:
                places = torch.randperm(len(inputs), generator=order).tolist()
            at = places[step % per_epoch * options["batch"] :][: options["batch"]]
            batch = tokenizer.pad([inputs[row] for row in at], return_tensors="pt")
            loss = model(**batch, labels=labels[at]).loss
            if options["pairs"]:
                loss = loss + options["pairs"] * pair_loss(pooled.pop(), labels[at])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
            average.after(step + 1)
    average.into_model()
    if watch is not None:
        watch.remove()
    model.eval()
    return updates


def by_pairs(model: Any, tokenizer: Any, inputs: list[Any], y: Any, options: dict[str, Any], seed: int) -> int:
    """Tune by pairs of texts, then fit a logistic regression; returns the number of updates."""
    from datasets import Dataset

    from mixwell.training import contrastive, probe

    model.config.normalize = True
    rows = Dataset.from_list([{**row, "labels": int(label)} for row, label in zip(inputs, y, strict=True)])
    contrastive.tune(
        model, tokenizer, rows, y, learning_rate=options["lr"], batch_size=options["batch"], seed=seed,
        updates=options["contrastive"], freeze_words=options["freeze_words"],
    )  # fmt: skip
    x = probe.features(model, tokenizer, inputs, 32)
    found = probe.fit_probe(x, y, "single_label", model.config.num_labels, strength=contrastive.STRENGTH)
    probe.put_into(model.classifier, found)
    return int(options["contrastive"])


def by_folds(model: Any, tokenizer: Any, inputs: list[Any], y: Any, options: dict[str, Any], seed: int) -> Any:
    """Train once per fold and average the weights; returns the updates and what out-of-fold rows say."""
    import numpy as np
    import torch

    from mixwell.training.folds import assign_folds
    from mixwell.training.held_out import HeldOut
    from mixwell.training.predict import logits

    first = {name: value.detach().clone() for name, value in model.state_dict().items()}
    total: dict[str, Any] = {}
    folds = assign_folds(np.arange(len(y)), y, options["folds"])
    found, updates = np.zeros((len(y), model.config.num_labels)), 0
    for fold in range(options["folds"]):
        kept, out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        model.load_state_dict(first)
        updates += fit(model, tokenizer, [inputs[at] for at in kept], y[kept], options, seed)
        found[out] = logits(model, tokenizer, [inputs[at] for at in out], batch_size=32)
        for name, value in model.state_dict().items():
            total[name] = total[name] + value.detach() if name in total else value.detach().clone()
    count = options["folds"]
    mean = {name: value / count if torch.is_floating_point(value) else first[name] for name, value in total.items()}
    model.load_state_dict(mean)
    held = HeldOut("out_of_fold", found, y, "single_label", folds)
    return updates, held


def train(job: dict[str, Any], data: Path) -> dict[str, Any]:
    """Do one training; returns the scores of the test rows and the CPU seconds."""
    import numpy as np
    import torch
    from transformers import set_seed
    from transformers.utils import logging

    from mixwell.metrics.measure import measure
    from mixwell.metrics.temperature import fit_temperature
    from mixwell.training.predict import logits

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    options = {**BASE, **VARIANTS[job["variant"]]}
    rows, test = draw(data, job["data"], job["rows"], job["seed"], TEST_ROWS)
    names = sorted({row["label"] for row in rows})
    test = [row for row in test if row["label"] in names]
    y, y_test = (np.array([names.index(row["label"]) for row in part]) for part in (rows, test))
    loaded = load(options["pooling"], len(names), job["seed"])
    model, tokenizer = loaded.model, loaded.tokenizer
    inputs, test_inputs = (encoded(tokenizer, part, options["length"]) for part in (rows, test))
    set_seed(job["seed"])
    began = time.process_time()
    result: dict[str, Any] = {"classes": len(names), "n": len(rows)}
    model.get_input_embeddings().weight.requires_grad_(not options["freeze_words"])
    given = 1.0
    if "contrastive" in options:
        updates = by_pairs(model, tokenizer, inputs, y, options, job["seed"])
    else:
        if options["start"] != "random":
            result["strength"] = start_head(model, tokenizer, inputs, y, options)
        if options["folds"]:
            updates, held = by_folds(model, tokenizer, inputs, y, options, job["seed"])
            given = float(held.temperature()[0] or 1.0)
            result["out_of_fold"] = held.accuracy
        else:
            updates = fit(model, tokenizer, inputs, y, options, job["seed"])
    result |= {"updates": updates, "cpu": time.process_time() - began, "given": given}
    found = logits(model, tokenizer, test_inputs, batch_size=32)
    best = fit_temperature(found, y_test)
    measured = measure(found, y_test, temperature=given)
    result |= {name: measured[name] for name in ("accuracy", "macro_f1", "nll", "ece")}
    return result | {"temperature": best, "nll_best": measure(found, y_test, temperature=best)["nll"]}


def run(args: argparse.Namespace) -> None:
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for rows in args.rows.split(","):
            for name in args.sets.split(","):
                for variant in args.variants.split(";"):
                    job = {"variant": variant, "data": name, "rows": rows, "seed": seed}
                    if claimed(Path(args.records), job):
                        written(Path(args.records), job, train(job, Path(args.data)))


def table(args: argparse.Namespace) -> None:
    """Means over seeds: accuracy, NLL, NLL at the best temperature."""
    import numpy as np

    found: dict[str, dict[str, dict[str, list[Any]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for line in lines(Path(args.records)):
        job, result = json.loads(line)["job"], json.loads(line)["result"]
        found[str(job["rows"])][job["variant"]][job["data"]].append(result)
    for rows, by_variant in sorted(found.items()):
        sets = [name for name in SETS if any(name in by for by in by_variant.values())]
        print(f"\n### {rows} rows: accuracy / NLL / NLL at the best temperature (seeds)\n")
        print("| variant | " + " | ".join(sets) + " | mean | CPU s |\n|---|" + "---:|" * (len(sets) + 2))
        for variant, by in by_variant.items():
            means = {
                name: {key: np.mean([each[key] for each in by[name]]) for key in ("accuracy", "nll", "nll_best", "cpu")}
                for name in sets
                if name in by
            }
            cells = [f"{_cell(means[name])} ({len(by[name])})" if name in by else "" for name in sets]
            whole = len(means) == len(sets)
            total = {
                key: np.mean([each[key] for each in means.values()]) for key in ("accuracy", "nll", "nll_best", "cpu")
            }
            cells += [_cell(total) if whole else "", f"{total['cpu']:.0f}" if whole else ""]
            print(f"| {variant} | " + " | ".join(cells) + " |")


def _cell(means: dict[str, Any]) -> str:
    return f"{100 * means['accuracy']:.1f} / {means['nll']:.2f} / {means['nll_best']:.2f}"


def main() -> None:
    parser, runs, _ = two_commands(__doc__, run, table)
    runs.add_argument("--data", required=True)
    runs.add_argument("--variants", required=True, help="names, separated by semicolons")
    runs.add_argument("--rows", default="300")
    runs.add_argument("--sets", default="trec,trec_fine,sst2,banking77,ag_news,cola")
    runs.add_argument("--seeds", type=int, default=1)
    runs.add_argument("--first-seed", type=int, default=0)
    call(parser)


if __name__ == "__main__":
    main()
