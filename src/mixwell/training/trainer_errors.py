"""Around Trainer: its libraries kept silent, and its refusals traced to the settings they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mixwell.training.settings import TrainSettings
from mixwell.utils.errors import MixwellError, OptionError


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
