"""From a grid to its cells: data and weights are checked, methods tried on the models, nothing is trained."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell.compare.conditions import Conditions
from mixwell.compare.grid import Grid
from mixwell.compare.spec import AUTO, REFERENCES, Candidate, CellSpec, Sample
from mixwell.compare.weights import weights_fingerprint
from mixwell.methods.attach import attach
from mixwell.methods.registry import check_searchable, without_auto
from mixwell.training import models, quiet_libraries, recipe
from mixwell.training.arguments import training_arguments
from mixwell.training.heads import is_pooled
from mixwell.training.prepare import check_start
from mixwell.training.settings import TrainSettings
from mixwell.utils.errors import MixwellError, OptionError
from mixwell.utils.files import home

if TYPE_CHECKING:
    from mixwell.data import TextData
    from mixwell.training.models import LoadedModel

# Fields of TrainingArguments that depend on the machine that trains.
OF_DEVICES = {"bf16", "fp16", "tf32", "bf16_full_eval", "fp16_full_eval", "use_cpu", "torch_compile"}


def display_names(sources: Sequence[str]) -> list[str]:
    """Short names of data sets: the last part of the path, or all of it where two are the same."""
    short = [Path(source).name or source for source in sources]
    return [name if short.count(name) == 1 else whole for name, whole in zip(short, sources)]


def plan(grid: Grid, note: Callable[[str], None] = lambda text: None) -> list[CellSpec]:
    """The cells of a grid, in the order in which they should be trained.

    Within one comparison all methods of a seed come before the next seed, so that a stopped comparison has whole
    seeds.

    Args:
        grid: what to compare.
        note: receives what the user should know.

    Raises:
        MixwellError: something in the grid cannot be used; nothing was trained.
    """
    # All that needs no data first, so that a slip in an option shows at once.
    sources, seeds, samples, settings = grid.sources(), grid.seed_list(), grid.samples(), grid.settings_list()
    conditions = grid.conditions()
    grid.candidates("single_label")
    cells: dict[str, CellSpec] = {}
    tried_tasks: set[str] = set()
    with quiet_libraries():
        for name, source in zip(display_names(grid.data), sources):
            data = source.load()
            for text in data.notes:
                note(f"{name}: {text}")
            for split in ("validation", "test"):
                if not data.splits[split].num_rows:
                    raise OptionError(f"{name}: a comparison needs {split} rows; leave {split}=none out")
            methods = grid.candidates(data.task)
            if data.task not in tried_tasks:
                tried_tasks.add(data.task)
                _try_settings(settings, data.task)
            parts = [_samples(data, samples, seeds, grid.sample_seed, one.planned(data)) for one in conditions]
            for part in itertools.chain(*parts):
                _check_rows(name, part.sample, part.data.train.num_rows, settings)
            for model, chosen in itertools.product(grid.model, settings):
                common, loaded = _try_model(model, data, methods, grid, chosen["pooling"], note)
                common |= {"name": name, "source": source.resolved(), "fingerprint": data.fingerprint}
                for some in parts:
                    for cell in _cells(common, loaded, chosen, some, methods):
                        cells.setdefault(cell.key, cell)
    return list(cells.values())


def _cells(
    common: dict[str, Any],
    loaded: LoadedModel,
    settings: dict[str, Any],
    parts: Sequence[Part],
    methods: Sequence[Candidate],
) -> Iterator[CellSpec]:
    """The cells of one data set, model and choice of settings.

    Args:
        common: the fields of `CellSpec` that they share.
        loaded: the model.
        settings: of training.
        parts: of `_samples`.
        methods: the candidates.
    """
    for part, method in itertools.product(parts, methods):
        # One recipe for all seeds of a sample: they make one comparison.
        rows = max(other.data.train.num_rows for other in parts if _differ_by_seed(other.sample, part.sample))
        exact = exact_settings(settings, loaded, part.data, rows)
        yield CellSpec(
            **common,
            sample=part.sample,
            sampled=part.data.fingerprint,
            settings={**exact, "patience": 0} if part.conditions.overtrain else exact,
            conditions=part.conditions,
            seed=part.seed,
            method=method.method,
            options=method.options,
            label=method.label,
        )


def _differ_by_seed(one: Sample, other: Sample) -> bool:
    """Whether two samples differ by their seed at most."""
    return dataclasses.replace(one, seed=None) == dataclasses.replace(other, seed=None)


def exact_settings(settings: dict[str, Any], loaded: LoadedModel, data: TextData, rows: int) -> dict[str, Any]:
    """The settings of a cell, with the recipe's numbers where none were given.

    Args:
        settings: fields of `TrainSettings`.
        loaded: the model.
        data: the sampled texts.
        rows: of train, for the recipe.
    """
    chosen = recipe.recipe(
        rows, loaded.parameters, pooled=is_pooled(loaded.model), new_head=loaded.new_head,
        pairs="text_pair" in data.train.column_names,
    )  # fmt: skip
    filled = recipe.fill_in(TrainSettings(data="", model=loaded.name, **settings), chosen)
    check_start(filled, data, loaded)
    exact = {name: getattr(filled, name) for name in settings}
    return {**exact, "pooling": loaded.pooling, "max_length": min(settings["max_length"], loaded.longest)}


@dataclass(frozen=True)
class Part:
    """A sample under conditions, for one seed."""

    sample: Sample
    seed: int
    data: TextData
    conditions: Conditions


def _samples(
    data: TextData, samples: Sequence[Sample], seeds: Sequence[int], fixed: int | None, conditions: Conditions
) -> list[Part]:
    """Each sample with each seed; without a fixed one, the seed of the training also chooses rows, noise and typos."""
    sampled: dict[tuple[Sample, Conditions], TextData] = {}
    parts = []
    for sample in samples:
        for seed in seeds:
            chooses = None if sample.whole else seed if fixed is None else fixed
            seeded = dataclasses.replace(sample, seed=chooses)
            drawn = seed if fixed is None else fixed
            own = dataclasses.replace(conditions, seed=drawn) if conditions.changes_train else conditions
            if (seeded, own) not in sampled:
                sampled[seeded, own] = own.apply(seeded.of(data))
            parts.append(Part(seeded, seed, sampled[seeded, own], own))
    return parts


def _try_settings(settings: Sequence[dict[str, Any]], task: str) -> None:
    """Let Trainer check the settings once, else every cell would fail by the same slip."""
    with tempfile.TemporaryDirectory() as nowhere:
        for chosen in settings:
            # The devices of a cluster's nodes are not those of this machine.
            free = {name: value for name, value in chosen["arguments"].items() if name not in OF_DEVICES}
            wanted = recipe.fill_in(
                TrainSettings(data="", **{**chosen, "arguments": free}), recipe.recipe(100, 1, pooled=False)
            )
            training_arguments(wanted, task, wanted.learning_rate or 1e-5, nowhere)


def _check_rows(name: str, sample: Sample, rows: int, settings: Sequence[dict[str, Any]]) -> None:
    largest = max((chosen["batch_size"] for chosen in settings if chosen["batch_size"] is not None), default=0)
    if largest > rows:
        raise OptionError(
            f"{name}: batch size {largest} is larger than the {rows} training rows of the sample {sample.title!r}; use "
            f"--batch-size {max(2, rows // 4)} or fewer"
        )


def _try_model(
    model: str, data: TextData, methods: Sequence[Candidate], grid: Grid, pooling: str, note: Callable[[str], None]
) -> tuple[dict[str, Any], LoadedModel]:
    """Load a model once, try every method on it; return its fields of `CellSpec`, and the model."""
    loaded = models.load(
        model, task=data.task, labels=data.labels, pooling=pooling, trust_remote_code=grid.trust_remote_code
    )
    for text in loaded.notes:
        note(text)
    for method in methods:
        if method.method in (*REFERENCES, AUTO):
            continue
        check_searchable(method.method, method.options, data.task)
        try:
            attach(loaded.model, method.method, **without_auto(method.method, method.options)).detach()
        except MixwellError as error:
            raise type(error)(f"method {method.label} does not go with model {model}: {error}") from error
    common = {
        "model": str(home(model).resolve()) if home(model).is_dir() else model,
        "weights": weights_fingerprint(loaded.source, loaded.commit),
        "trust_remote_code": grid.trust_remote_code,
        "max_test": grid.max_test if grid.max_test is None else min(grid.max_test, data.test.num_rows),
        "task": data.task,
    }
    return common, loaded
