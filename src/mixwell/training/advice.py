"""What a run tells its user: where it stands against guessing and the probe, and what to look at."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixwell.data import TextData
from mixwell.data.textdata import listed
from mixwell.metrics.measure import measure
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE
from mixwell.training.fitting import FitResult
from mixwell.training.held_out import HeldOut, standard_error
from mixwell.training.settings import TrainSettings

FEW_ROWS = 10
NOT_ABOVE_PROBE = (
    "fine-tuning is not better than the probe on held-out rows: `--method probe` gives a model that is as good in "
    "seconds"
)


def about_data(data: TextData) -> list[str]:
    """Warnings about labels and class sizes."""
    if data.task == REGRESSION or not data.labels:
        return []
    notes = []
    variants: dict[str, list[str]] = {}
    for name in data.labels:
        variants.setdefault(" ".join(name.casefold().split()), []).append(name)
    alike = [names for names in variants.values() if len(names) > 1]
    if alike:
        shown = "; ".join(" and ".join(map(repr, names)) for names in alike[:3])
        notes.append(f"labels that differ by case or spaces only count as different classes: {shown}; mend the file?")
    if data.task == SINGLE:
        counts = np.bincount(data.train["label"].to_numpy(), minlength=len(data.labels))
        few = [f"{data.labels[at]} {counts[at]}" for at in np.argsort(counts, kind="stable") if counts[at] < FEW_ROWS]
        if few:
            notes.append(
                f"{len(few)} of {len(data.labels)} classes have fewer than {FEW_ROWS} training rows "
                f"({listed(few, 5)}): more rows of these help most"
            )
    return notes


def opening(baselines: dict[str, Any], held: HeldOut) -> str:
    """Guessing and the probe, in one line."""
    guess = f"guessing {100 * baselines['guessing']['accuracy']:.1f} %, " if "guessing" in baselines else ""
    text = f"{guess}probe {_score(held)} on {_rows(held)}"
    if held.task == SINGLE and (held.accuracy or 0) <= baselines["guessing"]["accuracy"]:
        text += "; the features know nothing of these labels beyond guessing"
    return text


def plan(settings: TrainSettings, rows: int, folds: int) -> str:
    """What folds will cost."""
    assert settings.batch_size and settings.epochs
    each = -(-(rows - rows // folds) // settings.batch_size) * settings.epochs
    last = -(-rows // settings.batch_size) * settings.epochs
    return (
        f"{folds} folds of about {each} updates, then a final training of at most {last} on all {rows} rows "
        f"(--folds 0 holds a part out instead)"
    )


def closing(tuned: HeldOut, probe: HeldOut, *, taken: bool) -> str:
    """Fine-tuning against the probe."""
    words = f"fine-tuning {_score(tuned)} on {_rows(tuned)}"
    if tuned.task == SINGLE:
        difference = tuned.right() - probe.right()
        words += (
            f", {100 * difference.mean():+.1f} points against the probe (standard error "
            f"{100 * standard_error(difference):.1f})"
        )
    losses = tuned.scaled_losses() - probe.scaled_losses()
    name = "squared error" if tuned.task == REGRESSION else "loss after temperature"
    words += f", {name} {losses.mean():+.3f} ({standard_error(losses):.3f})"
    return words + ("; not better beyond noise, so the probe is kept" if taken else "")


def about_training(fitted: FitResult, settings: TrainSettings) -> list[str]:
    """Whether training ended too early to tell."""
    losses = [row["validation"]["loss"] for row in fitted.history if "validation" in row]
    last = fitted.best_epoch == len(fitted.history) == settings.epochs
    if len(losses) < 3 or not last or fitted.stopped_early or losses[-1] > 0.99 * losses[-2]:
        return []
    return [
        f"the best epoch is the last one and the held-out loss still falls ({losses[-2]:.3f} to {losses[-1]:.3f}): "
        f"longer training may be better, try --epochs {2 * len(losses)}"
    ]


def about_classes(held: HeldOut, names: tuple[str, ...]) -> list[str]:
    """Classes with held-out rows that are never predicted."""
    if held.task != SINGLE:
        return []
    predicted = np.bincount(held.logits.argmax(axis=1), minlength=len(names))
    support = np.bincount(held.labels, minlength=len(names))
    never = [names[at] for at in np.flatnonzero((predicted == 0) & (support > 0))]
    if not never:
        return []
    return [
        f"{len(never)} of {len(names)} classes are never predicted on held-out rows ({listed(never, 5)}): more rows of "
        f"them, or --class-weights balanced, may help"
    ]


def _score(held: HeldOut) -> str:
    if held.task == SINGLE:
        return f"{100 * (held.accuracy or 0):.1f} %"
    metrics = measure(held.logits, held.labels, held.task)
    if held.task == MULTI:
        return f"micro-F1 {metrics['micro_f1']:.3f}"
    return f"mean squared error {metrics['mse']:.4g}"


def _rows(held: HeldOut) -> str:
    return f"{len(held.logits)} {'validation rows' if held.split == 'validation' else 'rows out of fold'}"
