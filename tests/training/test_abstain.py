"""Answering only when sure, and texts of other kinds."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_training import calm, data_file, rows, run, settings, tiny, write_csv  # noqa: F401

from mixwell.training.abstain import describe, threshold_for
from mixwell.training.held_out import HeldOut
from mixwell.training.predict import Classifier
from mixwell.utils.errors import OptionError


def main(*words: Any) -> int:
    from mixwell.cli import main

    return main([str(word) for word in words])


def held(count: int = 300, seed: int = 0) -> HeldOut:
    """Logits whose probabilities are right as often as they say."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(count, 3)) * 2
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([draw.choice(3, p=row) for row in p])
    return HeldOut("out_of_fold", logits, labels, "single_label", np.arange(count) % 3)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_thresholds_are_counted_on_held_out_rows(temperature: float) -> None:
    rows = held()
    about = describe(rows, temperature, 0.8)
    assert about is not None
    p = np.exp(rows.logits / temperature)
    confidence = (p / p.sum(axis=1, keepdims=True)).max(axis=1)
    right = rows.logits.argmax(axis=1) == rows.labels
    answered = confidence >= about["threshold"]
    assert about["coverage"] == pytest.approx(answered.mean())
    assert about["precision"] == pytest.approx(right[answered].mean()) and about["precision"] >= 0.8
    # No lower threshold would do.
    for lower in confidence[confidence < about["threshold"]]:
        assert right[confidence >= lower].mean() < 0.8
    assert about["accuracy"] == pytest.approx(right.mean())
    assert threshold_for(about, 0.8).threshold == about["threshold"]
    json.dumps(about, allow_nan=False)


def test_a_threshold_that_other_rows_chose_keeps_its_promise() -> None:
    found = [describe(held(600, seed), 1.0, 0.85) for seed in range(8)]
    crossed = [about["crossed"]["precision"] for about in found if about]
    assert np.mean(crossed) == pytest.approx(0.85, abs=0.03)


def test_out_of_reach() -> None:
    rows = held()
    about = describe(rows, 1.0, 0.8)
    with pytest.raises(OptionError, match="at most"):
        threshold_for({**about, "points": about["points"][:3]}, 1.0)  # type: ignore[dict-item]
    with pytest.raises(OptionError, match="no rows were held out"):
        threshold_for(None, 0.9)
    for wrong in (0, 1.5, -1):
        with pytest.raises(OptionError, match="share of right answers"):
            threshold_for(about, wrong)
    assert describe(None, 1.0, 0.9) is None
    few = HeldOut("validation", rows.logits[:5], rows.labels[:5], "single_label", np.zeros(5))
    assert describe(few, 1.0, 0.9)["threshold"] is None  # type: ignore[index]


def test_several_labels() -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(200, 2)) * 3
    labels = (draw.random((200, 2)) < 1 / (1 + np.exp(-logits))).astype(float)
    about = describe(HeldOut("validation", logits, labels, "multi_label", np.arange(200) % 5), 1.0, 0.8)
    p = 1 / (1 + np.exp(-logits))
    answered = np.maximum(p, 1 - p).prod(axis=1) >= about["threshold"]  # type: ignore[index]
    right = ((p > 0.5) == (labels > 0.5)).all(axis=1)
    assert about["precision"] == pytest.approx(right[answered].mean())  # type: ignore[index]


def test_the_model_folder_has_a_threshold(run: Path) -> None:
    about = json.loads((run / "model" / "mixwell.json").read_text())
    assert about["abstain"]["wanted"] == 0.95 and about["threshold"] == about["abstain"]["threshold"]
    assert json.loads((run / "metrics.json").read_text())["abstain"] == about["abstain"]
    import pyarrow.parquet as pq

    table = [row for row in pq.read_table(run / "predictions.parquet").to_pylist() if row["split"] == "validation"]
    assert about["abstain"]["rows"] == len(table)
    sure = [max(row["calibrated"]) for row in table]
    right = [row["label"] == row["predicted"] for row in table]
    for threshold, coverage, precision in about["abstain"]["points"]:
        chosen = [ok for ok, p in zip(right, sure) if p >= threshold - 1e-9]
        assert len(chosen) / len(table) == pytest.approx(coverage) and np.mean(chosen) == pytest.approx(precision)


def test_predict_abstains(run: Path, tmp_path: Path, capsys: Any) -> None:
    model = tmp_path / "model"
    made = Classifier.load(run, device="cpu")
    texts = [text for text, _ in rows(80, seed=4)]
    sure = made.predict(texts).probabilities.max(axis=1)  # type: ignore[union-attr]
    middle = float(np.median(sure))
    made.record["abstain"] = {
        "split": "out_of_fold", "rows": 80, "accuracy": 0.8, "points": [[0.0, 1.0, 0.8], [middle, 0.5, 0.95]],
    }  # fmt: skip
    made.save(model)
    source = write_csv(tmp_path / "new.csv", rows(80, seed=4))
    assert main("predict", model, source, "--abstain", 0.9, "-o", tmp_path / "out.csv") == 0
    said = capsys.readouterr().err
    assert f"answered {int((sure >= middle).sum())} of 80 rows" in said
    assert "95.0% of the answers are right and 50.0% of the texts get one" in said
    with open(tmp_path / "out.csv", newline="") as stream:
        found = list(csv.DictReader(stream))
    for row, confidence in zip(found, sure):
        assert (row["predicted_label"] == "") == (row["abstained"] == "True") == (confidence < middle)
        assert float(row["probability"]) == pytest.approx(confidence, abs=1e-6)
    for format in ("jsonl", "parquet", "csv"):
        assert main("predict", model, source, "--abstain", 0.9, "-o", tmp_path / f"again.{format}") == 0
    lines = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    assert {line["predicted_label"] for line in lines if line["abstained"]} == {None}
    assert main("predict", model, *texts[:9], "--abstain", 0.9) == 0
    assert main("predict", model, "a film", "--abstain", 0.99) == 2
    assert "0.950 at most" in capsys.readouterr().err


def test_out_of_scope_scores(run: Path, tmp_path: Path, capsys: Any) -> None:
    from sklearn.metrics import roc_auc_score

    inside = write_csv(tmp_path / "in.csv", rows(50, seed=4))
    outside = write_csv(tmp_path / "out.csv", [("the the is it was", "?"), ("so", "?"), ("too very it", "?")])
    output = tmp_path / "scores.jsonl"
    assert main("predict", run, inside, "--out-of-scope", outside, "-o", output) == 0
    said = capsys.readouterr().err
    made = Classifier.load(run, device="cpu")
    far = [record for batch in made.records(outside, ood=True) for record in batch]
    near = [json.loads(line) for line in output.read_text().splitlines()]
    for name, title in (("ood_probability", "maximum probability"), ("ood_energy", "energy")):
        scores = [record[name] for record in (*near, *far)]
        wanted = roc_auc_score([0] * len(near) + [1] * len(far), scores)
        assert f"{title} {wanted:.3f}" in said
    z = made.predict([rows(50, seed=4)[0][0]]).logits
    assert near[0]["ood_energy"] == pytest.approx(-np.log(np.exp(z).sum()), abs=1e-5)  # type: ignore[arg-type]
    assert near[0]["ood_probability"] == pytest.approx(1 - near[0]["probability"])
    assert "AUROC of 50 rows against 3 out of scope" in said
    assert main("predict", run, inside, "--ood", "-f", "csv") == 0
    assert "ood_energy" in capsys.readouterr().out
