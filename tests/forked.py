"""Processes of their own that have everything imported already.

They are forked from a server that has done nothing but import: a fork of the test process itself would inherit what
other tests left there (after Ray has run in a process, a training in its fork dies).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PRELOAD = [
    "transformers", "transformers.models.bert.modeling_bert", "transformers.trainer", "datasets", "mixwell.cli",
    "mixwell.training", "mixwell.data", "mixwell.core.mixer", "mixwell.compare.run", "mixwell.compare.cell",
    "mixwell.compare.engines.local", "mixwell.api", "mixwell.report.run", "mixwell.papers.audit", "pytest",
]  # fmt: skip


def processes() -> Any:
    """The context to start such processes in."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


class Command:
    """`mixwell WORDS` in such a process, started at once. A traceback ends it with 99.

    Args:
        words: of the command line.
        before: called first, to put something else in place; a function of a module, so that it can be sent.
        cwd: the folder to run in; None for this one.
        terminal: the path of a terminal for its input and output; None for none.
        env: the environment; None for this one.

    Attributes:
        process: for signals.
        memory: by how many MB it grew, after `wait`.
    """

    def __init__(
        self,
        words: Sequence[Any],
        before: Callable[[], Any] | None = None,
        *,
        cwd: Path | None = None,
        terminal: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._said = tempfile.TemporaryDirectory()
        self._out, self._err = Path(self._said.name) / "stdout", Path(self._said.name) / "stderr"
        self.words = [str(word) for word in words]
        self._grown = Path(self._said.name) / "memory"
        self.memory = 0
        ends = (terminal or os.devnull, terminal or str(self._out), str(self._err), str(self._grown))
        told = (str(cwd or Path.cwd()), dict(os.environ if env is None else env))
        self.process = processes().Process(target=_run, args=(self.words, ends, *told, before))
        self.process.start()

    def wait(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """What it printed, and its exit code."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            raise subprocess.TimeoutExpired(self.words, timeout)
        with self._said:
            self.memory = int(self._grown.read_text()) if self._grown.exists() else 0
            out, err = (path.read_text(encoding="utf-8") if path.exists() else "" for path in (self._out, self._err))
            return subprocess.CompletedProcess(self.words, self.process.exitcode, out, err)


def run_forked(words: Sequence[Any], before: Callable[[], Any] | None = None) -> tuple[int, str]:
    """Run `mixwell WORDS`; returns its exit code and what it printed to stderr."""
    done = Command(words, before).wait()
    return done.returncode, done.stderr


def spare_collector() -> None:
    """Keep the garbage collector from what was imported: walking through it takes 0.3 s, and Trainer has it done."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def fork_workers() -> None:
    """Let the workers of a comparison be forked too, for `before`."""
    from mixwell.compare.engines import local

    local.START_METHOD = "fork"


def _run(
    words: list[str], ends: tuple[str, ...], cwd: str, env: dict[str, str], before: Callable[[], Any] | None
) -> None:
    import torch

    from mixwell.cli import main

    spare_collector()
    end = 99
    try:
        for number, (path, how) in enumerate(zip(ends[:3], (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)):
            os.dup2(os.open(path, how | (os.O_CREAT if number else 0), 0o600), number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        torch.set_num_threads(1)
        try:
            if before is not None:
                before()
            start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            end = main(words)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start
            Path(ends[3]).write_text(str(grown // 1024))
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(end)
