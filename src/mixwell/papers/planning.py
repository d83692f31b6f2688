"""From a protocol to the cells of the compare engine, and to what cannot be run and why; nothing is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell.compare.spec import CellSpec, Sample, candidate
from mixwell.errors import DataError, MixwellError, OptionError, nearest
from mixwell.files import home
from mixwell.papers import sources
from mixwell.papers.protocols import MODELS, Experiment, Located, Run, get

if TYPE_CHECKING:
    from mixwell.data import TextData

FORMAT = "mixwell paper run 1"
# Where a paper says nothing: the head of the architecture, and AMPLIFY's section 4.3.
BY_DEFAULT = {
    "pooling": "model", "start": "random", "head_rate": 1.0, "freeze_words": False, "epochs": 15, "batch_size": 32,
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What of a protocol is asked for.

    Attributes:
        name: of the experiment.
        scale: full, small or smoke.
        data: the folder with one folder a data set.
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


@dataclass
class Plan:
    """What will be trained and what will not.

    Attributes:
        experiment: the protocol.
        request: what was asked for.
        model: the model's name.
        runs: the trainings.
        cells: theirs for the compare engine, one each.
        not_run: what is left out against the protocol, and why.
        cut: what the user left out.
        notes: what was found out about data and model.
        packs: folders of packs that have some of the trainings already.
        packed: the names of those.
        local: keys of the data sets that were found in a local folder.
    """

    experiment: Experiment
    request: Request
    model: str = ""
    runs: list[Run] = field(default_factory=list)
    cells: list[CellSpec] = field(default_factory=list)
    not_run: list[dict[str, str]] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    packs: list[str] = field(default_factory=list)
    packed: set[str] = field(default_factory=set)
    local: set[str] = field(default_factory=set)

    def leave_out(self, what: str, why: str) -> None:
        """Note something that is not run."""
        entry = {"what": what, "why": why}
        if entry not in self.not_run:
            self.not_run.append(entry)

    def borrow(self, folders: Sequence[str | Path]) -> None:
        """Take from packs what they have; experiments have trainings in common, so that any pack will do.

        Raises:
            RunError: a folder is no pack.
        """
        from mixwell.papers import packs

        self.packs = [str(home(folder).resolve()) for folder in folders]
        self.packed = packs.lent(self.packs).keys() & {cell.key for cell in self.cells}

    @property
    def wanted(self) -> list[CellSpec]:
        """The cells that no pack has."""
        return [cell for cell in self.cells if cell.key not in self.packed]

    def to_dict(self, records: str) -> dict[str, Any]:
        """What run.json holds."""
        from mixwell._version import __version__

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
            "cells": [_place(run, cell) for run, cell in zip(self.runs, self.cells)],
        }


def _place(run: Run, cell: CellSpec) -> dict[str, Any]:
    keys = ("dataset", "size", "beside", "row", "seed", "metrics")
    return {**{key: getattr(run, key) for key in keys}, "key": cell.key}


# --- planning ------------------------------------------------------------------------------------------------------


def plan(request: Request, splits: Path) -> Plan:
    """Find data and model, and make the cells.

    Args:
        request: what is asked for.
        splits: the folder for splits files.

    Raises:
        MixwellError: nothing can run; the message says what is missing.
    """
    from mixwell.training import quiet_libraries

    experiment = get(request.name)
    if request.data is not None and home(request.data).is_file():
        raise DataError(f"--data {request.data} is a file; name the folder that has one folder for each data set")
    made = Plan(experiment, request)
    runs = _wanted(made)
    _explain_scale(made)
    problems: list[str] = []
    fits: dict[str, str] = {}
    with quiet_libraries():
        for key in dict.fromkeys(run.dataset for run in runs):
            dataset = experiment.dataset(key)
            located = sources.locate(dataset, request.data, request.hub)
            if located.problem is not None:
                problems.append(located.problem)
                made.leave_out(dataset.title, located.problem)
                continue
            for text in (dataset.difference, dataset.local if located.path is not None else None):
                if text:
                    made.notes.append(f"{dataset.title}: {text.rstrip('.')}.")
            if located.path is not None:
                made.local.add(key)
            _add(made, [run for run in runs if run.dataset == key], located, splits, fits)
    if not made.cells:
        reasons = problems or [f"{each['what']}: {each['why']}" for each in made.not_run]
        raise DataError(f"{experiment.name}: nothing can run. {'; '.join(reasons)}")
    _explain_protocol(made)
    return made


def _wanted(made: Plan) -> list[Run]:
    """The runs of the scale, less what the user left out."""
    experiment, request = made.experiment, made.request
    name = request.model
    depth = None
    if name is not None and name not in MODELS and name != getattr(experiment.model, "key", None):
        depth = _depth(name)
    runs = experiment.cells(request.scale, model=name, depth=depth)
    made.model = runs[0].model
    known = list(dict.fromkeys(run.dataset for run in runs))
    for key in request.only:
        if key not in known:
            raise OptionError(
                f"--only: data set {key!r} is not in this run{nearest(key, known)}; it has {', '.join(known)}"
            )
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
    if request.only and (gone := [key for key in known if key not in request.only]):
        made.cut.append(f"--only leaves out the data sets {', '.join(gone)}.")
    if gone := [label for label in labels if label not in rows]:
        made.cut.append(f"--rows leaves out the rows {', '.join(map(repr, gone))}.")
    if request.seeds is not None and request.seeds != seeds:
        made.cut.append(f"--seeds {request.seeds} instead of the {seeds} of scale {request.scale}.")
    return kept


def match_rows(texts: Sequence[str], labels: Sequence[str]) -> list[str]:
    """The rows named by texts, each with one or more labels and commas between; labels may have commas themselves."""
    folded = {label.casefold(): label for label in labels}
    found = []
    for text in texts:
        parts = [part.strip() for part in text.split(",")]
        while parts:
            tries = [", ".join(parts[:count]) for count in range(len(parts), 0, -1)]
            name = next((each for each in tries if each.casefold() in folded), None)
            if name is None:
                known = "; ".join(labels)
                raise OptionError(
                    f"--rows: {parts[0]!r} is not a row of this run{nearest(parts[0], labels)}; rows: {known}"
                )
            found.append(folded[name.casefold()])
            parts = parts[name.count(",") + 1 :]
    return list(dict.fromkeys(found))


def _depth(name: str) -> int | None:
    """How many blocks a model has."""
    from transformers import AutoConfig

    from mixwell.models import resolve

    try:
        config = AutoConfig.from_pretrained(resolve(name))
    except (OSError, ValueError) as error:
        raise OptionError(
            f"model {name}: its config cannot be read ({str(error).splitlines()[0]}); use minilm, tiny, the folder "
            f"of a model or a hub id"
        ) from error
    return getattr(config, "num_hidden_layers", None)


def _add(made: Plan, runs: Sequence[Run], located: Located, splits: Path, fits: dict[str, str]) -> None:
    """Make the cells of one data set; all rows of a seed come before the next seed."""
    dataset = made.experiment.dataset(runs[0].dataset)
    cuts: dict[int, tuple[Any, TextData]] = {}
    samples: dict[tuple[int, Sample], str] = {}
    fit: _Model | None = None
    sizes = list(dict.fromkeys(run.size for run in runs))
    for run in sorted(runs, key=lambda run: (sizes.index(run.size), run.seed)):
        cut = sources.split_seed(made.experiment, dataset, run.seed)
        if cut not in cuts:
            source = sources.prepare(
                dataset, located, seed=cut, validation_rows=run.validation_rows, test_rows=run.test_rows, folder=splits
            )
            cuts[cut] = source, source.load()
            leaks = [f"{count} {name} rows" for name, count in cuts[cut][1].leaks.items() if count]
            if leaks and len(cuts) == 1:  # of the first cut, where each seed has its own
                made.notes.append(
                    f"{dataset.title}: {' and '.join(leaks)} have their text in train too, before sampling."
                )
        source, data = cuts[cut]
        fit = fit or _Model(made, run.model, data, fits)
        sample = Sample(run.fraction, None, run.max_train)
        sample = sample if sample.whole else dataclasses.replace(sample, seed=run.seed)
        if (cut, sample) not in samples:
            samples[cut, sample] = sample.of(data).fingerprint
        cell = fit.cell(run, source, data, sample, samples[cut, sample])
        if cell is not None:
            made.runs.append(run)
            made.cells.append(cell)


class _Model:
    """The model of a run on one data set, for what cells have to know about it."""

    def __init__(self, made: Plan, name: str, data: TextData, fits: dict[str, str]) -> None:
        from mixwell import models
        from mixwell.compare.planning import weights_fingerprint
        from mixwell.papers.tiny import tiny_folder
        from mixwell.training import recipe

        self.made = made
        self.name = str(tiny_folder(made.request.cache_dir)) if name == "tiny" else name
        if home(self.name).is_dir():
            self.name = str(home(self.name).resolve())
        self.loaded = models.load(self.name, task=data.task, labels=data.labels)
        self.weights = weights_fingerprint(self.loaded.source, self.loaded.commit)
        self.rate = recipe.learning_rate(self.loaded.parameters)
        self.fits = fits  # label of method and options -> empty if it fits, else why not

    def cell(self, run: Run, source: Any, data: TextData, sample: Sample, sampled: str) -> CellSpec | None:
        """The cell of a run; None if its method does not go with the model, which is noted."""
        from mixwell.compare.grid import Grid
        from mixwell.mixer import attach
        from mixwell.papers.audit import faulty

        chosen = candidate(faulty(run.method, run.fault), run.options)
        if chosen.label not in self.fits:
            try:
                attach(self.loaded.model, chosen.method, **chosen.options).detach()
                self.fits[chosen.label] = ""
            except MixwellError as error:
                self.fits[chosen.label] = str(error)
        if self.fits[chosen.label]:
            self.made.leave_out(f"row {run.row!r}", self.fits[chosen.label])
            return None
        settings = Grid(settings={**BY_DEFAULT, **run.settings}).settings_list()[0]
        settings["max_length"] = min(settings["max_length"], self.loaded.longest)
        settings["learning_rate"] = settings["learning_rate"] or self.rate
        if run.draws > 1:
            settings["updates_per_batch"] = run.draws
        if self.made.experiment.curve == "test_loss":
            settings["watch_test"] = True
        return CellSpec(
            name=run.dataset, source=source, fingerprint=data.fingerprint, sampled=sampled, sample=sample,
            max_test=None, task=data.task, model=self.name, weights=self.weights, trust_remote_code=False,
            method=chosen.method, options=chosen.options, label=run.row, settings=settings, seed=run.seed,
        )  # fmt: skip


# --- what is not run -------------------------------------------------------------------------------------------------


def _explain_scale(made: Plan) -> None:
    """List what the scale leaves out of the protocol."""
    experiment, scale = made.experiment, made.request.scale
    if scale == "smoke":
        why = "smoke only shows that everything runs: sample data, a tiny random model"
        made.leave_out("the paper's data, sizes and model", why)
        return
    chosen = experiment.scales.get(scale)
    known = [each.what for each in experiment.not_run]
    keys = [each.key for each in experiment.datasets if each.derived is None and each.title not in known]
    asked: dict[str, tuple[Sequence[str], Sequence[str]]] = {
        "data sets": (keys, chosen.datasets if chosen else ()),
        "rows": ([row.label for row in experiment.rows if row.derived is None], chosen.rows if chosen else ()),
        "sizes": (experiment.sizes, chosen.sizes if chosen else ()),
    }
    for what, (whole, kept) in asked.items():
        left = [repr(name) if what == "rows" else name for name in whole if kept and name not in kept]
        if left:
            made.leave_out(f"{what} {', '.join(left)}", f"not part of scale {scale}")
    skips = (*experiment.skip, *(chosen.skip if chosen else ()))
    for skip in skips:
        parts = [", ".join(each) for each in (skip.rows, skip.datasets, skip.sizes) if each]
        made.leave_out(
            " / ".join(parts), "not in the paper" if skip in experiment.skip else f"not part of scale {scale}"
        )


def _explain_protocol(made: Plan) -> None:
    """Add what the protocol itself lists as not run, less what did run after all, and its remarks."""
    experiment, request = made.experiment, made.request
    model = experiment.model
    ran = {experiment.dataset(run.dataset).title for run in made.runs}
    for each in experiment.not_run:
        own = model is not None and made.model == model.source and each.what.startswith(model.title.split(",")[0])
        known = [entry["what"] for entry in made.not_run]
        if each.what not in ran and each.what not in known and not own and (made.local or not each.local):
            made.leave_out(each.what, each.why)
    chosen = experiment.scales.get(request.scale)
    made.notes += chosen.notes if chosen else ()
    draws = {run.draws for run in made.runs if run.draws > 1}
    for number in sorted(draws):
        made.notes.append(
            f"Rows with {number} draws: each mini-batch makes {number} updates in a row, each with a new lambda and "
            f"new partners; an epoch has {number} times the updates, and as many evaluations as the other rows."
        )
