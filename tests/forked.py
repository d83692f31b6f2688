"""A command line in a process of its own that has everything imported already."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Any


def run_forked(words: Sequence[Any]) -> tuple[int, str]:
    """Run `mixwell WORDS` in a forked process; returns its exit code and what it printed to stderr.

    What a test has put in other places (monkeypatch) is there too. A traceback ends it with 99.
    """
    from mixwell.cli import main

    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        child = os.fork()
        if not child:
            end = 99
            try:
                silent = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silent, 1)
                os.dup2(said.fileno(), 2)
                sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
                try:
                    end = main([str(word) for word in words])
                except BaseException:
                    traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(end)
        end = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return end, said.read()
