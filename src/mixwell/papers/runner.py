"""Run a protocol on the compare engine: plan its trainings, do those without a record, write its tables.

A run's folder:

    FOLDER/run.json        what was asked for: the experiment, its runs by place and record, what is not run and why
    FOLDER/records/        the records of `mixwell compare` (or elsewhere, with --records: experiments can share them)
    FOLDER/splits/         which row of the data is in which split
    FOLDER/table.json      what was measured beside what is published; see `tables`
    FOLDER/table.md        the same to read
    FOLDER/figure.svg      of figures
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mixwell.compare.cell import Cache, run_cell
from mixwell.compare.engines.base import Engine
from mixwell.compare.engines.inline import InlineEngine
from mixwell.compare.live import LiveView
from mixwell.compare.records import Records
from mixwell.compare.schedule import check_data, execute
from mixwell.papers import figures, output
from mixwell.papers.experiment import Request
from mixwell.papers.planning import plan
from mixwell.papers.protocols import get
from mixwell.papers.results import MeasuredRun, read
from mixwell.papers.run_file import FIGURE, FORMAT, read_run
from mixwell.papers.schema import SAMPLE
from mixwell.papers.tables import check_level
from mixwell.utils.errors import OptionError, RunError
from mixwell.utils.files import home, write_json
from mixwell.utils.records import read_json

PRINTED = 1e-4  # a unit in the last place of tables, which print percents with two digits


def run(
    request: Request,
    folder: str | Path | None = None,
    *,
    records: str | Path | None = None,
    engine: Callable[[], Engine] | None = None,
    view: LiveView | None = None,
    retry_failed: bool = False,
    new_data: bool = False,
    packed: Sequence[str | Path] = (),
    level: float = 0.95,
) -> Mapping[str, Any]:
    """Run a protocol, or what is left of it, and write its tables; returns what table.json holds.

    Args:
        request: what is asked for.
        folder: of the run; None for `runs/NAME-SCALE`.
        records: the folder of the records; None for `records` in the run's.
        engine: makes the engine; None trains in this process.
        view: shows what happens.
        retry_failed: try again what failed before.
        new_data: go on although the data changed.
        packed: packs, of this experiment or of others, whose results are used.
        level: of the intervals.

    Raises:
        MixwellError: something cannot be used; trainings that fail are listed in the table instead.
    """
    path = Path(folder or request.folder())
    check_folder(path, request)
    check_level(level)
    experiment = get(request.name)
    if not experiment.trained:
        for option, value in (("--packed", packed), ("--records", records)):
            if value:
                raise OptionError(f"{option} does not go with {experiment.name}: it is drawn from parameters alone")
        return figures.run(experiment, request, path)
    if records is not None and home(records).exists() and not home(records).is_dir():
        raise RunError(f"--records {records} is a file; name a folder")
    store = Records(records or path / "records")
    store.check_usable()
    paper_plan = plan(request, path / "splits")
    paper_plan.use_packs(packed)
    view = view or LiveView()
    if packed:
        view.note(f"{len(paper_plan.packed)} of {len(paper_plan.specs)} trainings come from packs")
    for text in (*paper_plan.notes, *(f"not run: {item['what']}: {item['why']}" for item in paper_plan.not_run)):
        view.note(text)
    where = "records" if records is None else str(home(records).resolve())
    write_json(path / "run.json", paper_plan.to_dict(where))
    store.create()
    check_data(store, paper_plan.to_train, new_data=new_data)
    execute(paper_plan.to_train, store, (engine or InlineEngine)(), view, retry_failed=retry_failed)
    return output.write(path, level=level)


def rewrite(request: Request, folder: str | Path, level: float = 0.95) -> Mapping[str, Any]:
    """Make the tables of a run again, which must be of what is asked for; returns what table.json holds."""
    check_folder(Path(folder), request)
    return output.write(folder, level)


def check_folder(path: Path, request: Request) -> None:
    """Raise `RunError` if a folder is in use for something else, `OptionError` if there is no such experiment."""
    get(request.name).check_scale(request.scale)
    if not path.exists():
        return
    if not path.is_dir():
        raise RunError(f"output {path} is a file; name another folder with --output")
    if (path / "run.json").is_file():
        content = read_json(path / "run.json", FORMAT, "the folder of a paper's run")
        for name, asked in (("experiment", request.name), ("scale", request.scale)):
            present = content.get(name, asked)  # figures have no scale
            if present != asked:
                raise RunError(f"output {path} is the run of {present}, not of {asked}; name another with --output")
    elif any(path.iterdir()) and {file.name for file in path.iterdir()} - {"records", "splits"}:
        raise RunError(f"output {path} is not the folder of a paper's run and not empty; name another with --output")


def rerun(
    folder: str | Path,
    data: str | None,
    number: int = 0,
    model: str | None = None,
    cache_dir: str | None = None,
    hub: bool = False,
) -> tuple[bool, list[str]]:
    """Do one training of a run or of a pack again; compute a figure again.

    Args:
        folder: of the run or the pack.
        data: the folder with one folder for each data set.
        number: which of the trainings with a record, from 0.
        model: where the model is now, if it was a folder.
        cache_dir: for tokenised texts.
        hub: load the data set from the hub if it is not in `data`.

    Returns:
        Whether all test metrics are those of the record in the digits that tables print, and lines that say so.

    Raises:
        MixwellError: the training cannot be done here, or data or weights are others.
    """
    if read_run(Path(folder))["records"] == FIGURE:
        return figures.recompute(Path(folder))
    results = read(folder)
    if not 0 <= number < len(results.runs):
        raise RunError(f"{folder}: has {len(results.runs)} trainings with a record, and none of number {number}")
    recorded = results.runs[number]
    with tempfile.TemporaryDirectory() as place:
        run, asked = results.run_json, results.run_json["request"]
        only = () if recorded.dataset == SAMPLE.key else (recorded.dataset,)
        request = Request(
            run["experiment"], run["scale"], data, model or asked["model"], hub or asked["hub"], only,
            seeds=recorded.seed + 1, cache_dir=cache_dir,
        )  # fmt: skip
        specs = {spec.key: spec for spec in plan(request, Path(place)).specs}
        if recorded.key not in specs:
            raise RunError(
                f"{folder}: {recorded.title} is another training here: data, weights or the protocol changed since it "
                "was recorded"
            )
        # With as many threads as were recorded: sums depend on it in their last digits.
        threads = torch.get_num_threads()
        torch.set_num_threads(recorded.result["threads"])
        try:
            again = run_cell(specs[recorded.key], Cache(cache_dir)).result["test"]["before"]
        finally:
            torch.set_num_threads(threads)
    return _compared(recorded, again)


def _compared(recorded: MeasuredRun, again: Mapping[str, float]) -> tuple[bool, list[str]]:
    before = recorded.result["test"]["before"]
    lines = [f"{recorded.title} (run {recorded.key[:12]})"]
    lines += [f"{name:<14} recorded {before[name]:.8f}  now {again[name]:.8f}" for name in before]
    if all(before[name] == again[name] for name in before):
        lines.append("the same numbers, bit for bit")
        return True, lines
    # Another kind of processor adds up in another order; tables print four digits behind the point.
    same = all(abs(before[name] - again[name]) < PRINTED for name in before)
    lines.append(
        "the same numbers in the digits that tables print; another processor rounds the rest differently"
        if same
        else "other numbers: another thread count, version or kind of processor?"
    )
    return same, lines
