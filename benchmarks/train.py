"""How long mixwell's training loop takes, against a plain Trainer script and against the published settings.

    python benchmarks/train.py --data FOLDER [--rows 960] [--rounds 5]

Three comparisons, each over the same rows and the same number of steps. Epochs of the two sides alternate in one
process, so that a busy machine slows both; the ratio of each pair is taken, and the interval is Student's over the
logarithms of the ratios. Each epoch ends with an evaluation of `--checks` validation rows; `fit` sorts these by length,
the ten lines do not.

1. `fit` with method none against ten lines of Trainer: what our loop costs.
2. `fit` with amplify against the same ten lines: what the loop and the mixing cost.
3. `fit` with amplify against the same with every row padded to 256 tokens, as AMPLIFY's authors published it.
"""

from __future__ import annotations

import argparse
import copy
import math
import tempfile
import time
from collections.abc import Callable
from typing import Any


def plain(model: Any, tokenizer: Any, train: Any, validation: Any, batch: int, rate: float) -> None:
    """The ten lines."""
    import numpy as np
    from transformers import DataCollatorWithPadding, PrinterCallback, Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=1, per_device_train_batch_size=batch, per_device_eval_batch_size=64,
            learning_rate=rate, warmup_steps=0.1, weight_decay=0.01, lr_scheduler_type="cosine", eval_strategy="epoch",
            save_strategy="no", report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = Trainer(
            model=model, args=arguments, train_dataset=train, eval_dataset=validation, processing_class=tokenizer,
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda found: {"accuracy": float(np.mean(found.predictions.argmax(1) == found.label_ids))},
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def padded(rows: Any, tokenizer: Any, length: int) -> Any:
    """The rows, each padded to one length."""

    def pad(row: dict[str, Any]) -> dict[str, Any]:
        room = length - len(row["input_ids"])
        fill = {"input_ids": tokenizer.pad_token_id, "attention_mask": 0, "token_type_ids": 0}
        return {name: list(row[name]) + [fill[name]] * room for name in fill if name in row}

    return rows.map(pad, load_from_cache_file=False)


def compare(title: str, ours: Callable[[], None], theirs: Callable[[], None], rounds: int) -> None:
    """Time two sides in turn and print the ratio with its 95 % interval."""
    from scipy import stats

    logs, seconds = [], []
    ours()  # warm up
    theirs()
    for number in range(rounds):
        took = {}
        for side in (ours, theirs) if number % 2 == 0 else (theirs, ours):
            began = time.perf_counter()
            side()
            took[side] = time.perf_counter() - began
        seconds.append((took[ours], took[theirs]))
        logs.append(math.log(took[ours] / took[theirs]))
    mean = sum(logs) / rounds
    error = math.sqrt(sum((value - mean) ** 2 for value in logs) / (rounds - 1) / rounds)
    wide = stats.t.ppf(0.975, rounds - 1) * error
    first, second = (sum(column) / rounds for column in zip(*seconds))
    print(
        f"{title}: {first:.2f} s against {second:.2f} s an epoch; ratio {math.exp(mean):.3f} "
        f"(95 % {math.exp(mean - wide):.3f} to {math.exp(mean + wide):.3f}, {rounds} pairs)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a folder or file of labelled texts, such as TREC")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rows", type=int, default=960, help="training rows of an epoch")
    parser.add_argument("--checks", type=int, default=128, help="validation rows")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None, help="of torch")
    arguments = parser.parse_args()

    import torch

    from mixwell import data
    from mixwell.training import TrainSettings, fit, models, quiet_libraries, recipe

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    found = data.load(arguments.data).sample(max_train=arguments.rows)
    with quiet_libraries(), tempfile.TemporaryDirectory() as cache:
        loaded = models.load(arguments.model, task=found.task, labels=found.labels)
        tokenizer = loaded.tokenizer
        rate = recipe.learning_rate(loaded.parameters)
        train, validation = (
            data.tokenise(found.splits[name], tokenizer, max_length=256, cache_dir=cache)
            for name in ("train", "validation")
        )
        validation = validation.select(range(min(arguments.checks, len(validation))))
        full = {"train": padded(train, tokenizer, 256), "validation": padded(validation, tokenizer, 256)}
        tokens = sum(map(len, train["input_ids"])) / len(train)
        print(f"{len(train)} training and {len(validation)} validation rows of {tokens:.1f} tokens on average")

        def ours(method: str, rows: Any = train, checks: Any = validation) -> Callable[[], None]:
            settings = TrainSettings(data="", method=method, epochs=1, batch_size=arguments.batch_size)
            return lambda: fit(copy.deepcopy(loaded.model), tokenizer, rows, checks, settings, task=found.task) and None

        def theirs() -> None:
            plain(copy.deepcopy(loaded.model), tokenizer, train, validation, arguments.batch_size, rate)

        compare("fit, none / plain Trainer", ours("none"), theirs, arguments.rounds)
        compare("fit, amplify / plain Trainer", ours("amplify"), theirs, arguments.rounds)
        compare(
            "fit, amplify / amplify padded to 256",
            ours("amplify"), ours("amplify", full["train"], full["validation"]), max(2, arguments.rounds // 2),
        )  # fmt: skip


if __name__ == "__main__":
    main()
