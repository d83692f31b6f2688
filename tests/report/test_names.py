"""Readable names of methods, and definitions for all that the pages name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixwell.compare.columns import COLUMNS
from mixwell.compare.spec import REFERENCES, candidate
from mixwell.methods import load_all
from mixwell.report import glossary, matrix
from mixwell.utils.titles import TITLES, method_title


@pytest.mark.parametrize(
    ("label", "title"),
    [
        ("none", "plain"),
        ("none + temperature", "plain + temperature"),
        ("none[label_smoothing=0.1]", "label smoothing 0.1"),
        ("amplify", "AMPLIFY"),
        ("amplify[consistent=true]", "AMPLIFY, consistent"),
        ("amplify[alpha=0.5,layers=[1,2],padding=keep]", "AMPLIFY, alpha 0.5, layers 1, 2, padding keep"),
        ("tmix[regularise=false]", "TMix, not regularise"),
        ("tfidf", "TF-IDF"),
        ("of_another_package", "of_another_package"),
        ("<b>bold</b>[x", "<b>bold</b>[x"),
    ],
)
def test_titles(label: str, title: str) -> None:
    assert method_title(label) == title


def test_labels_of_candidates_are_understood() -> None:
    """The labels that comparisons really make, not only those written above."""
    made = candidate("amplify", {"consistent": True, "layers": [0, 1]})
    assert method_title(made.label) == "AMPLIFY, consistent, layers 0, 1"


def test_every_method_and_column_has_a_definition() -> None:
    for name in [*load_all(), *REFERENCES, *TITLES]:
        note = glossary.method_note(name)
        assert note is not None and note.blends.endswith(".") and note.cost and note.use, name
    for columns in COLUMNS.values():
        for column in columns:
            if column.metric not in ("pearson", "spearman"):
                assert glossary.term(column.title), column.title
    assert "temperature" in glossary.term("NLL after T") and glossary.term("seeds") == ""


def test_what_ignores_lam() -> None:
    for name, method in load_all().items():
        note = glossary.method_note(name)
        assert note is not None and note.ignores_lam == (not method.has_lam), name


def test_many_classes_are_clustered_and_all_there() -> None:
    """Pairs of classes that are confused stand next to each other; every count is drawn."""
    count = 40
    confusion = np.diag(np.full(count, 9))
    for first in range(count // 2):
        confusion[first, first + count // 2] = 3
    order = matrix.order(confusion)
    assert sorted(order) == list(range(count))
    place = {number: at for at, number in enumerate(order)}
    assert all(abs(place[first] - place[first + count // 2]) == 1 for first in range(count // 2))
    view: dict[str, Any] = matrix.view([f"class {n}" for n in range(count)], confusion)
    assert view["picture"].count("<rect") == 1 + count + count // 2 and "predicted class" in view["picture"]
    few = matrix.view(["a", "b"], np.array([[3, 1], [0, 0]]))
    assert few["picture"] is None and [cell["text"] for cell in few["rows"][0]["cells"]] == ["75", "25"]
    assert [cell["text"] for cell in few["rows"][1]["cells"]] == ["", ""]


def test_links_go_both_ways(tmp_path: Path) -> None:
    """A run and a comparison of one file that stand beside each other know each other; others do not."""
    import json
    from types import SimpleNamespace

    from mixwell.report import links

    data = tmp_path / "films.csv"
    data.write_text("text,label\n")
    for name, source in (("films", data), ("other", tmp_path / "other.csv")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text(json.dumps({"data": {"source": str(source)}}))
        (tmp_path / "runs" / name / "report.html").write_text("")
    folder = tmp_path / "runs" / "films-compare"
    (folder / "cells" / "key").mkdir(parents=True)
    spec = SimpleNamespace(source=SimpleNamespace(data=str(data)))
    summary: Any = SimpleNamespace(
        groups=[SimpleNamespace(records=[SimpleNamespace(path=folder / "cells" / "key", spec=spec)])]
    )
    assert links.runs_beside(summary) == [("films", "../films/report.html")]
    assert links.runs_beside(summary, tmp_path) == [("films", "runs/films/report.html")]


def test_an_inspection_shows_itself_and_takes_an_attached_model() -> None:
    import mixwell
    from zoo import tiny

    model = tiny("bert")
    before = mixwell.inspect(model)
    with mixwell.attach(model, "amplify") as mixer:
        found = mixwell.inspect(model)
        assert mixer.attached and found.methods == before.methods and found.rows() == before.rows()
    text = repr(found)
    assert "\n" not in text and len(text) < 400 and "BertForSequenceClassification" in text and "amplify" in text
    page = found._repr_html_()
    assert page.count("<table>") == 2 and "<td>amplify</td><td>yes</td>" in page and "<script" not in page
