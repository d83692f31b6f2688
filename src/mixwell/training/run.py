"""A whole run, from data and a model to a folder with a calibrated classifier: `train`, and `resume` for a stopped one.

prepare     data, model, tokens, recipe; all that can be refused is refused before anything is written
learn       the probe; fine-tuning by folds, with a validation split, or on all rows; which of the two to keep
artefacts   metrics, model folder, predictions
"""

from __future__ import annotations

import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mixwell.training.artefacts import Illustrate, make_record, read_metrics, write_results
from mixwell.training.learn import learn
from mixwell.training.prepare import prepare
from mixwell.training.run_folder import RunFolder
from mixwell.training.settings import TrainSettings
from mixwell.training.trainer_errors import quiet_libraries
from mixwell.utils.console import make_reporter
from mixwell.utils.environment import rank, versions
from mixwell.utils.errors import DivergedError, OptionError, RunError
from mixwell.utils.options import check_fields
from mixwell.utils.records import damage
from mixwell.utils.signals import stoppable


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


def train(settings: TrainSettings, *, quiet: bool = False, illustrate: Illustrate | None = None) -> RunResult:
    """Do a whole run and write its folder.

    Args:
        settings: all that decides the run.
        quiet: report nothing.
        illustrate: draws pictures and a page into the folder, at the end; `mixwell.train` gives the report's.

    Raises:
        MixwellError: of some kind, for all that the user can put right.
    """
    settings.check_used()
    return _run(settings, RunFolder(settings.run_folder()), None, quiet, illustrate)


def resume(
    path: str | Path, *, quiet: bool = False, illustrate: Illustrate | None = None, trust_remote_code: bool = False
) -> RunResult:
    """Continue a run from its newest complete checkpoint; on CPU the weights end up the same, bit for bit.

    Args:
        path: the run folder.
        quiet: report nothing.
        illustrate: see `train`.
        trust_remote_code: run code that comes with the model; the folder's word is not enough for that.

    Raises:
        RunError: there is no run, its data changed, or another process is at it.
        OptionError: the run needs code that comes with its model, and nobody allowed it now.
    """
    folder = RunFolder(path)
    record = folder.read_record()
    try:
        settings = TrainSettings.from_dict(record["settings"])
        check_fields(settings)
    except (TypeError, OptionError) as error:
        raise damage(folder.path / "run.json", error) from error
    if folder.diverged:
        raise RunError(
            f"{folder.path}: {record['diverged']}; start it again as you began it, with a lower --learning-rate "
            f"(this folder is kept aside)"
        )
    if settings.trust_remote_code is not False and not trust_remote_code and not folder.finished:
        raise OptionError(
            f"{folder.path}: the run was begun with --trust-remote-code and would run code that comes with its model "
            f"{settings.model}; if you trust that, add --trust-remote-code"
        )
    return _run(settings, folder, record, quiet, illustrate)


def _run(
    settings: TrainSettings,
    folder: RunFolder,
    record: dict[str, Any] | None,
    quiet: bool,
    illustrate: Illustrate | None,
) -> RunResult:
    """A new run, or one that goes on from its record."""
    settings.check()
    first, new = rank() == 0, record is None
    if record is None and first:
        folder.check_new()
    if record is not None and folder.finished:
        if first and not settings.keep_checkpoints:
            with folder.lock(new=False):
                folder.remove_checkpoints()
        return RunResult(folder.path, read_metrics(folder.path), was_finished=True)
    began, reporter = time.monotonic(), make_reporter(quiet)
    with quiet_libraries(), ExitStack() as stack:
        stack.callback(reporter.end)
        ready = prepare(settings, folder, reporter, record)
        with folder.lock(new=record is None) if first else nullcontext(), stoppable(folder.path):
            for note in ready.notes:
                reporter.note(note)
            if record is None:
                record = make_record(ready)
                record["auto"] = ready.auto  # the method that was chosen stands in the settings
                if first:
                    folder.write_record(record)
            elif record["versions"] != versions():
                reporter.note("versions changed since the run began: the result may differ in the last digits")
            if first:
                ready.data.save_splits(folder.path / "splits.json")
            try:
                outcome = learn(ready, folder, reporter)
            except OptionError:
                if first and new:
                    folder.discard()  # so that the same command works once the option is put right
                raise
            except DivergedError as error:
                if first:
                    folder.write_record({**record, "diverged": str(error)})
                raise DivergedError(f"{error}; the same command with another rate starts anew") from error
            except (torch.OutOfMemoryError, MemoryError) as error:
                raise RunError(
                    f"out of memory with batches of {ready.settings.batch_size} rows of at most {ready.length} tokens; "
                    f"train anew with a lower --batch-size or --max-length, or a smaller --model"
                ) from error
            if not first:
                return RunResult(folder.path, {})
            folder.check_there()
            metrics = write_results(folder, record, ready, outcome, illustrate)
            seconds = time.monotonic() - began
            record["timing"] = {"seconds": seconds, "seconds_per_step": outcome.fitted.seconds_per_step}
            folder.write_record({key: value for key, value in record.items() if key != "format"})
            folder.finish(metrics, keep_checkpoints=settings.keep_checkpoints)
    return RunResult(folder.path, metrics)
