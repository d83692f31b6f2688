"""The papers' protocols, as `reading` finds them in the TOML files of this folder.

A file describes one paper. Its tables and keys (a star marks what must be there):

    [paper]                 key*, title*, authors*, reference*, text* (what of the paper was to be had), arxiv, notes
    [models.KEY]            title*, source* (hub id), blocks*, heads*
    [datasets.KEY]          title*; folder (local name), hub (id), label and hub_label (columns), classes, metric,
                            splits (train, validation, test = "SPLIT", "SPLIT:ROWS" or "SPLIT:25%" of the source),
                            published (the sizes the paper gives), training and options (what differs for this data
                            set), difference (of what is measured here), local (how
                            our local copy differs), available (what a user has to bring), kin (the
                            same word for data sets with texts in common); derived (a column of the table that is
                            computed from others: such a data set has nothing else)
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
      departs               those which the paper states otherwise; the notes say why
      curve                 a figure's quantity over training: "train_loss" or "test_loss"
      parameters            of figures that are not trained by the compare engine
      published             blocks of numbers as printed ("81.20 ± 0.442"): either metric + columns (data sets), or
                            dataset + metrics; size; [..values] row label -> one text a column
      spread_kind           what stands behind the ±
      factor                published value = measured value * factor
      claims                says* (our words), metric, of ("value" or "spread"), datasets, sizes, above, below (rows:
                            each of `above` is better than each of `below`), difference or ratio (the published size)
      skip                  rows, datasets, sizes whose combinations are not run
      not_run               what*, why*; local (not said of data from the hub)
      notes                 what somebody who repeats it must know
      scales.small|smoke    model, datasets, rows, sizes, beside (size here -> published size it stands next to), seeds,
                            test_rows, validation_rows, training, skip, parameters, notes

`full` is the paper's protocol; `small` is for two CPU cores; `smoke` runs on the sample data with a tiny random model.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixwell.errors import DataError, OptionError, nearest
from mixwell.files import home

__all__ = [
    "SCALES", "Claim", "DataSet", "Experiment", "Figure", "Located", "Model", "NotRun", "Number", "Paper", "Part",
    "Row", "Run", "Scale", "Size", "Verdict", "get", "names",
]  # fmt: skip

SCALES = ("full", "small", "smoke")
SPLITS = ("train", "validation", "test")
OURS = "Our question: "  # how claims begin that are no paper's
FAULTS = ("label_permutation",)
CURVES = ("train_loss", "test_loss")
# Metrics -> whether higher is better. The first five are names of `mixwell.calibration.METRICS`; `_after` is after the
# temperature, and `nll_last` the validation loss of the last epoch; no paper has them.
METRICS = {
    "accuracy": True,
    "mcc": True,
    "macro_f1": True,
    "nll": False,
    "ece": False,
    "nll_after": False,
    "ece_after": False,
    "nll_last": False,
    "minutes_per_epoch": False,
    "seconds_saved": False,
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

    @property
    def text(self) -> str:
        """As it is written."""
        more = f":{self.rows}" if self.rows is not None else f":{100 * self.share:g}%" if self.share is not None else ""
        return f"{self.source}{more}"


@dataclass(frozen=True)
class Located:
    """Where a data set was found; `problem` says exactly what is missing, None if nothing is.

    `arguments` are those of `mixwell.data.load` that name files and columns; `validation_from_test` is a number of rows
    to move from test to validation, as the paper did, which `load` has no argument for.
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
    local: str | None = None
    available: str | None = None
    derived: str | None = None
    kin: str | None = None

    @property
    def texts(self) -> str:
        """The same for data sets that have texts in common."""
        return self.kin or self.folder or self.key

    def locate(self, root: str | Path | None) -> Located:
        """Look for the local folder below `root`, and say what of it is missing.

        Args:
            root: the user's folder of data sets, one folder each; None if there is none.
        """
        if self.key == SAMPLE.key:
            from mixwell.data import sample_folder

            return Located(sample_folder(), None, {"source": str(sample_folder()), "label": "label"})
        instead = f", or add --hub to load {self.hub} from the hub" if self.hub else ""
        more = f" ({self.available})" if self.available else ""
        if self.folder is None or root is None:
            where = f"a folder named {self.folder}" if self.folder else "a local folder"
            return Located(None, f"{self.title}: needs {where} below --data{instead}{more}")
        path = home(root) / self.folder
        if not path.is_dir():
            return Located(None, f"{self.title}: there is no folder {path}; put it there{instead}{more}")
        files = _split_files(path)
        needed = {part.source for part in self.splits.values()} or {"train"}
        missing = [split for split in SPLITS if split in needed and split not in files]
        if missing:
            has = ", ".join(file.name for file in files.values()) or "no data file"
            words = f"{self.title}: {path} has {has}; add {', '.join(missing)} (CSV, JSON lines or Parquet)"
            return Located(path, f"{words}{instead}{more}")
        arguments: dict[str, Any] = {"source": str(files["train"]), "label": self.label}
        for split in ("validation", "test"):
            part = self.splits.get(split, Part("train"))
            # Parts of train, and validation rows out of test, are cut when the data are prepared.
            if part.source != "train" and (split, part.source) != ("validation", "test"):
                arguments[split] = str(files[part.source])
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
    local: bool = False


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
        draws: updates a mini-batch, each with new draws.
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
    departs: tuple[str, ...] = ()
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

    def is_mean(self, key: str) -> bool:
        """Whether a column is a mean over data sets."""
        return self.dataset(key).derived is not None

    @property
    def averaged(self) -> tuple[DataSet, ...]:
        """The data sets that a mean of the paper's is over: all of them."""
        return tuple(each for each in self.datasets if each.derived is None)

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
            training = {**self.training, **data.training, **chosen.training}
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

    @staticmethod
    def check_scale(name: str) -> None:
        """Raise `OptionError` unless there is such a scale."""
        if name not in SCALES:
            raise OptionError(f"scale {name!r} is unknown{nearest(name, SCALES)}; use one of {', '.join(SCALES)}")

    def _scale(self, name: str) -> Scale:
        self.check_scale(name)
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
    from mixwell.papers import reading

    found: dict[str, Experiment] = {}
    order = ("amplify", "nlu", "batchmixup", "attentionmix")
    files = {file.stem: file for file in Path(__file__).parent.glob("*.toml")}
    for stem in sorted(files, key=lambda stem: (order.index(stem) if stem in order else len(order), stem)):
        for experiment in reading.load(files[stem]):
            if experiment.name in found:
                raise DataError(f"{files[stem].name}: experiment {experiment.name!r} is in another file too")
            found[experiment.name] = experiment
    return found


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
