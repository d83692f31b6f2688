"""`TextClassifier` in scikit-learn's hands."""

from __future__ import annotations

import inspect
import json
import pickle
import random
import tempfile
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from test_heads import pooled_folder
from test_training import BAD, GOOD, WORDS, calm, rows  # noqa: F401

import mixwell
from mixwell.training.estimator import SHARED, TextClassifier
from mixwell.utils.errors import DataError, OptionError, RunError

TEXTS, LABELS = map(list, zip(*rows(60)))


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(pooled_folder(tmp_path_factory.mktemp("pooled") / "encoder", pooling_mode_mean_tokens=True))


def new(encoder: str, **options: Any) -> TextClassifier:
    return TextClassifier(encoder, **{"method": "probe", **options})


@pytest.fixture(scope="session")
def fitted(encoder: str) -> TextClassifier:
    return new(encoder).fit(TEXTS, LABELS)


# --- scikit-learn's own checks ----------------------------------------------------------------------------------------


class Worded(TextClassifier):
    """Takes the numbers that scikit-learn's checks feed in, and spells each row out as words."""

    def _texts(self, X: Any) -> Any:
        from sklearn.utils.validation import validate_data

        numbers = validate_data(self, X, reset=not hasattr(self, "classifier_"), dtype=np.float64)
        words = np.array([*WORDS, *GOOD, *BAD])
        return super()._texts([" ".join(words[np.floor(7 * row).astype(int) % len(words)]) for row in numbers])

    def fit(self, X: Any, y: Any = None) -> Worded:
        if hasattr(self, "classifier_"):
            del self.classifier_
        return super().fit(X, y)  # type: ignore[return-value]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        tags.classifier_tags.poor_score = True  # twenty words hardly spell numbers out
        return tags


# What scikit-learn skips by itself, as docs/howto/estimator.md says.
SKIPPED = {"check_array_api_input", "check_classifiers_multilabel_output_format_decision_function"}


def test_scikit_learns_checks(encoder: str) -> None:
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(Worded(encoder, "probe", validation="none"), on_fail=None, on_skip=None)
    failed = {each["check_name"]: repr(each["exception"])[:200] for each in results if each["status"] == "failed"}
    assert not failed, "\n".join(f"{name}: {what}" for name, what in failed.items())
    skipped = {each["check_name"] for each in results if each["status"] == "skipped"}
    assert skipped == SKIPPED
    assert sum(each["status"] == "passed" for each in results) >= 45


def test_parameters_are_stored_untouched_and_checked_in_fit(encoder: str) -> None:
    options = {"batch_size": -3, "method": "nonsense", "method_options": {"alpha": 1}, "text": ["a", "b"]}
    made = TextClassifier(encoder, **options)
    for name, value in options.items():
        assert getattr(made, name) is value
    again = clone(made)
    assert again.get_params() == made.get_params()
    assert again.set_params(batch_size=8).batch_size == 8
    with pytest.raises(OptionError, match="batch_size"):
        made.fit(TEXTS, LABELS)
    with pytest.raises(OptionError, match="nonsense"):
        again.fit(TEXTS, LABELS)


def test_defaults_are_those_of_training() -> None:
    import dataclasses

    wanted = {each.name: each.default for each in dataclasses.fields(mixwell.TrainSettings)}
    parameters = inspect.signature(TextClassifier.__init__).parameters
    for name in SHARED:
        assert parameters[name].default == wanted[name], name
    assert mixwell.TextClassifier is TextClassifier


def test_the_same_model_as_a_run(encoder: str, tmp_path: Path) -> None:
    """The estimator has no training of its own: a run on a file with these rows has the same weights."""
    import pandas as pd

    frame = pd.DataFrame({"text": TEXTS, "label": LABELS})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    run = mixwell.train(
        tmp_path / "rows.csv", model=encoder, method="none", epochs=2, test="none", output=str(tmp_path / "run"),
        seed=3, quiet=True,
    )  # fmt: skip
    made = new(encoder, method="none", epochs=2, random_state=3).fit(TEXTS, LABELS)
    wanted = run.classifier(device="cpu").predict(TEXTS)
    assert np.allclose(made.predict_proba(TEXTS), wanted.probabilities, atol=1e-7)
    assert made.metrics_["out_of_fold"] == run.metrics["out_of_fold"]


def test_nothing_is_left_behind(encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("work", "cache", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("MIXWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    random.seed(1)
    np.random.seed(1)
    before = (random.getstate(), np.random.get_state()[1].tolist())
    new(encoder).fit(TEXTS, LABELS).predict(TEXTS[:3])
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    new(encoder, output=tmp_path / "kept").fit(TEXTS, LABELS)
    assert (tmp_path / "kept" / "metrics.json").is_file()
    with pytest.raises(RunError, match="finished run"):
        new(encoder, output=tmp_path / "kept").fit(TEXTS, LABELS)


# --- texts and labels as they come ------------------------------------------------------------------------------------


def test_kinds_of_texts(fitted: TextClassifier) -> None:
    import datasets
    import pandas as pd
    import polars as pl

    wanted = fitted.predict_proba(TEXTS)
    frame = pd.DataFrame({"id": range(60), "text": TEXTS})
    kinds = [
        np.array(TEXTS), np.array(TEXTS, dtype=object)[:, None], tuple(TEXTS), pd.Series(TEXTS), pl.Series(TEXTS),
        frame, pl.DataFrame(frame.to_dict("list")), datasets.Dataset.from_pandas(frame), frame.to_dict("records"),
        datasets.Dataset.from_pandas(frame)["text"], frame.to_dict("list"),
    ]  # fmt: skip
    for texts in kinds:
        assert np.allclose(fitted.predict_proba(texts), wanted, atol=1e-6), type(texts)
    assert set(fitted.predict(frame)) == {"neg", "pos"}
    for wrong in ("a text", 3, [1, 2], ["a", None]):
        with pytest.raises((OptionError, DataError)):
            fitted.predict(wrong)


def test_frames_with_their_labels(encoder: str) -> None:
    import datasets
    import pandas as pd
    import polars as pl

    titles = [f"{text} film" for text in TEXTS]
    frame = pd.DataFrame({"title": titles, "body": TEXTS, "kind": pd.Categorical(LABELS)})
    probabilities = []
    for kind in (frame, pl.DataFrame(frame.to_dict("list")), datasets.Dataset.from_list(frame.to_dict("records"))):
        made = new(encoder, text=["title", "body"]).fit(kind, "kind")
        assert made.score(kind, "kind") == made.score(kind, LABELS)
        probabilities.append(made.predict_proba(kind))
    joined = new(encoder).fit([f"{a}\n{b}" for a, b in zip(titles, TEXTS)], LABELS)
    for each in probabilities:
        assert np.allclose(each, joined.predict_proba([f"{a}\n{b}" for a, b in zip(titles, TEXTS)]), atol=1e-6)
    made = new(encoder, text="body").fit(frame.to_dict("records"), LABELS)
    assert np.allclose(made.predict_proba(frame.to_dict("records")), made.predict_proba(TEXTS), atol=1e-6)
    pairs = new(encoder, text="title", text_pair="body").fit(frame, "kind")
    assert pairs.classifier_.pairs and pairs.predict(frame).shape == (60,)
    with pytest.raises(DataError, match="no column 'sort'"):
        new(encoder).fit(frame, "sort")


@pytest.mark.parametrize(
    "classes", [[3, 11], [True, False], [1.0, 2.0], ["b ", "b"], ["nan", "x"], [np.int8(1), np.int8(0)]]
)
def test_kinds_of_labels(encoder: str, classes: list[Any], tmp_path: Path) -> None:
    import pandas as pd

    y = [classes[label == "pos"] for label in LABELS]
    made = new(encoder).fit(TEXTS, pd.Series(y))
    assert made.classes_.tolist() == sorted(set(y))
    found = made.predict(TEXTS)
    assert found.dtype.kind == made.classes_.dtype.kind and set(found.tolist()) <= set(y)
    again = TextClassifier.load(made.save(tmp_path / "model"))
    assert again.classes_.dtype == made.classes_.dtype and again.classes_.tolist() == made.classes_.tolist()
    assert again.predict(TEXTS).tolist() == found.tolist()


def test_several_labels_per_text(encoder: str, tmp_path: Path) -> None:
    import pandas as pd

    good = [label == "pos" for label in LABELS]
    y = pd.DataFrame({"good": good, "long": [len(text) > 30 for text in TEXTS], "never": False}).astype(int)
    made = new(encoder).fit(TEXTS, y)
    assert made.classes_.tolist() == [0, 1, 2]
    assert made.predict_proba(TEXTS).shape == (60, 3) and not made.predict_proba(TEXTS)[:, 2].any()
    found = made.predict(TEXTS)
    assert made.score(TEXTS, y) == pytest.approx((found == y.to_numpy()).all(axis=1).mean())
    assert TextClassifier.load(made.save(tmp_path / "m")).predict(TEXTS).tolist() == found.tolist()
    with pytest.raises(OptionError, match="MultiLabelBinarizer"):
        new(encoder).fit(TEXTS, [["a"], ["b"]] * 30)


def test_labels_that_cannot_be_used(encoder: str) -> None:
    for y, message in (
        ([0.5] * 30 + [0.7] * 30, "continuous"),
        (["a"] * 60, "one class"),
        ([None, "a"] * 30, "y\\[0\\]"),
        ([1, "a"] * 30, "y\\[1\\] is of another type"),
        (LABELS[:-1], "60 texts and 59 labels"),
        (None, "requires y"),
    ):
        with pytest.raises((OptionError, DataError), match=message):
            new(encoder).fit(TEXTS, y)
    with pytest.raises(DataError, match="all training texts are the same") as caught:
        new(encoder).fit(["same"] * 60, LABELS)
    assert "parquet" not in str(caught.value)


# --- model selection --------------------------------------------------------------------------------------------------


def test_cross_validation(encoder: str) -> None:
    import pandas as pd
    from sklearn.model_selection import cross_val_score, cross_validate

    scores = cross_val_score(new(encoder), TEXTS, LABELS, cv=3)
    assert scores.shape == (3,) and scores.mean() > 0.5
    frame = pd.DataFrame({"text": TEXTS})
    more = cross_validate(
        new(encoder), frame, LABELS, cv=2, scoring=["accuracy", "neg_log_loss"], return_estimator=True
    )
    assert np.isfinite(more["test_neg_log_loss"]).all()
    assert more["estimator"][0].classes_.tolist() == ["neg", "pos"]


def test_grid_search_and_pipeline(encoder: str) -> None:
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    search = GridSearchCV(new(encoder), {"max_length": [8, 32], "method": ["probe"]}, cv=2, scoring="neg_log_loss")
    search.fit(TEXTS, LABELS)
    assert search.best_params_["max_length"] in (8, 32)
    assert search.best_estimator_.predict(TEXTS[:2]).shape == (2,)
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    assert make_pipeline(lower, new(encoder)).fit(TEXTS, LABELS).predict_proba(TEXTS[:3]).shape == (3, 2)


def test_calibration(encoder: str) -> None:
    from sklearn.calibration import CalibratedClassifierCV

    made = CalibratedClassifierCV(new(encoder), method="sigmoid", cv=2).fit(TEXTS, LABELS)
    assert np.allclose(made.predict_proba(TEXTS[:4]).sum(axis=1), 1)


def test_random_state(encoder: str) -> None:
    options = {"method": "none", "epochs": 1, "validation": "none", "start": "random"}
    one, two, three = (
        new(encoder, random_state=seed, **options).fit(TEXTS, LABELS).predict_proba(TEXTS[:5])
        for seed in (7, 7, np.random.RandomState(1))
    )
    assert np.array_equal(one, two) and not np.array_equal(one, three)


# --- saving -----------------------------------------------------------------------------------------------------------


def test_save_load_and_other_readers(fitted: TextClassifier, tmp_path: Path) -> None:
    from transformers import pipeline

    folder = fitted.save(tmp_path / "model")
    wanted = fitted.predict_proba(TEXTS)
    again = TextClassifier.load(folder)
    assert np.allclose(again.predict_proba(TEXTS), wanted, atol=1e-7)
    assert again.get_params() == fitted.get_params()
    assert again.score(TEXTS, LABELS) == fitted.score(TEXTS, LABELS)
    assert np.allclose(mixwell.Classifier.load(folder).predict(TEXTS).probabilities, wanted, atol=1e-7)
    (scored,) = pipeline("text-classification", str(folder), top_k=None)(TEXTS[:1])
    assert {one["label"]: one["score"] for one in scored}["pos"] == pytest.approx(wanted[0, 1], abs=1e-6)
    assert not list(folder.glob("*.bin")) and not list(folder.glob("*.pkl"))
    fitted.save(folder)  # replaces a model of ours
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("precious")
    with pytest.raises(RunError, match="something else"):
        fitted.save(tmp_path / "mine")
    copied = pickle.loads(pickle.dumps(fitted))  # what joblib does between processes
    assert np.allclose(copied.predict_proba(TEXTS[:2]), wanted[:2], atol=1e-7)


def test_load_from_a_run(encoder: str, tmp_path: Path) -> None:
    import pandas as pd

    run = mixwell.train(
        pd.DataFrame({"text": TEXTS, "label": LABELS}), model=encoder, method="probe", output=str(tmp_path / "run"),
        quiet=True,
    )  # fmt: skip
    made = TextClassifier.load(run.folder)
    assert made.predict(TEXTS).tolist() == run.classifier().predict(TEXTS).labels


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as an upload needs; commits end up in a local folder."""

    folder: Path

    def do_POST(self) -> None:
        import base64

        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        address = f"http://127.0.0.1:{self.server.server_address[1]}/me/films"
        answer: dict[str, Any] = {"url": address, "name": "me/films", "id": "me/films"}
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            answer = {
                "files": [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in files]
            }
        elif "/commit/" in self.path:
            for line in body.splitlines():
                part = json.loads(line)
                if part["key"] == "file":
                    target = self.folder / part["value"]["path"]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(base64.b64decode(part["value"]["content"]))
            answer = {"commitUrl": f"{address}/commit/{'0' * 40}", "commitOid": "0" * 40, "success": True}
        elif self.path == "/api/validate-yaml":
            answer = {"errors": [], "warnings": []}
        elif self.path != "/api/repos/create":
            self.send_error(404)
            return
        sent = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *words: Any) -> None:
        pass


def test_push_to_hub(fitted: TextClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    Hub.folder = tmp_path / "hub"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    kept = huggingface_hub.HfApi.__init__
    monkeypatch.setattr(
        huggingface_hub.HfApi, "__init__", lambda self, **options: kept(self, endpoint=address, **options)
    )
    try:
        assert fitted.push_to_hub("me/films", token="hf_test") == f"{address}/me/films"
    finally:
        server.shutdown()
        server.server_close()
    again = TextClassifier.load(tmp_path / "hub")
    assert np.allclose(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS), atol=1e-7)
    with pytest.raises(RunError, match="hub repository me/films"):
        fitted.push_to_hub("me/films", token="hf_test")
