"""Processes of their own that have everything imported already.

They are forked from a server that has done nothing but import: a fork of the test process itself would inherit what
other tests left there (after Ray has run in a process, a training in its fork dies).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PRELOAD = [
    "transformers", "transformers.models.bert.modeling_bert", "transformers.trainer", "datasets", "mixwell.cli",
    "mixwell.training", "mixwell.data", "mixwell.core.mixer", "mixwell.compare.run", "mixwell.compare.cell",
    "mixwell.compare.engines.local",
]  # fmt: skip


def processes() -> Any:
    """The context to start such processes in."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def run_forked(words: Sequence[Any], before: Callable[[], Any] | None = None) -> tuple[int, str]:
    """Run `mixwell WORDS`; returns its exit code and what it printed to stderr. A traceback ends it with 99.

    Args:
        words: of the command line.
        before: called first, to put something else in place; a function of a module, so that it can be sent.
    """
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "stderr"
        child = processes().Process(target=_run, args=([str(word) for word in words], str(said), before))
        child.start()
        child.join()
        return child.exitcode, said.read_text(encoding="utf-8")


def _run(words: list[str], said: str, before: Callable[[], Any] | None) -> None:
    import torch

    from mixwell.cli import main

    torch.set_num_threads(1)
    end = 99
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT, 0o600), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        try:
            if before is not None:
                before()
            end = main(words)
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(end)
