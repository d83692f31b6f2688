"""From a grid to its cells: data and weights are looked at, methods tried on the models, nothing is trained."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell.compare.grid import Grid
from mixwell.compare.spec import REFERENCES, Candidate, CellSpec, Sample
from mixwell.errors import MixwellError, OptionError
from mixwell.files import home
from mixwell.training import recipe
from mixwell.training.heads import is_pooled
from mixwell.training.run import check_start
from mixwell.training.settings import TrainSettings

if TYPE_CHECKING:
    from mixwell.data import TextData
    from mixwell.models import LoadedModel

# Files of a model folder that decide what it computes, by the end of their names.
# Fields of TrainingArguments that depend on the machine that trains.
OF_DEVICES = {"bf16", "fp16", "tf32", "bf16_full_eval", "fp16_full_eval", "use_cpu", "torch_compile"}
_DECIDING = (".safetensors", ".json", ".txt", ".model", ".py", ".jinja")


def deciding_files(folder: Path) -> list[Path]:
    """The files of a model folder that decide what it computes, in order."""
    return sorted(file for file in folder.iterdir() if file.is_file() and file.suffix in _DECIDING)


def weights_fingerprint(source: str, commit: str | None) -> str:
    """SHA-256 over the files of a model folder, or the hub's id and commit.

    Args:
        source: from `models.resolve`.
        commit: of the hub.
    """
    folder = Path(source)
    if not folder.is_dir():
        return f"{source}@{commit}"
    total = hashlib.sha256()
    for file in deciding_files(folder):
        if file.name != "mixwell.json":
            total.update(f"\n{file.name} {file.stat().st_size}\n".encode())
            with open(file, "rb") as stream:
                while block := stream.read(1 << 20):
                    total.update(block)
    return total.hexdigest()


def display_names(sources: Sequence[str]) -> list[str]:
    """Short names of data sets: the last part of the path, or all of it where two are alike."""
    short = [Path(each).name or each for each in sources]
    return [name if short.count(name) == 1 else whole for name, whole in zip(short, sources)]


def plan(grid: Grid, note: Callable[[str], None] = lambda text: None) -> list[CellSpec]:
    """The cells of a grid, in the order in which they should be trained.

    Within one comparison all methods of a seed come before the next seed, so that a stopped comparison has whole
    seeds.

    Args:
        grid: what is asked for.
        note: is told what the user should know.

    Raises:
        MixwellError: something in the grid cannot be used; nothing was trained.
    """
    from mixwell.training import quiet_libraries

    # All that needs no data first, so that a slip in an option shows at once.
    sources, seeds, samples, settings = grid.sources(), grid.seed_list(), grid.samples(), grid.settings_list()
    grid.candidates("single_label")
    cells: dict[str, CellSpec] = {}
    tried: set[str] = set()
    with quiet_libraries():
        for name, source in zip(display_names(grid.data), sources):
            data = source.load()
            for text in data.notes:
                note(f"{name}: {text}")
            for split in ("validation", "test"):
                if not data.splits[split].num_rows:
                    raise OptionError(f"{name}: a comparison needs {split} rows; leave {split}=none out")
            methods = grid.candidates(data.task)
            if data.task not in tried:
                tried.add(data.task)
                _try_settings(settings, data.task)
            parts = _samples(data, samples, seeds, grid.sample_seed)
            for sample, _, found in parts:
                _check_rows(name, sample, found.train.num_rows, settings)
            for model in grid.model:
                for each in settings:
                    base, loaded = _look_at(model, data, methods, grid, each["pooling"], note)
                    base |= {"name": name, "source": source.resolved(), "fingerprint": data.fingerprint}
                    for (sample, seed, found), method in itertools.product(parts, methods):
                        # One recipe for all seeds of a sample: they make one comparison.
                        rows = max(one.train.num_rows for part, _, one in parts if _alike(part, sample))
                        exact = exact_settings(each, loaded, found, rows)
                        cell = CellSpec(
                            **base,
                            sample=sample,
                            sampled=found.fingerprint,
                            settings=exact,
                            seed=seed,
                            method=method.method,
                            options=method.options,
                            label=method.label,
                        )
                        cells.setdefault(cell.key, cell)
    return list(cells.values())


def _alike(one: Sample, other: Sample) -> bool:
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


def _samples(
    data: TextData, samples: Sequence[Sample], seeds: Sequence[int], fixed: int | None
) -> list[tuple[Sample, int, TextData]]:
    """Each sample with each seed; without a fixed one, the seed of the training also chooses the rows."""
    made: dict[Sample, TextData] = {}
    parts = []
    for sample in samples:
        for seed in seeds:
            chooses = None if sample.whole else seed if fixed is None else fixed
            seeded = dataclasses.replace(sample, seed=chooses)
            if seeded not in made:
                made[seeded] = seeded.of(data)
            parts.append((seeded, seed, made[seeded]))
    return parts


def _try_settings(settings: Sequence[dict[str, Any]], task: str) -> None:
    """Let Trainer look at the settings once, else every cell would fail by the same slip."""
    import tempfile

    from mixwell.progress import training_arguments

    with tempfile.TemporaryDirectory() as nowhere:
        for each in settings:
            # The devices of a cluster's nodes are not those of this machine.
            free = {name: value for name, value in each["arguments"].items() if name not in OF_DEVICES}
            wanted = recipe.fill_in(
                TrainSettings(data="", **{**each, "arguments": free}), recipe.recipe(100, 1, pooled=False)
            )
            training_arguments(wanted, task, wanted.learning_rate or 1e-5, nowhere)


def _check_rows(name: str, sample: Sample, rows: int, settings: Sequence[dict[str, Any]]) -> None:
    largest = max((each["batch_size"] for each in settings if each["batch_size"] is not None), default=0)
    if largest > rows:
        raise OptionError(
            f"{name}: batch size {largest} is larger than the {rows} training rows of the sample {sample.title!r}; use "
            f"--batch-size {max(2, rows // 4)} or fewer"
        )


def _look_at(
    model: str, data: TextData, methods: Sequence[Candidate], grid: Grid, pooling: str, note: Callable[[str], None]
) -> tuple[dict[str, Any], LoadedModel]:
    """Load a model once, try every method on it; return its fields of `CellSpec`, and the model."""
    from mixwell import models
    from mixwell.mixer import attach

    loaded = models.load(
        model, task=data.task, labels=data.labels, pooling=pooling, trust_remote_code=grid.trust_remote_code
    )
    for text in loaded.notes:
        note(text)
    for each in methods:
        if each.method in REFERENCES:
            continue
        try:
            attach(loaded.model, each.method, **each.options).detach()
        except MixwellError as error:
            raise type(error)(f"method {each.label} does not go with model {model}: {error}") from error
    base = {
        "model": str(home(model).resolve()) if home(model).is_dir() else model,
        "weights": weights_fingerprint(loaded.source, loaded.commit),
        "trust_remote_code": grid.trust_remote_code,
        "max_test": grid.max_test if grid.max_test is None else min(grid.max_test, data.test.num_rows),
        "task": data.task,
    }
    return base, loaded
