"""One training: `fit` trains a loaded model on tokenised rows with an unmodified Trainer, in memory or on disk."""

from __future__ import annotations

import copy
import dataclasses
import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DataCollatorWithPadding, EarlyStoppingCallback, PrinterCallback, Trainer, set_seed

from mixwell.core.compat import sample_rows_by
from mixwell.core.mixer import Mixer
from mixwell.methods.attach import attach
from mixwell.metrics.measure import measure
from mixwell.metrics.scores import METRICS
from mixwell.training import callbacks, recipe
from mixwell.training.arguments import best_metric, training_arguments
from mixwell.training.averaging import WeightAverage
from mixwell.training.checkpoints import load_weights, native_names, read_state, training_over
from mixwell.training.length_batches import LengthBatches
from mixwell.training.optimiser import frozen_words, head_optimiser
from mixwell.training.pair_loss import pair_loss_beside
from mixwell.training.precision import in_full_precision, own_forward, own_forward_afterwards
from mixwell.training.settings import TrainSettings
from mixwell.training.trainer_errors import quiet_libraries, refusals
from mixwell.utils.console import Reporter
from mixwell.utils.errors import MixwellError, OptionError
from mixwell.utils.records import damage, writing
from mixwell.utils.signals import StopSignal


@dataclass
class FitResult:
    """What training gave; the model that was passed in now has the weights of the best epoch.

    Attributes:
        history: a row per epoch: `epoch`, `step`, `train_loss`, `learning_rate`, `validation` (loss and metrics; only
            where there are validation rows).
        best_epoch: the epoch whose weights the model has, counted from 1.
        epochs: how many were trained.
        steps: optimiser steps in all.
        stopped_early: whether patience ran out before the last epoch.
        learning_rate: the highest.
        seconds_per_step: mean time of a step without evaluation and saving; None when nothing was left to train.
        mixer: `Mixer.to_dict()`.
    """

    history: list[dict[str, Any]]
    best_epoch: int
    epochs: int
    steps: int
    stopped_early: bool
    learning_rate: float
    seconds_per_step: float | None
    mixer: dict[str, Any]


def fit(
    model: Any,
    tokenizer: Any,
    train: Any,
    validation: Any,
    settings: TrainSettings,
    *,
    task: str = "single_label",
    reporter: Reporter | None = None,
    checkpoints: Path | None = None,
    start: Path | None = None,
    watch: Any = None,
    updates_per_batch: int = 1,
    stop_after: int | None = None,
    keep_last: bool = False,
    epoch_logits: list[Any] | None = None,
    before_choice: Callable[[Any], None] | None = None,
    stop_when: Callable[[], bool] | None = None,
) -> FitResult:
    """Train a model; it is left with the weights of the best epoch, or of the last one, and detached.

    Seeds are set so that runs of two methods with one seed share the order of the rows and the dropout masks (and the
    head, if `models.load` was given that seed).

    Args:
        model: a transformers classifier.
        tokenizer: its tokenizer, for padding.
        train: tokenised rows, from `mixwell.data.tokenise`.
        validation: tokenised rows that choose the best epoch; None for none, then the last epoch is kept.
        settings: those of training are used; data, model and output are not.
        task: `single_label`, `multi_label` or `regression`.
        reporter: is told of the progress.
        checkpoints: the folder for checkpoints; None keeps the best weights in memory and writes nothing.
        start: a complete checkpoint to continue from.
        watch: tokenised rows whose metrics stand in each row of the history under `test`; they choose nothing.
        updates_per_batch: updates with each mini-batch, one after the other, each with draws of its own.
        stop_after: end after so many epochs, with the learning rates of a training of `settings.epochs`.
        keep_last: keep the last epoch's weights; validation only watches.
        epoch_logits: is given the logits (N, C) of the validation rows after each epoch.
        before_choice: is called with the model of the last epoch, before it gets the weights of the best.
        stop_when: is asked after each epoch's validation whether to end.

    Raises:
        Interrupted: a signal came; the last checkpoint is complete. Only with `checkpoints`.
        RunError: the loss is no number, or a checkpoint cannot be written.
    """
    # A resumed Trainer skips batches by the count of updates, so it would not come back to the same one.
    assert checkpoints is None or (updates_per_batch == 1 and watch is None)
    chosen = recipe.recipe(len(train), sum(p.numel() for p in model.parameters()), pooled=False)
    job = _Training(
        model, tokenizer, train, validation, recipe.fill_in(settings, chosen), task=task,
        reporter=reporter or Reporter(), checkpoints=checkpoints, start=start, watch=watch, stop_after=stop_after,
        updates_per_batch=updates_per_batch,
        keep_last=keep_last, epoch_logits=epoch_logits, before_choice=before_choice, stop_when=stop_when,
    )  # fmt: skip
    return job.run()


class _Training:
    """One training: the arguments of `fit`, and what it needs on the way."""

    def __init__(
        self, model: Any, tokenizer: Any, train: Any, validation: Any, settings: TrainSettings, *, task: str,
        reporter: Reporter, checkpoints: Path | None, start: Path | None, watch: Any, stop_after: int | None,
        updates_per_batch: int,
        keep_last: bool, epoch_logits: list[Any] | None, before_choice: Callable[[Any], None] | None,
        stop_when: Callable[[], bool] | None,
    ) -> None:  # fmt: skip
        self.model, self.tokenizer, self.train, self.settings = model, tokenizer, train, settings
        self.task, self.reporter, self.checkpoints, self.start = task, reporter, checkpoints, start
        self.watch, self.stop_after, self.epoch_logits = watch, stop_after, epoch_logits
        self.updates_per_batch, self.before_choice = updates_per_batch, before_choice
        self.stop_when = stop_when
        # Validation rows from short to long, and the numbers they had.
        self.watched = None if validation is None or not len(validation) else sorted_by_length(validation)
        self.keep_last = keep_last or self.watched is None
        self.metric_names = {name for name, info in METRICS.items() if task in info.tasks}
        self.timing: dict[str, float] = {}
        self.stop = StopSignal()

    def run(self) -> FitResult:
        """Train, or find that a checkpoint is of the end; leave the model with the weights to keep, detached."""
        model, settings = self.model, self.settings
        state = None if self.start is None else read_state(self.start)
        config = copy.deepcopy(vars(model.config))
        options = method_options(settings, self.train, self.task, model.config.num_labels)
        mixer = attach(model, settings.mixing, **options)
        try:
            if state is None or not training_over(state, self.stop_after):
                state = self._train(mixer)
        finally:
            mixer.detach()
            vars(model.config).update(config)  # Trainer changes use_cache and the ids of special tokens
        kept_step = state["global_step"] if self.keep_last else state["best_global_step"]
        if self.checkpoints is not None:
            load_weights(model, self.checkpoints / f"checkpoint-{kept_step}")
        model.eval()
        rows = callbacks.history(state["log_history"], self.metric_names)
        assert settings.learning_rate is not None
        return FitResult(
            history=rows,
            best_epoch=next(row["epoch"] for row in rows if row["step"] == kept_step),
            epochs=len(rows),
            steps=state["global_step"],
            stopped_early=state["global_step"] < state["max_steps"],
            learning_rate=settings.learning_rate,
            seconds_per_step=self.timing["seconds"] / self.timing["steps"] if self.timing else None,
            mixer=mixer.to_dict(),
        )

    def _train(self, mixer: Mixer) -> dict[str, Any]:
        """Train with Trainer; returns its state."""
        model, settings = self.model, self.settings
        with (
            tempfile.TemporaryDirectory() as nowhere,
            quiet_libraries(),
            frozen_words(model, settings.freeze_words),
            pair_loss_beside(model, mixer, settings.pair_loss) as loss,
            own_forward_afterwards(model),
        ):
            in_memory = not self.keep_last and self.checkpoints is None
            keep = callbacks.best_in_memory(best_metric(settings.best_metric, self.task)) if in_memory else None
            average = self._average()
            trainer = self._trainer(mixer, nowhere, loss, keep, average)
            set_seed(settings.seed)
            try:
                with (
                    refusals(settings, lambda: trainer.state.log_history),
                    self.stop.watching() if self.checkpoints else nullcontext(),
                    writing(self.checkpoints or Path(nowhere)),
                    native_names(model),
                ):
                    trainer.train(resume_from_checkpoint=None if self.start is None else str(self.start))
            except (MixwellError, torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:
                if self.start is None or self.timing:  # after a first step the checkpoint has shown that it works
                    raise
                raise damage(self.start, error, "remove that checkpoint and resume from the one before") from error
            finally:
                self.reporter.end()
            state = dataclasses.asdict(trainer.state)
            if average is not None:
                average.into_model()
            if self.before_choice is not None:
                with own_forward(model):
                    self.before_choice(model)
            if keep is not None:
                model.load_state_dict(keep.weights)
                state["best_global_step"] = keep.step
        return state

    def _average(self) -> WeightAverage | None:
        """What keeps the mean of the weights; None where the last ones are kept, or it cannot be taken."""
        sharded = any(
            self.settings.arguments.get(name) or os.environ.get(f"ACCELERATE_USE_{name.upper()}") == "true"
            for name in ("fsdp", "deepspeed")
        )
        averages = str(self.settings.arguments.get("optim", "")).startswith("schedule_free")  # which do so themselves
        if not self.settings.average or sharded or averages:
            return None
        return WeightAverage(self.model, self.settings.average, self.checkpoints, self.start)

    def _trainer(self, mixer: Mixer, nowhere: str, loss: Any, keep: Any, average: WeightAverage | None) -> Any:
        """An unmodified Trainer with our arguments, callbacks and optimiser."""
        settings = self.settings
        assert settings.learning_rate is not None
        arguments = training_arguments(
            settings, self.task, settings.learning_rate, str(self.checkpoints or nowhere),
            evaluate=self.watched is not None,
        )  # fmt: skip
        if self.checkpoints is None:
            arguments.save_strategy = "no"
        with refusals(settings):
            optimiser = head_optimiser(self.model, arguments, settings.head_rate or 1.0)
            trainer = Trainer(
                model=self.model,
                args=arguments,
                train_dataset=self.train,
                eval_dataset=None if self.watched is None else self.watched[0],
                data_collator=DataCollatorWithPadding(self.tokenizer),
                processing_class=self.tokenizer,
                compute_metrics=self._measure,
                preprocess_logits_for_metrics=lambda logits, labels: logits[0] if isinstance(logits, tuple) else logits,
                # The mixer's and the mean first: what they keep is in a checkpoint before the manifest is.
                callbacks=[each for each in (mixer.callback(), average, *self._callbacks(), keep) if each is not None],
                compute_loss_func=loss,
                **({} if optimiser is None else {"optimizers": (optimiser, None)}),
            )
        trainer.remove_callback(PrinterCallback)
        trainer.evaluate = in_full_precision(self.model, trainer.evaluate)
        if average is not None:
            trainer.evaluate = average.around(trainer.evaluate)
        if settings.group_by_length:
            lengths = [len(ids) for ids in self.train["input_ids"]]
            sample_rows_by(trainer, lambda: LengthBatches(lengths, arguments.train_batch_size))
        if self.updates_per_batch > 1:
            loader = callbacks.Repeated(trainer.get_train_dataloader(), self.updates_per_batch)
            trainer.get_train_dataloader = lambda: loader
        return trainer

    def _callbacks(self) -> list[Any]:
        settings = self.settings
        chosen = [callbacks.epoch_seeds(settings.seed)]
        if self.checkpoints is not None:
            chosen.append(callbacks.complete_checkpoints(self.checkpoints, settings.save_steps, self.stop))
        chosen.append(
            callbacks.WatchTraining(self.reporter, self.metric_names, self.timing, self.stop_after, self.stop_when)
        )
        if self.watch is not None:
            chosen.append(callbacks.watch_rows(self.watch, self.tokenizer, settings.eval_batch_size, self.task))
        if settings.patience and not self.keep_last:
            chosen.append(EarlyStoppingCallback(early_stopping_patience=settings.patience))
        return chosen

    def _measure(self, evaluation: Any) -> dict[str, float]:
        """Metrics of the validation rows; their logits are kept where somebody asked for them."""
        if self.epoch_logits is not None and self.watched is not None:
            self.epoch_logits.append(np.empty_like(evaluation.predictions))
            self.epoch_logits[-1][self.watched[1]] = evaluation.predictions
        return measure(evaluation.predictions, evaluation.label_ids, self.task)


def sorted_by_length(rows: Any) -> tuple[Any, Any]:
    """Rows from short to long, for less padding, and the numbers they had (N,)."""
    order = np.argsort([len(ids) for ids in rows["input_ids"]], kind="stable")
    return rows.select(order), order


def method_options(settings: TrainSettings, train: Any, task: str, classes: int) -> dict[str, Any]:
    """The options for `attach`, with label smoothing and class weights where they are asked for.

    Args:
        settings: those of training.
        train: the training rows.
        task: `single_label`, `multi_label` or `regression`.
        classes: how many the model has; a small sample may lack some.
    """
    options = dict(settings.method_options)
    if settings.label_smoothing:
        if task == "regression":
            raise OptionError("label_smoothing needs classes; the task is regression, so leave it out")
        options["label_smoothing"] = settings.label_smoothing
    if settings.class_weights == "balanced":
        if task != "single_label":
            raise OptionError(f"class_weights balanced needs one class a row; the task is {task}")
        counts = np.bincount(np.asarray(train["labels"]), minlength=classes)
        share = len(train) / np.count_nonzero(counts)
        options["class_weights"] = [float(share / count) if count else 0.0 for count in counts]
    return options
