"""From a TOML file to experiments, with everything in it checked; `schema` says what a file holds."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mixwell.papers.experiment import Experiment
from mixwell.papers.schema import (
    CURVES,
    FAULTS,
    METRICS,
    MODELS,
    SAMPLE,
    SCALES,
    SPLITS,
    TRAINING,
    Claim,
    DataSet,
    NotRun,
    Paper,
    PaperModel,
    PublishedNumber,
    Scale,
    Size,
    Skip,
    SplitPart,
    TableRow,
)
from mixwell.utils.errors import DataError, nearest

tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
_PRINTED = re.compile(r"(-?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")


def load(path: str | Path) -> list[Experiment]:
    """Read the experiments of one file.

    Everything is checked but whether methods take their options, which `Experiment.runs` does: that needs torch.

    Raises:
        DataError: naming the file and the key.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path.name}: not a TOML file ({error})") from error
    return _ProtocolFile(path.name, content).read()


class _ProtocolFile:
    """One file on its way to experiments."""

    def __init__(self, name: str, content: dict[str, Any]) -> None:
        self.name = name
        self.content = content

    def fail(self, where: str, problem: str) -> DataError:
        return DataError(f"{self.name}: {where}: {problem}")

    def known(self, where: str, value: Any, allowed: Iterable[Any], what: str) -> None:
        allowed = list(allowed)
        if value not in allowed:
            hint = nearest(str(value), allowed)
            raise self.fail(where, f"{what} {value!r} is unknown{hint}; known: {', '.join(map(str, allowed))}")

    def keys(self, where: str, table: Any, allowed: Iterable[str]) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise self.fail(where, f"must be a table, not {type(table).__name__}")
        for key in table:
            self.known(where, key, allowed, "key")
        return table

    def make(self, cls: Any, where: str, table: Any, **fixed: Any) -> Any:
        """Make a dataclass of a table: unknown and missing keys and wrong types are errors."""
        fields = {f.name: f for f in dataclasses.fields(cls)}
        values = dict(self.keys(where, table, [name for name in fields if name not in fixed]))
        for key, value in values.items():
            values[key] = self.typed(f"{where}.{key}", value, str(fields[key].type))
        for key, about in fields.items():
            needed = about.default is dataclasses.MISSING and about.default_factory is dataclasses.MISSING
            if needed and key not in values and key not in fixed:
                raise self.fail(where, f"key {key!r} is missing")
        return cls(**values, **fixed)

    def typed(self, where: str, value: Any, kind: str) -> Any:
        kind = kind.removesuffix(" | None")
        if kind.startswith("tuple["):
            inner = kind[len("tuple[") :].split(",")[0]
            if not isinstance(value, list):
                raise self.fail(where, "must be a list")
            return tuple(self.typed(where, item, inner) for item in value)
        kinds: dict[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool}
        wanted = kinds.get(kind, dict)
        if not isinstance(value, wanted) or (isinstance(value, bool) and kind != "bool"):
            raise self.fail(where, f"must be of type {kind.split('[')[0]}, not {type(value).__name__}")
        return value

    def training(self, where: str, table: Mapping[str, Any]) -> None:
        self.keys(where, table, TRAINING)

    # --- the tables of a file ---

    def read(self) -> list[Experiment]:
        content = self.keys("top level", self.content, ("paper", "models", "datasets", "scales", "experiments"))
        self.paper = self.make(Paper, "paper", content.get("paper", {}))
        models = content.get("models", {})
        self.models = {key: self.make(PaperModel, f"models.{key}", table, key=key) for key, table in models.items()}
        self.datasets = {key: self.read_dataset(key, table) for key, table in content.get("datasets", {}).items()}
        self.keys("scales", content.get("scales", {}), SCALES[1:])
        return [self.read_experiment(name, table) for name, table in content.get("experiments", {}).items()]

    def read_dataset(self, key: str, table: dict[str, Any]) -> DataSet:
        where = f"datasets.{key}"
        if key == SAMPLE.key:
            raise self.fail(where, "this key stands for the bundled sample data; choose another")
        splits = {}
        for split, text in self.keys(f"{where}.splits", table.get("splits", {}), SPLITS).items():
            source, _, rows = str(text).partition(":")
            self.known(f"{where}.splits.{split}", source, SPLITS, "split")
            if not re.fullmatch(r"(\d+%?)?", rows):
                raise self.fail(
                    f"{where}.splits.{split}", f"{text!r} must read like 'test', 'test:3200' or 'train:25%'"
                )
            share = int(rows[:-1]) / 100 if rows.endswith("%") else None
            splits[split] = SplitPart(source, int(rows) if rows.isdigit() else None, share)
        rest = {name: value for name, value in table.items() if name != "splits"}
        data: DataSet = self.make(DataSet, where, rest, key=key, splits=splits)
        self.known(f"{where}.metric", data.metric, METRICS, "metric")
        self.keys(f"{where}.published", data.published, SPLITS)
        self.training(f"{where}.training", data.training)
        if data.derived is None and data.folder is None and data.hub is None:
            raise self.fail(where, "needs a folder or a hub id, or 'derived'")
        return data

    def read_experiment(self, name: str, table: dict[str, Any]) -> Experiment:
        where = f"experiments.{name}"
        special = ("model", "datasets", "rows", "published", "claims", "skip", "not_run", "scales")
        self.keys(where, table, [f.name for f in dataclasses.fields(Experiment) if f.name not in ("name", "paper")])
        model = table.get("model")
        if model is not None:
            self.known(f"{where}.model", model, self.models, "model")
        for key in table.get("datasets", ()):
            self.known(f"{where}.datasets", key, self.datasets, "data set")
        rows = tuple(
            row
            for index, entry in enumerate(table.get("rows", ()))
            for row in self.read_rows(f"{where}.rows[{index}]", entry)
        )
        labels = [row.label for row in rows]
        if len(set(labels)) != len(labels):
            raise self.fail(f"{where}.rows", "two rows have the same label")
        parts = {
            "model": None if model is None else self.models[model],
            "datasets": tuple(self.datasets[key] for key in table.get("datasets", ())),
            "rows": rows,
            "claims": self.several(Claim, f"{where}.claims", table.get("claims", [])),
            "skip": self.several(Skip, f"{where}.skip", table.get("skip", [])),
            "not_run": self.several(NotRun, f"{where}.not_run", table.get("not_run", [])),
        }
        rest = {key: value for key, value in table.items() if key not in special}
        experiment = self.make(Experiment, where, rest, name=name, paper=self.paper, published=(), scales={}, **parts)
        published = tuple(
            number
            for index, block in enumerate(table.get("published", ()))
            for number in self.read_block(f"{where}.published[{index}]", block, experiment)
        )
        places = [(n.row, n.dataset, n.size, n.metric) for n in published]
        for place in places:
            if places.count(place) > 1:
                raise self.fail(f"{where}.published", f"{place} has two numbers")
        scales = self.read_scales(where, table.get("scales", {}), experiment)
        experiment = dataclasses.replace(experiment, published=published, scales=scales)
        self.check_experiment(where, experiment)
        return experiment

    def several(self, cls: Any, where: str, entries: Any) -> tuple[Any, ...]:
        return tuple(self.make(cls, f"{where}[{index}]", entry) for index, entry in enumerate(entries))

    def read_rows(self, where: str, table: dict[str, Any]) -> list[TableRow]:
        expand = table.get("expand", {})
        row: TableRow = self.make(TableRow, where, {key: value for key, value in table.items() if key != "expand"})
        if bool(row.method) == (row.derived is not None):
            raise self.fail(where, f"row {row.label!r} needs either 'method' or 'derived'")
        if row.fault is not None:
            self.known(f"{where}.fault", row.fault, FAULTS, "fault")
        if row.draws < 1:
            raise self.fail(f"{where}.draws", "must be at least 1")
        if not expand:
            return [row]
        expanded = []
        for choice in itertools.product(*expand.values()):
            picked = dict(zip(expand, choice))
            options = {**row.options, **picked}
            expanded.append(dataclasses.replace(row, label=row.label.format(**picked), options=options))
        return expanded

    def read_block(self, where: str, table: dict[str, Any], experiment: Experiment) -> list[PublishedNumber]:
        self.keys(where, table, ("metric", "columns", "dataset", "metrics", "size", "values"))
        across = "columns" in table
        if across == ("dataset" in table) or across == ("metrics" in table) or "values" not in table:
            raise self.fail(where, "needs 'values' and either 'columns' (and 'metric'), or 'dataset' and 'metrics'")
        size = table.get("size", "full")
        self.known(f"{where}.size", size, experiment.sizes, "size")
        keys = [data.key for data in experiment.datasets]
        if across:
            columns = [(key, table.get("metric", "accuracy")) for key in table["columns"]]
        else:
            columns = [(table["dataset"], metric) for metric in table["metrics"]]
        for key, metric in columns:
            self.known(where, key, keys, "data set")
            self.known(where, metric, METRICS, "metric")
        numbers = []
        for label, texts in table["values"].items():
            self.known(f"{where}.values", label, [row.label for row in experiment.rows], "row")
            if len(texts) != len(columns):
                raise self.fail(f"{where}.values", f"row {label!r} has {len(texts)} numbers for {len(columns)} columns")
            for (key, metric), text in zip(columns, texts):
                match = _PRINTED.fullmatch(text) if isinstance(text, str) else None
                if match is None:
                    raise self.fail(f"{where}.values", f"row {label!r}: {text!r} must read like '81.20 ± 0.442'")
                spread = None if match[2] is None else float(match[2])
                numbers.append(PublishedNumber(label, key, size, metric, float(match[1]), spread, text))
        return numbers

    def read_scales(self, where: str, table: dict[str, Any], experiment: Experiment) -> dict[str, Scale]:
        own = self.keys(f"{where}.scales", table, SCALES[1:])
        scales = {}
        for name in SCALES[1:]:
            shared = self.content.get("scales", {}).get(name, {}) if experiment.rows else {}
            merged = {**shared, **own.get(name, {})}
            merged["training"] = {**shared.get("training", {}), **own.get(name, {}).get("training", {})}
            here = f"{where}.scales.{name}"
            skip = self.several(Skip, f"{here}.skip", merged.pop("skip", []))
            scale: Scale = self.make(Scale, here, merged, name=name, skip=skip)
            self.check_scale(here, scale, experiment)
            scales[name] = scale
        return scales

    # --- checks across tables ---

    def check_scale(self, where: str, scale: Scale, experiment: Experiment) -> None:
        self.training(f"{where}.training", scale.training)
        sizes = scale.sizes or experiment.sizes
        self.check_sizes(where, sizes)
        for here, there in scale.beside.items():
            self.known(f"{where}.beside", here, sizes, "size")
            self.known(f"{where}.beside", there, experiment.sizes, "size")
        for key in scale.datasets:
            self.known(f"{where}.datasets", key, [SAMPLE.key, *(data.key for data in experiment.datasets)], "data set")
        self.check_labels(f"{where}.rows", scale.rows, experiment)
        for skip in scale.skip:
            self.check_labels(f"{where}.skip.rows", skip.rows, experiment)
        if scale.model is not None:
            self.known(f"{where}.model", scale.model, [*MODELS, *self.models], "model")
        if set(scale.parameters) - set(experiment.parameters):
            strange = sorted(set(scale.parameters) - set(experiment.parameters))[0]
            self.known(f"{where}.parameters", strange, experiment.parameters, "parameter")

    def check_labels(self, where: str, labels: Iterable[str], experiment: Experiment) -> None:
        for label in labels:
            self.known(where, label, [row.label for row in experiment.rows if row.derived is None], "row")

    def check_sizes(self, where: str, sizes: Iterable[str]) -> None:
        for size in sizes:
            try:
                Size.parse(size)
            except ValueError as error:
                raise self.fail(f"{where}.sizes", str(error)) from error

    def check_experiment(self, where: str, experiment: Experiment) -> None:
        self.known(f"{where}.kind", experiment.kind, ("table", "figure"), "kind")
        self.training(f"{where}.training", experiment.training)
        self.check_sizes(where, experiment.sizes)
        for name in ("unstated", "departs"):
            for key in getattr(experiment, name):
                self.known(f"{where}.{name}", key, experiment.training, "training key")
        for metric in experiment.metrics:
            self.known(f"{where}.metrics", metric, METRICS, "metric")
        if experiment.curve is not None:
            self.known(f"{where}.curve", experiment.curve, CURVES, "curve")
        if experiment.trained:
            needed = {"model": experiment.model, "datasets": experiment.datasets, "sizes": experiment.sizes,
                      "seeds": experiment.seeds, "training": experiment.training}  # fmt: skip
            for key, value in needed.items():
                if not value:
                    raise self.fail(where, f"key {key!r} is missing: the experiment has rows to train")
        elif not experiment.parameters:
            raise self.fail(where, "needs 'rows' to train or 'parameters' to draw from")
        if any(number.spread is not None for number in experiment.published) and experiment.spread_kind is None:
            raise self.fail(where, "key 'spread_kind' is missing: published numbers have a ±")
        keys = [data.key for data in experiment.datasets]
        for index, claim in enumerate(experiment.claims):
            here = f"{where}.claims[{index}]"
            self.known(here, claim.metric, METRICS, "metric")
            self.known(here, claim.of, ("value", "spread"), "of")
            for label in (*claim.above, *claim.below):
                self.known(here, label, [row.label for row in experiment.rows], "row")
            for key in claim.datasets:
                self.known(here, key, keys, "data set")
            for size in claim.sizes:
                self.known(here, size, experiment.sizes, "size")
        for skip in experiment.skip:
            self.check_labels(f"{where}.skip", skip.rows, experiment)
            for key in skip.datasets:
                self.known(f"{where}.skip", key, keys, "data set")
