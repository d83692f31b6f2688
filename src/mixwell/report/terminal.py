"""Tables and results on the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Any

from mixwell.compare import tables
from mixwell.metrics.scores import METRICS
from mixwell.training.evaluate import MEASURED, headline, title_of


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console().print(table)


def show_run(result: Any) -> None:
    """Print the summary of a `RunResult`."""
    metrics = result.metrics
    if not metrics:  # a process other than the first
        return
    if result.was_finished:
        print(f"{result.folder}: this run was finished already")
    shown = headline(metrics)
    scale = "" if metrics["temperature"] is None else f", temperature {metrics['temperature']:.3f}"
    kept = f", epoch {metrics['best_epoch']} of {metrics['epochs']}" if metrics["epochs"] else ""
    name = title_of(metrics["method"]["method"])
    if shown is None:
        print(f"{name}: trained{kept}; no rows were held out, so nothing was measured")
    else:
        before, after = metrics[shown]["before"], metrics[shown].get("after")
        columns = ["metric", "before temperature", "after"] if after else ["metric", "value"]
        rows = [
            [METRICS[name].title, f"{value:.4f}", *([f"{after[name]:.4f}"] if after else [])]
            for name, value in before.items()
        ]
        show_table(f"{name}: {metrics[shown]['rows']} {MEASURED[shown]}{kept}{scale}", columns, rows)
    print(f"run folder   {result.folder}\nmodel        {result.folder / 'model'}")
    print(f"page         {result.folder / 'report.html'}")
    about = metrics.get("abstain") or {}
    if about.get("threshold") is not None:
        print(
            f"threshold    {about['threshold']:.3f}: {about['precision']:.1%} of the answers are right, and "
            f"{about['coverage']:.1%} of the texts get one (mixwell predict --abstain {about['wanted']:g})"
        )
    print(f'predict      mixwell predict {result.folder} "a text"')


def show_comparison(done: Any) -> None:
    """Print the tables and conclusions of a `mixwell.compare.run.Done`."""
    for group in done.summary.groups:
        if group.comparison is not None:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            print(f"{group.title}: {tables.about(group)}\n\n{tables.table(group, width)}\n\n{tables.footnote(group)}")
            if group.tests:
                print(f"\n{tables.further_texts(group)}")
        for sentence in group.sentences:
            print(sentence)
        print()
    if done.race is not None:
        print("\n".join([*done.race.lines(), ""]))
    print(f"records   {done.folder}\nreport    mixwell report {done.folder}")
