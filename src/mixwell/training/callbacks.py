"""The callbacks of Trainer, and its log as a history of epochs."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, set_seed

from mixwell.metrics.measure import measure
from mixwell.training.checkpoints import prune, write_manifest
from mixwell.training.predict import logits
from mixwell.utils.console import Reporter
from mixwell.utils.errors import DivergedError
from mixwell.utils.signals import Interrupted, StopSignal


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

    for entry in log:
        if "loss" in entry:
            steps = int(entry["step"]) - last
            last = int(entry["step"])
            total, since = total + entry["loss"] * steps, since + steps
            rate = entry.get("learning_rate", rate)
        epoch_over = "loss" in entry and round(entry["epoch"], 6) == round(entry["epoch"])
        if "eval_loss" in entry or (epoch_over and not evaluated):
            epoch, train_loss = math.ceil(round(entry["epoch"], 6)), total / since if since else None
            rows.append({"epoch": epoch, "step": int(entry["step"]), "train_loss": train_loss, "learning_rate": rate})
            total, since = 0.0, 0
        if "eval_loss" in entry:
            kept = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
            kept["loss"] = kept.get("nll", kept.get("mse"))
            rows[-1]["validation"] = {key: kept[key] for key in sorted(kept) if key == "loss" or key in names}
        elif "test" in entry:
            rows[-1]["test"] = {key: entry["test"][key] for key in sorted(entry["test"]) if key in names}
    return rows


def epoch_seeds(seed: int) -> Any:
    """A callback that seeds each epoch by the seed of the run and its number.

    Trainer restores the random state after it has drawn the order of a resumed epoch, so samplers that draw it from the
    global generator (group_by_length) would draw another one.
    """

    class EpochSeeds(TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seed(int(state.epoch or 0))

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # What is saved at an epoch's end must be what the next epoch begins with.
            self.seed(round(state.epoch or 0))

        on_evaluate = on_epoch_end

        def seed(self, epoch: int) -> None:
            set_seed((seed * 1_000_003 + epoch * 7919 + 1) % 2**31)

    return EpochSeeds()


class WatchTraining(TrainerCallback):
    """Reports progress, measures steps, ends training where it is told to, and stops at a bad loss.

    Args:
        reporter: who is told.
        metric_names: the metrics of the task.
        timing: is given `steps` and `seconds` of training, evaluation and saving left out.
        stop_after: end after so many epochs.
        stop_when: is asked after each evaluation whether to end.
    """

    def __init__(
        self,
        reporter: Reporter,
        metric_names: set[str],
        timing: dict[str, float],
        stop_after: int | None,
        stop_when: Callable[[], bool] | None,
    ) -> None:
        self.reporter, self.metric_names, self.timing = reporter, metric_names, timing
        self.stop_after, self.stop_when = stop_after, stop_when
        self.loss: float | None = None
        self.rows = 0
        self.began = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the progress."""
        self.rows = len(history(state.log_history, self.metric_names))
        self.reporter.begin(state.max_steps, state.global_step)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.began = time.perf_counter()

    on_save = on_epoch_begin

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock, report, and log about twenty times per epoch."""
        now = time.perf_counter()
        self.timing["seconds"] = self.timing.get("seconds", 0.0) + now - self.began
        self.timing["steps"] = self.timing.get("steps", 0) + 1
        self.began = now
        self.reporter.step(state.global_step, self.loss)
        every = max(1, state.max_steps // max(1, 20 * state.num_train_epochs))
        if state.global_step % every == 0:
            control.should_log = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Check the loss."""
        if not logs:
            return
        self.loss = logs.get("loss", self.loss)
        if args.eval_strategy == "no":
            self.report(state)
        _check_finite(logs, state.global_step, args.learning_rate)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End after the given number of epochs."""
        if self.stop_after is not None and round(state.epoch or 0, 6) >= self.stop_after:
            control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report, and ask whether to go on."""
        self.report(state)
        if self.stop_when is not None and self.stop_when():
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the last epoch."""
        self.report(state)

    def report(self, state: Any) -> None:
        """Report the epochs that were logged since."""
        rows = history(state.log_history, self.metric_names)
        for row in rows[self.rows :]:
            self.reporter.epoch(row)
        self.rows = len(rows)


def _check_finite(logs: dict[str, Any], step: int, learning_rate: float) -> None:
    """Raise `DivergedError` for a loss that is no number."""
    for name, what in (("loss", "loss"), ("eval_loss", "validation loss")):
        if name in logs and not math.isfinite(logs[name]):
            raise DivergedError(
                f"training diverged: the {what} is {logs[name]} at step {step}; lower the learning rate (now "
                f"{learning_rate:g}), or look for odd values in the data"
            )


def complete_checkpoints(checkpoints: Path, save_steps: int | None, stop: StopSignal) -> Any:
    """A callback that completes checkpoints with a manifest, removes old ones, and stops on a signal."""

    class CompleteCheckpoints(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # An epoch's last step is saved after the evaluation that follows it, by Trainer itself.
            if state.epoch == int(state.epoch) or state.global_step >= state.max_steps:
                return
            if (save_steps and state.global_step % save_steps == 0) or stop.agreed() is not None:
                # Log too: the loss summed up since the last log is in no checkpoint.
                control.should_save = control.should_log = True

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.barrier()  # every process writes its random state
            if state.is_world_process_zero:
                write_manifest(checkpoints / f"checkpoint-{state.global_step}")
                prune(checkpoints)
            number = stop.agreed()
            if number is not None:
                name = signal.Signals(number).name
                raise Interrupted(
                    f"stopped by {name} at step {state.global_step}; continue with `mixwell train --resume "
                    f"{checkpoints.parent}`",
                    number,
                )

    return CompleteCheckpoints()


def best_in_memory(metric: str) -> Any:
    """A callback that keeps a copy of the best epoch's weights."""

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

    class Watch(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            found = logits(kwargs["model"], tokenizer, rows, batch_size=batch_size)
            metrics = measure(found, np.asarray(rows.with_format("numpy")["labels"]), task)
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
