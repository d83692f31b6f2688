"""All experiments of the papers, read from the TOML files of this folder with everything in them checked.

`schema` says what a file holds.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mixwell.compare.conditions import Conditions
from mixwell.papers import schema
from mixwell.papers.experiment import Experiment
from mixwell.papers.schema import METRICS, SAMPLE, SCALES, SPLITS, TRAINING, DataSet, PublishedNumber, Scale, TableRow
from mixwell.utils.errors import DataError, OptionError, nearest

tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
FOLDER = Path(__file__).parent
_ORDER = ("amplify", "nlu", "batchmixup", "attentionmix", "study")
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


def names() -> list[str]:
    """Return the names of all experiments, in the order of papers and tables."""
    return list(_all())


def get(name: str) -> Experiment:
    """Return an experiment by name.

    Raises:
        OptionError: there is none of that name.
    """
    known = _all()
    if name not in known:
        raise OptionError(f"paper experiment {name!r} is unknown{nearest(name, known)}; known: {', '.join(known)}")
    return known[name]


@functools.lru_cache(maxsize=1)
def _all() -> dict[str, Experiment]:
    experiments: dict[str, Experiment] = {}
    files = {file.stem: file for file in FOLDER.glob("*.toml")}
    for stem in sorted(files, key=lambda stem: (_ORDER.index(stem) if stem in _ORDER else len(_ORDER), stem)):
        for experiment in load(files[stem]):
            if experiment.name in experiments:
                raise DataError(f"{files[stem].name}: experiment {experiment.name!r} is in another file too")
            experiments[experiment.name] = experiment
    return experiments


class _ProtocolFile:
    """One file on its way to experiments."""

    def __init__(self, name: str, content: dict[str, Any]) -> None:
        self.name = name
        self.content = content

    def fail(self, where: str, problem: str) -> DataError:
        return DataError(f"{self.name}: {where}: {problem}")

    def known(self, where: str, values: Iterable[Any], allowed: Iterable[Any], what: str) -> None:
        """Refuse the first of some values that is not one of those allowed; None stands for nothing."""
        allowed = list(allowed)
        for value in values:
            if value is not None and value not in allowed:
                hint = nearest(str(value), allowed)
                raise self.fail(where, f"{what} {value!r} is unknown{hint}; known: {', '.join(map(str, allowed))}")

    def keys(self, where: str, table: Any, allowed: Iterable[str]) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise self.fail(where, f"must be a table, not {type(table).__name__}")
        self.known(where, table, allowed, "key")
        return table

    def make(self, cls: Any, where: str, table: Any, **fixed: Any) -> Any:
        """Make a dataclass of a table: unknown and missing keys and wrong types are errors."""
        fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in fixed}
        values = {
            key: self.typed(f"{where}.{key}", value, str(fields[key].type))
            for key, value in self.keys(where, table, fields).items()
        }
        for key, about in fields.items():
            needed = about.default is dataclasses.MISSING and about.default_factory is dataclasses.MISSING
            if needed and key not in values:
                raise self.fail(where, f"key {key!r} is missing")
        return cls(**values, **fixed)

    def several(self, cls: Any, where: str, entries: Any) -> tuple[Any, ...]:
        return tuple(self.make(cls, f"{where}[{index}]", entry) for index, entry in enumerate(entries))

    def typed(self, where: str, value: Any, kind: str) -> Any:
        kind = kind.removesuffix(" | None")
        if kind.startswith("tuple["):
            inner = kind[len("tuple[") :].split(",")[0]
            if not isinstance(value, list):
                raise self.fail(where, "must be a list")
            return tuple(self.typed(where, item, inner) for item in value)
        kinds: dict[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool}
        if not isinstance(value, kinds.get(kind, dict)) or (isinstance(value, bool) and kind != "bool"):
            raise self.fail(where, f"must be of type {kind.split('[')[0]}, not {type(value).__name__}")
        return value

    # --- the tables of a file ---

    def read(self) -> list[Experiment]:
        content = self.keys("top level", self.content, ("paper", "models", "datasets", "scales", "experiments"))
        tables = {name: content.get(name, {}) for name in ("models", "datasets", "experiments")}
        self.paper = self.make(schema.Paper, "paper", content.get("paper", {}))
        self.models = {
            key: self.make(schema.PaperModel, f"models.{key}", table, key=key)
            for key, table in tables["models"].items()
        }
        self.datasets = {key: self.read_dataset(key, table) for key, table in tables["datasets"].items()}
        self.keys("scales", content.get("scales", {}), SCALES[1:])
        return [self.read_experiment(name, table) for name, table in tables["experiments"].items()]

    def read_dataset(self, key: str, table: dict[str, Any]) -> DataSet:
        where = f"datasets.{key}"
        if key == SAMPLE.key:
            raise self.fail(where, "this key stands for the bundled sample data; choose another")
        splits = {}
        for split, text in self.keys(f"{where}.splits", table.get("splits", {}), SPLITS).items():
            source, _, rows = str(text).partition(":")
            self.known(f"{where}.splits.{split}", [source], SPLITS, "split")
            if not re.fullmatch(r"(\d+%?)?", rows):
                raise self.fail(
                    f"{where}.splits.{split}", f"{text!r} must read like 'test', 'test:3200' or 'train:25%'"
                )
            share = int(rows[:-1]) / 100 if rows.endswith("%") else None
            splits[split] = schema.SplitPart(source, int(rows) if rows.isdigit() else None, share)
        rest = {name: value for name, value in table.items() if name != "splits"}
        data: DataSet = self.make(DataSet, where, rest, key=key, splits=splits)
        self.known(f"{where}.metric", [data.metric], METRICS, "metric")
        self.keys(f"{where}.published", data.published, SPLITS)
        self.keys(f"{where}.training", data.training, TRAINING)
        if data.derived is None and data.folder is None and data.hub is None:
            raise self.fail(where, "needs a folder or a hub id, or 'derived'")
        return data

    def read_experiment(self, name: str, table: dict[str, Any]) -> Experiment:
        where = f"experiments.{name}"
        self.keys(where, table, [f.name for f in dataclasses.fields(Experiment) if f.name not in ("name", "paper")])
        model, datasets = table.get("model"), table.get("datasets", ())
        self.known(f"{where}.model", [model], self.models, "model")
        self.known(f"{where}.datasets", datasets, self.datasets, "data set")
        rows = [
            row
            for index, entry in enumerate(table.get("rows", ()))
            for row in self.read_rows(f"{where}.rows[{index}]", entry)
        ]
        if len({row.label for row in rows}) != len(rows):
            raise self.fail(f"{where}.rows", "two rows have the same label")
        parts: dict[str, Any] = {
            "model": None if model is None else self.models[model],
            "datasets": tuple(self.datasets[key] for key in datasets),
            "rows": tuple(rows),
            "published": (),
            "scales": {},
        }
        for key, cls in (("claims", schema.Claim), ("skip", schema.Skip), ("not_run", schema.NotRun)):
            parts[key] = self.several(cls, f"{where}.{key}", table.get(key, []))
        rest = {key: value for key, value in table.items() if key not in parts}
        experiment = self.make(Experiment, where, rest, name=name, paper=self.paper, **parts)
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

    def read_rows(self, where: str, table: dict[str, Any]) -> list[TableRow]:
        expand = table.get("expand", {})
        row: TableRow = self.make(TableRow, where, {key: value for key, value in table.items() if key != "expand"})
        if bool(row.method) == (row.derived is not None):
            raise self.fail(where, f"row {row.label!r} needs either 'method' or 'derived'")
        self.known(f"{where}.fault", [row.fault], schema.FAULTS, "fault")
        if row.draws < 1:
            raise self.fail(f"{where}.draws", "must be at least 1")
        chosen = [dict(zip(expand, values)) for values in itertools.product(*expand.values())] if expand else []
        return [
            dataclasses.replace(row, label=row.label.format(**more), options={**row.options, **more}) for more in chosen
        ] or [row]

    def read_block(self, where: str, table: dict[str, Any], experiment: Experiment) -> list[PublishedNumber]:
        self.keys(where, table, ("metric", "columns", "dataset", "metrics", "size", "values"))
        across = "columns" in table
        if across == ("dataset" in table) or across == ("metrics" in table) or "values" not in table:
            raise self.fail(where, "needs 'values' and either 'columns' (and 'metric'), or 'dataset' and 'metrics'")
        size = table.get("size", "full")
        self.known(f"{where}.size", [size], experiment.sizes, "size")
        datasets = table["columns"] if across else [table["dataset"]]
        metrics = [table.get("metric", "accuracy")] if across else table["metrics"]
        columns = list(itertools.product(datasets, metrics))
        self.known(where, datasets, [data.key for data in experiment.datasets], "data set")
        self.known(where, metrics, METRICS, "metric")
        self.known(f"{where}.values", table["values"], [row.label for row in experiment.rows], "row")
        numbers = []
        for label, texts in table["values"].items():
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
            skip = self.several(schema.Skip, f"{here}.skip", merged.pop("skip", []))
            scales[name] = self.make(Scale, here, merged, name=name, skip=skip)
            self.check_scale(here, scales[name], experiment)
        return scales

    # --- checks across tables ---

    def check_scale(self, where: str, scale: Scale, experiment: Experiment) -> None:
        sizes = scale.sizes or experiment.sizes
        keys = [SAMPLE.key, *(data.key for data in experiment.datasets)]
        labels = [row.label for row in experiment.rows if row.derived is None]
        self.keys(f"{where}.training", scale.training, TRAINING)
        self.check_sizes(where, sizes)
        self.known(f"{where}.beside", scale.beside, sizes, "size")
        self.known(f"{where}.beside", scale.beside.values(), experiment.sizes, "size")
        self.known(f"{where}.datasets", scale.datasets, keys, "data set")
        self.known(f"{where}.rows", scale.rows, labels, "row")
        self.known(f"{where}.skip.rows", [label for skip in scale.skip for label in skip.rows], labels, "row")
        self.known(f"{where}.model", [scale.model], [*schema.MODELS, *self.models], "model")
        self.known(f"{where}.parameters", sorted(scale.parameters), experiment.parameters, "parameter")

    def check_sizes(self, where: str, sizes: Iterable[str]) -> None:
        for size in sizes:
            try:
                schema.parse_size(size)
            except ValueError as error:
                raise self.fail(f"{where}.sizes", str(error)) from error

    def check_experiment(self, where: str, experiment: Experiment) -> None:
        self.known(f"{where}.kind", [experiment.kind], ("table", "figure"), "kind")
        self.keys(f"{where}.training", experiment.training, TRAINING)
        self.check_sizes(where, experiment.sizes)
        self.keys(f"{where}.conditions", experiment.conditions, [f.name for f in dataclasses.fields(Conditions)])
        try:
            Conditions(**experiment.conditions).check()
        except OptionError as error:
            raise self.fail(f"{where}.conditions", str(error)) from error
        for name in ("unstated", "departs"):
            self.known(f"{where}.{name}", getattr(experiment, name), experiment.training, "training key")
        self.known(f"{where}.metrics", experiment.metrics, METRICS, "metric")
        self.known(f"{where}.curve", [experiment.curve], schema.CURVES, "curve")
        if experiment.trained:
            for key in ("model", "datasets", "sizes", "seeds", "training"):
                if not getattr(experiment, key):
                    raise self.fail(where, f"key {key!r} is missing: the experiment has rows to train")
        elif not experiment.parameters:
            raise self.fail(where, "needs 'rows' to train or 'parameters' to draw from")
        if any(number.spread is not None for number in experiment.published) and experiment.spread_kind is None:
            raise self.fail(where, "key 'spread_kind' is missing: published numbers have a ±")
        keys = [data.key for data in experiment.datasets]
        labels = [row.label for row in experiment.rows]
        for index, claim in enumerate(experiment.claims):
            here = f"{where}.claims[{index}]"
            self.known(here, [claim.metric], METRICS, "metric")
            self.known(here, [claim.of], ("value", "spread"), "of")
            self.known(here, (*claim.above, *claim.below), labels, "row")
            self.known(here, claim.datasets, keys, "data set")
            self.known(here, claim.sizes, experiment.sizes, "size")
        trained = [row.label for row in experiment.rows if row.derived is None]
        for skip in experiment.skip:
            self.known(f"{where}.skip", skip.rows, trained, "row")
            self.known(f"{where}.skip", skip.datasets, keys, "data set")
