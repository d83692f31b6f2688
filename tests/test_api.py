"""`mixwell.train` and `mixwell.compare` from Python, and the snippets of docs/howto: estimator.md and export.md."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from test_estimator import encoder  # noqa: F401
from test_training import calm, rows  # noqa: F401

import mixwell
import mixwell.utils.errors
from mixwell.utils.errors import OptionError, RunError

DOCS = Path(__file__).parents[1] / "docs" / "howto"
TEXTS, LABELS = map(list, zip(*rows(60)))
FRAME = pd.DataFrame({"title": [f"a {text}" for text in TEXTS], "body": TEXTS, "label": LABELS})
QUICK: dict[str, Any] = {"methods": ["manifold"], "seeds": 2, "epochs": 1, "workers": 0, "quiet": True}


def snippets(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_estimator_snippets(encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space = {"model": encoder, "texts": TEXTS, "labels": LABELS, "titles": [f"a {text}" for text in TEXTS]}
    code = snippets("estimator.md")
    assert len(code) == 5
    exec(compile("\n".join(code), "estimator.md", "exec"), space)
    assert space["again"].score(TEXTS, LABELS) > 0.5  # type: ignore[attr-defined]
    run, comparison = space["run"], space["comparison"]
    shown = run._repr_html_()  # type: ignore[attr-defined]
    assert "<table>" in shown and "accuracy" in shown and "runs/messages" in shown
    shown = comparison._repr_html_()  # type: ignore[attr-defined]
    assert "Manifold" in shown and "<table>" in shown


def test_the_abstain_snippet(encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run = mixwell.train(FRAME, text="title,body", model=encoder, method="probe", output="runs/messages", quiet=True)
    about = json.loads((run.folder / "model" / "mixwell.json").read_text())
    about["abstain"]["points"] = [[0.1, 1.0, 0.92]]
    (run.folder / "model" / "mixwell.json").write_text(json.dumps(about))
    with_transformers, with_threshold = snippets("export.md")[:2]
    exec(compile(with_transformers, "export.md", "exec"), {})
    assert "score" in capsys.readouterr().out
    exec(compile(with_threshold, "export.md", "exec"), {})
    assert capsys.readouterr().out.strip() in ("['neg']", "['pos']")


def test_a_frame_is_a_file(encoder: str, tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    options = {"text": ["title", "body"], "model": encoder, "method": "none", "epochs": 1, "quiet": True}
    one = mixwell.train(FRAME, output=str(tmp_path / "one"), **options)
    two = mixwell.train(tmp_path / "rows.csv", output=str(tmp_path / "two"), **options)
    assert one.metrics["out_of_fold"] == two.metrics["out_of_fold"]
    assert (tmp_path / "one" / "data.parquet").is_file() and (tmp_path / "one" / "report.html").is_file()
    assert mixwell.resume(one.folder, quiet=True).was_finished
    with pytest.raises(RunError, match="finished run"):
        mixwell.train(FRAME, output=str(tmp_path / "one"), **options)


def test_class_names_of_data_sets(encoder: str, tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_pandas(FRAME).class_encode_column("label")
    run = mixwell.train(rows, text="body", model=encoder, method="probe", output=str(tmp_path / "run"), quiet=True)
    assert run.classifier().labels == ["neg", "pos"]


def test_what_is_refused_leaves_nothing(encoder: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for options, message in (
        ({"label": "sort"}, "no column 'sort'"),
        ({"batch_sze": 3}, "did you mean 'batch_size'"),
        ({"batch_size": 0, "method": "none"}, "batch_size"),
        ({"method": "amplfy"}, "amplify"),
    ):
        with pytest.raises(mixwell.utils.errors.MixwellError, match=message):
            mixwell.train(FRAME, **{"text": "body", "model": encoder, "output": str(folder), "quiet": True, **options})
        assert not folder.exists(), options
    with pytest.raises(OptionError, match="type list cannot be read"):
        mixwell.train([1, 2], output=str(folder))
    with pytest.raises(OptionError, match="one of both"):
        mixwell.train(mixwell.TrainSettings("a.csv"), method="none")
    with pytest.raises(OptionError, match="did you mean 'epochs'"):
        mixwell.compare(FRAME, epoch=3)
    with pytest.raises(mixwell.utils.errors.MixwellError):
        mixwell.compare(FRAME, output=folder, model=encoder, label="sort", **QUICK)
    assert not folder.exists()


def test_compare_is_the_package_and_a_function(encoder: str, tmp_path: Path) -> None:
    """However it was imported; and the same call does only what is missing."""
    code = "import mixwell.compare.grid, mixwell; assert callable(mixwell.compare); mixwell.compare.grid.Grid()"
    subprocess.run([sys.executable, "-c", code], check=True)
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    options = {"text": "body", "model": encoder, "output": tmp_path / "out", **QUICK}
    one = mixwell.compare(tmp_path / "rows.csv", **options)
    assert one.outcome.finished and not one.outcome.failed
    again = mixwell.compare(tmp_path / "rows.csv", **options)
    assert again._repr_html_() == one._repr_html_()
    with pytest.raises(OptionError, match="--budget goes with --race"):
        mixwell.compare(tmp_path / "rows.csv", budget="4 runs", **options)
    options["seeds"] = 3
    raced = mixwell.compare(tmp_path / "rows.csv", race=True, budget="30 runs", equal_within=2.0, **options)
    assert raced.race is not None and raced.race.lines()


def test_texts_of_users_are_escaped(tmp_path: Path) -> None:
    from mixwell.report.notebook import run_html, table_html

    assert "<b>x" not in table_html(["<b>x"], [["<b>x"]])
    assert "<b>" not in run_html(Path("<b>"), {})
