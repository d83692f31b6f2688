"""What the user sees while something runs, and the callbacks that watch and steer Trainer.

Progress goes to stderr: a bar with loss, validation and time left on a terminal, a line an epoch elsewhere.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from mixwell.errors import MixwellError, RunError
from mixwell.runs import prune, rank, write_manifest

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(MixwellError):
    """Training was stopped by a signal, after a checkpoint.

    Attributes:
        signal: the signal's number; the command line exits with 128 more.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


class Reporter:
    """Says nothing. The base of those that do."""

    def note(self, text: str) -> None:
        """Tell something worth knowing."""

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

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """See `Reporter`."""
        self._print(f"note: {text}")

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

    def begin(self, steps: int, done: int) -> None:
        """See `Reporter`."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
    """Trainer's log as one row an epoch: `epoch`, `step`, `train_loss`, `learning_rate` and `validation` metrics.

    Args:
        log: `TrainerState.log_history`.
        names: the metrics to keep.
    """
    rows: list[dict[str, Any]] = []
    total, since, last = 0.0, 0, 0
    rate = None
    for entry in log:
        if "loss" in entry:
            steps = int(entry["step"]) - last
            last = int(entry["step"])
            total, since = total + entry["loss"] * steps, since + steps
            rate = entry.get("learning_rate", rate)
        elif "eval_loss" in entry:
            kept = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
            rows.append(
                {
                    "epoch": round(entry["epoch"]),
                    "step": int(entry["step"]),
                    "train_loss": total / since if since else None,
                    "learning_rate": rate,
                    "validation": {key: value for key, value in kept.items() if key == "loss" or key in names},
                }
            )
            total, since = 0.0, 0
    return rows


# --- signals -----------------------------------------------------------------------------------------------------


class StopSignal:
    """Notes the first Ctrl-C or SIGTERM, so that training can stop at a step's end; a second one ends at once."""

    def __init__(self) -> None:
        self.number: int | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[StopSignal]:
        """Watch inside; does nothing in threads, where Python has no signals."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._heard) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for each in SIGNALS:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)

    def agreed(self) -> int | None:
        """The signal that any of the processes heard; all of them must ask at the same step."""
        import torch

        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self.number
        heard = torch.tensor(self.number or 0)
        if torch.distributed.get_backend() == "nccl":
            heard = heard.cuda()
        torch.distributed.all_reduce(heard, op=torch.distributed.ReduceOp.MAX)
        return int(heard) or None


# --- callbacks ---------------------------------------------------------------------------------------------------


def make_callbacks(
    reporter: Reporter,
    *,
    seed: int,
    metric_names: set[str],
    timing: dict[str, float],
    checkpoints: Path | None,
    save_steps: int | None,
    stop: StopSignal,
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
    """
    from transformers import TrainerCallback, set_seed

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
            for name in ("loss", "eval_loss"):
                if name in logs and not math.isfinite(logs[name]):
                    raise RunError(
                        f"training diverged: the {'validation ' if name[0] == 'e' else ''}loss is {logs[name]} at step "
                        f"{state.global_step}; lower the learning rate (now {args.learning_rate:g}), or look for odd "
                        f"values in the data"
                    )

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rows = history(state.log_history, metric_names)
            for row in rows[self.rows :]:
                reporter.epoch(row)
            self.rows = len(rows)

    class EpochSeeds(TrainerCallback):
        """Seeds each epoch by its number.

        Trainer restores the random state after it has drawn the order of a resumed epoch, so samplers that draw it
        from the global generator (group_by_length) would draw another one.
        """

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seed(int(state.epoch or 0))

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # What is saved at an epoch's end must be what the next epoch begins with.
            self.seed(round(state.epoch or 0))

        def seed(self, epoch: int) -> None:
            set_seed((seed * 1_000_003 + epoch * 7919 + 1) % 2**31)

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

    return [EpochSeeds(), *([Checkpoints()] if checkpoints is not None else []), Watch()]
