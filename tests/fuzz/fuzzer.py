"""Fuzz mixwell in this process: seeded cases over all surfaces where a user's files, options and batches come in.

    python tests/fuzz/fuzzer.py --cases 20000          # many
    python tests/fuzz/fuzzer.py --only grid:17         # one case again, with its traceback

A case passes if it works or ends in a `MixwellError` (or an error of the disk that the command line explains). Any
other exception, a case that takes longer than `LIMIT` seconds, and bad input that is accepted without a word are
findings; each is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).resolve().parents[1]
for _folder in (_TESTS, _TESTS / "training", _TESTS / "core", _TESTS / "fuzz"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

from material import Material  # noqa: E402
from surfaces import SURFACES  # noqa: E402

from mixwell.utils.errors import DISK_ERRORS, MixwellError  # noqa: E402

LIMIT = 60.0
BY_NAME = {surface.__name__: surface for surface in SURFACES}


class Hang(BaseException):
    """A case took too long. No Exception, so that nobody catches it on the way."""


@dataclass
class Outcome:
    """What came of the cases.

    Attributes:
        worked: how many ended without an error, by surface.
        refused: how many ended in an error that says what to put right, by surface.
        findings: case -> its traceback.
        slowest: seconds, and the case that took them.
    """

    worked: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    findings: dict[str, str] = field(default_factory=dict)
    slowest: tuple[float, str] = (0.0, "")

    def text(self) -> str:
        """A line for each surface, and one for each finding with its reproduction."""
        lines = [
            f"{name:16} worked {self.worked[name]:6} refused {self.refused[name]:6}"
            for name in BY_NAME
            if self.worked[name] + self.refused[name]
        ]
        for case, trace in self.findings.items():
            lines += ["", f"FINDING: python tests/fuzz/fuzzer.py --only {case}", trace.rstrip()]
        total = sum(self.worked.values()) + sum(self.refused.values()) + len(self.findings)
        return "\n".join([*lines, f"{total} cases, {len(self.findings)} findings, slowest {self.slowest}"])


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `Hang` inside after so many seconds."""

    def stop(number: int, frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def cases(count: int, seed: int) -> list[str]:
    """The names of cases, `surface:number`, the same for the same seed."""
    draw = random.Random(seed)
    names = draw.choices(list(BY_NAME), [SURFACES[surface] for surface in BY_NAME.values()], k=count)
    return [f"{name}:{draw.randrange(10**9)}" for name in names]


def run_case(case: str, material: Material, outcome: Outcome) -> None:
    """Run one case and note what came of it."""
    name, _, number = case.partition(":")
    began = time.monotonic()
    try:
        with limited(LIMIT), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            BY_NAME[name](random.Random(f"{name} {number}"), material)
        outcome.worked[name] += 1
    except MixwellError:
        outcome.refused[name] += 1
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            outcome.refused[name] += 1
        else:
            outcome.findings[case] = "".join(traceback.format_exception(error)[-12:])
            print(f"FINDING {case}: {type(error).__name__}: {error}"[:300], file=sys.__stderr__, flush=True)
    outcome.slowest = max(outcome.slowest, (round(time.monotonic() - began, 2), case))


def fuzz(names: list[str], place: Path, seconds: float = math.inf) -> Outcome:
    """Run some cases, or as many of them as the time allows."""
    import torch

    torch.set_num_threads(1)
    material, outcome = Material(place), Outcome()
    kept = os.getcwd()
    os.chdir(place)  # what is written to relative names stays here
    try:
        began = time.monotonic()
        for number, case in enumerate(names, 1):
            if time.monotonic() - began > seconds:
                break
            run_case(case, material, outcome)
            if number % 1000 == 0:
                print(f"{number} cases, {len(outcome.findings)} findings", file=sys.stderr, flush=True)
    finally:
        os.chdir(kept)
    return outcome


def main() -> int:
    """Fuzz by the command line; returns 1 if there are findings."""
    parser = argparse.ArgumentParser(description="Fuzz mixwell.")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--only", nargs="+", help="cases such as grid:17, or surfaces such as grid")
    wanted = parser.parse_args()
    names = cases(wanted.cases, wanted.seed)
    if wanted.only:
        names = [name for name in wanted.only if ":" in name]
        bare = [name for name in wanted.only if ":" not in name]
        draw = random.Random(wanted.seed)
        names += [f"{draw.choice(bare)}:{draw.randrange(10**9)}" for _ in range(wanted.cases if bare else 0)]
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        outcome = fuzz(names, Path(place), wanted.seconds)
    print(outcome.text())
    print(f"seed {wanted.seed}, {time.monotonic() - began:.0f} seconds")
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
