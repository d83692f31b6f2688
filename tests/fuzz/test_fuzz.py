"""A thousand cases of the fuzzer, always the same ones; `make fuzz` runs more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fuzzer import BY_NAME, Outcome, cases, fuzz, run_case
from surfaces import SURFACES

CASES = int(os.environ.get("MIXWELL_FUZZ_CASES", "1000"))


def test_no_tracebacks_no_hangs_nothing_accepted(tmp_path: Path) -> None:
    outcome = fuzz(cases(CASES, seed=20_231_207), tmp_path)
    assert not outcome.findings, outcome.text()
    assert sum(outcome.worked.values()) > CASES / 20 and sum(outcome.refused.values()) > CASES / 5


def test_the_fuzzer_sees_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback, a hang and a case that works are told apart."""

    def fails(draw: object, material: object) -> None:
        raise KeyError("x")

    def hangs(draw: object, material: object) -> None:
        while True:
            pass

    monkeypatch.setattr("fuzzer.LIMIT", 0.2)
    for surface in (fails, hangs, lambda draw, material: None):
        monkeypatch.setitem(BY_NAME, "case", surface)
        outcome = Outcome()
        run_case("case:1", None, outcome)  # type: ignore[arg-type]
        assert ("case:1" in outcome.findings) == (surface in (fails, hangs))
    assert len(SURFACES) == 11
