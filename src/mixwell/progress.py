"""What the user sees while something runs, and what Trainer is given: its arguments and callbacks.

Progress goes to stderr: a bar with loss, validation and time left on a terminal, a line an epoch elsewhere.
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell.errors import OptionError, RunError, nearest
from mixwell.runs import Interrupted, StopSignal, processes, prune, rank, write_manifest

if TYPE_CHECKING:
    from mixwell.training.settings import TrainSettings

# Fields of TrainingArguments that have an option of their own, or that a run depends on.
TAKEN = {
    "output_dir": "--output", "num_train_epochs": "--epochs", "per_device_train_batch_size": "--batch-size",
    "learning_rate": "--learning-rate", "warmup_steps": "--warmup", "weight_decay": "--weight-decay", "seed": "--seed",
    "lr_scheduler_type": "--scheduler", "label_smoothing_factor": "--label-smoothing", "save_steps": "--save-steps",
    "metric_for_best_model": "--best-metric", "report_to": "--report-to",
    "train_sampling_strategy": "--group-by-length", "per_device_eval_batch_size": "--eval-batch-size",
}  # fmt: skip
FIXED = {
    "eval_strategy", "save_strategy", "logging_strategy", "load_best_model_at_end", "greater_is_better", "eval_delay",
    "eval_on_start", "save_total_limit", "save_only_model", "restore_callback_states_from_checkpoint", "disable_tqdm",
    "resume_from_checkpoint", "ignore_data_skip", "auto_find_batch_size", "enable_jit_checkpoint", "batch_eval_metrics",
    "prediction_loss_only", "include_for_metrics", "do_train", "do_eval", "do_predict", "push_to_hub", "log_level",
    "logging_nan_inf_filter", "remove_unused_columns", "label_names", "eval_do_concat_batches", "use_cache",
    "dataloader_drop_last",  # it would drop validation rows too
    "hub_token", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision",
}  # fmt: skip


ROWS_A_LINE = 50_000


class Reporter:
    """Says nothing. The base of those that do."""

    def note(self, text: str) -> None:
        """Tell something worth knowing."""

    def say(self, text: str) -> None:
        """Tell a result."""

    def rows(self, doing: str, done: int, total: int | None = None) -> None:
        """So many rows are read or tokenised; `total` is None where it is not known yet."""

    def begin(self, steps: int, done: int) -> None:
        """Training begins: `steps` in all, `done` of them before."""

    def step(self, done: int, loss: float | None) -> None:
        """So many steps are done; `loss` is the latest known."""

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch is over; `row` is its line of the history."""

    def end(self) -> None:
        """Training is over."""


class PlainReporter(Reporter):
    """One line for each note and epoch, for pipes and logs."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._steps = self._first = self._done = 0
        self._rows: dict[str, int] = {}

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """See `Reporter`."""
        self._print(f"note: {text}")

    def say(self, text: str) -> None:
        """See `Reporter`."""
        self._print(text)

    def rows(self, doing: str, done: int, total: int | None = None) -> None:
        """See `Reporter`; a line every `ROWS_A_LINE` rows."""
        if done // ROWS_A_LINE > self._rows.get(doing, 0):
            self._rows[doing] = done // ROWS_A_LINE
            self._print(f"{doing}: {done:,}{f' of {total:,}' if total else ''} rows")

    def begin(self, steps: int, done: int) -> None:
        """See `Reporter`."""
        self._start, self._steps, self._first, self._done = time.monotonic(), steps, done, done
        self._print(f"training: {steps} steps" + (f", continuing after {done}" if done else ""))

    def step(self, done: int, loss: float | None) -> None:
        """See `Reporter`."""
        self._done = done

    def epoch(self, row: dict[str, Any]) -> None:
        """See `Reporter`."""
        spent = time.monotonic() - self._start
        left = spent / max(self._done - self._first, 1) * (self._steps - self._done)
        self._print(f"{epoch_line(row)}  step {self._done}/{self._steps}  at most {clock(left)} left")


class TerminalReporter(PlainReporter):
    """A bar on a terminal."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console

        self._console = Console(stderr=True)
        self._bar: Any = None
        self._task: Any = None

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def rows(self, doing: str, done: int, total: int | None = None) -> None:
        """See `Reporter`."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                console=self._console, transient=True,
            )  # fmt: skip
            self._bar.start()
        if doing not in self._rows:
            self._rows[doing] = self._bar.add_task(doing, total=total)
        self._bar.update(self._rows[doing], completed=done, total=total)

    def begin(self, steps: int, done: int) -> None:
        """See `Reporter`."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.end()
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=steps, completed=done, loss="-")
        self._bar.start()

    def step(self, done: int, loss: float | None) -> None:
        """See `Reporter`."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, loss="-" if loss is None else f"{loss:.4f}")

    def epoch(self, row: dict[str, Any]) -> None:
        """See `Reporter`."""
        self._print(epoch_line(row))

    def end(self) -> None:
        """See `Reporter`."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def make_reporter(quiet: bool = False) -> Reporter:
    """The reporter for this process: silent, a bar, or lines."""
    if quiet or rank() != 0:
        return Reporter()
    if sys.stderr.isatty() and not os.environ.get("CI"):
        return TerminalReporter()
    return PlainReporter()


def epoch_line(row: dict[str, Any]) -> str:
    """One epoch of a history as a line."""
    loss = row.get("train_loss")
    parts = [f"epoch {row['epoch']:>3}", f"train loss {'-' if loss is None else format(loss, '.4f')}"]
    shown = row.get("validation", {})
    names = [name for name in ("loss", "accuracy", "micro_f1", "macro_f1", "ece", "mse", "pearson") if name in shown]
    if names:
        parts.append("validation " + " ".join(f"{name} {shown[name]:.4f}" for name in names))
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds, or hours."""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def history(log: list[dict[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    """Trainer's log as one row per epoch: `epoch`, `step`, `train_loss`, `learning_rate` and `validation` metrics.

    Rows have metrics of `test` too where it was watched, and none of `validation` where nothing was held out.

    Args:
        log: `TrainerState.log_history`.
        names: the metrics to keep.
    """
    rows: list[dict[str, Any]] = []
    total, since, last = 0.0, 0, 0
    rate = None
    evaluated = any("eval_loss" in entry for entry in log)

    def add(entry: dict[str, Any]) -> None:
        nonlocal total, since
        row = {
            "epoch": math.ceil(round(entry["epoch"], 6)),
            "step": int(entry["step"]),
            "train_loss": total / since if since else None,
            "learning_rate": rate,
        }
        rows.append(row)
        total, since = 0.0, 0

    for entry in log:
        if "loss" in entry:
            steps = int(entry["step"]) - last
            last = int(entry["step"])
            total, since = total + entry["loss"] * steps, since + steps
            rate = entry.get("learning_rate", rate)
            if not evaluated and round(entry["epoch"], 6) == round(entry["epoch"]):
                add(entry)
        elif "eval_loss" in entry:
            kept = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
            kept["loss"] = kept.get("nll", kept.get("mse"))
            add(entry)
            rows[-1]["validation"] = {key: kept[key] for key in sorted(kept) if key == "loss" or key in names}
        elif "test" in entry:
            rows[-1]["test"] = {key: entry["test"][key] for key in sorted(entry["test"]) if key in names}
    return rows


# --- arguments of Trainer -------------------------------------------------------------------------------------------


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise `OptionError` for a field of TrainingArguments that is unknown or not free."""
    if not arguments:
        return
    from transformers import TrainingArguments

    known = {f.name for f in dataclasses.fields(TrainingArguments)}
    for name in arguments:
        if name in TAKEN:
            raise OptionError(f"--set {name}: use {TAKEN[name]} for that")
        if name in FIXED:
            raise OptionError(f"--set {name}: mixwell decides that itself; leave it out")
        if name not in known:
            raise OptionError(f"--set {name}: TrainingArguments has no such field{nearest(name, known)}")


def _try_optimiser(arguments: Any) -> None:
    """Make an optimiser and a schedule for one number, so that values they refuse show before anything is written."""
    import torch
    from transformers import Trainer, get_scheduler

    number = [torch.nn.Parameter(torch.zeros(1))]
    optimiser: torch.optim.Optimizer = torch.optim.SGD(number, lr=0.1)
    if arguments.optim in ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"):
        make, options = Trainer.get_optimizer_cls_and_kwargs(arguments)  # others need the model, or a library
        optimiser = make(number, **options)
    get_scheduler(
        arguments.lr_scheduler_type, optimiser, num_warmup_steps=1, num_training_steps=10,
        scheduler_specific_kwargs=dict(arguments.lr_scheduler_kwargs or {}),
    )  # fmt: skip


def best_metric(name: str, task: str) -> str:
    """The metric that chooses the best epoch.

    `loss` is taken from the gathered logits: Trainer's own `eval_loss` is too high by the number of processes for
    models that do not use `num_items_in_batch`.
    """
    return name if name != "loss" else "mse" if task == "regression" else "nll"


def training_arguments(
    settings: TrainSettings, task: str, learning_rate: float, folder: str | None, *, evaluate: bool = True
) -> Any:
    """The `TrainingArguments` of a run; without a folder nothing is saved, and without `evaluate` nothing measured."""
    import torch
    from transformers import TrainingArguments

    from mixwell.calibration import METRICS

    names = [name for name, info in METRICS.items() if task in info.tasks]
    best = best_metric(settings.best_metric, task)
    if settings.best_metric not in ("loss", *names):
        raise OptionError(
            f"best_metric {settings.best_metric!r} is unknown for {task}{nearest(settings.best_metric, names)}; use "
            f"one of loss, {', '.join(names)}"
        )
    check_arguments(settings.arguments)
    values: dict[str, Any] = {
        "output_dir": folder,
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": settings.eval_batch_size,
        "learning_rate": learning_rate,
        "warmup_steps": settings.warmup,
        "weight_decay": settings.weight_decay,
        "lr_scheduler_type": settings.scheduler,
        "seed": settings.seed,
        "train_sampling_strategy": "group_by_length" if settings.group_by_length else "random",
        "report_to": settings.report_to,
        "eval_strategy": "epoch" if evaluate else "no",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "metric_for_best_model": best,
        "greater_is_better": METRICS[best].higher_is_better,
        "restore_callback_states_from_checkpoint": True,
        "logging_nan_inf_filter": False,  # it would hide a loss that is no number
        "disable_tqdm": True,
        "log_level": "error",
        "log_level_replica": "error",
        "dataloader_pin_memory": torch.cuda.is_available(),
        **settings.arguments,
    }
    if processes() > 1 and not torch.accelerator.is_available():
        values["use_cpu"] = True  # else each process would train alone, all of them as the first
    try:
        arguments = TrainingArguments(**values)
        _try_optimiser(arguments)
    except (ValueError, TypeError, ImportError) as error:
        raise OptionError(f"Trainer refuses these settings: {' '.join(str(error).split())}") from error
    if arguments.world_size != processes():
        raise OptionError(
            f"{processes()} processes were started but Trainer sees {arguments.world_size}; start them with torchrun "
            f"or accelerate launch, with settings for this machine's devices"
        )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # DataParallel cannot be mixed; torchrun uses all devices
    return arguments


# --- callbacks ---------------------------------------------------------------------------------------------------


def epoch_seeds(seed: int) -> Any:
    """A callback that seeds each epoch by the seed of the run and its number.

    Trainer restores the random state after it has drawn the order of a resumed epoch, so samplers that draw it from the
    global generator (group_by_length) would draw another one.
    """
    from transformers import TrainerCallback, set_seed

    class EpochSeeds(TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seed(int(state.epoch or 0))

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # What is saved at an epoch's end must be what the next epoch begins with.
            self.seed(round(state.epoch or 0))

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seed(round(state.epoch or 0))

        def seed(self, epoch: int) -> None:
            set_seed((seed * 1_000_003 + epoch * 7919 + 1) % 2**31)

    return EpochSeeds()


def make_callbacks(
    reporter: Reporter,
    *,
    seed: int,
    metric_names: set[str],
    timing: dict[str, float],
    checkpoints: Path | None,
    save_steps: int | None,
    stop: StopSignal,
    stop_after: int | None = None,
) -> list[Any]:
    """The callbacks of a training run, made in a function because their base class loads all of Trainer.

    Args:
        reporter: who is told.
        seed: of the run.
        metric_names: the metrics of the task.
        timing: is given `steps` and `seconds` of training, evaluation and saving left out.
        checkpoints: the folder of the checkpoints, or None when none are written.
        save_steps: also save every so many steps.
        stop: asked at each step's end.
        stop_after: end after so many epochs.
    """
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        """Reports progress, measures steps, and raises when the loss is no number."""

        def __init__(self) -> None:
            self.loss: float | None = None
            self.rows = 0
            self.began = 0.0

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.rows = len(history(state.log_history, metric_names))
            reporter.begin(state.max_steps, state.global_step)

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.began = time.perf_counter()

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            now = time.perf_counter()
            timing["seconds"] = timing.get("seconds", 0.0) + now - self.began
            timing["steps"] = timing.get("steps", 0) + 1
            self.began = now
            reporter.step(state.global_step, self.loss)
            every = max(1, state.max_steps // max(1, 20 * state.num_train_epochs))
            if state.global_step % every == 0:
                control.should_log = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if not logs:
                return
            self.loss = logs.get("loss", self.loss)
            if args.eval_strategy == "no":
                self.tell(state)
            for name in ("loss", "eval_loss"):
                if name in logs and not math.isfinite(logs[name]):
                    raise RunError(
                        f"training diverged: the {'validation ' if name[0] == 'e' else ''}loss is {logs[name]} at step "
                        f"{state.global_step}; lower the learning rate (now {args.learning_rate:g}), or look for odd "
                        f"values in the data"
                    )

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if stop_after is not None and round(state.epoch or 0, 6) >= stop_after:
                control.should_training_stop = True

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.tell(state)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.tell(state)

        def tell(self, state: Any) -> None:
            rows = history(state.log_history, metric_names)
            for row in rows[self.rows :]:
                reporter.epoch(row)
            self.rows = len(rows)

    class Checkpoints(TrainerCallback):
        """Completes checkpoints with a manifest, removes old ones, and stops on a signal."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # An epoch's last step is saved after the evaluation that follows it, by Trainer itself.
            if state.epoch == int(state.epoch) or state.global_step >= state.max_steps:
                return
            if (save_steps and state.global_step % save_steps == 0) or stop.agreed() is not None:
                # Log too: the loss summed up since the last log is in no checkpoint.
                control.should_save = control.should_log = True

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            import torch

            assert checkpoints is not None
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.barrier()  # every process writes its random state
            if state.is_world_process_zero:
                write_manifest(checkpoints / f"checkpoint-{state.global_step}")
                prune(checkpoints)
            heard = stop.agreed()
            if heard is not None:
                name = signal.Signals(heard).name
                raise Interrupted(
                    f"stopped by {name} at step {state.global_step}; continue with `mixwell train --resume "
                    f"{checkpoints.parent}`",
                    heard,
                )

    return [epoch_seeds(seed), *([Checkpoints()] if checkpoints is not None else []), Watch()]
