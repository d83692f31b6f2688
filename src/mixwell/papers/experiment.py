"""One table or figure of a paper, and the trainings it stands for at each scale."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixwell.compare.conditions import Conditions
from mixwell.compare.spec import candidate
from mixwell.papers import schema
from mixwell.papers.schema import ARGUMENTS, MODELS, SAMPLE, SCALES, SETTINGS, DataSet, Scale, TableRow
from mixwell.utils.errors import OptionError, nearest


@dataclass(frozen=True)
class Request:
    """What of a protocol is asked for.

    Attributes:
        name: of the experiment.
        scale: full, small or smoke.
        data: the folder with one folder per data set.
        model: another model than the scale's.
        hub: load data sets from the hub that are not in `data`.
        only: data sets to run; empty for all.
        rows: rows to run, plain training besides; empty for all.
        seeds: how many; None for the scale's number.
        command: the command line, for the record.
        cache_dir: for tokenised texts and the tiny model.
    """

    name: str
    scale: str = "full"
    data: str | None = None
    model: str | None = None
    hub: bool = False
    only: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    seeds: int | None = None
    command: tuple[str, ...] = ()
    cache_dir: str | None = None

    def folder(self) -> Path:
        """The folder of a run without a name."""
        return Path("runs") / f"{self.name}-{self.scale}"


@dataclass(frozen=True)
class PlannedRun:
    """One training, as plain data.

    Attributes:
        dataset: key of the data set (`Experiment.dataset(key)` has the rest).
        size: label of the size; `amount` is what it means for `TextData.sample`.
        beside: the published size this one stands next to, or None.
        row: label of the row; `method` and `options` are what it means.
        draws: updates per mini-batch, each with new draws.
        fault: a mistake of the published code to repeat on purpose, or None.
        model: what `mixwell.training.models` loads, or `tiny`.
        seed: from 0.
        settings: fields of `TrainSettings`, `arguments` among them.
        metrics: the data set's own metric first.
        test_rows: the most rows of test; None is all. `validation_rows` likewise.
        recipe: whether the settings that are not there are those of `mixwell train`.
        conditions: what is made harder.
    """

    dataset: str
    size: str
    amount: schema.Size
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
    recipe: bool = False
    conditions: Conditions = Conditions()


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper; `schema` says what the fields are."""

    name: str
    kind: str
    title: str
    shows: str
    number: str
    paper: schema.Paper
    model: schema.PaperModel | None = None
    datasets: tuple[DataSet, ...] = ()
    rows: tuple[TableRow, ...] = ()
    sizes: tuple[str, ...] = ()
    seeds: int = 0
    metrics: tuple[str, ...] = ()
    training: dict[str, Any] = field(default_factory=dict)
    recipe: bool = False
    conditions: dict[str, Any] = field(default_factory=dict)
    unstated: tuple[str, ...] = ()
    departs: tuple[str, ...] = ()
    curve: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    published: tuple[schema.PublishedNumber, ...] = ()
    spread_kind: str | None = None
    factor: float = 1.0
    claims: tuple[schema.Claim, ...] = ()
    skip: tuple[schema.Skip, ...] = ()
    not_run: tuple[schema.NotRun, ...] = ()
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
        return tuple(data for data in self.datasets if data.derived is None)

    def row(self, label: str) -> TableRow:
        """Return a row by label."""
        return next(row for row in self.rows if row.label == label)

    def figure_parameters(self, scale: str = "full") -> dict[str, Any]:
        """Return what a figure is drawn from at a scale."""
        return {**self.parameters, **self.scale(scale).parameters}

    def runs(self, scale: str = "full", *, model: str | None = None, depth: int | None = None) -> list[PlannedRun]:
        """Return every training of this experiment: data sets x sizes x rows x seeds.

        Args:
            scale: full, small or smoke.
            model: another model than the scale's: `minilm`, `tiny`, a folder or a hub id.
            depth: how many blocks that model has; needed only where rows name blocks and the model is not known here.

        Raises:
            OptionError: the scale is unknown, the depth is needed, or a method does not take its options.
        """
        chosen = self.scale(scale)
        if not self.trained:
            return []
        source, depth = self._model(chosen, model, depth)
        labels = chosen.rows or tuple(row.label for row in self.rows if row.derived is None)
        keys = chosen.datasets or tuple(data.key for data in self.datasets if data.derived is None)
        runs = []
        for key, size, label in itertools.product(keys, chosen.sizes or self.sizes, labels):
            if any(skip.covers(label, key, size) for skip in (*self.skip, *chosen.skip)):
                continue
            first = self._first_run(chosen, self.dataset(key), self.row(label), size, source, depth)
            runs += [dataclasses.replace(first, seed=seed) for seed in range(chosen.seeds or self.seeds)]
        return runs

    def _first_run(
        self, scale: Scale, data: DataSet, row: TableRow, size: str, source: str, depth: int | None
    ) -> PlannedRun:
        """The training of one row, data set and size with seed 0."""
        assert self.model is not None
        options = row.options_at(depth, self.model.blocks)
        if row.method != "none":
            options = {**data.options, **options}
        candidate(row.method, options)  # raises for options that the method does not take
        training = {**self.training, **data.training, **scale.training}
        if training.get("best_metric") == "main":
            training["best_metric"] = data.metric
        settings: dict[str, Any] = {name: value for name, value in training.items() if name in SETTINGS}
        settings["arguments"] = {name: value for name, value in training.items() if name in ARGUMENTS}
        published = size in {number.size for number in self.published}
        return PlannedRun(
            dataset=data.key,
            size=size,
            amount=schema.parse_size(size),
            beside=scale.beside.get(size, size if published else None),
            row=row.label,
            method=row.method,
            options=options,
            draws=row.draws,
            fault=row.fault,
            model=source,
            seed=0,
            settings=settings,
            metrics=(data.metric, *(name for name in self.metrics if name != data.metric)),
            test_rows=scale.test_rows,
            validation_rows=scale.validation_rows,
            recipe=self.recipe,
            conditions=Conditions(**self.conditions),
        )

    def values(self, metric: str | None = None, *, of: str = "value") -> dict[tuple[str, str, str], float]:
        """Return published numbers of a metric by (row, data set, size).

        Args:
            metric: its name; None for each data set's own.
            of: "value", or "spread" for what stands behind the ±.
        """
        values = {}
        for number in self.published:
            wanted = metric or self.dataset(number.dataset).metric
            value = number.value if of == "value" else number.spread
            if number.metric == wanted and value is not None:
                values[number.row, number.dataset, number.size] = value
        return values

    @staticmethod
    def check_scale(name: str) -> None:
        """Raise `OptionError` unless there is such a scale."""
        if name not in SCALES:
            raise OptionError(f"scale {name!r} is unknown{nearest(name, SCALES)}; use one of {', '.join(SCALES)}")

    def scale(self, name: str) -> Scale:
        """What differs from the paper's protocol at a scale; nothing at `full`."""
        self.check_scale(name)
        return self.scales.get(name, Scale(name))

    def _model(self, scale: Scale, model: str | None, depth: int | None) -> tuple[str, int | None]:
        assert self.model is not None
        key = model or scale.model or self.model.key
        known = {self.model.key: self.model, self.model.source: self.model, **MODELS}.get(key)
        return (known.source, depth or known.blocks) if known else (key, depth)
