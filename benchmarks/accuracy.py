"""Does `mixwell train --method none` train as well as a plain ten-line Trainer script?

    python benchmarks/accuracy.py --data FOLDER [--rows 1000] [--epochs 4] [--own-draws]

FOLDER has one folder for each data set. Both sides get the same rows, model, learning rate, schedule, batch size and
number of epochs, and keep the epoch with the lowest validation loss. mixwell seeds every epoch by its number and takes
one seed from the random stream for each step; the script is made to do the same, so that both see the rows in one order
under the same dropout, and whatever is left is mixwell's doing. With --own-draws the script draws for itself, and the
sides differ as two seeds do. Printed for each data set: test accuracy of both, the standard error of such an accuracy
and whether the weights are equal; for mixwell the validation NLL and the test ECE, before and after the temperature.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

SETS = {
    "trec-coarse": ("trec", "label"),
    "trec-fine": ("trec", "label_fine"),
    "mrpc": ("mrpc", None),
    "sst5": ("sst5", None),
    "banking77": ("banking77", None),
}


def plain(
    model: Any, tokenizer: Any, train: Any, validation: Any, rate: float, epochs: int, seed: int, same: bool
) -> Any:
    """The ten lines."""
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    from mixwell.core.draw import take_seed
    from mixwell.training.callbacks import epoch_seeds

    def take(module: Any, args: Any) -> None:
        if module.training:
            take_seed()

    handle = model.register_forward_pre_hook(take) if same else None
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=epochs, per_device_train_batch_size=32, per_device_eval_batch_size=64,
            learning_rate=rate, warmup_steps=0.1, weight_decay=0.01, lr_scheduler_type="cosine", seed=seed,
            eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, save_total_limit=1,
            report_to="none", disable_tqdm=True, dataloader_pin_memory=False, logging_strategy="no",
        )  # fmt: skip
        trainer = Trainer(
            model=model, args=arguments, train_dataset=train, eval_dataset=validation, processing_class=tokenizer,
            data_collator=DataCollatorWithPadding(tokenizer), callbacks=[epoch_seeds(seed)] if same else None,
        )  # fmt: skip
        trainer.train()
    if handle is not None:
        handle.remove()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="the folder with the data sets")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rows", type=int, default=1000, help="the most training rows")
    parser.add_argument("--checks", type=int, default=300, help="the most validation rows")
    parser.add_argument("--tests", type=int, default=1000, help="the most test rows")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--own-draws", action="store_true", help="leave the script its own order of rows and dropout")
    arguments = parser.parse_args()

    import torch

    from mixwell import data
    from mixwell.metrics.calibration import ece
    from mixwell.metrics.scores import accuracy, nll, softmax
    from mixwell.metrics.temperature import fit_temperature
    from mixwell.training import fit, models, quiet_libraries, recipe
    from mixwell.training.predict import logits
    from mixwell.training.settings import TrainSettings

    heads = ("data", "classes", "training rows", "plain script %", "mixwell %", "standard error", "within one",
             "same weights", "validation NLL", "after T", "test ECE %", "after T")  # fmt: skip
    print(f"| {' | '.join(heads)} |", "|---|" + "---:|" * 11, sep="\n", flush=True)
    for name in arguments.sets:
        folder, label = SETS[name]
        with quiet_libraries(), tempfile.TemporaryDirectory() as cache:
            found = data.load(str(arguments.data / folder), label=label).sample(max_train=arguments.rows)
            sides: dict[str, float] = {}
            ends: list[dict[str, Any]] = []
            for side in ("plain", "mixwell"):
                loaded = models.load(arguments.model, task=found.task, labels=found.labels, seed=arguments.seed)
                rows = {
                    split: data.tokenise(
                        table.slice(0, {"validation": arguments.checks, "test": arguments.tests}.get(split)),
                        loaded.tokenizer, max_length=256, cache_dir=cache,
                    )
                    for split, table in found.splits.items()
                }  # fmt: skip
                if side == "plain":
                    rate = recipe.learning_rate(loaded.parameters)
                    model = plain(
                        loaded.model, loaded.tokenizer, rows["train"], rows["validation"], rate, arguments.epochs,
                        arguments.seed, not arguments.own_draws,
                    )  # fmt: skip
                else:
                    settings = TrainSettings(data="", method="none", epochs=arguments.epochs, seed=arguments.seed)
                    fit(loaded.model, loaded.tokenizer, rows["train"], rows["validation"], settings, task=found.task)
                    model = loaded.model
                ends.append(model.state_dict())
                outputs = {split: logits(model, loaded.tokenizer, rows[split]) for split in ("validation", "test")}
                truth = {split: rows[split].with_format("numpy")["labels"][:] for split in outputs}
                sides[side] = accuracy(outputs["test"], truth["test"])
        heat = fit_temperature(outputs["validation"], truth["validation"])
        losses = [nll(outputs["validation"] / t, truth["validation"]) for t in (1.0, heat)]
        gaps = [100 * ece(softmax(outputs["test"] / t), truth["test"]) for t in (1.0, heat)]
        theirs, ours = sides["plain"], sides["mixwell"]
        same = all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
        error = math.sqrt(theirs * (1 - theirs) / len(truth["test"]))
        print(
            f"| {name} | {len(found.labels)} | {len(rows['train'])} | {100 * theirs:.1f} | {100 * ours:.1f} "
            f"| {100 * error:.1f} | {'yes' if abs(ours - theirs) <= error else 'no'} "
            f"| {'yes' if same else 'no'} | {losses[0]:.4f} "
            f"| {losses[1]:.4f} | {gaps[0]:.1f} | {gaps[1]:.1f} |", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
