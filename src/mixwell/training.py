"""From data, a model and a method to a trained, calibrated classifier, on an unmodified Trainer.

`fit` trains a loaded model on tokenised data, in memory or with checkpoints; `train` does all of a run: data, splits,
model, `fit`, temperature, test metrics and the run folder; `resume` continues one that was stopped.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixwell import runs
from mixwell.errors import MixwellError, OptionError, RunError
from mixwell.progress import (
    Reporter,
    best_metric,
    history,
    make_callbacks,
    make_reporter,
    training_arguments,
)
from mixwell.runs import Interrupted, RunFolder, StopSignal
from mixwell.settings import TrainSettings

__all__ = ["FitResult", "Interrupted", "RunResult", "TrainSettings", "fit", "resume", "train"]


@dataclass
class FitResult:
    """What training gave; the model that was passed in now has the weights of the best epoch.

    Attributes:
        history: a row an epoch: `epoch`, `step`, `train_loss`, `learning_rate`, `validation` (loss and metrics).
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
    test: Any = None,
) -> FitResult:
    """Train a model; it is left with the weights of the best epoch, and detached.

    Seeds are set so that runs of two methods with one seed share the order of the rows and the dropout masks (and the
    head, if `models.load` was given that seed).

    Args:
        model: a transformers classifier.
        tokenizer: its tokenizer, for padding.
        train: tokenised rows, from `mixwell.data.tokenise`.
        validation: tokenised rows that choose the best epoch.
        settings: those of training are used; data, model and output are not.
        task: `single_label`, `multi_label` or `regression`.
        reporter: is told of the progress.
        checkpoints: the folder for checkpoints; None keeps the best weights in memory and writes nothing.
        start: a complete checkpoint to continue from.
        test: tokenised rows; with `watch_test` their metrics stand in each row of the history under `test`.

    Raises:
        Interrupted: a signal came; the last checkpoint is complete. Only with `checkpoints`.
        RunError: the loss is no number, or a checkpoint cannot be written.
    """
    import tempfile

    import numpy as np
    from transformers import DataCollatorWithPadding, EarlyStoppingCallback, PrinterCallback, Trainer, set_seed

    from mixwell import calibration
    from mixwell.mixer import attach
    from mixwell.models import default_learning_rate

    if checkpoints is not None and (settings.updates_per_batch > 1 or settings.watch_test):
        # A resumed Trainer skips batches by the count of updates, so it would not come back to the same one.
        raise OptionError(
            "updates_per_batch and watch_test are for runs in memory (compare, paper), not for run folders"
        )
    reporter = reporter or Reporter()
    rate = settings.learning_rate or default_learning_rate(sum(p.numel() for p in model.parameters()))
    names = {name for name, info in calibration.METRICS.items() if task in info.tasks}
    options = method_options(settings, train, task, model.config.num_labels)
    timing: dict[str, float] = {}
    stop = StopSignal()
    state = None if start is None else runs.read_state(start)
    config = copy.deepcopy(vars(model.config))
    mixer = attach(model, settings.method, **options)
    try:
        if state is None or not runs.training_over(state):
            lengths = [len(ids) for ids in validation["input_ids"]]
            with tempfile.TemporaryDirectory() as nowhere, quiet_libraries():
                keep = best_in_memory(best_metric(settings.best_metric, task)) if checkpoints is None else None
                callbacks = make_callbacks(
                    reporter, seed=settings.seed, metric_names=names, timing=timing, checkpoints=checkpoints,
                    save_steps=settings.save_steps, stop=stop,
                )  # fmt: skip
                arguments = training_arguments(settings, task, rate, str(checkpoints or nowhere))
                if keep is not None:
                    arguments.save_strategy = "no"
                if settings.watch_test and test is not None:
                    callbacks.append(watch_rows(test, tokenizer, settings.eval_batch_size, task))
                if settings.patience:
                    callbacks.append(EarlyStoppingCallback(early_stopping_patience=settings.patience))
                with refusals(settings):
                    trainer = Trainer(
                        model=model,
                        args=arguments,
                        train_dataset=train,
                        # Sorted by length: less padding, and the order does not matter here.
                        eval_dataset=validation.select(np.argsort(lengths, kind="stable")),
                        data_collator=DataCollatorWithPadding(tokenizer),
                        processing_class=tokenizer,
                        compute_metrics=lambda found: calibration.metrics(found.predictions, found.label_ids, task),
                        preprocess_logits_for_metrics=lambda logits, labels: (
                            logits[0] if isinstance(logits, tuple) else logits
                        ),
                        # The mixer's first: what it keeps is in a checkpoint before the manifest is.
                        callbacks=[mixer.callback(), *callbacks, *([keep] if keep is not None else [])],
                    )
                trainer.remove_callback(PrinterCallback)
                if settings.updates_per_batch > 1:
                    loader = Repeated(trainer.get_train_dataloader(), settings.updates_per_batch)
                    trainer.get_train_dataloader = lambda: loader
                set_seed(settings.seed)
                try:
                    with (
                        refusals(settings, lambda: trainer.state.log_history),
                        stop.watching() if checkpoints else nullcontext(),
                        runs.writing(checkpoints or Path(nowhere)),
                        runs.native_names(model),
                    ):
                        trainer.train(resume_from_checkpoint=None if start is None else str(start))
                finally:
                    reporter.end()
                state = dataclasses.asdict(trainer.state)
                if keep is not None:
                    model.load_state_dict(keep.weights)
                    state["best_global_step"] = keep.step
    finally:
        mixer.detach()
        vars(model.config).update(config)  # Trainer changes use_cache and the ids of special tokens
    assert state is not None
    if checkpoints is not None:
        runs.load_weights(model, checkpoints / f"checkpoint-{state['best_global_step']}")
    model.eval()
    rows = history(state["log_history"], names)
    return FitResult(
        history=rows,
        best_epoch=next(row["epoch"] for row in rows if row["step"] == state["best_global_step"]),
        epochs=len(rows),
        steps=state["global_step"],
        stopped_early=state["global_step"] < state["max_steps"],
        learning_rate=rate,
        seconds_per_step=timing["seconds"] / timing["steps"] if timing else None,
        mixer=mixer.to_dict(),
    )


@contextmanager
def refusals(settings: TrainSettings, log: Callable[[], list[dict[str, Any]]] = list) -> Iterator[None]:
    """Say which settings of the user's it may be that Trainer, or a library it calls, fails over.

    After the first evaluation they have shown that they work, and a failure is something else.

    Args:
        settings: of the run.
        log: gives Trainer's history.
    """
    import torch

    try:
        yield
    except (MixwellError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        words = [f"--set {name}={value}" for name, value in settings.arguments.items()]
        words += [f"--report-to {settings.report_to}"] if settings.report_to != "none" else []
        if not words or any("eval_loss" in entry for entry in log()):
            raise
        why = " ".join(str(error).split()) or type(error).__name__
        raise OptionError(f"Trainer does not work with {', '.join(words)}: {why}") from error


def method_options(settings: TrainSettings, train: Any, task: str, classes: int) -> dict[str, Any]:
    """The options for `attach`, with label smoothing and class weights where they are asked for.

    Args:
        settings: those of training.
        train: the training rows.
        task: `single_label`, `multi_label` or `regression`.
        classes: how many the model has; a small sample may lack some.
    """
    import numpy as np

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


def best_in_memory(metric: str) -> Any:
    """A callback that keeps a copy of the best epoch's weights."""
    from transformers import TrainerCallback

    class KeepBest(TrainerCallback):
        def __init__(self) -> None:
            self.best: float | None = None
            self.step = 0
            self.weights: dict[str, Any] = {}

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            value = kwargs["metrics"][f"eval_{metric}"] * (-1 if args.greater_is_better else 1)
            if self.best is None or value < self.best:
                self.best, self.step = value, state.global_step
                self.weights = {
                    name: tensor.detach().to("cpu", copy=True) for name, tensor in kwargs["model"].state_dict().items()
                }

    return KeepBest()


def watch_rows(rows: Any, tokenizer: Any, batch_size: int, task: str) -> Any:
    """A callback that adds the metrics of more rows to the log of every evaluation, for `history`."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            import numpy as np

            from mixwell import calibration
            from mixwell.prediction import logits

            found = logits(kwargs["model"], tokenizer, rows, batch_size=batch_size)
            metrics = calibration.metrics(found, np.asarray(rows.with_format("numpy")["labels"]), task)
            state.log_history.append({"step": state.global_step, "test": metrics})

    return Watch()


class Repeated:
    """A loader that gives each mini-batch several times, one after the other."""

    def __init__(self, loader: Any, times: int) -> None:
        self.loader = loader
        self.times = times

    def __len__(self) -> int:
        return self.times * len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return (dict(batch) for batch in self.loader for _ in range(self.times))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence the bars, logs and warnings of transformers and datasets inside; ours say what matters."""
    import warnings

    import datasets
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    others = datasets.are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
        if not others:
            datasets.enable_progress_bars()


# --- a whole run ---------------------------------------------------------------------------------------------------


@dataclass
class RunResult:
    """A finished run.

    Attributes:
        folder: the run folder.
        metrics: what metrics.json holds; empty in processes other than the first.
        was_finished: whether there was nothing left to do.
    """

    folder: Path
    metrics: dict[str, Any]
    was_finished: bool = False


def train(settings: TrainSettings, *, quiet: bool = False) -> RunResult:
    """Do a whole run and write its folder.

    Raises:
        MixwellError: of some kind, for all that the user can put right.
    """
    reporter = make_reporter(quiet)
    try:
        return _run(settings, RunFolder(settings.run_folder()), reporter, None)
    finally:
        reporter.end()


def resume(path: str | Path, *, quiet: bool = False) -> RunResult:
    """Continue a run from its newest complete checkpoint; on CPU the weights end up the same, bit for bit.

    Raises:
        RunError: there is no run, its data changed, or another process is at it.
    """
    folder = RunFolder(path)
    record = folder.read_record()
    reporter = make_reporter(quiet)
    try:
        return _run(TrainSettings.from_dict(record["settings"]), folder, reporter, record)
    finally:
        reporter.end()


def _run(settings: TrainSettings, folder: RunFolder, reporter: Reporter, record: dict[str, Any] | None) -> RunResult:
    import torch

    from mixwell import data as texts
    from mixwell import models
    from mixwell.mixer import attach
    from mixwell.modelcard import make_record, read_metrics, write_results

    settings.check()
    first, new = runs.rank() == 0, record is None
    if record is None and first:
        folder.check_new()
    if record is not None and folder.finished:
        if first and not settings.keep_checkpoints and folder.checkpoints.exists():
            with folder.lock(new=False):
                runs.remove_checkpoints(folder.checkpoints)
        return RunResult(folder.path, read_metrics(folder.path), was_finished=True)
    began = time.monotonic()
    with quiet_libraries():
        found = settings.load_data(lambda done: reporter.rows("reading", done))
        if record is not None and record["data"]["fingerprint"] != found.fingerprint:
            raise RunError(
                f"{settings.data}: the data changed since the run {folder.path} began; bring the old data back"
            )
        if record is not None and record["processes"] != runs.processes():
            raise RunError(
                f"{folder.path} was begun by {record['processes']} processes, not {runs.processes()}; resume it as it "
                f"was begun"
            )
        if settings.batch_size > found.train.num_rows:
            raise OptionError(
                f"batch size {settings.batch_size} is larger than the {found.train.num_rows} training rows; use "
                f"--batch-size {max(2, found.train.num_rows // 4)} or fewer"
            )
        loaded = models.load(
            settings.model, task=found.task, labels=found.labels, seed=settings.seed,
            trust_remote_code=settings.trust_remote_code,
        )  # fmt: skip
        length = min(settings.max_length, loaded.longest)
        notes = [*found.notes, *loaded.notes]
        if length < settings.max_length:
            notes.append(f"{settings.model} takes at most {length} tokens: longer texts are cut there")
        rows = {}
        for name, table in found.splits.items():
            tell = functools.partial(reporter.rows, f"tokenising {name}")
            rows[name] = texts.tokenise(
                table, loaded.tokenizer, max_length=length, cache_dir=settings.cache_dir, progress=tell
            )
        reporter.end()
        # What can be refused is refused before anything is written.
        options = method_options(settings, rows["train"], found.task, loaded.model.config.num_labels)
        with attach(loaded.model, settings.method, **options) as mixer:
            about = mixer.to_dict()
        training_arguments(settings, found.task, 1e-5, str(folder.checkpoints))
        with folder.lock(new=record is None) if first else nullcontext(), runs.stoppable(folder.path):
            for note in notes:
                reporter.note(note)
            if record is None:
                record = make_record(settings, found, loaded, about, length, notes)
                if first:
                    folder.write_record(record)
            elif record["versions"] != runs.versions():
                reporter.note("versions changed since the run began: the result may differ in the last digits")
            if first:
                found.save_splits(folder.path / "splits.json")
            start, faults = folder.newest_checkpoint()
            for fault in faults:
                reporter.note(fault)
            if first:
                folder.drop_incomplete()
            try:
                fitted = fit(
                    loaded.model, loaded.tokenizer, rows["train"], rows["validation"], settings,
                    task=found.task, reporter=reporter, checkpoints=folder.checkpoints, start=start, test=rows["test"],
                )  # fmt: skip
            except OptionError:
                if first and new and start is None:
                    folder.discard()  # so that the same command works once the option is put right
                raise
            except (torch.OutOfMemoryError, MemoryError) as error:
                raise RunError(
                    f"out of memory with batches of {settings.batch_size} rows of at most {length} tokens; train anew "
                    f"with a lower --batch-size or --max-length, or a smaller --model"
                ) from error
            if not first:
                return RunResult(folder.path, {})
            metrics = write_results(folder, settings, record, found, loaded, rows, length, fitted, reporter)
            seconds = time.monotonic() - began
            record["timing"] = {"seconds": seconds, "seconds_per_step": fitted.seconds_per_step}
            folder.write_record({key: value for key, value in record.items() if key != "format"})
            folder.finish(metrics, keep_checkpoints=settings.keep_checkpoints)
    return RunResult(folder.path, metrics)
