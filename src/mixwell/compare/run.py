"""A whole comparison: plan, train what is missing, and summarise."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixwell.compare.engines.base import Engine
from mixwell.compare.engines.cluster import Cluster
from mixwell.compare.engines.local import LocalEngine
from mixwell.compare.engines.ray import RayEngine
from mixwell.compare.grid import Grid
from mixwell.compare.live import LiveView, make_view
from mixwell.compare.race import SEEDS as RACE_SEEDS
from mixwell.compare.race import Budget, RaceResult, race
from mixwell.compare.records import Records
from mixwell.compare.schedule import ScheduleOutcome, check_data, execute
from mixwell.compare.summary import EQUAL_WITHIN, Summary, check_equal_within, summarise
from mixwell.utils.errors import OptionError, RunError, nearest

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Done:
    """A comparison that has ended.

    Attributes:
        folder: where its records are.
        summary: of the requested cells.
        outcome: what was trained, and what failed.
        race: how it ended, if it was a race.
    """

    folder: Path
    summary: Summary
    outcome: ScheduleOutcome
    race: RaceResult | None = None


def check_failures(done: Done) -> None:
    """Raise `RunError` if cells failed; called after the results are shown."""
    if done.outcome.failed:
        failed, first = len(done.outcome.failed), next(iter(done.outcome.failed.values()))
        raise RunError(
            f"{failed} of {failed + len(done.outcome.finished)} runs failed (first {first.spec.label}, seed "
            f"{first.spec.seed}: {first.reason}); put that right and add --retry-failed"
        )


def race_budget(racing: bool, budget: str | None) -> Budget | None:
    """The budget of a race; None for a comparison that is no race.

    Raises:
        OptionError: a budget without a race, or one that cannot be read.
    """
    if not racing and budget is not None:
        raise OptionError("--budget goes with --race, which adds seeds until the budget ends; add --race")
    return Budget.read(budget) if racing else None


def race_seeds(racing: bool, file: dict[str, Any], given: dict[str, Any]) -> None:
    """Give a race the most seeds it may need, where neither the grid file nor the caller names them."""
    if racing and "seeds" not in file and given["seeds"] is None:
        given["seeds"] = RACE_SEEDS


def default_folder(grid: Grid) -> Path:
    """The folder for a comparison without a name."""
    first = grid.data[0] if grid.data else "data"
    name = re.sub(r"[^\w.-]+", "-", Path(first).name.split(".")[0]).strip("-") or "data"
    return Path("runs") / f"{name}-compare"


def check_engine(name: str, workers: int | None, threads: int | None, cluster: Cluster | None) -> None:
    """Check the options of an engine, as far as that is possible without starting it.

    Args:
        name: one of `ENGINES`.
        workers: see `make_engine`.
        threads: of each worker.
        cluster: of the engine `ray`.

    Raises:
        MixwellError: something cannot be used, or the cluster does not answer.
    """
    if name not in ENGINES:
        raise OptionError(f"engine {name!r} is unknown{nearest(name, ENGINES)}; use one of {', '.join(ENGINES)}")
    if (workers is not None and workers < 0) or (threads is not None and threads < 1):
        raise OptionError(f"workers must be at least 0 and threads at least 1, got {workers} and {threads}")
    if name == "ray":
        if workers == 0:
            raise OptionError("workers 0 (in this process) does not go with --engine ray; leave --workers out")
        (cluster or Cluster()).check()
    elif cluster is not None:
        raise OptionError("--address, --cpus-per-run, --gpus-per-run and --ship-data go with --engine ray only")


def make_engine(
    name: str,
    workers: int | None = None,
    threads: int | None = None,
    cache_dir: str | None = None,
    cluster: Cluster | None = None,
) -> Engine:
    """The engine of a name.

    Args:
        name: one of `ENGINES`.
        workers: runs at a time; 0 runs them in this process; None for one, or all that fit on a cluster.
        threads: of each worker; None divides the cores among them.
        cache_dir: for tokenised texts.
        cluster: of the engine `ray`.

    Raises:
        MixwellError: something cannot be used, or the cluster does not answer.
    """
    check_engine(name, workers, threads, cluster)
    if name == "ray":
        return RayEngine(cluster, workers, threads, cache_dir)
    if workers == 0:
        return _inline_engine(cache_dir, threads)
    return LocalEngine(1 if workers is None else workers, threads, cache_dir)


def _inline_engine(cache_dir: str | None = None, threads: int | None = None) -> Engine:
    # Inside the function, as they import torch: mistakes in options are reported before that.
    from mixwell.compare.cell import Cache
    from mixwell.compare.engines.inline import InlineEngine

    return InlineEngine(Cache(cache_dir), threads)


def run(
    grid: Grid,
    folder: str | Path | None = None,
    *,
    engine: Callable[[], Engine] | None = None,
    view: LiveView | None = None,
    retry_failed: bool = False,
    new_data: bool = False,
    level: float = 0.95,
    equal_within: float = EQUAL_WITHIN,
    budget: Budget | None = None,
    command: str | None = None,
    shown_only: bool = False,
) -> Done:
    """Train the cells of a grid that have no record yet, and summarise all of them.

    Args:
        grid: what to compare.
        folder: for the records; None for `runs/<data>-compare`.
        engine: makes the engine, after planning; None runs cells in this process.
        view: shows what happens; None shows nothing.
        retry_failed: try cells again that failed before.
        new_data: go on although the data of a source changed since its records were made.
        level: of the intervals.
        equal_within: points of the main metric that count as no difference.
        budget: makes it a race that may cost so much; None trains the whole grid.
        command: the command line, for the log and the page.
        shown_only: leave out metrics that are in exports only.

    Raises:
        MixwellError: something in the grid or the folder cannot be used.
    """
    from mixwell.compare.planning import plan  # imports torch

    if not 0.5 <= level < 1:
        raise OptionError(f"level must be from 0.5 to below 1, got {level}")
    check_equal_within(equal_within)
    view = view or LiveView()
    records = Records(folder or default_folder(grid))
    if records.path.exists():
        records.check_usable()
    cells = plan(grid, view.note)
    records.create()
    if command is not None:
        records.log("command", command=command)
    check_data(records, cells, new_data=new_data)
    place, raced = (engine or _inline_engine)(), None
    if budget is None:
        outcome = execute(cells, records, place, view, retry_failed=retry_failed)
    else:
        raced, outcome = race(
            cells, records, place, view, budget, level=level, equal_within=equal_within, retry_failed=retry_failed
        )
    finished = [outcome.finished[cell.key] for cell in cells if cell.key in outcome.finished]
    failed = list(outcome.failed.values())
    summary = summarise(finished, failed, level, equal_within, records.looks(), shown_only=shown_only)
    log_looks(records, summary)
    return Done(records.path, dataclasses.replace(summary, commands=tuple(records.commands())), outcome, raced)


def log_looks(records: Records, summary: Summary) -> None:
    """Write down at how many seeds results are shown now: verdicts after more seeds take it into account."""
    looks = records.looks()
    for group in summary.groups:
        seeds = len(group.seeds)
        if seeds and seeds not in looks.get(group.spec.group_mark, ()):
            records.log("look", comparison=group.spec.group_mark, seeds=seeds)


__all__ = [
    "RACE_SEEDS",
    "Budget",
    "Cluster",
    "Done",
    "check_engine",
    "default_folder",
    "make_engine",
    "make_view",
    "run",
]
