"""Fine-tuning in a run: once per fold and then on all rows, or once with a validation split or without one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

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


class Starts(Protocol):
    """What gives a model its first weights.

    Attributes:
        classes: C.
        y: labels of the training rows: (N,), or (N, C) for multi-label.
    """

    classes: int
    y: Any

    def start(self, rows: Any) -> None:
        """Give the model the weights with which a training on some rows begins, by their numbers."""


class FoldTraining:
    """The trainings of one way to train, fold by fold.

    Attributes:
        done: the folds that are trained.
        cost: of them, in trainings on all rows with all epochs.
    """

    def __init__(self, ready: Ready, base: Starts, place: Path | None) -> None:
        """Begin; `place` is the folder for what each fold leaves, None to leave nothing."""
        assert ready.settings.epochs is not None
        self.ready, self.base, self.place = ready, base, place
        self.folds = ready.folds
        self.count = int(self.folds.max()) + 1
        self.done: list[int] = []
        self.cost = 0.0
        self._fits: list[FitResult] = []
        self._logits = np.zeros((ready.settings.epochs, len(self.folds), base.classes))

    def train(self, fold: int, reporter: Reporter) -> None:
        """Train without one fold; the first one decides when more epochs do not help."""
        out, kept = np.flatnonzero(self.folds == fold), np.flatnonzero(self.folds != fold)
        epochs = len(self._logits) if self._fits else None
        place = None if self.place is None else self.place / f"fold-{fold}"
        fitted, outputs = _train_fold(self.ready, self.base, kept, out, place, epochs, reporter)
        self.cost += len(kept) / len(self.folds) * len(outputs) / (self.ready.settings.epochs or 1)
        self._logits = self._logits[: len(outputs)]
        self._logits[:, out] = outputs
        self._fits.append(fitted)
        self.done.append(fold)

    def chosen(self, folds: list[int] | None = None) -> tuple[FitResult, HeldOut]:
        """The best epoch on the folds so far, or on some of them; the history is of their held-out rows together."""
        folds = folds or self.done
        rows = np.flatnonzero(np.isin(self.folds, folds))
        parts = self.folds[rows] if len(folds) > 1 else validation_parts(len(rows))
        logits, labels = self._logits[:, rows], self.base.y[rows]
        held = HeldOut("out_of_fold", logits[-1], labels, self.ready.task, parts)
        best = best_epoch(logits, held)
        history = [
            {
                "epoch": at + 1,
                "step": self._fits[0].history[at]["step"],
                "train_loss": float(np.mean([fitted.history[at]["train_loss"] for fitted in self._fits])),
                "learning_rate": self._fits[0].history[at]["learning_rate"],
                "validation": _with_loss(measure(logits[at], labels, self.ready.task)),
            }
            for at in range(len(logits))
        ]
        fitted = dataclasses.replace(self._fits[0], history=history, best_epoch=best)
        return fitted, at_epoch(held, logits[best - 1])


def train_folds(ready: Ready, base: Probing, folder: RunFolder, reporter: Reporter) -> tuple[FitResult, HeldOut]:
    """Train once per fold and choose the epoch."""
    training = FoldTraining(ready, base, folder.folds)
    reporter.say(advice.plan(ready.settings, len(ready.folds), training.count))
    for fold in range(training.count):
        out = int((ready.folds == fold).sum())
        rows = len(ready.folds) - out
        reporter.say(f"fold {fold + 1} of {training.count}: {rows} rows to train on, {out} held out")
        training.train(fold, reporter)
    return training.chosen()


def _train_fold(
    ready: Ready, base: Starts, kept: Any, out: Any, place: Path | None, epochs: int | None, reporter: Reporter
) -> tuple[FitResult, Any]:
    """Train on some rows; return the training and what it says about the others after each epoch (E, N, C).

    Without a number of epochs it ends when the others' loss has not fallen for some.
    A fold takes a minute or so and writes nothing until it is over: one that was stopped is trained again.
    """
    shape = (len(out), base.classes)
    if place is not None and (earlier := _read_fold(place, shape)) is not None:
        return earlier
    base.start(kept)
    rows = ready.rows["train"]
    logits: list[Any] = []
    fitted = fit(
        ready.loaded.model, ready.loaded.tokenizer, rows.select(kept), rows.select(out), ready.settings,
        task=ready.task, reporter=reporter, keep_last=True, epoch_logits=logits, stop_after=epochs,
        stop_when=_stagnation(ready, base, kept, out, logits) if epochs is None else None,
    )  # fmt: skip
    stacked = np.stack(logits).astype(np.float32)
    if place is not None and rank() == 0:
        _write_fold(place, fitted, stacked)
    return fitted, stacked


def _read_fold(place: Path, shape: tuple[int, int]) -> tuple[FitResult, Any] | None:
    """What a fold left, with outputs (E, *shape); None where there is nothing or it was damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    about = place.with_suffix(".json")
    if about.is_file():  # written last
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, SafetensorError):
            fitted = FitResult(**parse_json(about.read_text(encoding="utf-8")))
            logits = load_file(str(place.with_suffix(".safetensors")))["logits"]
            if logits.shape[1:] == shape:
                return fitted, logits
    return None


def _write_fold(place: Path, fitted: FitResult, logits: Any) -> None:
    from safetensors.numpy import save_file

    with writing(place.parent):
        with atomic_path(place.with_suffix(".safetensors")) as path:
            save_file({"logits": logits}, str(path))
        write_json(place.with_suffix(".json"), dataclasses.asdict(fitted))


def _stagnation(ready: Ready, base: Starts, kept: Any, out: Any, logits: list[Any]) -> Callable[[], bool]:
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
