"""Numbers from before code was moved: see make.py."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from forked import Command, fork_workers

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden.json").read_text(encoding="utf-8"))


def differences(found: Any, wanted: Any, where: str = "") -> list[str]:
    """Where two JSON values differ by more than another processor's rounding; hashes are of one machine."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict) or found.keys() != wanted.keys():
            return [f"{where}: other keys"]
        return [
            line for key in wanted if key != "exact" for line in differences(found[key], wanted[key], f"{where}/{key}")
        ]
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return [f"{where}: {found!r} instead of {wanted!r}"]
        pairs = zip(found, wanted)
        return [line for at, (a, b) in enumerate(pairs) for line in differences(a, b, f"{where}[{at}]")]
    if isinstance(wanted, float) and isinstance(found, float):
        # The tiny T5 has gradients of 1e5, whose sum differs by 2.4e-4 between two kinds of processor. A correlation of
        # few seeds is a ratio of small differences: 2.8e-4 between AVX2 and AVX-512.
        sensitive = where.endswith(("/gradient", "/correlation"))
        near = math.isclose(found, wanted, rel_tol=1e-3 if sensitive else 2e-4, abs_tol=2e-5 if sensitive else 1e-5)
        near = near or (math.isnan(found) and math.isnan(wanted))
        return [] if near else [f"{where}: {found!r} instead of {wanted!r}"]
    return [] if found == wanted else [f"{where}: {found!r} instead of {wanted!r}"]


@pytest.mark.parametrize("case", sorted(GOLDEN["steps"]))
def test_steps(case: str) -> None:
    import make

    kind, name = case.split()
    assert not differences(json.loads(json.dumps(make.steps(kind, name))), GOLDEN["steps"][case])


@pytest.fixture
def _commands_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make` starts fresh processes, so that it can run in the past; here that would only cost time."""
    import make

    def command(*words: Any) -> str:
        done = Command(words, fork_workers).wait()
        assert done.returncode == 0, done.stderr
        return done.stdout

    monkeypatch.setattr(make, "command", command)


@pytest.mark.usefixtures("_commands_are_forked")
def test_runs(tmp_path: Path) -> None:
    import make

    found = json.loads(json.dumps(make.runs(tmp_path)))
    assert not differences(found["run"], GOLDEN["runs"]["run"])
    assert not differences(found["summary"], GOLDEN["runs"]["summary"])
    shared = set(found["page"]) & set(GOLDEN["runs"]["page"])
    assert len(shared) >= 0.9 * len(GOLDEN["runs"]["page"])


@pytest.mark.usefixtures("_commands_are_forked")
def test_papers(tmp_path: Path) -> None:
    """On copies: the command writes its tables beside the records, in another processor's last digits."""
    import make

    for name, digest in GOLDEN["papers"].items():
        copy = shutil.copytree(make.HERE.parents[1] / "docs" / "results" / name, tmp_path / name)
        assert make.digest(make.command("paper", "table", copy).encode()) == digest
