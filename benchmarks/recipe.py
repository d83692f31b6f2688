"""What the recipe of `mixwell train` rests on: heads, learning rates, numbers of updates, methods, on real data sets.

    python benchmarks/recipe.py run --data DATA --records recipe.jsonl [--stage NAME ...] [--seeds 3] [--share 1/2]
    python benchmarks/recipe.py table --records recipe.jsonl

DATA holds a folder per data set with train.jsonl.gz and test.jsonl.gz or validation.jsonl.gz. Each training is one line
of the records and is not run again. Nothing is held out and no epoch is chosen: a run is its last step, so that
only the recipe speaks. The test rows choose nothing but the recipe itself.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import json
import math
import os
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

SETS = {
    "trec": ("trec", "label"), "trec_fine": ("trec", "label_fine"), "sst2": ("sst2_sentence", "label"),
    "sst5": ("sst5", "label"), "banking77": ("banking77", "label"), "ag_news": ("ag_news", "label"),
    "cola": ("cola", "label"), "imdb": ("imdb", "label"), "mrpc": ("mrpc", "label"), "rte": ("rte", "label"),
}  # fmt: skip
BASE: dict[str, Any] = {
    "pooling": "mean", "normalize": False, "start": "probe", "lr": 1e-4, "head_lr": 1.0, "epochs": 10, "batch": 16,
    "least_updates": 0, "frozen_words": True, "method": "none", "options": {}, "decay": 0.01, "length": 48, "C": None,
}  # fmt: skip
STRONG = {"consistent": True, "draw": "folded", "alpha": 1.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "stock": {"pooling": "model", "start": "random", "lr": 2e-4},
    "random-2e-4": {"start": "random", "lr": 2e-4},
    "lr-5e-5": {"lr": 5e-5},
    "lr-2e-4": {"lr": 2e-4},
    "epochs-5": {"epochs": 5},
    "epochs-20": {"epochs": 20},
    "batch-8": {"batch": 8},
    "batch-32": {"batch": 32},
    "C-1": {"C": 1.0},
    "C-1-lr-2e-4": {"C": 1.0, "lr": 2e-4},
    "words": {"frozen_words": False},
    "head-10": {"head_lr": 10.0},
    "unit": {"normalize": True},
    "unit-head-10": {"normalize": True, "head_lr": 10.0},
    "smoothing": {"options": {"label_smoothing": 0.1}},
    "manifold": {"method": "manifold"},
    "amplify-strong": {"method": "amplify", "options": STRONG},
    "cls": {"method": "cls"},
    "manifold-2e-4": {"method": "manifold", "lr": 2e-4},
    "manifold-20": {"method": "manifold", "epochs": 20},
}


def read_rows(folder: Path, split: str, label: str) -> list[dict[str, Any]]:
    with gzip.open(folder / f"{split}.jsonl.gz", "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    return [{"text": r["text"], "pair": r.get("text_pair"), "label": r[label]} for r in rows]


def load(data: Path, name: str, rows: int | str, seed: int, test_rows: int = 500) -> tuple[list, list, list[str]]:
    """Draw training rows by a seed (or `8` per class as "8pc"); the test rows are the same for all seeds."""
    folder, label = SETS[name]
    path = data / folder
    train = read_rows(path, "train", label)
    test = read_rows(path, "test" if (path / "test.jsonl.gz").exists() else "validation", label)
    random.Random(0).shuffle(test)
    random.Random(1000 + seed).shuffle(train)
    if isinstance(rows, str):
        most, counts, kept = int(rows.removesuffix("pc")), defaultdict(int), []
        for row in train:
            if counts[row["label"]] < most:
                counts[row["label"]] += 1
                kept.append(row)
        train = kept
    else:
        train = train[:rows]
    names = sorted({row["label"] for row in train})
    test = test[:test_rows]
    return train, test, names


def encode(tokenizer: Any, rows: list, length: int) -> list[list[int]]:
    if rows[0]["pair"] is None:
        return tokenizer([r["text"] for r in rows], truncation=True, max_length=length)
    return tokenizer([r["text"] for r in rows], [r["pair"] for r in rows], truncation=True, max_length=length)


def collate(tokenizer: Any, encoded: Any, at: list[int]) -> dict:
    return dict(tokenizer.pad({k: [encoded[k][i] for i in at] for k in encoded}, return_tensors="pt"))


def outputs(model: Any, tokenizer: Any, encoded: Any, features: bool = False) -> Any:
    import numpy as np
    import torch

    order = sorted(range(len(encoded["input_ids"])), key=lambda i: -len(encoded["input_ids"][i]))
    parts = []
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(order), 32):
            batch = collate(tokenizer, encoded, order[start : start + 32])
            parts.append((model.features(**batch)[0] if features else model(**batch).logits).numpy())
    joined = np.concatenate(parts)
    result = np.empty_like(joined)
    result[order] = joined
    return result


def probe(x: Any, y: Any, strength: float | None = None) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    import numpy as np
    import warnings

    warnings.simplefilter("ignore")
    if strength is not None:
        return LogisticRegression(C=strength, max_iter=1000).fit(x, y)
    few = int(np.bincount(y).min())
    cv = StratifiedKFold(max(2, min(5, few)), shuffle=True, random_state=0)
    search = GridSearchCV(
        LogisticRegression(max_iter=1000),
        {"C": [0.1, 1, 10, 100]},
        scoring="neg_log_loss" if few > 1 else "accuracy",
        cv=cv,
    )
    return search.fit(x, y).best_estimator_


def scores(logits: Any, y: Any) -> dict[str, float]:
    from mixwell import calibration

    best = calibration.fit_temperature(logits, y)
    found = calibration.metrics(logits, y)
    return {k: round(found[k], 5) for k in ("accuracy", "macro_f1", "nll", "ece")} | {
        "temperature": round(best, 4), "nll_best": round(calibration.metrics(logits, y, temperature=best)["nll"], 5)
    }  # fmt: skip


def train(job: dict[str, Any], data: Path, keep: Path | None = None) -> dict[str, Any]:
    """Do one training; the result has the scores of the test rows and the CPU seconds."""
    import numpy as np
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        get_cosine_schedule_with_warmup,
        set_seed,
    )

    import mixwell
    from mixwell import models
    from mixwell.training.modeling_pooled import PooledConfig, PooledForSequenceClassification, encoder_class
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    o = {**BASE, **VARIANTS.get(job["variant"], {}), **job.get("override", {})}
    rows, test, names = load(data, job["data"], job["rows"], job["seed"])
    number = {name: at for at, name in enumerate(names)}
    test = [row for row in test if row["label"] in number] if len(names) < 50 else test
    y = np.array([number[r["label"]] for r in rows])
    y_test = np.array([number.get(r["label"], -1) for r in test])
    source = models.resolve("minilm")
    tokenizer = AutoTokenizer.from_pretrained(source)
    encoded, encoded_test = encode(tokenizer, rows, o["length"]), encode(tokenizer, test, o["length"])
    set_seed(job["seed"])
    if o["pooling"] == "model":
        model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=len(names))
    else:
        body = AutoConfig.from_pretrained(source)
        auto, extra = encoder_class(body)
        encoder = auto.from_pretrained(source, **extra)
        config = PooledConfig(body, pooling=o["pooling"], normalize=o["normalize"], num_labels=len(names))
        model = PooledForSequenceClassification(config, encoder)
    began = time.process_time()
    seen = y_test >= 0

    def judged(logits: Any) -> dict[str, float]:
        found = scores(logits[seen], y_test[seen])
        if not seen.all():  # rows of classes that training never saw are wrong
            found["accuracy"] = round(float((logits.argmax(1) == y_test).mean()), 5)
        return found

    result: dict[str, Any] = {"classes": len(names), "n": len(rows)}
    if o["start"] == "probe":
        x = outputs(model, tokenizer, encoded, features=True)
        fitted = probe(x, y, o["C"])
        w, b = fitted.coef_, fitted.intercept_
        if len(names) == 2:
            w, b = np.concatenate([-w, w]) / 2, np.concatenate([-b, b]) / 2
        with torch.no_grad():
            model.classifier.weight.copy_(torch.tensor(w, dtype=torch.float32))
            model.classifier.bias.copy_(torch.tensor(b, dtype=torch.float32))
        result["C"] = fitted.C
    if job["variant"] == "probe":
        result |= judged(outputs(model, tokenizer, encoded_test)) | {"cpu": round(time.process_time() - began, 1)}
        return result
    if o["frozen_words"]:
        model.get_input_embeddings().weight.requires_grad_(False)
    head = [p for n, p in model.named_parameters() if n.startswith("classifier")]
    rest = [p for n, p in model.named_parameters() if p.requires_grad and not n.startswith("classifier")]
    steps_per = max(1, math.ceil(len(rows) / o["batch"]))
    total = max(o["epochs"] * steps_per, o["least_updates"])
    optimiser = torch.optim.AdamW(
        [{"params": rest, "lr": o["lr"]}, {"params": head, "lr": o["lr"] * o["head_lr"]}],
        weight_decay=o["decay"],
        fused=True,
    )
    schedule = get_cosine_schedule_with_warmup(optimiser, round(0.1 * total), total)
    options = dict(o["options"])
    labels = torch.tensor(y)
    mixer = mixwell.attach(model, o["method"], **options)
    generator = torch.Generator().manual_seed(job["seed"])
    done, losses = 0, []
    while done < total:
        order = torch.randperm(len(rows), generator=generator).tolist()
        model.train()
        for start in range(0, len(rows), o["batch"]):
            at = order[start : start + o["batch"]]
            batch = collate(tokenizer, encoded, at)
            loss = model(**batch, labels=labels[at]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
            losses.append(loss.item())
            done += 1
            if done == total:
                break
    mixer.detach()
    result |= {"updates": total, "train_loss": round(sum(losses[-steps_per:]) / len(losses[-steps_per:]), 4)}
    result["cpu"] = round(time.process_time() - began, 1)
    result |= judged(outputs(model, tokenizer, encoded_test))
    return result


def key(job: dict[str, Any]) -> str:
    return json.dumps({k: job[k] for k in ("variant", "data", "rows", "seed")}, sort_keys=True)


def run(args: argparse.Namespace) -> None:
    records = Path(args.records)
    jobs = [
        {"variant": v, "data": d, "rows": int(r) if r.isdigit() else r, "seed": s}
        for s in range(args.first_seed, args.first_seed + args.seeds) for r in args.rows.split(",") for v in args.variants.split(",") for d in args.sets.split(",")
    ]  # fmt: skip
    claims = records.with_suffix(".claims")
    for job in jobs:
        with open(claims, "a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.seek(0)
            taken = set(lock.read().splitlines())
            done = (
                {json.dumps(json.loads(l)["job"], sort_keys=True) for l in records.read_text().splitlines()}
                if records.exists()
                else set()
            )
            if key(job) in taken or key(job) in done:
                continue
            lock.write(key(job) + "\n")
        result = train(job, Path(args.data))
        with open(records, "a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.write(
                json.dumps({"job": {k: job[k] for k in ("variant", "data", "rows", "seed")}, "result": result}) + "\n"
            )
        print(job, result, flush=True)


def table(args: argparse.Namespace) -> None:
    import numpy as np

    found = defaultdict(dict)
    for line in Path(args.records).read_text().splitlines():
        r = json.loads(line)
        j = r["job"]
        found[(str(j["rows"]), j["variant"])].setdefault(j["data"], []).append(r["result"])
    sets = [s for s in SETS if any(s in v for v in found.values())]
    for rows in sorted({k[0] for k in found}):
        print(f"\nrows {rows}: accuracy / nll / nll at best T / ece / T   (seeds)")
        print(" " * 18 + "".join(f"{s:>26}" for s in sets) + "   mean acc, nll_best, nll")
        for (r, v), by in found.items():
            if r != rows:
                continue
            cells, means = [], []
            for s in sets:
                if s in by:
                    m = {
                        k: np.mean([x[k] for x in by[s]])
                        for k in ("accuracy", "nll", "nll_best", "ece", "temperature", "cpu")
                    }
                    means.append(m)
                    cells.append(
                        f"{100 * m['accuracy']:5.1f}/{m['nll']:.2f}/{m['nll_best']:.2f}/{100 * m['ece']:.0f}({len(by[s])})"
                    )
                else:
                    cells.append("")
            tail = (
                f"   {100 * np.mean([m['accuracy'] for m in means]):.2f} {np.mean([m['nll_best'] for m in means]):.3f} {np.mean([m['nll'] for m in means]):.3f} cpu {np.mean([m['cpu'] for m in means]):.0f}"
                if len(means) == len(sets)
                else ""
            )
            print(f"{v:<18}" + "".join(f"{c:>26}" for c in cells) + tail)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    r = commands.add_parser("run")
    r.add_argument("--data", required=True)
    r.add_argument("--records", required=True)
    r.add_argument("--variants", required=True)
    r.add_argument("--rows", default="300")
    r.add_argument("--sets", default=",".join(SETS))
    r.add_argument("--seeds", type=int, default=1)
    r.add_argument("--first-seed", type=int, default=0)
    r.set_defaults(call=run)
    t = commands.add_parser("table")
    t.add_argument("--records", required=True)
    t.set_defaults(call=table)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    args.call(args)
