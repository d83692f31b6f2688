"""From a protocol to trainings for the compare engine, and to what cannot be run and why; nothing is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixwell._version import __version__
from mixwell.compare.conditions import Conditions
from mixwell.compare.grid import Grid
from mixwell.compare.planning import exact_settings
from mixwell.compare.spec import AUTO, REFERENCES, CellSpec, DataSource, Sample, candidate
from mixwell.compare.weights import weights_fingerprint
from mixwell.data import TextData
from mixwell.papers import sources
from mixwell.papers.experiment import Experiment, PlannedRun, Request
from mixwell.papers.protocols import get
from mixwell.papers.results import shared_results
from mixwell.papers.run_file import FORMAT, PLACE
from mixwell.papers.schema import MODELS
from mixwell.training import models, quiet_libraries, recipe
from mixwell.utils.errors import DataError, MixwellError, OptionError, nearest
from mixwell.utils.files import home

# Where a paper says nothing: the head of the architecture, and AMPLIFY's section 4.3.
BY_DEFAULT = {
    "pooling": "model", "start": "random", "head_rate": 1.0, "freeze_words": False, "epochs": 15, "batch_size": 32,
}  # fmt: skip


@dataclass
class PaperPlan:
    """What will be trained and what will not.

    Attributes:
        experiment: the protocol.
        request: what was asked for.
        model: the model's name.
        runs: the trainings, in the words of the protocol.
        specs: the same for the compare engine, one for each run.
        not_run: what is left out against the protocol, and why.
        cut: what the user left out.
        notes: what was found out about data and model.
        packs: folders of packs whose results are used.
        packed: names of the runs that these packs have.
        any_local: whether a data set was found in a local folder.
    """

    experiment: Experiment
    request: Request
    model: str = ""
    runs: list[PlannedRun] = field(default_factory=list)
    specs: list[CellSpec] = field(default_factory=list)
    not_run: list[dict[str, str]] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    packs: list[str] = field(default_factory=list)
    packed: set[str] = field(default_factory=set)
    any_local: bool = False

    def leave_out(self, what: str, why: str) -> None:
        """Note something that is not run."""
        entry = {"what": what, "why": why}
        if entry not in self.not_run:
            self.not_run.append(entry)

    def use_packs(self, folders: Sequence[str | Path]) -> None:
        """Use the results that packs have; experiments share trainings, so that packs of others will do too.

        Raises:
            RunError: a folder is no pack.
        """
        self.packs = [str(home(folder).resolve()) for folder in folders]
        self.packed = shared_results(self.packs).keys() & {spec.key for spec in self.specs}

    @property
    def to_train(self) -> list[CellSpec]:
        """The trainings that no pack has."""
        return [spec for spec in self.specs if spec.key not in self.packed]

    def to_dict(self, records: str) -> dict[str, Any]:
        """What run.json holds."""
        asked = dataclasses.asdict(self.request)
        return {
            "format": FORMAT,
            "version": __version__,
            "experiment": self.experiment.name,
            "scale": self.request.scale,
            "model": self.model,
            "command": list(self.request.command),
            "request": {key: asked[key] for key in ("data", "model", "hub", "only", "rows", "seeds")},
            "records": records,
            "packs": self.packs,
            "not_run": self.not_run,
            "cut": self.cut,
            "notes": self.notes,
            "cells": [
                {name: spec.key if name == "key" else getattr(run, name) for name in PLACE}
                for run, spec in zip(self.runs, self.specs)
            ],
        }


# --- planning ------------------------------------------------------------------------------------------------------


def plan(request: Request, splits: Path) -> PaperPlan:
    """Find data and model, and list what is to be trained.

    Args:
        request: what is asked for.
        splits: the folder for splits files.

    Raises:
        MixwellError: nothing can run; the message says what is missing.
    """
    experiment = get(request.name)
    if request.data is not None and home(request.data).is_file():
        raise DataError(f"--data {request.data} is a file; name the folder that has one folder for each data set")
    paper_plan = PaperPlan(experiment, request)
    runs = _wanted_runs(paper_plan)
    _explain_scale(paper_plan)
    problems: list[str] = []
    unfit: dict[str, str] = {}
    with quiet_libraries():
        for key in dict.fromkeys(run.dataset for run in runs):
            dataset = experiment.dataset(key)
            located = sources.locate(dataset, request.data, request.hub)
            if located.problem is not None:
                problems.append(located.problem)
                paper_plan.leave_out(dataset.title, located.problem)
                continue
            local = located.path is not None
            texts = (dataset.difference, dataset.local if local else None)
            paper_plan.notes += [f"{dataset.title}: {text.rstrip('.')}." for text in texts if text]
            paper_plan.any_local |= local
            _add_dataset(paper_plan, [run for run in runs if run.dataset == key], located, splits, unfit)
    if not paper_plan.specs:
        reasons = problems or [f"{item['what']}: {item['why']}" for item in paper_plan.not_run]
        raise DataError(f"{experiment.name}: nothing can run. {'; '.join(reasons)}")
    _explain_protocol(paper_plan)
    return paper_plan


def _wanted_runs(paper_plan: PaperPlan) -> list[PlannedRun]:
    """The runs of the scale, less what the user left out."""
    experiment, request = paper_plan.experiment, paper_plan.request
    name = request.model
    known = name is None or name in MODELS or name == getattr(experiment.model, "key", None)
    runs = experiment.runs(request.scale, model=name, depth=None if known else _depth(str(name)))
    paper_plan.model = runs[0].model
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    for key in request.only:
        if key not in datasets:
            hint = nearest(key, datasets)
            raise OptionError(f"--only: data set {key!r} is not in this run{hint}; it has {', '.join(datasets)}")
    labels = list(dict.fromkeys(run.row for run in runs))
    plain = [run.row for run in runs if run.method == "none"][:1]
    rows = [*plain, *match_rows(request.rows, labels)] if request.rows else labels
    if request.seeds is not None and request.seeds < 1:
        raise OptionError(f"--seeds must be at least 1, got {request.seeds}")
    seeds = max(run.seed for run in runs) + 1
    kept = [
        # More seeds than the protocol has are made of its first.
        dataclasses.replace(run, seed=seed)
        for run in runs
        if run.seed == 0 and run.row in rows and (not request.only or run.dataset in request.only)
        for seed in range(request.seeds or seeds)
    ]
    if request.only and (gone := [key for key in datasets if key not in request.only]):
        paper_plan.cut.append(f"--only leaves out the data sets {', '.join(gone)}.")
    if gone := [label for label in labels if label not in rows]:
        paper_plan.cut.append(f"--rows leaves out the rows {', '.join(map(repr, gone))}.")
    if request.seeds is not None and request.seeds != seeds:
        paper_plan.cut.append(f"--seeds {request.seeds} instead of the {seeds} of scale {request.scale}.")
    return kept


def match_rows(texts: Sequence[str], labels: Sequence[str]) -> list[str]:
    """The rows named by texts, each with one or more labels and commas between; labels may have commas themselves."""
    folded = {label.casefold(): label for label in labels}
    rows = []
    for text in texts:
        parts = [part.strip() for part in text.split(",")]
        while parts:
            tries = [", ".join(parts[:count]) for count in range(len(parts), 0, -1)]
            name = next((text for text in tries if text.casefold() in folded), None)
            if name is None:
                hint = nearest(parts[0], labels)
                raise OptionError(f"--rows: {parts[0]!r} is not a row of this run{hint}; rows: {'; '.join(labels)}")
            rows.append(folded[name.casefold()])
            parts = parts[name.count(",") + 1 :]
    return list(dict.fromkeys(rows))


def _depth(name: str) -> int | None:
    """How many blocks a model has."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(models.resolve(name))
    except (OSError, ValueError) as error:
        raise OptionError(
            f"model {name}: its config cannot be read ({str(error).splitlines()[0]}); use minilm, tiny, the folder "
            f"of a model or a hub id"
        ) from error
    return getattr(config, "num_hidden_layers", None)


def _add_dataset(
    paper_plan: PaperPlan, runs: Sequence[PlannedRun], located: sources.LocatedData, splits: Path, unfit: dict[str, str]
) -> None:
    """Add the trainings on one data set; all rows of a seed come before the next seed."""
    dataset = paper_plan.experiment.dataset(runs[0].dataset)
    cuts: dict[int, tuple[DataSource, TextData]] = {}
    samples: dict[tuple[int, Sample], TextData] = {}
    model: _LoadedModel | None = None
    sizes = list(dict.fromkeys(run.size for run in runs))
    for run in sorted(runs, key=lambda run: (sizes.index(run.size), run.seed)):
        cut = sources.split_seed(paper_plan.experiment, dataset, run.seed)
        if cut not in cuts:
            source = sources.prepare(
                dataset, located, seed=cut, validation_rows=run.validation_rows, test_rows=run.test_rows, folder=splits
            )
            cuts[cut] = source, source.load()
            leaks = [f"{count} {name} rows" for name, count in cuts[cut][1].leaks.items() if count]
            if leaks and len(cuts) == 1:  # of the first cut, where each seed has its own
                paper_plan.notes.append(
                    f"{dataset.title}: {' and '.join(leaks)} have their text in train too, before sampling."
                )
        source, data = cuts[cut]
        model = model or _LoadedModel(paper_plan, run.model, data, unfit, recipe=run.recipe)
        sample = Sample(**vars(run.amount))
        sample = sample if sample.whole else dataclasses.replace(sample, seed=run.seed)
        if (cut, sample) not in samples:
            samples[cut, sample] = _conditions(run).apply(sample.of(data))
        spec = model.spec(run, source, data, sample, samples[cut, sample])
        if spec is not None:
            paper_plan.runs.append(run)
            paper_plan.specs.append(spec)


def _conditions(run: PlannedRun) -> Conditions:
    """The conditions of a run; its seed draws rows, words and classes."""
    own = run.conditions
    return dataclasses.replace(own, seed=run.seed) if own.changes_train else own


class _LoadedModel:
    """The model of a plan on one data set, for what the compare engine has to know about it.

    Args:
        paper_plan: where rows that do not fit the model are noted.
        name: of the model.
        data: the data set.
        unfit: label of method and options to why it does not fit the model, empty if it does; shared by data sets.
        recipe: whether it is pooled as the encoder was trained, and not by the head of the architecture.
    """

    def __init__(
        self, paper_plan: PaperPlan, name: str, data: TextData, unfit: dict[str, str], *, recipe: bool = False
    ) -> None:
        self.paper_plan, self.unfit = paper_plan, unfit
        self.name = str(sources.tiny_folder(paper_plan.request.cache_dir)) if name == "tiny" else name
        if home(self.name).is_dir():
            self.name = str(home(self.name).resolve())
        self.pooling = "auto" if recipe else "model"
        self.loaded = models.load(self.name, task=data.task, labels=data.labels, pooling=self.pooling)
        self.weights = weights_fingerprint(self.loaded.source, self.loaded.commit)

    def spec(
        self, run: PlannedRun, source: DataSource, data: TextData, sample: Sample, sampled: TextData
    ) -> CellSpec | None:
        """A run for the compare engine; None if its method does not go with the model, which is noted."""
        from mixwell.methods.attach import attach
        from mixwell.methods.registry import without_auto
        from mixwell.papers.audit import faulty

        chosen = candidate(faulty(run.method, run.fault), run.options)
        if chosen.label not in self.unfit and chosen.method in (*REFERENCES, AUTO):
            self.unfit[chosen.label] = ""
        if chosen.label not in self.unfit:
            try:
                attach(self.loaded.model, chosen.method, **without_auto(chosen.method, chosen.options)).detach()
                self.unfit[chosen.label] = ""
            except MixwellError as error:
                self.unfit[chosen.label] = str(error)
        if self.unfit[chosen.label]:
            self.paper_plan.leave_out(f"row {run.row!r}", self.unfit[chosen.label])
            return None
        settings = self._settings(run, sampled)
        if run.draws > 1:
            settings["updates_per_batch"] = run.draws
        if self.paper_plan.experiment.curve == "test_loss":
            settings["watch_test"] = True
        return CellSpec(
            name=run.dataset, source=source, fingerprint=data.fingerprint, sampled=sampled.fingerprint, sample=sample,
            max_test=None, task=data.task, model=self.name, weights=self.weights, trust_remote_code=False,
            method=chosen.method, options=chosen.options, label=run.row, settings=settings, seed=run.seed,
            conditions=_conditions(run),
        )  # fmt: skip

    def _settings(self, run: PlannedRun, sampled: TextData) -> dict[str, Any]:
        """The settings of a run: the protocol's, and beside them the recipe's or those for papers."""
        if run.recipe:
            settings = Grid(settings=run.settings).settings_list()[0]
            settings = exact_settings(settings, self.loaded, sampled, sampled.train.num_rows)
            return {**settings, "patience": 0} if run.conditions.overtrain else settings
        settings = Grid(settings={**BY_DEFAULT, **run.settings}).settings_list()[0]
        settings["max_length"] = min(settings["max_length"], self.loaded.longest)
        settings["learning_rate"] = settings["learning_rate"] or recipe.learning_rate(self.loaded.parameters)
        return settings


# --- what is not run -------------------------------------------------------------------------------------------------


def _explain_scale(paper_plan: PaperPlan) -> None:
    """List what the scale leaves out of the protocol."""
    experiment, scale = paper_plan.experiment, paper_plan.request.scale
    if scale == "smoke":
        why = "smoke only shows that everything runs: sample data, a tiny random model"
        paper_plan.leave_out("the paper's data, sizes and model", why)
        return
    chosen = experiment.scale(scale)
    known = [item.what for item in experiment.not_run]
    keys = [data.key for data in experiment.datasets if data.derived is None and data.title not in known]
    labels = [repr(row.label) for row in experiment.rows if row.derived is None]
    asked: dict[str, tuple[Sequence[str], Sequence[str]]] = {
        "data sets": (keys, chosen.datasets),
        "rows": (labels, [repr(label) for label in chosen.rows]),
        "sizes": (experiment.sizes, chosen.sizes),
    }
    other = f"not part of scale {scale}"
    for what, (whole, kept) in asked.items():
        if left := [name for name in whole if kept and name not in kept]:
            paper_plan.leave_out(f"{what} {', '.join(left)}", other)
    for skip in (*experiment.skip, *chosen.skip):
        parts = [", ".join(names) for names in (skip.rows, skip.datasets, skip.sizes) if names]
        paper_plan.leave_out(" / ".join(parts), "not in the paper" if skip in experiment.skip else other)


def _explain_protocol(paper_plan: PaperPlan) -> None:
    """Add what the protocol itself lists as not run, less what did run after all, and its remarks."""
    experiment, request = paper_plan.experiment, paper_plan.request
    model = experiment.model
    ran = {experiment.dataset(run.dataset).title for run in paper_plan.runs}
    for item in experiment.not_run:
        own = model is not None and paper_plan.model == model.source and item.what.startswith(model.title.split(",")[0])
        known = [entry["what"] for entry in paper_plan.not_run]
        if item.what not in ran and item.what not in known and not own and (paper_plan.any_local or not item.local):
            paper_plan.leave_out(item.what, item.why)
    paper_plan.notes += experiment.scale(request.scale).notes
    for number in sorted({run.draws for run in paper_plan.runs if run.draws > 1}):
        paper_plan.notes.append(
            f"Rows with {number} draws: each mini-batch makes {number} updates in a row, each with a new lambda and "
            f"new partners; an epoch has {number} times the updates, and as many evaluations as the other rows."
        )
