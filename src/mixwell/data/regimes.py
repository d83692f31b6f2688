"""Harder conditions, made of data as they are: wrong labels, typing mistakes, rare classes.

Every choice rests on hashes of the rows' texts and a seed, so it is the same on every machine and does not change when
rows change places. A smaller share of wrong labels or of typing mistakes lies inside a larger one of the same seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

from mixwell.data.splits import KeyMaker, RowKeys
from mixwell.data.textdata import TextData, class_members, make_text_data, texts_of
from mixwell.metrics.tasks import SINGLE
from mixwell.utils.errors import DataError, OptionError

if TYPE_CHECKING:
    import numpy as np

NOISES = ("uniform", "confusion")
_FOLDS = 5
_KEYS = {
    "q": "wa", "w": "qe", "e": "wr", "r": "et", "t": "ry", "y": "tu", "u": "yi", "i": "uo", "o": "ip", "p": "ol",
    "a": "sq", "s": "ad", "d": "sf", "f": "dg", "g": "fh", "h": "gj", "j": "hk", "k": "jl", "l": "kp", "z": "xa",
    "x": "zc", "c": "xv", "v": "cb", "b": "vn", "n": "bm", "m": "nk",
}  # fmt: skip


def check_classes_for(data: TextData, what: str) -> None:
    """Raise `OptionError` unless each row has one of several classes."""
    if data.task != SINGLE or len(data.labels) < 2:
        raise OptionError(f"{what} needs rows of one class each and at least 2 classes; the task is {data.task}")


def with_label_noise(data: TextData, rate: float, kind: str = "uniform", seed: int = 0) -> TextData:
    """The data with another class for a share of the training rows.

    Args:
        data: with one class per row.
        rate: the share, above 0 and below 1.
        kind: `uniform`, any other class alike; or `confusion`, the classes that a simple classifier takes for it.
        seed: chooses rows and classes.

    Raises:
        OptionError: a value cannot be used, or the rows have no single classes.
    """
    import numpy as np
    import pyarrow as pa

    if not 0 < rate < 1:
        raise OptionError(f"label_noise must be a share above 0 and below 1, got {rate!r}")
    if kind not in NOISES:
        raise OptionError(f"noise must be one of {', '.join(NOISES)}, got {kind!r}")
    check_classes_for(data, "label_noise")
    labels = data.train["label"].to_numpy().copy()
    classes = len(data.labels)
    odds = np.ones((classes, classes)) if kind == "uniform" else _confusion(data, labels, seed)
    np.fill_diagonal(odds, 0.0)
    odds /= odds.sum(axis=1, keepdims=True)
    draws = _draws(data.row_keys("train"), "label noise", seed)
    for row in np.argsort(draws[:, 0], kind="stable")[: round(rate * len(labels))]:
        labels[row] = int(np.searchsorted(np.cumsum(odds[labels[row]]), draws[row, 1]).clip(0, classes - 1))
    place = data.train.column_names.index("label")
    train = data.train.set_column(place, "label", pa.chunked_array([pa.array(labels, type=pa.int64())]))
    note = f"label noise: {round(rate * len(labels))} of {len(labels)} training rows have another class ({kind})"
    keys = {name: data.row_keys(name) for name in data.splits}
    return make_text_data({**data.splits, "train": train}, keys, dataclasses.replace(data, notes=[*data.notes, note]))


def _confusion(data: TextData, labels: Any, seed: int) -> Any:
    """(C, C) how often a naive Bayes on words takes a class for another, out of fold; no pair is impossible."""
    import numpy as np
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.naive_bayes import ComplementNB

    classes = len(data.labels)
    x = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\S+").fit_transform(texts_of(data.train))
    fold = (_draws(data.row_keys("train"), "confusion", seed)[:, 0] * _FOLDS).astype(int)
    counts = np.full((classes, classes), 0.1)
    for part in range(_FOLDS):
        out = fold == part
        if not out.any() or len(np.unique(labels[~out])) < 2:
            continue
        model = ComplementNB().fit(x[~out], labels[~out])
        np.add.at(counts, (labels[out], model.predict(x[out])), 1)
    return counts


def with_typos(data: TextData, rate: float, splits: tuple[str, ...] = ("train",), seed: int = 0) -> TextData:
    """The data with a typing mistake in a share of the words of some splits.

    A mistake is two letters swapped, one left out, one doubled, or one of a key beside it. Words of fewer than three
    letters stay as they are. Test texts are changed by the seed 0 always, so that all runs have the same.

    Args:
        data: of any task.
        rate: the share of words, above 0 and at most 1.
        splits: `train`, `test` or both.
        seed: chooses words and mistakes of train.
    """
    import pyarrow as pa

    if not 0 < rate <= 1:
        raise OptionError(f"typos must be a share of the words above 0 and at most 1, got {rate!r}")
    tables, keys = dict(data.splits), {name: data.row_keys(name) for name in data.splits}
    for split in splits:
        table, own = tables[split], seed if split == "train" else 0
        columns = [name for name in ("text", "text_pair") if name in table.column_names]
        changed: dict[str, list[Any]] = {}
        for name in columns:
            exact = keys[split].exact
            texts = table[name].to_pylist()
            changed[name] = [
                None if text is None else _mistyped(text, rate, _generator(f"typos {name}", own, row))
                for text, row in zip(texts, exact)
            ]
            place = table.column_names.index(name)
            kind = table.schema.field(name).type
            table = table.set_column(place, name, pa.chunked_array([pa.array(changed[name], type=kind)]))
        maker = KeyMaker()
        for number in range(table.num_rows):
            maker.add(changed["text"][number], changed["text_pair"][number] if "text_pair" in changed else None)
        tables[split], keys[split] = table, maker.finish()
    note = f"typos: a mistake in {100 * rate:g} % of the words of {' and '.join(splits)}"
    return make_text_data(tables, keys, dataclasses.replace(data, notes=[*data.notes, note]))


def _mistyped(text: str, rate: float, draw: np.random.Generator) -> str:
    """A text with mistakes; each word draws the same numbers whatever the rate is."""
    words = text.split(" ")
    chances = draw.random((len(words), 3))
    for number, word in enumerate(words):
        if len(word) < 3 or chances[number, 0] >= rate:
            continue
        at = int(chances[number, 1] * (len(word) - 1))
        what = int(chances[number, 2] * 4)
        if what == 0:
            word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        elif what == 1:
            word = word[:at] + word[at + 1 :]
        elif what == 2:
            word = word[:at] + word[at] + word[at:]
        else:
            beside = _KEYS.get(word[at].lower(), word[at])
            word = word[:at] + beside[int(chances[number, 1] * 7919) % len(beside)] + word[at + 1 :]
        words[number] = word
    return " ".join(words)


def with_imbalance(data: TextData, ratio: float, seed: int = 0) -> TextData:
    """The data with a long tail: the largest class of train has `ratio` times the rows of the smallest.

    The seed orders the classes; from one to the next the rows fall by a constant factor, and no row is doubled.

    Args:
        data: with one class per row.
        ratio: above 1.
        seed: orders the classes and chooses the rows.
    """
    import numpy as np

    if not ratio > 1:
        raise OptionError(f"imbalance must be a ratio above 1, such as 10, got {ratio!r}")
    check_classes_for(data, "imbalance")
    members = class_members(data.task, data.train["label"], len(data.labels))
    present = [number for number, rows in enumerate(members) if len(rows)]
    order = sorted(present, key=lambda number: _digest(f"imbalance {seed} {data.labels[number]}"))
    steps = ratio ** (np.arange(len(order)) / max(len(order) - 1, 1))
    largest = min(len(members[number]) * step for number, step in zip(order, steps))
    if largest / ratio < 1:
        raise DataError(
            f"{data.source}: imbalance {ratio:g} leaves a class without rows, as the largest can have {int(largest)}; "
            f"use {max(2, int(largest))} or less, or more training rows"
        )
    draws = _draws(data.row_keys("train"), "imbalance", seed)[:, 0]
    kept: list[Any] = []
    for number, step in zip(order, steps):
        rows = members[number]
        kept.append(rows[np.argsort(draws[rows], kind="stable")[: max(1, round(largest / step))]])
    rows = np.sort(np.concatenate(kept))
    keys = {name: data.row_keys(name) for name in data.splits}
    note = f"imbalance: {len(rows)} of {data.train.num_rows} training rows, {len(kept[0])} to {len(kept[-1])} per class"
    return make_text_data(
        {**data.splits, "train": data.train.take(rows)}, {**keys, "train": keys["train"].take(rows)},
        dataclasses.replace(data, notes=[*data.notes, note]),
    )  # fmt: skip


def _draws(keys: RowKeys, purpose: str, seed: int) -> Any:
    """(N, 2) numbers from 0 to 1 by the rows' texts; rows of equal text differ by which of them they are."""
    import numpy as np

    seen: dict[int, int] = {}
    out = np.empty((len(keys), 2))
    for number, key in enumerate(np.asarray(keys.exact)[:, 0].tolist()):
        seen[key] = seen.get(key, -1) + 1
        out[number] = _generator(f"{purpose} {seen[key]}", seed, [key]).random(2)
    return out


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _generator(purpose: str, seed: int, row: Any) -> np.random.Generator:
    import numpy as np

    return np.random.default_rng([seed, int.from_bytes(_digest(purpose)[:4], "little"), *(int(key) for key in row)])
