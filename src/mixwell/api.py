"""The public functions of the command line, for Python: a run with its pictures and its page."""

from __future__ import annotations

from pathlib import Path

from mixwell import training
from mixwell.report.run import illustrate
from mixwell.training import RunResult, TrainSettings


def train(settings: TrainSettings, *, quiet: bool = False) -> RunResult:
    """Do a whole run and write its folder, with pictures and a page.

    Raises:
        MixwellError: of some kind, for all that the user can put right.
    """
    return training.train(settings, quiet=quiet, illustrate=illustrate)


def resume(path: str | Path, *, quiet: bool = False, trust_remote_code: bool = False) -> RunResult:
    """Continue a run from its newest complete checkpoint; on CPU the weights end up the same, bit for bit.

    Args:
        path: the run folder.
        quiet: report nothing.
        trust_remote_code: run code that comes with the model, if the run was begun so.

    Raises:
        RunError: there is no run, its data changed, or another process is at it.
    """
    return training.resume(path, quiet=quiet, illustrate=illustrate, trust_remote_code=trust_remote_code)
