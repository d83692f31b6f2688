"""`mixwell paper`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Run the papers' experiments: what is published beside what is measured here.", no_args_is_help=True
)

_Folder = Annotated[str, typer.Argument(help="The folder of a run, or a pack.")]
_Level = Annotated[float, typer.Option(help="Of the intervals.")]


@app.command("list")
def list_() -> None:
    """List the experiments."""
    from mixwell.papers import protocols
    from mixwell.report.terminal import show_table

    found = [protocols.get(name) for name in protocols.names()]
    rows = [[each.name, each.number, each.title] for each in found]
    show_table("experiments of the papers", ["name", "in the paper", "title"], rows)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name of `mixwell paper list`.")],
    scale: Annotated[
        str | None, typer.Option(help="Only this scale's grid: full, small or smoke. Default: all.")
    ] = None,
) -> None:
    """Print an experiment: its grid, its published numbers, what the paper says and what cannot run."""
    from mixwell.papers import describe, protocols

    print(describe.text(protocols.get(name), scale), end="")


@app.command()
def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A name of `mixwell paper list`.")],
    data: Annotated[str | None, typer.Option(help="A folder with one for each data set. Default: none.")] = None,
    scale: Annotated[str, typer.Option(help="full (the paper's protocol), small (two CPU cores) or smoke.")] = "full",
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="minilm, tiny, a folder or a hub id. Default: the scale's.")
    ] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="The folder. Default: runs/NAME-SCALE.")] = None,
    records: Annotated[
        str | None, typer.Option(help="A folder of records that several experiments share. Default: in the output.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Data sets to run, as in mrpc,sst2. Default: all.")] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(help="Rows to run, as in EmbedMix,TMix; plain training always runs. Default: all."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds. Default: the scale's.")] = None,
    hub: Annotated[bool, typer.Option("--hub", help="Load data sets from the hub that are not in --data.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Trainings at a time; 0: one, in this process.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of a worker. Default: the cores, shared out.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")] = False,
    new_data: Annotated[bool, typer.Option("--new-data", help="Go on though the data changed.")] = False,
    packed: Annotated[
        list[str] | None,
        typer.Option(help="A pack, of any experiment: take from it what it has. May be repeated. Default: none."),
    ] = None,
    tables_only: Annotated[bool, typer.Option("--tables-only", help="Train nothing: tables from records.")] = False,
    level: _Level = 0.95,
    cache_dir: Annotated[
        str | None, typer.Option(help="For texts as tokens and the tiny model. Default: the user's.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")] = False,
) -> None:
    """Run an experiment, or what is left of it, and print published beside measured.

    What cannot run (data, weights) is listed with the reason. Stopped or killed, the same command does the rest.
    """
    from mixwell.compare.run import make_engine, make_view
    from mixwell.papers.planning import Request
    from mixwell.papers.runner import rewrite
    from mixwell.papers.runner import run as run_paper
    from mixwell.utils.errors import RunError

    wanted = Request(
        name, scale, data, model, hub, tuple(each.strip() for each in (only or "").split(",") if each.strip()),
        tuple(rows or ()), seeds, tuple(_command(context)), cache_dir,
    )  # fmt: skip
    folder = output or str(wanted.folder())
    if tables_only:
        made: Any = rewrite(wanted, folder, level)
    else:
        made = run_paper(
            wanted, folder, records=records, engine=lambda: make_engine("local", workers, threads, cache_dir),
            view=make_view(max(workers, 1), quiet), retry_failed=retry_failed, new_data=new_data, packed=packed or (),
            level=level,
        )  # fmt: skip
    _print(folder)
    failed = made.get("failed", [])
    if failed:
        raise RunError(
            f"{len(failed)} of {len(failed) + made['trained']} trainings failed (first {failed[0]['what']}: "
            f"{failed[0]['why']}); put that right and add --retry-failed"
        )


def _command(context: typer.Context) -> list[str]:
    """The command line, in the order of the options."""
    import shlex

    from mixwell.cli import given

    words = ["mixwell", "paper", "run", context.params["name"]]
    written = given(context)
    for option in context.command.params:
        if option.name in written and option.name != "name":
            value, name = context.params[option.name], max(option.opts, key=len)
            values = [] if value is True else value if isinstance(value, (list, tuple)) else [value]
            words += [name] if value is True else [word for each in values for word in (name, shlex.quote(str(each)))]
    return words


@app.command()
def table(folder: _Folder, level: _Level = 0.95) -> None:
    """Make the tables and figures of a run again, from its records alone."""
    from mixwell.papers import output

    output.write(folder, level)
    _print(folder)


@app.command()
def pack(
    folder: _Folder,
    target: Annotated[str, typer.Argument(help="The folder to write.")],
    add: Annotated[bool, typer.Option("--add", help="Add to the pack there: for a run in parts, by --only.")] = False,
) -> None:
    """Write compact records, for committing: predictions and times, neither texts nor paths."""
    from mixwell.papers import packs

    path = packs.pack(folder, target, add=add)
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    print(f"packed {folder} to {path}: {size / 1e6:.2f} MB")


@app.command()
def rerun(
    folder: _Folder,
    data: Annotated[str | None, typer.Option(help="A folder with one for each data set. Default: none.")] = None,
    cell: Annotated[int, typer.Option(help="Which training, from 0.")] = 0,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Where the run's model is now. Default: where it was.")
    ] = None,
    hub: Annotated[bool, typer.Option("--hub", help="Load the data set from the hub if it is not in --data.")] = False,
    cache_dir: Annotated[
        str | None, typer.Option(help="For texts as tokens and the tiny model. Default: the user's.")
    ] = None,
) -> None:
    """Train one cell of a run again, or compute a figure again, and compare the numbers with the record."""
    from mixwell.papers.runner import rerun as rerun_cell

    same, lines = rerun_cell(folder, data, cell, model, cache_dir, hub)
    print("\n".join(lines))
    raise typer.Exit(0 if same else 1)


def _print(folder: str) -> None:
    from pathlib import Path

    path = Path(folder)
    print((path / "table.md").read_text(encoding="utf-8"))
    more = f"\nfigure    {path / 'figure.svg'}" if (path / "figure.svg").is_file() else ""
    print(f"table     {path / 'table.md'}{more}", file=sys.stderr)
