"""The rows of a comparison that train no Transformer: what people would use instead of fine-tuning."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.metrics.tasks import MULTI, REGRESSION
from mixwell.training.folds import fold_of_rows
from mixwell.training.heads import probe_model
from mixwell.training.probe import Probe, features, fit_probe

FOLDS = 5
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)


def probe_of(loaded: Any, rows: Any, labels: Any, keys: Any, task: str, batch_size: int, *, pairs: bool) -> Probe:
    """The probe of training rows, its penalty chosen by folds; the texts of pairs are read one by one."""
    x = frozen_features(loaded, rows, batch_size, pairs=pairs)
    return fit_probe(x, labels, task, loaded.model.config.num_labels, fold_of_rows(labels, keys, task, 0, FOLDS))


def probe_outputs(probe: Probe, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a probe predicts for features (N, H): (N, C)."""
    return probe.outputs(x).astype(np.float32)


def frozen_features(loaded: Any, rows: Any, batch_size: int, *, pairs: bool) -> NDArray[np.float32]:
    """The features (N, H) of tokenised rows; the model must have its first weights."""
    model = probe_model(loaded.model, loaded.tokenizer, pairs=pairs) or loaded.model
    return features(model, loaded.tokenizer, rows, batch_size)


def tfidf_outputs(
    train: list[str], labels: Any, others: dict[str, list[str]], task: str, classes: int, keys: Any
) -> dict[str, NDArray[np.float32]]:
    """What a logistic regression on words and word pairs predicts for other texts: (N, C) each.

    Args:
        train: the training texts.
        labels: theirs.
        others: the texts to predict, by name.
        task: of the data.
        classes: C; 1 for regression.
        keys: (N,) of the training texts, to keep equal ones in one fold.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\S+", min_df=1)
    x = vectorizer.fit_transform(train)
    model = _tfidf_model(x, labels, task, fold_of_rows(labels, keys, task, 0, FOLDS))
    outputs = {}
    for name, texts in others.items():
        z = vectorizer.transform(texts)
        if task == REGRESSION:
            outputs[name] = model.predict(z).reshape(-1, 1).astype(np.float32)
        elif task == MULTI:
            positive = np.stack([_probability(label_model, z) for label_model in model], axis=1)
            positive = np.clip(positive, 1e-6, 1 - 1e-6)
            outputs[name] = np.log(positive / (1 - positive)).astype(np.float32)
        else:
            # A class that train lacks is next to impossible.
            logits = np.full((len(texts), classes), np.log(1e-6))
            logits[:, model.classes_] = model.predict_log_proba(z)
            outputs[name] = logits.astype(np.float32)
    return outputs


def _tfidf_model(x: Any, y: Any, task: str, folds: Any) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge

    if task == REGRESSION:
        return Ridge().fit(x, y)
    if task == MULTI:
        return [_fit(LogisticRegression(C=10.0, max_iter=200), x, column) for column in (np.asarray(y) > 0.5).T]
    losses = []
    for strength in STRENGTHS:
        total = 0.0
        for fold in np.unique(folds):
            held_out = folds == fold
            if len(np.unique(y[~held_out])) < 2:
                continue
            model = _fit(LogisticRegression(C=strength, max_iter=200), x[~held_out], y[~held_out])
            columns = {label: column for column, label in enumerate(model.classes_)}
            log_probs = model.predict_log_proba(x[held_out])
            rows = [(row, columns[label]) for row, label in enumerate(y[held_out]) if label in columns]
            total -= sum(max(log_probs[row, column], np.log(1e-6)) for row, column in rows)
        losses.append(total)
    return _fit(LogisticRegression(C=STRENGTHS[int(np.argmin(losses))], max_iter=500), x, y)


def _fit(model: Any, x: Any, y: Any) -> Any:
    if len(np.unique(y)) < 2:
        return float(np.mean(y))  # a label that all rows have, or none
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(x, y)


def _probability(model: Any, z: Any) -> Any:
    """(N,) the probability of a label, by its model or by its frequency."""
    return np.full(z.shape[0], model) if isinstance(model, float) else model.predict_proba(z)[:, 1]
