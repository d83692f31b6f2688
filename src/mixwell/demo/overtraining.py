"""Two models on the same few messages, many of them labelled wrongly: one trains plain, the other mixed.

Each is an ordinary loop in a process of its own; the mixed one has one line more. Nothing is chosen by the rows that
the loss is measured on: the schedule is fixed, and the last epoch counts.
"""

from __future__ import annotations

import multiprocessing
import queue
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ARMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mixed": {"method": "amplify", "consistent": True, "alpha": 1.0, "draw": "folded"},
}
MARKS = {"plain": "o", "mixed": "x"}
CLASSES = 4
PER_CLASS = 12
WRONG = 0.4
EPOCHS = 20
EVERY = 2
BATCH = 16
RATE = 2e-4
SEED = 0
HEIGHT = 8
# A process that cannot be started, or is killed, must not keep the demo waiting.
PATIENCE = 120.0


@dataclass
class Curve:
    """What one model did.

    Attributes:
        epochs: after which it was measured.
        losses: NLL of the held-out messages then.
        accuracy: at the end.
        scaled: the loss at the end on half of these messages, with a temperature fitted on the other half, both ways.
    """

    epochs: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    scaled: float = 0.0


def rows() -> tuple[list[str], Any, list[str], Any]:
    """Texts and labels to train on, WRONG of them wrong, and others to measure on."""
    from mixwell import data

    found = data.load(data.sample_folder())
    draw = np.random.default_rng(SEED)

    def of(split: str) -> tuple[list[str], Any]:
        table = found.splits[split]
        return table["text"].to_pylist(), np.array(table["label"].to_pylist())

    texts, labels = of("train")
    kept = np.concatenate([draw.permutation(np.flatnonzero(labels == c))[:PER_CLASS] for c in range(CLASSES)])
    true = labels[kept]
    wrong = draw.random(len(true)) < WRONG
    given = np.where(wrong, (true + draw.integers(1, CLASSES, size=len(true))) % CLASSES, true)
    held, known = of("validation")
    chosen = np.flatnonzero(known < CLASSES)
    return [texts[at] for at in kept], given, [held[at] for at in chosen], known[chosen]


def train(name: str, results: Any) -> None:
    """One model, in a process of its own: puts (name, epoch, logits of the held-out messages) into a queue."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    import mixwell
    from mixwell.training.models import resolve

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    texts, labels, held, _ = rows()
    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"))
    model = AutoModelForSequenceClassification.from_pretrained(resolve("minilm"), num_labels=CLASSES)
    if ARMS[name]:
        mixwell.attach(model, **ARMS[name])
    model.get_input_embeddings().requires_grad_(False)
    optimiser = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=RATE)
    steps = EPOCHS * -(-len(texts) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: max(0.0, 1 - step / steps))
    order = torch.Generator().manual_seed(SEED)

    def tokens(some: list[str]) -> Any:
        return tokenizer(some, return_tensors="pt", padding=True, truncation=True, max_length=64)

    for epoch in range(1, EPOCHS + 1):
        model.train()
        for places in torch.randperm(len(texts), generator=order).split(BATCH):
            batch = tokens([texts[at] for at in places])
            model(**batch, labels=torch.tensor(labels[places.numpy()])).loss.backward()
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
        if epoch % EVERY == 0:
            model.eval()
            with torch.no_grad():
                parts = [model(**tokens(held[at : at + 40])).logits for at in range(0, len(held), 40)]
            results.put((name, epoch, torch.cat(parts).numpy()))


def race(show: Callable[[dict[str, Curve]], None]) -> dict[str, Curve]:
    """Train both side by side; `show` is called whenever one was measured.

    Raises:
        RunError: one of them ended early.
    """
    from mixwell.metrics.scores import accuracy, nll
    from mixwell.utils.errors import RunError

    truth = rows()[3]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=train, args=(name, results), daemon=True) for name in ARMS]
    curves = {name: Curve() for name in ARMS}
    for process in processes:
        process.start()
    try:
        for _ in range(len(ARMS) * (EPOCHS // EVERY)):
            try:
                name, epoch, logits = results.get(timeout=PATIENCE)
            except queue.Empty:
                raise RunError("the race of the demo came to no end; run `mixwell demo` again") from None
            curve = curves[name]
            curve.epochs.append(epoch)
            curve.losses.append(nll(logits, truth))
            curve.accuracy, curve.scaled = accuracy(logits, truth), after_temperature(logits, truth)
            show(curves)
    finally:
        for process in processes:
            process.terminate() if sys.exc_info()[0] else process.join(PATIENCE)
    return curves


def after_temperature(logits: Any, labels: Any) -> float:
    """The loss of each half with the temperature of the other: what calibrating alone would give."""
    from mixwell.metrics.scores import nll
    from mixwell.metrics.temperature import fit_temperature

    halves = np.arange(len(labels)) % 2
    losses = []
    for half in (0, 1):
        here, other = halves == half, halves != half
        losses.append(nll(logits[here] / fit_temperature(logits[other], labels[other]), labels[here]))
    return float(np.mean(losses))


def chart(curves: dict[str, Curve]) -> list[str]:
    """The losses so far as lines of text, at most 60 wide."""
    losses = [loss for curve in curves.values() for loss in curve.losses]
    if not losses:
        return ["both models start ..."]
    low, high = min(losses), max(losses)
    columns = EPOCHS // EVERY
    cells = [[" "] * columns for _ in range(HEIGHT)]
    for name, curve in curves.items():
        for epoch, loss in zip(curve.epochs, curve.losses):
            row = round((high - loss) / max(high - low, 1e-9) * (HEIGHT - 1))
            column = epoch // EVERY - 1
            cells[row][column] = "*" if cells[row][column] not in (" ", MARKS[name]) else MARKS[name]
    lines = []
    for row, marks in enumerate(cells):
        scale = f"{high - (high - low) * row / (HEIGHT - 1):5.2f}" if row in (0, HEIGHT - 1) else " " * 5
        lines.append(f"{scale} |{''.join(f'  {mark} ' for mark in marks)}".rstrip())
    lines.append(" " * 6 + "+" + "-" * 4 * columns)
    lines.append(" " * 7 + "".join(f"{EVERY * (column + 1):3d} " for column in range(columns)) + " epoch")
    lines.append(" " * 7 + ", ".join(f"{mark} {name}" for name, mark in MARKS.items()) + ", * both")
    return lines
