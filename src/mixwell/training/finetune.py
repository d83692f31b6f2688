"""Fine-tuning in a run: once per fold and then on all rows, or once with a validation split or without one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mixwell.metrics.measure import measure
from mixwell.metrics.tasks import SINGLE
from mixwell.training import advice
from mixwell.training.baseline import Probing
from mixwell.training.checkpoints import drop_incomplete, newest_checkpoint
from mixwell.training.fitting import FitResult, fit
from mixwell.training.held_out import HeldOut, at_epoch, best_epoch, validation_parts
from mixwell.training.predict import logits
from mixwell.training.prepare import Ready
from mixwell.training.recipe import FOLD_PATIENCE
from mixwell.training.run_folder import RunFolder
from mixwell.utils.console import Reporter
from mixwell.utils.environment import rank
from mixwell.utils.files import atomic_path, write_json
from mixwell.utils.records import parse_json, writing


def train_folds(ready: Ready, base: Probing, folder: RunFolder, reporter: Reporter) -> tuple[FitResult, HeldOut]:
    """Train once per fold, choose the epoch; the history is that of the held-out rows of all folds together."""
    settings, folds = ready.settings, ready.folds
    assert settings.epochs is not None
    count = int(folds.max()) + 1
    reporter.say(advice.plan(settings, len(folds), count))
    fits: list[FitResult] = []
    logits = np.zeros((settings.epochs, len(folds), base.classes))
    for fold in range(count):
        out = np.flatnonzero(folds == fold)
        kept = np.flatnonzero(folds != fold)
        reporter.say(f"fold {fold + 1} of {count}: {len(kept)} rows to train on, {len(out)} held out")
        epochs = len(logits) if fits else None  # the first fold decides when more epochs do not help
        fitted, outputs = _train_fold(ready, base, kept, out, folder.folds / f"fold-{fold}", epochs, reporter)
        logits = logits[: len(outputs)]
        logits[:, out] = outputs
        fits.append(fitted)
    held = HeldOut("out_of_fold", logits[-1], base.y, ready.task, folds)
    best = best_epoch(logits, held)
    history = [
        {
            "epoch": at + 1,
            "step": fits[0].history[at]["step"],
            "train_loss": float(np.mean([each.history[at]["train_loss"] for each in fits])),
            "learning_rate": fits[0].history[at]["learning_rate"],
            "validation": _with_loss(measure(logits[at], base.y, ready.task)),
        }
        for at in range(len(logits))
    ]
    return dataclasses.replace(fits[0], history=history, best_epoch=best), at_epoch(held, logits[best - 1])


def _train_fold(
    ready: Ready, base: Probing, kept: Any, out: Any, place: Path, epochs: int | None, reporter: Reporter
) -> tuple[FitResult, Any]:
    """Train on some rows; return the training and what it says about the others after each epoch (E, N, C).

    Without a number of epochs it ends when the others' loss has not fallen for some.
    A fold takes a minute or so and writes nothing until it is over: one that was stopped is trained again.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save_file

    numbers, about = place.with_suffix(".safetensors"), place.with_suffix(".json")
    if about.is_file():  # written last; one that was damaged is trained again
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, SafetensorError):
            fitted, kept_logits = FitResult(**parse_json(about.read_text(encoding="utf-8"))), load_file(str(numbers))
            if kept_logits["logits"].shape[1:] == (len(out), base.classes):
                return fitted, kept_logits["logits"]
    base.start(kept)
    rows = ready.rows["train"]
    logits: list[Any] = []
    fitted = fit(
        ready.loaded.model, ready.loaded.tokenizer, rows.select(kept), rows.select(out), ready.settings,
        task=ready.task, reporter=reporter, keep_last=True, epoch_logits=logits, stop_after=epochs,
        stop_when=_stagnation(ready, base, kept, out, logits) if epochs is None else None,
    )  # fmt: skip
    stacked = np.stack(logits).astype(np.float32)
    if rank() == 0:
        with writing(place.parent):
            with atomic_path(numbers) as path:
                save_file({"logits": stacked}, str(path))
            write_json(about, dataclasses.asdict(fitted))
    return fitted, stacked


def _stagnation(ready: Ready, base: Probing, kept: Any, out: Any, logits: list[Any]) -> Callable[[], bool]:
    """Tells whether the held-out loss, after a temperature, was lowest some epochs ago; `logits` grows by epoch."""
    patience = min(ready.settings.patience, FOLD_PATIENCE)
    known = np.isin(base.y[out], base.y[kept]) if ready.task == SINGLE else np.ones(len(out), dtype=bool)
    labels, losses = base.y[out][known], list[float]()

    def stagnates() -> bool:
        if not patience or not known.any():
            return False
        outputs = np.asarray(logits[-1][known], dtype=np.float64)
        losses.append(HeldOut("validation", outputs, labels, ready.task, np.zeros(len(labels))).best_loss())
        return len(losses) - 1 - int(np.argmin(losses)) >= patience

    return stagnates


def train_final(ready: Ready, base: Probing, chosen: FitResult, folder: RunFolder, reporter: Reporter) -> FitResult:
    """Train on all rows with the number of epochs that the folds chose."""
    rows = ready.rows["train"]
    reporter.say(f"final training: all {len(rows)} rows, {chosen.best_epoch} of {ready.settings.epochs} epochs")
    base.start(np.arange(len(rows)))
    done = _fit_from_checkpoint(ready, rows, None, folder.checkpoints, reporter, stop_after=chosen.best_epoch)
    return dataclasses.replace(done, history=chosen.history, best_epoch=chosen.best_epoch, epochs=chosen.epochs)


def _with_loss(metrics: dict[str, float]) -> dict[str, float]:
    return {**metrics, "loss": metrics.get("nll", metrics.get("mse", 0.0))}


def train_once(ready: Ready, base: Probing, folder: RunFolder, reporter: Reporter) -> tuple[FitResult, HeldOut | None]:
    """Train once, with the validation split or without one."""
    rows, validation = ready.rows["train"], ready.rows.get("validation")
    base.start(np.arange(len(rows)))
    fitted = _fit_from_checkpoint(ready, rows, validation, folder.checkpoints, reporter)
    if validation is None:
        return fitted, None
    outputs = logits(
        ready.loaded.model, ready.loaded.tokenizer, validation, batch_size=ready.settings.eval_batch_size
    ).astype(np.float64)
    return fitted, HeldOut(
        "validation", outputs, ready.labels("validation"), ready.task, validation_parts(len(outputs))
    )


def _fit_from_checkpoint(
    ready: Ready, rows: Any, held: Any, place: Path, reporter: Reporter, **options: Any
) -> FitResult:
    """`fit` from the newest complete checkpoint in a folder."""
    start, faults = newest_checkpoint(place)
    for fault in faults:
        reporter.note(fault)
    if rank() == 0:
        drop_incomplete(place)
    return fit(
        ready.loaded.model, ready.loaded.tokenizer, rows, held, ready.settings, task=ready.task, reporter=reporter,
        checkpoints=place, start=start, **options,
    )  # fmt: skip
