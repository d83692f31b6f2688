"""`mixwell demo`: what it prints, the race it draws, and its page in a browser."""

from __future__ import annotations

import json
import queue
import types
from pathlib import Path
from typing import Any

import pytest
from browsing import open_page
from test_training import calm  # noqa: F401

from mixwell.demo import overtraining
from mixwell.metrics.scores import METRICS


def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortened; what it prints was just computed, its page says the same, and a second call shows the finished run."""
    from mixwell.cli import main

    monkeypatch.setattr("mixwell.demo.PER_CLASS", 9)
    monkeypatch.setattr("mixwell.demo.EPOCHS", 1)
    curve = overtraining.Curve
    raced = {"plain": curve([2, 4], [1.0, 1.25], 0.5, 0.8), "mixed": curve([2, 4], [1.0, 0.75], 0.5, 0.8)}
    monkeypatch.setattr("mixwell.demo.overtraining.race", lambda show: raced)
    for name, value in (("EPOCHS", (1, 1)), ("LEAST_UPDATES", 1), ("FOLDS", 2)):
        monkeypatch.setattr(f"mixwell.training.recipe.{name}", value)
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    first = capsys.readouterr()
    metrics = json.loads((tmp_path / "demo-run" / "metrics.json").read_text())
    assert f"{metrics['test']['before']['accuracy']:.4f}" in first.out
    assert "probe" in first.err and "guessing" in first.err
    assert "mixwell train YOUR.csv" in first.out
    assert "plain  loss 1.25 at the end (lowest 1.00), accuracy 50.0%; 0.80 with a temperature" in first.out
    with open_page(tmp_path / "demo-run" / "report.html") as page:
        script = "all => all.map(r => [...r.cells].map(c => c.textContent))"
        for name, before, after in page.locator("#metrics tbody tr").evaluate_all(script):
            key = next(key for key in metrics["test"]["before"] if METRICS[key].title == name)
            wanted = [f"{metrics['test'][when][key]:.4f}" for when in ("before", "after")]
            assert [before, after] == wanted, name
        assert page.locator(".numbers b").first.inner_text() == f"{100 * metrics['test']['before']['accuracy']:.1f} %"
    monkeypatch.setattr("mixwell.demo.overtraining.race", None)  # kept in the folder
    assert main(["demo"]) == 0
    again = capsys.readouterr().out
    assert "finished already" in again and again[again.index("2. What") :] == first.out[first.out.index("2. What") :]


def test_the_race_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two real trainings, shortened: the curves are those of their logits, and a chart shows both."""
    monkeypatch.setattr(overtraining, "EPOCHS", 4)
    monkeypatch.setattr(overtraining.multiprocessing, "get_context", lambda kind: Threads())
    texts, _, held, truth = overtraining.rows()
    assert len(texts) == 48 and len(set(texts) & set(held)) == 0 and len(held) == len(truth)
    shown = []
    curves = overtraining.race(lambda curves: shown.append(overtraining.chart(curves)))
    assert len(shown) == 4 and all(len(line) <= 80 for lines in shown for line in lines)
    assert [curve.epochs for curve in curves.values()] == [[2, 4], [2, 4]]
    assert curves["plain"].losses != curves["mixed"].losses
    marks = "".join(shown[-1][: overtraining.HEIGHT])
    assert marks.count("o") + marks.count("x") + 2 * marks.count("*") == 4


class Threads:
    """As multiprocessing, one after the other in this process: `EPOCHS` would not reach a new one."""

    Queue = queue.Queue

    def Process(self, target: Any, args: Any, daemon: bool) -> Any:
        return types.SimpleNamespace(start=lambda: target(*args), join=lambda timeout: None, terminate=lambda: None)
