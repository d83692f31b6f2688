"""Run a protocol on the compare engine: plan its cells, train those without a record, write its tables.

A run's folder:

    FOLDER/run.json        what was asked for: the experiment, its cells by place and record, what is not run and why
    FOLDER/records/        the records of `mixwell compare` (or elsewhere, with --records: experiments can share them)
    FOLDER/splits/         which row of the data is in which split
    FOLDER/table.json      what was measured beside what is published; see `tables`
    FOLDER/table.md        the same to read
    FOLDER/figure.svg      of figures
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell.errors import OptionError, RunError
from mixwell.files import home, write_json
from mixwell.papers.planning import FORMAT, Request, plan
from mixwell.papers.protocols import get

PRINTED = 1e-4  # a unit in the last place of tables, which print percents with two digits

if TYPE_CHECKING:
    from mixwell.compare.engine import Engine
    from mixwell.compare.live import View


def run(
    request: Request,
    folder: str | Path | None = None,
    *,
    records: str | Path | None = None,
    engine: Callable[[], Engine] | None = None,
    view: View | None = None,
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
        view: is told what happens.
        retry_failed: try cells again that failed before.
        new_data: go on although the data changed.
        packed: packs, of this experiment or of others; what they have is taken from there.
        level: of the intervals.

    Raises:
        MixwellError: something cannot be used; cells that fail are listed in the table instead.
    """
    from mixwell.compare.engine import InlineEngine
    from mixwell.compare.live import View
    from mixwell.compare.records import Records
    from mixwell.compare.schedule import check_data, execute
    from mixwell.papers import output, tables

    path = Path(folder or request.folder())
    check_folder(path, request)
    tables.check_level(level)
    experiment = get(request.name)
    if not experiment.trained:
        from mixwell.papers import figures

        for option, value in (("--packed", packed), ("--records", records)):
            if value:
                raise OptionError(f"{option} does not go with {experiment.name}: it is drawn from parameters alone")
        return figures.run(experiment, request, path)
    view = view or View()
    if records is not None and home(records).exists() and not home(records).is_dir():
        raise RunError(f"--records {records} is a file; name a folder")
    place = Records(records or path / "records")
    place.check_usable()
    made = plan(request, path / "splits")
    made.borrow(packed)
    if packed:
        view.note(f"{len(made.packed)} of {len(made.cells)} trainings come from packs")
    for text in made.notes:
        view.note(text)
    for each in made.not_run:
        view.note(f"not run: {each['what']}: {each['why']}")
    where = "records" if records is None else str(home(records).resolve())
    write_json(path / "run.json", made.to_dict(where))
    place.create()
    check_data(place, made.wanted, new_data=new_data)
    execute(made.wanted, place, engine() if engine else InlineEngine(), view, retry_failed=retry_failed)
    return output.write(path, level=level)


def rewrite(request: Request, folder: str | Path, level: float = 0.95) -> Mapping[str, Any]:
    """Make the tables of a run again, which must be of what is asked for; returns what table.json holds."""
    from mixwell.papers import output

    check_folder(Path(folder), request)
    return output.write(folder, level)


def check_folder(path: Path, request: Request) -> None:
    """Raise `RunError` if a folder is in use for something else, `OptionError` if there is no such experiment."""
    from mixwell.runs import read_json

    get(request.name).check_scale(request.scale)
    if not path.exists():
        return
    if not path.is_dir():
        raise RunError(f"output {path} is a file; name another folder with --output")
    if (path / "run.json").is_file():
        found = read_json(path / "run.json", FORMAT, "the folder of a paper's run")
        for what, asked in (("experiment", request.name), ("scale", request.scale)):
            there = found.get(what, asked)  # figures have no scale
            if there != asked:
                raise RunError(f"output {path} is the run of {there}, not of {asked}; name another with --output")
    elif any(path.iterdir()) and {each.name for each in path.iterdir()} - {"records", "splits"}:
        raise RunError(f"output {path} is not the folder of a paper's run and not empty; name another with --output")


def rerun(
    folder: str | Path,
    data: str | None,
    number: int = 0,
    model: str | None = None,
    cache_dir: str | None = None,
    hub: bool = False,
) -> tuple[bool, list[str]]:
    """Train one cell of a run or of a pack again; compute a figure again.

    Args:
        folder: of the run or the pack.
        data: the folder with one folder for each data set.
        number: which of the cells with a record, from 0.
        model: where the model is now, if it was a folder.
        cache_dir: for tokenised texts.
        hub: load the data set from the hub if it is not in `data`.

    Returns:
        Whether all test metrics are those of the record in the digits that tables print, and lines that say so.

    Raises:
        MixwellError: the cell cannot be trained here, or data or weights are others.
    """
    import tempfile

    import torch

    from mixwell.compare.cell import Cache, run_cell
    from mixwell.papers import figures
    from mixwell.papers.measured import FIGURE, read, read_run

    if read_run(Path(folder))["records"] == FIGURE:
        return figures.again(Path(folder))
    found = read(folder)
    if not 0 <= number < len(found.cells):
        raise RunError(f"{folder}: has {len(found.cells)} trainings with a record, and none of number {number}")
    cell, asked = found.cells[number], found.run["request"]
    request = Request(
        found.run["experiment"], found.run["scale"], data, model or asked["model"], hub or asked["hub"],
        () if cell.dataset == "sample" else (cell.dataset,), (), cell.seed + 1, cache_dir=cache_dir,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        made = plan(request, Path(place))
        specs = {spec.key: spec for spec in made.cells}
        if cell.key not in specs:
            raise RunError(
                f"{folder}: {cell.dataset}, {cell.size}, {cell.row}, seed {cell.seed} is another cell here: data, "
                f"weights or the protocol changed since it was recorded"
            )
        threads = torch.get_num_threads()
        torch.set_num_threads(cell.result["threads"])  # sums depend on it in their last digits
        try:
            again = run_cell(specs[cell.key], Cache(cache_dir)).result["test"]["before"]
        finally:
            torch.set_num_threads(threads)
    before = cell.result["test"]["before"]
    lines = [f"{cell.dataset}, {cell.size}, {cell.row}, seed {cell.seed} (cell {cell.key[:12]})"]
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
