"""The public functions behind the command line: whole runs and comparisons, with results that notebooks show."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixwell import training
from mixwell.compare import grid as grids
from mixwell.compare import run as comparisons
from mixwell.compare.records import Records
from mixwell.data.frames import frame_rows
from mixwell.report.notebook import comparison_html, run_html
from mixwell.report.run import illustrate
from mixwell.training import RunResult, TrainSettings
from mixwell.training.predict import Classifier
from mixwell.training.run_folder import DATA_FILE, RunFolder
from mixwell.utils.errors import MixwellError, OptionError, nearest
from mixwell.utils.files import atomic_path


@dataclass
class Run(RunResult):
    """A finished run: its folder and its metrics; a notebook shows them."""

    def classifier(self, **options: Any) -> Classifier:
        """The trained model; options as in `Classifier.load`."""
        return Classifier.load(self.folder, **options)

    def _repr_html_(self) -> str:
        return run_html(self.folder, self.metrics)


@dataclass(frozen=True)
class Comparison(comparisons.Done):
    """A comparison that has ended: its folder and its summary; a notebook shows the tables."""

    def _repr_html_(self) -> str:
        return comparison_html(self.folder, self.summary)


def train(data: Any, *, quiet: bool = False, **settings: Any) -> Run:
    """Do a whole run and write its folder, with model, metrics, pictures and a page.

    Args:
        data: a file, folder or hub id; a pandas or Polars frame, an Arrow table or a data set of the datasets library,
            which is kept in the run folder; or `TrainSettings`.
        quiet: report nothing.
        **settings: fields of `TrainSettings`, such as `method="amplify"` or `output="runs/mine"`.

    Raises:
        MixwellError: of some kind, for all that the user can put right.
    """
    if isinstance(data, TrainSettings):
        if settings:
            raise OptionError(f"{next(iter(settings))} stands in the settings already: give one of both")
        return _as_run(training.train(data, quiet=quiet, illustrate=illustrate))
    known = [each.name for each in dataclasses.fields(TrainSettings)]
    for name in settings:
        if name not in known:
            raise OptionError(f"setting {name!r} is unknown{nearest(name, known)}")
    settings |= _joined(settings)
    if isinstance(data, (str, os.PathLike)):
        return train(TrainSettings(os.fspath(data), **settings), quiet=quiet)
    settings["output"] = TrainSettings("data", **settings).run_folder()
    folder = RunFolder(settings["output"])
    folder.check_new()
    with _kept(data, folder.path, new=not folder.path.exists()) as path:
        return train(TrainSettings(str(path), **settings), quiet=quiet)


def resume(path: str | Path, *, quiet: bool = False, trust_remote_code: bool = False) -> Run:
    """Continue a run from its newest complete checkpoint; on CPU the weights end up the same, bit for bit.

    Args:
        path: the run folder.
        quiet: report nothing.
        trust_remote_code: run code that comes with the model, if the run was begun so.

    Raises:
        RunError: there is no run, its data changed, or another process is at it.
    """
    done = training.resume(path, quiet=quiet, illustrate=illustrate, trust_remote_code=trust_remote_code)
    return _as_run(done)


def compare(
    data: Any = None,
    *,
    methods: list[Any] | str | None = None,
    seeds: int | list[int] | None = None,
    output: str | os.PathLike[str] | None = None,
    grid: str | os.PathLike[str] | None = None,
    engine: str = "local",
    workers: int | None = None,
    threads: int | None = None,
    cluster: comparisons.Cluster | None = None,
    cache_dir: str | None = None,
    quiet: bool = False,
    retry_failed: bool = False,
    new_data: bool = False,
    level: float = 0.95,
    equal_within: float = comparisons.EQUAL_WITHIN,
    race: bool = False,
    budget: str | None = None,
    **options: Any,
) -> Comparison:
    """Train methods side by side with several seeds, and say which is better and how sure that is.

    The same call again does only what is missing.

    Args:
        data: a file, folder or hub id, or several; or rows in memory as in `train`, kept in the output folder.
        methods: such as `["manifold", "tmix:alpha=0.5"]`; plain training, label smoothing, a probe and TF-IDF are
            added.
        seeds: how many, or which.
        output: the folder for the records; None for `runs/DATA-compare`.
        grid: a TOML file, see docs/howto/compare.md.
        engine: `local`, or `ray` for a cluster.
        workers: trainings at a time, each in a process; 0: one, in this process.
        threads: of a worker.
        cluster: of the engine `ray`.
        cache_dir: for tokenised texts.
        quiet: report nothing.
        retry_failed: try again what failed before.
        new_data: go on though the data changed; the old records are kept.
        level: of the intervals.
        equal_within: points of the main metric that count as no difference, for the verdict "practically equal".
        race: add seeds in rounds; a method that is better, worse or practically equal trains no more.
        budget: of a race: `"30m"` of training, summed over the runs, or `"60 runs"`; None for no limit.
        **options: other names of a grid file (`model`, `fractions`, `per_class`, `max_test`, `text`, `label`, ...) and
            settings of training (`epochs`, `batch_size`, ...).

    Raises:
        MixwellError: of some kind, for all that the user can put right.
    """
    limit = comparisons.race_budget(race, budget)
    given = _grid_values({"methods": methods, "seeds": seeds, **options, **_joined(options)})
    comparisons.check_engine(engine, workers, threads, cluster)
    file = grids.read_grid(Path(grid)) if grid is not None else {}
    comparisons.race_seeds(race, file, given)
    how: dict[str, Any] = {
        "engine": lambda: comparisons.make_engine(engine, workers, threads, cache_dir, cluster),
        "view": comparisons.make_view(max(workers or 1, 1), quiet),
        "retry_failed": retry_failed, "new_data": new_data, "level": level,
        "equal_within": equal_within, "budget": limit,
    }  # fmt: skip
    sources = data if isinstance(data, (list, tuple)) else [] if data is None else [data]
    if all(isinstance(each, (str, os.PathLike)) for each in sources):
        given["data"] = [os.fspath(each) for each in sources] or None
        return run_grid(grids.make_grid(file, given), None if output is None else Path(output), **how)
    if len(sources) > 1:
        raise OptionError("data: give files, or one frame; to compare on several frames, write them to files")
    folder = Path(output or Path("runs") / "data-compare")
    new = not folder.exists()
    Records(folder).create()  # before anything else is put into the folder
    with _kept(sources[0], folder, new=new) as path:
        return run_grid(grids.make_grid(file, {**given, "data": [str(path)]}), folder, **how)


def run_grid(grid: grids.Grid, folder: str | Path | None, **options: Any) -> Comparison:
    """Compare what a grid names; options as in `mixwell.compare.run.run`."""
    done = comparisons.run(grid, folder, **options)
    return Comparison(**{each.name: getattr(done, each.name) for each in dataclasses.fields(done)})


def _as_run(done: RunResult) -> Run:
    return Run(**{each.name: getattr(done, each.name) for each in dataclasses.fields(done)})


def _joined(settings: dict[str, Any]) -> dict[str, str]:
    """Several text columns as one setting."""
    text = settings.get("text")
    return {"text": ",".join(text)} if isinstance(text, (list, tuple)) else {}


def _grid_values(options: dict[str, Any]) -> dict[str, Any]:
    """Options of `compare` as a grid file has them."""
    if isinstance(options["methods"], str):
        options["methods"] = grids.split_methods(options["methods"])
    top = [each.name for each in dataclasses.fields(grids.Grid) if each.name not in ("loading", "settings", "data")]
    values: dict[str, Any] = {"settings": {}}
    for name, value in options.items():
        if name in grids.SETTINGS:
            values["settings"][name] = value
        elif name in (*top, *grids.LOADING):
            values[name] = value
        else:
            known = [*top, *grids.LOADING, *grids.SETTINGS]
            raise OptionError(f"option {name!r} of compare is unknown{nearest(name, known)}")
    return values


@contextlib.contextmanager
def _kept(data: Any, folder: Path, *, new: bool) -> Iterator[Path]:
    """Write rows in memory into an output folder, where a later --resume and the pages find them.

    A new folder goes away again if the run is refused before it began.
    """
    try:
        rows = frame_rows(data)
        if rows is None:
            raise OptionError(
                f"data of type {type(data).__name__} cannot be read; give a path, a pandas or Polars frame, an Arrow "
                f"table or a data set (one with several splits: save it with save_to_disk and give the folder)"
            )
        _write(rows, folder / DATA_FILE)
        yield folder / DATA_FILE
    except MixwellError:
        began = [folder / "run.json", *(folder / "cells").glob("*"), *(folder / "failed").glob("*")]
        if new and not any(each.exists() for each in began):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(rows: Any, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def named(column: str, value: Any) -> Any:
        """Class numbers of the datasets library as names; it marks rows without a label by -1."""
        if column not in rows.class_names or not isinstance(value, int):
            return value
        return rows.class_names[column][value] if value >= 0 else None

    records = [
        {column: named(column, value) for column, value in record.items()}
        for batch in rows.batches(10_000) for record in batch
    ]  # fmt: skip
    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_pylist(records), str(temporary))
