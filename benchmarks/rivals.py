"""`mixwell train` with its defaults against what people would use instead, on the same rows and the same weights.

    python benchmarks/rivals.py run --data DATA --records rivals.jsonl [--sizes 8pc,300] [--seeds 5] [--rivals ...]
    python benchmarks/rivals.py table --records rivals.jsonl

DATA holds a folder per data set with train.jsonl.gz and test.jsonl.gz or validation.jsonl.gz. One line of the records
is one training; it is not run again, and several processes may share the file. All rivals get the same training rows,
drawn by the seed, and nothing else; the test rows are the same for all seeds, at most 1,000. `8pc` is 8 rows per class.

    mixwell   `mixwell train rows.csv`, then `mixwell predict`
    probe     logistic regression on normalised embeddings of the frozen encoder; C by 5-fold cross-validation
    tfidf     logistic regression on TF-IDF of words and word pairs; C by 5-fold cross-validation
    setfit    SetFit (needs `pip install setfit`): contrastive training, then logistic regression
    trainer   Trainer on AutoModelForSequenceClassification: batch 16, 10 epochs, learning rate 2e-4, linear decay
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import gzip
import json
import os
import random
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

SETS = {
    "trec": ("trec", "label"), "trec_fine": ("trec", "label_fine"), "sst2": ("sst2_sentence", "label"),
    "sst5": ("sst5", "label"), "banking77": ("banking77", "label"), "ag_news": ("ag_news", "label"),
    "cola": ("cola", "label"), "mrpc": ("mrpc", "label"), "imdb": ("imdb", "label"),
}  # fmt: skip
RIVALS = ("mixwell", "probe", "tfidf", "setfit", "trainer")
TEST_ROWS = 1000
LENGTH = 128
METRICS = ("accuracy", "macro_f1", "nll", "ece", "cpu")


def read(folder: Path, split: str, label: str) -> list[dict[str, Any]]:
    with gzip.open(folder / f"{split}.jsonl.gz", "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    return [{"text": row["text"], "pair": row.get("text_pair"), "label": row[label]} for row in rows]


def draw(
    data: Path, name: str, size: str, seed: int, test_rows: int = TEST_ROWS
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training rows of a size, by the seed, and the test rows. Files may be sorted by label, so all are shuffled."""
    folder, label = SETS[name]
    path = data / folder
    train = read(path, "train", label)
    test = read(path, "test" if (path / "test.jsonl.gz").exists() else "validation", label)
    random.Random(0).shuffle(test)
    random.Random(1000 + seed).shuffle(train)
    if size.endswith("pc"):
        counts: dict[str, int] = defaultdict(int)
        kept = []
        for row in train:
            counts[row["label"]] += 1
            if counts[row["label"]] <= int(size[:-2]):
                kept.append(row)
        return kept, test[:test_rows]
    return train[: int(size)], test[:test_rows]


def joined(row: dict[str, Any]) -> str:
    return row["text"] if row["pair"] is None else f"{row['text']} [SEP] {row['pair']}"


# --- the rivals: each gives probabilities (N, C) in the order of the sorted labels of train ---------------------------


def by_mixwell(train: list, test: list, labels: list[str], seed: int) -> Any:
    import numpy as np

    from mixwell.training import TrainSettings
    from mixwell.training import train as run
    from mixwell.training.predict import Classifier

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "rows.csv"
        pairs = train[0]["pair"] is not None
        with open(source, "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["text", *(["text_pair"] if pairs else []), "label"])
            writer.writerows([row["text"], *([row["pair"]] if pairs else []), row["label"]] for row in train)
        settings = TrainSettings(
            str(source), output=str(Path(folder) / "run"), text="text", text_pair="text_pair" if pairs else None,
            label="label", seed=seed, max_length=LENGTH, cache_dir=folder,
        )  # fmt: skip
        done = run(settings, quiet=True)
        found = Classifier.load(Path(folder) / "run")
        seconds = [row["pair"] for row in test] if pairs else None
        chances = found.predict([row["text"] for row in test], seconds, batch_size=32).probabilities
        order = [found.labels.index(label) for label in labels]
        by_mixwell.kept = {
            "kept": done.metrics["method"]["method"], "temperature": round(done.metrics["temperature"], 3),
            "epoch": done.metrics["best_epoch"], "said": done.metrics["sentences"][-1],
        }  # type: ignore[attr-defined] # fmt: skip
        return np.asarray(chances)[:, order]


def embed(texts: list[str]) -> Any:
    import numpy as np
    from sentence_transformers import SentenceTransformer

    from mixwell.training.models import resolve

    model = SentenceTransformer(resolve("minilm"), device="cpu")
    model.max_seq_length = LENGTH
    return np.asarray(model.encode(texts, batch_size=32, normalize_embeddings=True, show_progress_bar=False))


def tuned(x: Any, y: Any, strengths: list[float]) -> Any:
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold

    rarest = int(np.bincount(y)[np.bincount(y) > 0].min())
    kind = StratifiedKFold if rarest >= 2 else KFold
    cut = kind(min(5, rarest) if rarest >= 2 else 5, shuffle=True, random_state=0)
    search = GridSearchCV(
        LogisticRegression(max_iter=300), {"C": strengths}, cv=cut,
        scoring="neg_log_loss" if rarest >= 2 else "accuracy",
    )  # fmt: skip
    return search.fit(x, y).best_estimator_


def by_probe(train: list, test: list, labels: list[str], seed: int) -> Any:
    import numpy as np

    def features(rows: list) -> Any:
        first = embed([row["text"] for row in rows])
        if rows[0]["pair"] is None:
            return first
        second = embed([row["pair"] for row in rows])
        return np.concatenate([first, second, np.abs(first - second), first * second], axis=1)

    y = np.array([labels.index(row["label"]) for row in train])
    return tuned(features(train), y, [1, 10, 100, 1000]).predict_proba(features(test))


def by_tfidf(train: list, test: list, labels: list[str], seed: int) -> Any:
    import numpy as np
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    y = np.array([labels.index(row["label"]) for row in train])
    x = words.fit_transform([joined(row) for row in train])
    return tuned(x, y, [1, 10, 100, 1000]).predict_proba(words.transform([joined(row) for row in test]))


def by_setfit(train: list, test: list, labels: list[str], seed: int) -> Any:
    import numpy as np
    import torch
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    from mixwell.training.models import resolve

    # 20 iterations are the paper's; with more rows fewer do, since each one is 2 pairs per row.
    iterations = 20 if len(train) <= 64 else 5
    model = SetFitModel.from_pretrained(resolve("minilm"), labels=labels)
    model.model_body.max_seq_length = LENGTH
    rows = Dataset.from_dict(
        {"text": [joined(row) for row in train], "label": [labels.index(row["label"]) for row in train]}
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, batch_size=16, num_epochs=1, num_iterations=iterations, seed=seed, report_to="none",
            show_progress_bar=False, save_strategy="no",
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=rows).train()
    chances = model.predict_proba([joined(row) for row in test])
    return np.asarray(chances.cpu() if isinstance(chances, torch.Tensor) else chances)


def by_trainer(train: list, test: list, labels: list[str], seed: int) -> Any:
    import numpy as np
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )  # fmt: skip

    from mixwell.training.models import resolve

    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"))
    model = AutoModelForSequenceClassification.from_pretrained(resolve("minilm"), num_labels=len(labels))

    def encoded(rows: list) -> Any:
        texts = [[row["text"] for row in rows], *([[row["pair"] for row in rows]] if rows[0]["pair"] else [])]
        made = dict(tokenizer(*texts, truncation=True, max_length=LENGTH))
        return Dataset.from_dict(
            {**made, "label": [labels.index(r["label"]) if r["label"] in labels else 0 for r in rows]}
        )

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=16, per_device_eval_batch_size=32, num_train_epochs=10,
            learning_rate=2e-4, seed=seed, save_strategy="no", report_to="none", disable_tqdm=True,
            logging_strategy="no",
        )  # fmt: skip
        trainer = Trainer(
            model=model, args=arguments, train_dataset=encoded(train), data_collator=DataCollatorWithPadding(tokenizer)
        )
        trainer.train()
        z = trainer.predict(encoded(test)).predictions
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# --- running and showing ----------------------------------------------------------------------------------------------


def one(job: dict[str, Any], data: Path) -> dict[str, Any]:
    """Train one rival and measure it; CPU seconds are those of training and of predicting the test rows."""
    import numpy as np
    import torch

    from mixwell.metrics.measure import measure

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    train, test = draw(data, job["data"], job["size"], job["seed"])
    labels = sorted({row["label"] for row in train})
    began = time.process_time()
    chances = globals()[f"by_{job['rival']}"](train, test, labels, job["seed"])
    seconds = time.process_time() - began
    y = np.array([labels.index(row["label"]) if row["label"] in labels else -1 for row in test])
    known = y >= 0  # a class without training rows is wrong for all; probabilities are measured on the others
    logits = np.log(np.clip(np.asarray(chances, dtype=np.float64), 1e-6, None))
    found = measure(logits[known], y[known])
    guess = np.bincount([labels.index(row["label"]) for row in train]).argmax()
    return {
        "accuracy": float((logits.argmax(axis=1) == y).mean()),
        **{name: found[name] for name in ("macro_f1", "nll", "ece")},
        "cpu": seconds,
        "rows": len(train),
        "classes": len(labels),
        "test": len(test),
        "guess": float((y == guess).mean()),
        **(getattr(by_mixwell, "kept", {}) if job["rival"] == "mixwell" else {}),
    }


def run(args: argparse.Namespace) -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    records = Path(args.records)
    jobs = [
        {"rival": rival, "data": name, "size": size, "seed": seed}
        for seed in range(args.first_seed, args.first_seed + args.seeds)
        for size in args.sizes.split(",")
        for name in args.sets.split(",")
        for rival in args.rivals.split(",")
    ]
    for job in jobs:
        if claimed(records, job):
            result = one(job, Path(args.data))
            written(records, job, result)
            print(job, result, flush=True)


def claimed(records: Path, job: dict[str, Any]) -> bool:
    """Take a job unless it is recorded, or another process of this machine has taken it."""
    key = json.dumps(job, sort_keys=True)
    claims = Path(tempfile.gettempdir()) / f"{records.name}.claims"
    with open(claims, "a+", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        done = {json.dumps(json.loads(line)["job"], sort_keys=True) for line in lines(records)}
        if key in done or key in lock.read().splitlines():
            return False
        lock.write(key + "\n")
    return True


def written(records: Path, job: dict[str, Any], result: dict[str, Any]) -> None:
    """Add a line to the records."""
    rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in result.items()}
    with open(records, "a", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(json.dumps({"job": job, "result": rounded}) + "\n")


def lines(path: Path) -> list[str]:
    """Of a file that may not be there."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


Found = dict[tuple[str, str], dict[str, dict[int, Any]]]


def recorded(path: Path) -> tuple[Found, dict[tuple[str, str], set[int]]]:
    """Results by size and data set, rival and seed; and the seeds that all rivals have."""
    found: Found = defaultdict(lambda: defaultdict(dict))
    for line in lines(path):
        record = json.loads(line)
        job = record["job"]
        found[job["size"], job["data"]][job["rival"]][job["seed"]] = record["result"]
    return found, {place: set.intersection(*(set(by[rival]) for rival in RIVALS)) for place, by in found.items()}


def short_table(found: Found, whole: dict[tuple[str, str], set[int]]) -> None:
    """Accuracy / NLL in one cell, for the docs."""
    import numpy as np

    for wanted in dict.fromkeys(size for size, _ in sorted(found, key=lambda place: (len(place[0]), place[0]))):
        print(f"\n| {wanted} | seeds | " + " | ".join(RIVALS) + " |\n|---|---:|" + "---:|" * len(RIVALS))
        for (size, name), by in sorted(found.items()):
            seeds = sorted(whole[size, name])
            if size != wanted or not seeds:
                continue
            shown = []
            for metric, sign in (("accuracy", -1), ("nll", 1)):
                values = np.array([[by[rival][seed][metric] for seed in seeds] for rival in RIVALS])
                shown.append(cells(values, sign * values.mean(axis=1), metric))
            print(f"| {name} | {len(seeds)} | " + " | ".join(f"{a} / {b}" for a, b in zip(*shown, strict=True)) + " |")


def table(args: argparse.Namespace) -> None:
    """Means over the seeds that all rivals have, mean ranks, and where the first rival is behind."""
    import numpy as np

    found, whole = recorded(Path(args.records))
    if args.short:
        short_table(found, whole)
        return
    ranks: dict[str, list[Any]] = {"accuracy": [], "nll": []}
    behind = []
    for metric in METRICS:
        print(f"\n### {metric}\n\n| size | data | seeds | " + " | ".join(RIVALS) + " |")
        print("|---|---|---:|" + "---:|" * len(RIVALS))
        for (size, name), by in sorted(found.items()):
            seeds = sorted(whole[size, name])
            if not seeds:
                continue
            values = np.array([[by[rival][seed][metric] for seed in seeds] for rival in RIVALS])
            better = values.mean(axis=1) * (-1 if metric in ("accuracy", "macro_f1") else 1)
            print(f"| {size} | {name} | {len(seeds)} | " + " | ".join(cells(values, better, metric)) + " |")
            if metric in ranks:
                ranks[metric].append(better.argsort().argsort() + 1)
                best = 1 + int(better[1:].argmin())
                gap = (values[0] - values[best]) * (-1 if metric == "accuracy" else 1)
                error = gap.std(ddof=1) / len(gap) ** 0.5 if len(gap) > 1 else float("nan")
                if gap.mean() > (0 if np.isnan(error) else error):
                    behind.append(
                        f"- {metric}, {size}, {name}: behind {RIVALS[best]} by {gap.mean():.3f} (SE {error:.3f})"
                    )
    if not ranks["nll"]:
        print("\nno data set has a seed of all rivals yet")
        return
    print("\n### mean rank\n\n| rank in | " + " | ".join(RIVALS) + " |\n|---|" + "---:|" * len(RIVALS))
    for metric, rows in ranks.items():
        print(f"| {metric} | " + " | ".join(f"{rank:.2f}" for rank in np.mean(rows, axis=0)) + " |")
    print(f"\n### where {RIVALS[0]} is behind by more than one standard error\n\n" + ("\n".join(behind) or "nowhere"))


def cells(values: Any, better: Any, metric: str) -> list[str]:
    """Means over seeds with standard errors, one per rival; the best in bold."""
    scale = 100 if metric in ("accuracy", "macro_f1", "ece") else 1
    digits = 0 if metric == "cpu" else 1 if scale == 100 else 3
    made = []
    for row in values:
        text = f"{scale * row.mean():.{digits}f}"
        if len(row) > 1:
            text += f" ± {scale * row.std(ddof=1) / len(row) ** 0.5:.{digits}f}"
        made.append(text)
    made[int(better.argmin())] = f"**{made[int(better.argmin())]}**"
    return made


def two_commands(
    description: str | None, run: Callable[..., None], table: Callable[..., None]
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser, argparse.ArgumentParser]:
    """A command line with `run` and `table`, both with `--records`: the parser, and those of the two."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    parts = []
    for name, call in (("run", run), ("table", table)):
        parts.append(commands.add_parser(name))
        parts[-1].add_argument("--records", required=True)
        parts[-1].set_defaults(call=call)
    return parser, parts[0], parts[1]


def call(parser: argparse.ArgumentParser) -> None:
    """Do what the command line says."""
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    args.call(args)


def main() -> None:
    parser, runs, shown = two_commands(__doc__, run, table)
    runs.add_argument("--data", required=True)
    runs.add_argument("--sizes", default="8pc,300")
    runs.add_argument("--sets", default=",".join(name for name in SETS if name != "imdb"))
    runs.add_argument("--rivals", default=",".join(RIVALS))
    runs.add_argument("--seeds", type=int, default=5)
    runs.add_argument("--first-seed", type=int, default=0)
    shown.add_argument("--short", action="store_true", help="accuracy and NLL only")
    call(parser)


if __name__ == "__main__":
    main()
