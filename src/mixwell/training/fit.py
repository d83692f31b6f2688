"""One training: `fit` trains a loaded model on tokenised rows with an unmodified Trainer, in memory or on disk."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixwell import calibration, runs
from mixwell.errors import MixwellError, OptionError
from mixwell.progress import Reporter, best_metric, history, make_callbacks, training_arguments
from mixwell.runs import StopSignal
from mixwell.training import recipe
from mixwell.training.settings import TrainSettings


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
    test: Any = None,
    stop_after: int | None = None,
    keep_last: bool = False,
    epoch_logits: list[Any] | None = None,
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
        test: tokenised rows; with `watch_test` their metrics stand in each row of the history under `test`.
        stop_after: end after so many epochs, with the learning rates of a training of `settings.epochs`.
        keep_last: keep the last epoch's weights; validation only watches.
        epoch_logits: is given the logits (N, C) of the validation rows after each epoch.

    Raises:
        Interrupted: a signal came; the last checkpoint is complete. Only with `checkpoints`.
        RunError: the loss is no number, or a checkpoint cannot be written.
    """
    from transformers import DataCollatorWithPadding, EarlyStoppingCallback, PrinterCallback, Trainer, set_seed

    from mixwell.mixer import attach

    if checkpoints is not None and (settings.updates_per_batch > 1 or settings.watch_test):
        # A resumed Trainer skips batches by the count of updates, so it would not come back to the same one.
        raise OptionError(
            "updates_per_batch and watch_test are for runs in memory (compare, paper), not for run folders"
        )
    reporter = reporter or Reporter()
    chosen = recipe.recipe(len(train), sum(p.numel() for p in model.parameters()), pooled=False)
    settings = recipe.fill_in(settings, chosen)
    assert settings.learning_rate is not None
    names = {name for name, info in calibration.METRICS.items() if task in info.tasks}
    options = method_options(settings, train, task, model.config.num_labels)
    watched = None if validation is None or not len(validation) else sorted_by_length(validation)
    keep_last = keep_last or watched is None
    timing: dict[str, float] = {}
    stop = StopSignal()
    state = None if start is None else runs.read_state(start)
    config = copy.deepcopy(vars(model.config))
    mixer = attach(model, settings.mixing, **options)
    try:
        if state is None or not runs.training_over(state, stop_after):
            with (
                tempfile.TemporaryDirectory() as nowhere,
                quiet_libraries(),
                frozen_words(model, settings.freeze_words),
            ):
                keep = None if keep_last or checkpoints else best_in_memory(best_metric(settings.best_metric, task))
                callbacks = make_callbacks(
                    reporter, seed=settings.seed, metric_names=names, timing=timing, checkpoints=checkpoints,
                    save_steps=settings.save_steps, stop=stop, stop_after=stop_after,
                )  # fmt: skip
                arguments = training_arguments(
                    settings, task, settings.learning_rate, str(checkpoints or nowhere), evaluate=watched is not None
                )
                if checkpoints is None:
                    arguments.save_strategy = "no"
                if settings.watch_test and test is not None:
                    callbacks.append(watch_rows(test, tokenizer, settings.eval_batch_size, task))
                if settings.patience and not keep_last:
                    callbacks.append(EarlyStoppingCallback(early_stopping_patience=settings.patience))

                def measure(found: Any) -> dict[str, float]:
                    if epoch_logits is not None and watched is not None:
                        epoch_logits.append(np.empty_like(found.predictions))
                        epoch_logits[-1][watched[1]] = found.predictions
                    return calibration.metrics(found.predictions, found.label_ids, task)

                with refusals(settings):
                    optimiser = head_optimiser(model, arguments, settings.head_rate or 1.0)
                    trainer = Trainer(
                        model=model,
                        args=arguments,
                        train_dataset=train,
                        eval_dataset=None if watched is None else watched[0],
                        data_collator=DataCollatorWithPadding(tokenizer),
                        processing_class=tokenizer,
                        compute_metrics=measure,
                        preprocess_logits_for_metrics=lambda logits, labels: (
                            logits[0] if isinstance(logits, tuple) else logits
                        ),
                        # The mixer's first: what it keeps is in a checkpoint before the manifest is.
                        callbacks=[mixer.callback(), *callbacks, *([keep] if keep is not None else [])],
                        **({} if optimiser is None else {"optimizers": (optimiser, None)}),
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
    kept_step = state["global_step"] if keep_last else state["best_global_step"]
    if checkpoints is not None:
        runs.load_weights(model, checkpoints / f"checkpoint-{kept_step}")
    model.eval()
    rows = history(state["log_history"], names)
    return FitResult(
        history=rows,
        best_epoch=next(row["epoch"] for row in rows if row["step"] == kept_step),
        epochs=len(rows),
        steps=state["global_step"],
        stopped_early=state["global_step"] < state["max_steps"],
        learning_rate=settings.learning_rate,
        seconds_per_step=timing["seconds"] / timing["steps"] if timing else None,
        mixer=mixer.to_dict(),
    )


def sorted_by_length(rows: Any) -> tuple[Any, Any]:
    """Rows from short to long, for less padding, and the numbers they had (N,)."""
    order = np.argsort([len(ids) for ids in rows["input_ids"]], kind="stable")
    return rows.select(order), order


@contextmanager
def frozen_words(model: Any, freeze: bool | None) -> Iterator[None]:
    """Keep the word embeddings out of training inside, and give them back as they were."""
    words = model.get_input_embeddings() if freeze else None
    weight = getattr(words, "weight", None)
    if weight is None or not weight.requires_grad or tied(model, weight):
        yield
        return
    weight.requires_grad_(False)
    try:
        yield
    finally:
        weight.requires_grad_(True)


def head_optimiser(model: Any, arguments: Any, times: float) -> Any:
    """An optimiser of Trainer's kind in which the head has a higher learning rate; None where Trainer's own will do."""
    from transformers import Trainer

    body = f"{getattr(model, 'base_model_prefix', '')}."
    names = [name for name, each in model.named_parameters() if each.requires_grad]
    head = {name for name in names if not name.startswith(body)}
    if times == 1 or not head or len(head) == len(names) or arguments.deepspeed or arguments.fsdp:
        return None
    kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    # Biases and norms do not decay, as in Trainer.
    decays = {name for name in names if not name.endswith("bias") and "norm" not in name.lower()}
    groups = []
    for in_head in (False, True):
        for decay in (True, False):
            members = [
                each
                for name, each in model.named_parameters()
                if each.requires_grad and (name in head) == in_head and (name in decays) == decay
            ]
            if members:
                rate = arguments.learning_rate * (times if in_head else 1)
                decayed = arguments.weight_decay if decay else 0.0
                groups.append({"params": members, "lr": rate, "weight_decay": decayed})
    return kind(groups, **options)


def tied(model: Any, weight: Any) -> bool:
    """Whether a weight is shared by several modules, which might not want it frozen."""
    places = [name for name, each in model.named_parameters(remove_duplicate=False) if each is weight]
    return len(places) > 1


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
