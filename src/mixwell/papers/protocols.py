"""The papers' protocols, read from the TOML files in this folder.

A file describes one paper. Its tables and keys (a star marks what must be there):

    [paper]                 key*, title*, authors*, reference*, text* (what of the paper was to be had), arxiv, notes
    [models.KEY]            title*, source* (hub id), blocks*, heads*
    [datasets.KEY]          title*; folder (local name), hub (id), label and hub_label (columns), classes, metric,
                            splits (train, validation, test = "SPLIT", "SPLIT:ROWS" or "SPLIT:25%" of the source),
                            published (the sizes the paper gives), training and options (what differs for this data
                            set), difference (how our copy differs), available (what a user has to bring); derived (a
                            column of the table that is computed from others: such a data set has nothing else)
    [scales.small|smoke]    defaults for every experiment of the file, see below
    [experiments.NAME]
      kind*                 "table" or "figure"
      title*, shows*        a title, and what it shows in our words
      number*               where it stands in the paper, such as "Table 2"
      model                 key of a model
      datasets              keys of data sets
      rows                  label* and either derived, or method* with options; blocks (1-based, of the paper's model;
                            they become `layers` at the same relative depth), draws (updates a mini-batch, each with
                            draws of its own), fault ("label_permutation": the labels get a second permutation), ours
                            (not in the paper), expand (option -> values: one row for each combination, the label is a
                            format string), notes
      sizes                 "full", "25%" (a fraction of train) or "32" (so many rows)
      seeds                 how many
      metrics               measured besides each data set's own
      training              see `TRAINING`; best_metric "main" is the data set's own metric
      unstated              those keys of `training` which the paper does not state: the values are ours
      curve                 a figure's quantity over training: "train_loss" or "test_loss"
      parameters            of figures that are not trained by the compare engine
      published             blocks of numbers as printed ("81.20 ± 0.442"): either metric + columns (data sets), or
                            dataset + metrics; size; [..values] row label -> one text a column
      spread_kind           what stands behind the ±
      factor                published value = measured value * factor
      claims                says* (our words), metric, of ("value" or "spread"), datasets, sizes, above, below (rows:
                            each of `above` is better than each of `below`), difference or ratio (the published size)
      skip                  rows, datasets, sizes whose combinations are not run
      not_run               what*, why*
      notes                 what somebody who repeats it must know
      scales.small|smoke    model, datasets, rows, sizes, beside (size here -> published size it stands next to), seeds,
                            test_rows, validation_rows, training, by_size (size -> training), skip, parameters, notes

`full` is the paper's protocol; `small` is for two CPU cores; `smoke` runs on the sample data with a tiny random model.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixwell.errors import DataError, OptionError, nearest

tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

__all__ = [
    "SCALES", "Claim", "DataSet", "Experiment", "Figure", "Located", "Model", "NotRun", "Number", "Paper", "Part",
    "Row", "Run", "Scale", "Size", "Verdict", "get", "load", "names",
]  # fmt: skip

SCALES = ("full", "small", "smoke")
SPLITS = ("train", "validation", "test")
FAULTS = ("label_permutation",)
CURVES = ("train_loss", "test_loss")
# Metrics of published numbers -> whether higher is better. The first five are names of `mixwell.calibration.METRICS`.
METRICS = {
    "accuracy": True,
    "mcc": True,
    "macro_f1": True,
    "nll": False,
    "ece": False,
    "minutes_per_epoch": False,
    "seconds_saved": True,
    "train_loss": False,
    "time_ratio": False,
}
# Training settings. The first ones are fields of `TrainSettings`; then fields of TrainingArguments; dropout is stated
# for the record: it is the models' own default.
SETTINGS = {
    "learning_rate", "batch_size", "epochs", "max_length", "warmup", "scheduler", "weight_decay", "patience",
    "best_metric",
}  # fmt: skip
ARGUMENTS = {"adam_epsilon", "max_steps"}
TRAINING = SETTINGS | ARGUMENTS | {"dropout"}

_PRINTED = re.compile(r"(-?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")


# --- what a file holds ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paper:
    """Where a protocol comes from; `text` says what of the paper was to be had."""

    key: str
    title: str
    authors: str
    reference: str
    text: str
    arxiv: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """A model: `source` is what `mixwell.models` loads; `tiny` is the runner's random model."""

    key: str
    title: str
    source: str
    blocks: int
    heads: int


@dataclass(frozen=True)
class Part:
    """Where a split comes from: a split of the source, and how many or which share of its rows (None: what is left)."""

    source: str
    rows: int | None = None
    share: float | None = None


@dataclass(frozen=True)
class Located:
    """Where a data set was found; `problem` says exactly what is missing, None if nothing is.

    `arguments` are those of `mixwell.data.load`; `validation_from_test` is a number of rows to move from test to
    validation, as the paper did, which `load` has no argument for.
    """

    path: Path | None
    problem: str | None
    arguments: dict[str, Any] = field(default_factory=dict)
    validation_from_test: int | None = None


@dataclass(frozen=True)
class DataSet:
    """A data set of a paper and where a user can have it; see the module's text for the fields."""

    key: str
    title: str
    folder: str | None = None
    hub: str | None = None
    label: str = "label"
    hub_label: str | None = None
    classes: int | None = None
    metric: str = "accuracy"
    splits: dict[str, Part] = field(default_factory=dict)
    published: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    difference: str | None = None
    available: str | None = None
    derived: str | None = None

    def locate(self, root: str | Path | None) -> Located:
        """Look for the local folder below `root`, and say what of it is missing.

        Args:
            root: the user's folder of data sets, one folder each; None if there is none.
        """
        if self.key == SAMPLE.key:
            from mixwell.data import sample_folder

            return Located(sample_folder(), None, {"source": str(sample_folder()), "label": "label"})
        instead = f", or load the hub data set {self.hub}" if self.hub else ""
        more = f" ({self.available})" if self.available else ""
        if self.folder is None or root is None:
            where = f"a folder named {self.folder}" if self.folder else "a local folder"
            return Located(None, f"{self.title}: needs {where} below --data{instead}{more}")
        path = Path(root).expanduser() / self.folder
        if not path.is_dir():
            return Located(None, f"{self.title}: there is no folder {path}; put it there{instead}{more}")
        files = _split_files(path)
        needed = {part.source for part in self.splits.values()} or {"train"}
        missing = [split for split in SPLITS if split in needed and split not in files]
        if missing:
            has = ", ".join(file.name for file in files.values()) or "no data file"
            return Located(
                path, f"{self.title}: {path} has {has}, but {' and '.join(missing)} is missing; add it{instead}{more}"
            )
        arguments: dict[str, Any] = {"source": str(files["train"]), "label": self.label}
        for split in ("validation", "test"):
            part = self.splits.get(split, Part("train"))
            # What comes from train is cut by `load`; validation rows out of test are the runner's to move.
            if part.source != "train" and (split, part.source) != ("validation", "test"):
                arguments[split] = str(files[part.source])
            elif part.share is not None:
                arguments[split] = part.share
        held = self.splits.get("validation")
        return Located(path, None, arguments, held.rows if held is not None and held.source == "test" else None)


@dataclass(frozen=True)
class Row:
    """A row of a table: a method with its options, or `derived` from other rows."""

    label: str
    method: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    blocks: tuple[int, ...] = ()
    draws: int = 1
    fault: str | None = None
    ours: bool = False
    derived: str | None = None
    notes: str | None = None

    def options_at(self, depth: int | None, published_depth: int) -> dict[str, Any]:
        """Return the method's options for a model of `depth` blocks.

        Blocks, 1-based in a model of `published_depth`, become `layers`, 0-based at the same relative depth.
        """
        if not self.blocks:
            return dict(self.options)
        if depth is None:
            raise OptionError(f"row {self.label!r} names blocks: say how many blocks the model has (depth=)")
        return {**self.options, "layers": sorted({-(-block * depth // published_depth) - 1 for block in self.blocks})}


@dataclass(frozen=True)
class Size:
    """How much of train is used: all, a fraction of it or a number of rows."""

    label: str
    fraction: float | None = None
    max_train: int | None = None

    @classmethod
    def parse(cls, label: str) -> Size:
        """Read "full", "25%" or "32"."""
        if label == "full":
            return cls(label)
        if re.fullmatch(r"\d+(\.\d+)?%", label) and 0 < float(label[:-1]) <= 100:
            share = float(label[:-1]) / 100
            return cls(label, fraction=None if share == 1 else share)
        if re.fullmatch(r"[1-9]\d*", label):
            return cls(label, max_train=int(label))
        raise ValueError(f"size {label!r} is not 'full', a percentage such as '25%' or a number of rows such as '32'")


@dataclass(frozen=True)
class Number:
    """One published number; `printed` is how the paper prints it."""

    row: str
    dataset: str
    size: str
    metric: str
    value: float
    spread: float | None
    printed: str


@dataclass(frozen=True)
class Verdict:
    """One pair of a claim: by how much `above` is better than `below`; None if one of them is not known."""

    above: str
    below: str
    dataset: str
    size: str
    difference: float | None
    holds: bool | None


@dataclass(frozen=True)
class Claim:
    """What a paper says of its numbers, in our words."""

    says: str
    metric: str = "accuracy"
    of: str = "value"
    datasets: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    difference: float | None = None
    ratio: float | None = None

    def judge(self, values: Mapping[tuple[str, str, str], float]) -> list[Verdict]:
        """Hold the claim against numbers, published or measured; a tie does not bear it out.

        Args:
            values: (row, data set, size) -> value of the claim's metric.
        """
        sign = 1 if METRICS[self.metric] and self.of == "value" else -1
        verdicts = []
        for dataset, size in itertools.product(self.datasets, self.sizes):
            for above, below in itertools.product(self.above, self.below):
                pair = values.get((above, dataset, size)), values.get((below, dataset, size))
                if pair[0] is None or pair[1] is None:
                    verdicts.append(Verdict(above, below, dataset, size, None, None))
                else:
                    better = round(sign * (pair[0] - pair[1]), 9)
                    verdicts.append(Verdict(above, below, dataset, size, better, better > 0))
        return verdicts


@dataclass(frozen=True)
class NotRun:
    """What cannot run without more than the project has, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Skip:
    """Combinations that are not run; an empty list stands for all."""

    rows: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()

    def covers(self, row: str, dataset: str, size: str) -> bool:
        """Tell whether a combination is left out."""
        wanted = ((self.rows, row), (self.datasets, dataset), (self.sizes, size))
        return all(not known or value in known for known, value in wanted)


@dataclass(frozen=True)
class Scale:
    """What differs from the paper's protocol; None and empty mean: as in the paper."""

    name: str
    model: str | None = None
    datasets: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    beside: dict[str, Any] = field(default_factory=dict)
    seeds: int | None = None
    test_rows: int | None = None
    validation_rows: int | None = None
    training: dict[str, Any] = field(default_factory=dict)
    by_size: dict[str, Any] = field(default_factory=dict)
    skip: tuple[Skip, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


# --- what a runner gets --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One training, as plain data.

    Attributes:
        experiment: the experiment's name.
        scale: the scale's name.
        dataset: key of the data set (`Experiment.dataset(key)` has the rest).
        size: label of the size; `fraction` and `max_train` are what it means for `TextData.sample`.
        beside: the published size this one stands next to, or None.
        row: label of the row; `method` and `options` are what it means.
        draws: updates a mini-batch, each with new draws; a runner that trains `draws` times the epochs instead says so.
        fault: a mistake of the published code to repeat on purpose, or None.
        model: what `mixwell.models` loads, or `tiny`.
        seed: from 0.
        settings: fields of `TrainSettings`, `arguments` among them.
        metrics: the data set's own metric first.
        test_rows: the most rows of test; None is all. `validation_rows` likewise.
    """

    experiment: str
    scale: str
    dataset: str
    size: str
    fraction: float | None
    max_train: int | None
    beside: str | None
    row: str
    method: str
    options: dict[str, Any]
    draws: int
    fault: str | None
    model: str
    seed: int
    settings: dict[str, Any]
    metrics: tuple[str, ...]
    test_rows: int | None
    validation_rows: int | None

    def to_dict(self) -> dict[str, Any]:
        """The run as plain values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Figure:
    """A figure that is drawn from parameters alone."""

    experiment: str
    scale: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper; see the module's text for the fields."""

    name: str
    kind: str
    title: str
    shows: str
    number: str
    paper: Paper
    model: Model | None = None
    datasets: tuple[DataSet, ...] = ()
    rows: tuple[Row, ...] = ()
    sizes: tuple[str, ...] = ()
    seeds: int = 0
    metrics: tuple[str, ...] = ()
    training: dict[str, Any] = field(default_factory=dict)
    unstated: tuple[str, ...] = ()
    curve: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    published: tuple[Number, ...] = ()
    spread_kind: str | None = None
    factor: float = 1.0
    claims: tuple[Claim, ...] = ()
    skip: tuple[Skip, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    notes: tuple[str, ...] = ()
    scales: dict[str, Scale] = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        """Whether it has runs for the compare engine; else it is a figure drawn from parameters."""
        return bool(self.rows)

    def dataset(self, key: str) -> DataSet:
        """Return a data set by key; `sample` is the bundled one."""
        if key == SAMPLE.key:
            return SAMPLE
        return next(data for data in self.datasets if data.key == key)

    def row(self, label: str) -> Row:
        """Return a row by label."""
        return next(row for row in self.rows if row.label == label)

    def figure(self, scale: str = "full") -> Figure:
        """Return the parameters of a figure at a scale."""
        return Figure(self.name, scale, {**self.parameters, **self._scale(scale).parameters})

    def cells(self, scale: str = "full", *, model: str | None = None, depth: int | None = None) -> list[Run]:
        """Return every training of this experiment: data sets x sizes x rows x seeds.

        Args:
            scale: full, small or smoke.
            model: another model than the scale's: `minilm`, `tiny`, a folder or a hub id.
            depth: how many blocks that model has; needed only where rows name blocks and the model is not known here.

        Raises:
            OptionError: the scale is unknown, the depth is needed, or a method does not take its options.
        """
        from mixwell.methods import build

        chosen = self._scale(scale)
        if not self.trained:
            return []
        source, depth = self._model(chosen, model, depth)
        labels = chosen.rows or tuple(row.label for row in self.rows if row.derived is None)
        keys = chosen.datasets or tuple(data.key for data in self.datasets if data.derived is None)
        printed = {number.size for number in self.published}
        assert self.model is not None
        runs = []
        for key, text, label in itertools.product(keys, chosen.sizes or self.sizes, labels):
            if any(skip.covers(label, key, text) for skip in (*self.skip, *chosen.skip)):
                continue
            data, row, size = self.dataset(key), self.row(label), Size.parse(text)
            options = row.options_at(depth, self.model.blocks)
            if row.method != "none":
                options = {**data.options, **options}
            build(row.method, options)
            training = {**self.training, **data.training, **chosen.training, **chosen.by_size.get(text, {})}
            if training.get("best_metric") == "main":
                training["best_metric"] = data.metric
            settings: dict[str, Any] = {name: value for name, value in training.items() if name in SETTINGS}
            settings["arguments"] = {name: value for name, value in training.items() if name in ARGUMENTS}
            first = Run(
                experiment=self.name,
                scale=scale,
                dataset=key,
                size=text,
                fraction=size.fraction,
                max_train=size.max_train,
                beside=chosen.beside.get(text, text if text in printed else None),
                row=label,
                method=row.method,
                options=options,
                draws=row.draws,
                fault=row.fault,
                model=source,
                seed=0,
                settings=settings,
                metrics=(data.metric, *(name for name in self.metrics if name != data.metric)),
                test_rows=chosen.test_rows,
                validation_rows=chosen.validation_rows,
            )
            runs += [dataclasses.replace(first, seed=seed) for seed in range(chosen.seeds or self.seeds)]
        return runs

    def values(self, metric: str | None = None, *, of: str = "value") -> dict[tuple[str, str, str], float]:
        """Return published numbers of a metric by (row, data set, size).

        Args:
            metric: its name; None for each data set's own.
            of: "value", or "spread" for what stands behind the ±.
        """
        found = {}
        for number in self.published:
            wanted = metric or self.dataset(number.dataset).metric
            value = number.value if of == "value" else number.spread
            if number.metric == wanted and value is not None:
                found[number.row, number.dataset, number.size] = value
        return found

    def order(self, dataset: str, size: str, metric: str | None = None) -> list[str]:
        """Return the rows with a published number, best first; rows that are not trained are left out."""
        metric = metric or self.dataset(dataset).metric
        found = {
            row: value
            for (row, data, at), value in self.values(metric).items()
            if (data, at) == (dataset, size) and self.row(row).derived is None
        }
        return sorted(found, key=lambda row: found[row], reverse=METRICS[metric])

    def _scale(self, name: str) -> Scale:
        if name not in SCALES:
            raise OptionError(f"scale {name!r} is unknown{nearest(name, SCALES)}; use one of {', '.join(SCALES)}")
        return self.scales.get(name, Scale(name))

    def _model(self, scale: Scale, model: str | None, depth: int | None) -> tuple[str, int | None]:
        key = model or scale.model
        if key is None:
            assert self.model is not None
            return self.model.source, depth or self.model.blocks
        if key in MODELS:
            return MODELS[key].source, depth or MODELS[key].blocks
        if self.model is not None and key in (self.model.key, self.model.source):
            return self.model.source, depth or self.model.blocks
        return key, depth


MODELS = {
    "minilm": Model("minilm", "all-MiniLM-L6-v2", "minilm", blocks=6, heads=12),
    "tiny": Model("tiny", "a tiny random BERT", "tiny", blocks=3, heads=2),
}
SAMPLE = DataSet("sample", "the bundled sample data", classes=12, published={})


# --- reading -------------------------------------------------------------------------------------------------------


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
    found: dict[str, Experiment] = {}
    order = ("amplify", "nlu", "batchmixup", "attentionmix")
    files = {file.stem: file for file in Path(__file__).parent.glob("*.toml")}
    for stem in sorted(files, key=lambda stem: (order.index(stem) if stem in order else len(order), stem)):
        for experiment in load(files[stem]):
            if experiment.name in found:
                raise DataError(f"{files[stem].name}: experiment {experiment.name!r} is in another file too")
            found[experiment.name] = experiment
    return found


def load(path: str | Path) -> list[Experiment]:
    """Read the experiments of one file.

    Everything is checked but whether methods take their options, which `Experiment.cells` does: that needs torch.

    Raises:
        DataError: naming the file and the key.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path.name}: not a TOML file ({error})") from error
    return _File(path.name, content).read()


class _File:
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
        self.models = {
            key: self.make(Model, f"models.{key}", table, key=key) for key, table in content.get("models", {}).items()
        }
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
            splits[split] = Part(source, int(rows) if rows.isdigit() else None, share)
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
            for at, entry in enumerate(table.get("rows", ()))
            for row in self.read_rows(f"{where}.rows[{at}]", entry)
        )
        labels = [row.label for row in rows]
        if len(set(labels)) != len(labels):
            raise self.fail(f"{where}.rows", "two rows have the same label")
        made = {
            "model": None if model is None else self.models[model],
            "datasets": tuple(self.datasets[key] for key in table.get("datasets", ())),
            "rows": rows,
            "claims": self.several(Claim, f"{where}.claims", table.get("claims", [])),
            "skip": self.several(Skip, f"{where}.skip", table.get("skip", [])),
            "not_run": self.several(NotRun, f"{where}.not_run", table.get("not_run", [])),
        }
        rest = {key: value for key, value in table.items() if key not in special}
        experiment = self.make(Experiment, where, rest, name=name, paper=self.paper, published=(), scales={}, **made)
        published = tuple(
            number
            for at, block in enumerate(table.get("published", ()))
            for number in self.read_block(f"{where}.published[{at}]", block, experiment)
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
        return tuple(self.make(cls, f"{where}[{at}]", entry) for at, entry in enumerate(entries))

    def read_rows(self, where: str, table: dict[str, Any]) -> list[Row]:
        expand = table.get("expand", {})
        row: Row = self.make(Row, where, {key: value for key, value in table.items() if key != "expand"})
        if bool(row.method) == (row.derived is not None):
            raise self.fail(where, f"row {row.label!r} needs either 'method' or 'derived'")
        if row.fault is not None:
            self.known(f"{where}.fault", row.fault, FAULTS, "fault")
        if row.draws < 1:
            raise self.fail(f"{where}.draws", "must be at least 1")
        if not expand:
            return [row]
        made = []
        for choice in itertools.product(*expand.values()):
            picked = dict(zip(expand, choice))
            options = {**row.options, **picked}
            made.append(dataclasses.replace(row, label=row.label.format(**picked), options=options))
        return made

    def read_block(self, where: str, table: dict[str, Any], experiment: Experiment) -> list[Number]:
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
                numbers.append(Number(label, key, size, metric, float(match[1]), spread, text))
        return numbers

    def read_scales(self, where: str, table: dict[str, Any], experiment: Experiment) -> dict[str, Scale]:
        own = self.keys(f"{where}.scales", table, SCALES[1:])
        scales = {}
        for name in SCALES[1:]:
            shared = self.content.get("scales", {}).get(name, {}) if experiment.rows else {}
            merged = {**shared, **own.get(name, {})}
            merged["training"] = {**shared.get("training", {}), **own.get(name, {}).get("training", {})}
            at = f"{where}.scales.{name}"
            skip = self.several(Skip, f"{at}.skip", merged.pop("skip", []))
            scale: Scale = self.make(Scale, at, merged, name=name, skip=skip)
            self.check_scale(at, scale, experiment)
            scales[name] = scale
        return scales

    # --- checks across tables ---

    def check_scale(self, where: str, scale: Scale, experiment: Experiment) -> None:
        self.training(f"{where}.training", scale.training)
        sizes = scale.sizes or experiment.sizes
        self.check_sizes(where, sizes)
        for size, training in scale.by_size.items():
            self.known(f"{where}.by_size", size, sizes, "size")
            self.training(f"{where}.by_size.{size}", training)
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
        for key in experiment.unstated:
            self.known(f"{where}.unstated", key, experiment.training, "training key")
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
        for at, claim in enumerate(experiment.claims):
            here = f"{where}.claims[{at}]"
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


def _split_files(folder: Path) -> dict[str, Path]:
    """Return the data files of a folder by split."""
    from mixwell.data.sources import SPLIT_NAMES, data_suffix

    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        suffix = data_suffix(file)
        if suffix and file.is_file() and not file.name.startswith("."):
            stem = file.name.casefold().removesuffix(".gz").removesuffix(suffix)
            split = SPLIT_NAMES.get(stem)
            if split is not None:
                found.setdefault(split, file)
    return found
