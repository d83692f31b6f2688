"""Under what conditions methods are compared: noise, typing mistakes, imbalance, further tests, training to the end.

They are part of a run's specification. A run without any has the name it had before there were conditions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell import data as texts
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE
from mixwell.utils.errors import DataError, OptionError, nearest
from mixwell.utils.files import home

if TYPE_CHECKING:
    from mixwell.data import TextData

TYPOS_IN = ("train", "test", "both")
NOISES = ("uniform", "confusion")
CHOSEN = "chosen epoch"  # what the extra test of the epoch that validation chose is called


@dataclass(frozen=True)
class TestFile:
    """A further file: its name in tables, where it is, and the fingerprint of what it held when runs were planned."""

    name: str
    path: str
    fingerprint: str = ""

    __test__ = False  # no test of pytest


@dataclass(frozen=True)
class Conditions:
    """What is made harder, and what is tested besides.

    Attributes:
        label_noise: share of training rows with another class.
        noise: `uniform` or `confusion`; see `data.regimes`.
        typos: share of words with a typing mistake.
        typos_in: `train`, `test` or `both`.
        imbalance: how many times the rows of the smallest class the largest has; 1 leaves train as it is.
        overtrain: keep the last epoch; the one that validation chose is tested beside it.
        tests: further test sets.
        ood: texts of another kind, which a model should not be sure about.
        seed: chooses rows, words and classes; None where nothing is chosen.
    """

    label_noise: float = 0.0
    noise: str = "uniform"
    typos: float = 0.0
    typos_in: str = "train"
    imbalance: float = 1.0
    overtrain: bool = False
    tests: tuple[TestFile, ...] = ()
    ood: TestFile | None = None
    seed: int | None = None

    def __bool__(self) -> bool:
        return self != Conditions()

    @property
    def changes_train(self) -> bool:
        """Whether the training rows are other ones."""
        return bool(self.label_noise or self.imbalance != 1 or (self.typos and self.typos_in != "test"))

    @property
    def test_mark(self) -> tuple[float, str]:
        """What distinguishes test texts from those of the data."""
        return (self.typos, "") if self.typos and self.typos_in != "train" else (0.0, "")

    def check(self) -> None:
        """Raise `OptionError` for a value that cannot be used."""
        for name, low, high in (("label_noise", 0.0, 1.0), ("typos", 0.0, 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < high:
                raise OptionError(f"{name} must be a share from 0 to below 1, such as 0.1, got {value!r}")
        value = self.imbalance
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 1e6:
            raise OptionError(f"imbalance must be a ratio of at least 1, such as 10, got {value!r}")
        for name, known in (("noise", NOISES), ("typos_in", TYPOS_IN)):
            value = getattr(self, name)
            if value not in known:
                raise OptionError(
                    f"{name} must be one of {', '.join(known)}, got {value!r}{nearest(str(value), known)}"
                )
        if not isinstance(self.overtrain, bool):
            raise OptionError(f"overtrain must be true or false, got {self.overtrain!r}")
        names = [file.name for file in self.tests]
        for name in names:
            if not re.fullmatch(r"[\w][\w .-]{0,40}", name) or name == CHOSEN:
                raise OptionError(f"test {name!r}: the name must be of letters, digits, blanks, dots and dashes")
        if len(set(names)) < len(names):
            raise OptionError(f"tests {', '.join(names)} name one twice")

    def check_task(self, task: str) -> None:
        """Raise `OptionError` for conditions that a task cannot have."""
        needs = [name for name in ("label_noise", "imbalance") if getattr(self, name) != getattr(Conditions(), name)]
        if needs and task != SINGLE:
            raise OptionError(f"{needs[0]} needs rows of one class each; the task is {task}, so leave it out")
        if self.ood is not None and task == REGRESSION:
            raise OptionError("ood needs classes; the task is regression, so leave it out")

    def apply(self, data: TextData) -> TextData:
        """The data under these conditions; further test sets are read by `extra_tables`."""
        from mixwell.data import regimes

        seed = self.seed or 0
        if self.imbalance != 1:
            data = regimes.with_imbalance(data, self.imbalance, seed)
        if self.label_noise:
            data = regimes.with_label_noise(data, self.label_noise, self.noise, seed)
        if self.typos:
            splits = ("train", "test") if self.typos_in == "both" else (self.typos_in,)
            data = regimes.with_typos(data, self.typos, splits, seed)
        return data

    @property
    def title(self) -> str:
        """In words, for tables; empty for none."""
        parts = []
        if self.imbalance != 1:
            parts.append(f"imbalance {self.imbalance:g}")
        if self.label_noise:
            parts.append(
                f"{100 * self.label_noise:g} % label noise{' by confusion' if self.noise != 'uniform' else ''}"
            )
        if self.typos:
            where = {"train": "", "test": " in test", "both": " in train and test"}[self.typos_in]
            parts.append(f"{100 * self.typos:g} % typos{where}")
        return ", ".join([*parts, *(["last epoch"] if self.overtrain else [])])

    def identity(self, *, seeded: bool = True) -> dict[str, Any]:
        """What decides results: values that are not the usual ones, and contents in place of paths."""
        usual = Conditions()
        values: dict[str, Any] = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("tests", "ood", "seed") and getattr(self, field.name) != getattr(usual, field.name)
        }
        if self.tests:
            values["tests"] = [[file.name, file.fingerprint] for file in self.tests]
        if self.ood is not None:
            values["ood"] = self.ood.fingerprint
        if seeded and self.changes_train:
            values["seed"] = self.seed
        return values

    def planned(self, data: TextData) -> Conditions:
        """The same with whole paths and with fingerprints of the files, which are read once for that."""
        self.check_task(data.task)
        tests = tuple(
            TestFile(file.name, _whole_path(file.path), table_mark(read_test(file, data))) for file in self.tests
        )
        ood = self.ood
        if ood is not None:
            ood = TestFile(ood.name, _whole_path(ood.path), table_mark(read_foreign(ood, data)))
        return dataclasses.replace(self, tests=tests, ood=ood)

    def extra_tables(self, data: TextData) -> dict[str, Any]:
        """The tables of further test sets under `test.NAME`, and of foreign texts under `ood`.

        Raises:
            DataError: a file is not what it was when the runs were planned.
        """
        tables = {f"test.{file.name}": (file, read_test(file, data)) for file in self.tests}
        if self.ood is not None:
            tables["ood"] = (self.ood, read_foreign(self.ood, data))
        for file, table in tables.values():
            if table_mark(table) != file.fingerprint:
                raise DataError(f"{file.path}: the file changed while the comparison was running")
        return {name: table for name, (_, table) in tables.items()}

    def files(self) -> list[str]:
        """The paths of the further files."""
        return [file.path for file in (*self.tests, *([self.ood] if self.ood else []))]

    def moved(self, paths: Mapping[str, str]) -> Conditions:
        """The same with files at other paths."""

        def there(file: TestFile) -> TestFile:
            return dataclasses.replace(file, path=paths.get(file.path, file.path))

        ood = None if self.ood is None else there(self.ood)
        return dataclasses.replace(self, tests=tuple(map(there, self.tests)), ood=ood)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> Conditions:
        """The conditions of `dataclasses.asdict`, or none."""
        if not values:
            return cls()
        rest = dict(values)
        rest["tests"] = tuple(TestFile(**file) for file in rest.get("tests", ()))
        rest["ood"] = None if rest.get("ood") is None else TestFile(**rest["ood"])
        return cls(**rest)


def _whole_path(path: str) -> str:
    return str(home(path).resolve()) if home(path).exists() else path


def table_mark(table: Any) -> str:
    """A fingerprint of the texts and labels of a table."""
    import hashlib
    import json

    columns = [name for name in ("text", "text_pair", "label") if name in table.column_names]
    total = hashlib.sha256()
    for name in columns:
        total.update(json.dumps([name, table[name].to_pylist()], ensure_ascii=True).encode())
    return total.hexdigest()[:32]


def read_test(file: TestFile, data: TextData) -> Any:
    """A further test set as a table like those of the data, with their class numbers.

    Raises:
        DataError: it cannot be read, or has a class that the data lack.
    """
    import numpy as np
    import pyarrow as pa

    text, pair, label = (data.columns.get(part) for part in ("text", "text_pair", "label"))
    found = texts.load(
        file.path, text=text, text_pair=pair, label=label, task=data.task, validation="none", test="none"
    )
    table = found.train
    if data.task == REGRESSION:
        return table
    strange = [name for name in found.labels if name not in data.labels]
    if strange:
        raise DataError(
            f"{file.path}: label {strange[0]!r} of test {file.name} is no class of the training data; they have "
            f"{', '.join(data.labels[:8])}{' ...' if len(data.labels) > 8 else ''}"
        )
    places = [data.labels.index(name) for name in found.labels]
    at = table.column_names.index("label")
    if data.task == MULTI:
        own = np.zeros((table.num_rows, len(data.labels)), dtype=np.float32)
        own[:, places] = np.asarray(table["label"].to_pylist(), dtype=np.float32)
        column = pa.array(own.tolist(), type=pa.list_(pa.float32()))
    else:
        column = pa.array(np.asarray(places, dtype=np.int64)[table["label"].to_numpy()])
    return table.set_column(at, "label", pa.chunked_array([column]))


def read_foreign(file: TestFile, data: TextData) -> Any:
    """Texts of another kind as a table like those of the data; their labels mean nothing."""
    import pyarrow as pa

    if not home(file.path).is_file():
        raise DataError(f"{file.path}: no such file; ood needs a file with texts")
    pairs = "text_pair" in data.train.column_names
    rows = [row for batch in texts.iter_rows(home(file.path), known=data.columns, pairs=pairs) for row in batch]
    if not rows:
        raise DataError(f"{file.path}: no rows; ood needs a file with texts")
    kind = data.train.schema.field("label").type
    empty: Any = [0.0] * len(data.labels) if data.task == MULTI else 0
    columns = {"row_id": [f"ood:{row['row']}" for row in rows], "text": [row["text"] for row in rows]}
    if pairs:
        columns["text_pair"] = [row["text_pair"] for row in rows]
    return pa.table({**columns, "label": pa.array([empty] * len(rows), type=kind)})


def read_tests(given: list[str] | None) -> tuple[str | None, dict[str, str] | None]:
    """Separate `FILE` (the test rows of the data) and `NAME=FILE` (further test sets) of the option --test."""
    usual: str | None = None
    more: dict[str, str] = {}
    for text in given or []:
        name, sign, path = text.partition("=")
        if not sign or Path(text).exists():
            if usual is not None:
                raise OptionError(f"--test {text}: the test rows are named twice; further test sets are NAME=FILE")
            usual = text
        elif name in more:
            raise OptionError(f"--test {text}: {name!r} is named twice")
        else:
            more[name] = path
    return usual, more or None
