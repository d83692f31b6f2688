"""What one cell of a comparison is: data, sample, model, method, settings and seed, under one name.

A cell's name is a hash over all that decides its result: contents count (fingerprints of data and weights), paths
do not. So the same command finds its cells again wherever the files are, and a changed option makes new cells.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mixwell import data as texts
from mixwell.compare.conditions import Conditions
from mixwell.training.budget import AutoOptions
from mixwell.training.budget import plan as budget_plan
from mixwell.training.recipe import FOLDS
from mixwell.training.settings import BEFORE, TrainSettings
from mixwell.utils.errors import OptionError
from mixwell.utils.files import home
from mixwell.utils.options import check_fields

if TYPE_CHECKING:
    from mixwell.data import TextData

FORMAT = "mixwell cell 1"
BASELINE = "none"
SMOOTHING = 0.1
# What people use instead of fine-tuning; a row of every comparison.
REFERENCES = {
    "probe": "logistic regression on the frozen features of the model",
    "tfidf": "logistic regression on TF-IDF words and word pairs, without the model",
}
# Chooses a way to train on folds of the training rows, then trains that way like any other method.
AUTO = "auto"
PATH_FIELDS = ("data", "validation", "test", "splits_file")  # fields of `DataSource` that may name files
_SET_ELSEWHERE = {"total_steps": "training knows it", "loss_fn": "only the Python call attach takes it"}


def canonical(value: Any) -> str:
    """JSON that is the same for equal values: keys sorted, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


@dataclass(frozen=True)
class DataSource:
    """Where texts come from; the fields are those of `mixwell.data.load`."""

    data: str
    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    task: str | None = None
    validation: str | float | None = None
    test: str | float | None = None
    split_seed: int = 0
    drop_leaks: bool = False
    keep_together: bool = False
    splits_file: str | None = None

    def resolved(self) -> DataSource:
        """The same with whole paths, so that workers find the files from any folder."""
        changes = {}
        for name in PATH_FIELDS:
            value = getattr(self, name)
            if isinstance(value, str) and home(value).exists():
                changes[name] = str(home(value).resolve())
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def load(self) -> TextData:
        """Read and split the texts."""
        options = dataclasses.asdict(self)
        return texts.load(options.pop("data"), **options)


@dataclass(frozen=True)
class Sample:
    """Which part of train is used.

    Attributes:
        fraction: share of train.
        per_class: rows per class.
        max_train: the most rows.
        seed: chooses the rows; None when all are used.
    """

    fraction: float | None = None
    per_class: int | None = None
    max_train: int | None = None
    seed: int | None = None

    def of(self, data: TextData) -> TextData:
        """The sampled data."""
        return data.sample(self.fraction, self.per_class, self.max_train, self.seed or 0)

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return self.fraction is None and self.per_class is None and self.max_train is None

    @property
    def title(self) -> str:
        """In words, for tables."""
        parts = []
        if self.fraction is not None:
            parts.append(f"{100 * self.fraction:g} % of train")
        if self.per_class is not None:
            parts.append(f"{self.per_class} rows per class")
        if self.max_train is not None:
            parts.append(f"at most {self.max_train} rows")
        return ", ".join(parts) or "all of train"


@dataclass(frozen=True)
class Candidate:
    """A method with its options.

    Attributes:
        method: its name.
        options: all options, defaults included.
        label: what tables call it, such as `amplify[consistent=true]`.
    """

    method: str
    options: Mapping[str, Any]
    label: str


def candidate(method: str, given: Mapping[str, Any]) -> Candidate:
    """Check a method and its options, and name it by the options that are not the defaults.

    Raises:
        OptionError: the method or an option is unknown or out of range.
    """
    from mixwell.methods import build  # imports torch
    from mixwell.methods.registry import to_find, without_auto

    if method in REFERENCES:
        if given:
            raise OptionError(f"method {method} has no option {min(given)!r}: it takes none")
        return Candidate(method, {}, method)
    if method == AUTO:
        return _auto(given)
    defaults = {f.name: f.default for f in dataclasses.fields(options_class(method))}
    for name, why in _SET_ELSEWHERE.items():
        if name in given:
            raise OptionError(f"method {method}: option {name!r} cannot be given here: {why}")
    given = {name: _plain(value, defaults.get(name)) for name, value in given.items()}
    built = build(method, without_auto(method, given))
    options = {name: _plain(value) for name, value in built.options().items() if name not in _SET_ELSEWHERE}
    options |= {name: given[name] for name in to_find(method, given)}
    shown = [f"{name}={_text(given[name])}" for name in sorted(given) if given[name] != _plain(defaults[name])]
    return Candidate(method, options, f"{method}[{','.join(shown)}]" if shown else method)


def options_class(method: str) -> type[Any]:
    """A dataclass with the options of a method."""
    from mixwell.methods import method_class  # imports torch

    return AutoOptions if method == AUTO else method_class(method)


def _auto(given: Mapping[str, Any]) -> Candidate:
    for name in given:
        if name != "budget":
            raise OptionError(f"method auto has no option {name!r}: it takes budget")
    value = given.get("budget", AutoOptions.budget)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise OptionError(f"method auto: budget must be a number of plain trainings, got {value!r}")
    budget_plan(value, FOLDS)
    return Candidate(
        AUTO, {"budget": float(value)}, AUTO if value == AutoOptions.budget else f"{AUTO}[budget={value:g}]"
    )


def _plain(value: Any, default: Any = None) -> Any:
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)  # 1 and 1.0 are one option
    return list(value) if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(_text(item) for item in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class CellSpec:
    """One training of a comparison.

    Attributes:
        name: what tables call the data.
        source: where the data are.
        fingerprint: of the data before sampling; the same for all seeds.
        sampled: fingerprint of the data after sampling.
        sample: which part of train.
        max_test: the most test rows, a fixed choice; None for all.
        task: of the data.
        model: name or folder.
        weights: fingerprint of the model's weights, config and tokenizer.
        trust_remote_code: run code that comes with the model.
        method: name of the method.
        options: all its options.
        label: name of method and options for tables.
        settings: of training: fields of `TrainSettings`, with the learning rate and length that are really used.
        seed: of head, order, dropout and mixing.
        conditions: what is made harder, and what is tested besides.
    """

    name: str
    source: DataSource
    fingerprint: str
    sampled: str
    sample: Sample
    max_test: int | None
    task: str
    model: str
    weights: str
    trust_remote_code: bool
    method: str
    options: Mapping[str, Any]
    label: str
    settings: Mapping[str, Any]
    seed: int
    conditions: Conditions = Conditions()

    @property
    def is_reference(self) -> bool:
        """Whether it trains no Transformer."""
        return self.method in REFERENCES

    def group(self) -> dict[str, Any]:
        """What the cells of one comparison have in common: all but method and seed."""
        sample = {key: value for key, value in dataclasses.asdict(self.sample).items() if key != "seed"}
        conditions = self.conditions.identity(seeded=False)
        return {
            **({"conditions": conditions} if conditions else {}),
            "data": self.fingerprint,
            "sample": sample,
            "max_test": self.max_test,
            "model": self.weights,
            # Settings that were added later are left out where they have the value that everything had before them,
            # so that older records keep their names.
            "settings": {name: value for name, value in self.settings.items() if BEFORE.get(name, self) != value},
        }

    @cached_property
    def group_key(self) -> str:
        """A text that is equal for the cells of one comparison."""
        return canonical(self.group())

    @cached_property
    def group_mark(self) -> str:
        """A short name of the comparison, for the log."""
        return hashlib.sha256(self.group_key.encode()).hexdigest()[:16]

    def identity(self) -> dict[str, Any]:
        """All that decides the result; paths are left out."""
        return {
            "format": FORMAT,
            **self.group(),
            **({"conditions": self.conditions.identity()} if self.conditions else {}),
            "sampled": self.sampled,
            "sample": dataclasses.asdict(self.sample),
            "method": self.method,
            "options": dict(self.options),
            "seed": self.seed,
        }

    @cached_property
    def key(self) -> str:
        """The cell's name: a hash of its identity."""
        return hashlib.sha256(canonical(self.identity()).encode()).hexdigest()[:40]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for spec.json; without conditions as it was before there were any."""
        values = dataclasses.asdict(self)
        if not self.conditions:
            del values["conditions"]
        return {"format": FORMAT, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CellSpec:
        """The cell of `to_dict`; raises KeyError, TypeError or OptionError for anything else."""
        rest = {key: value for key, value in values.items() if key != "format"}
        rest |= {"source": DataSource(**rest["source"]), "sample": Sample(**rest["sample"])}
        rest["conditions"] = Conditions.from_dict(rest.get("conditions"))
        cell = cls(**rest)
        for part in (cell.source, cell.sample, cell):
            check_fields(part)
        return cell

    @property
    def title(self) -> str:
        """The sample and the conditions, in words."""
        return ", ".join(filter(None, [self.sample.title, self.conditions.title]))

    def train_settings(self, cache_dir: str | None = None) -> TrainSettings:
        """The settings for `mixwell.training.fitting`."""
        return TrainSettings.from_dict(
            {
                "data": self.source.data,
                "model": self.model,
                "method": BASELINE if self.method in (*REFERENCES, AUTO) else self.method,
                "method_options": {} if self.method == AUTO else dict(self.options),
                "seed": self.seed,
                "cache_dir": cache_dir,
                **self.settings,
            }
        )


def chosen_test_rows(count: int, max_test: int | None) -> list[int] | None:
    """The numbers of the test rows that are used, in order; None for all of them.

    The choice depends on the two numbers only, so it is the same for all methods and seeds.
    """
    import numpy as np

    if max_test is None or max_test >= count:
        return None
    return sorted(np.random.default_rng(20_231_207).choice(count, size=max_test, replace=False).tolist())
