"""Tables and results on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixwell.compare import tables
from mixwell.methods import summaries
from mixwell.metrics.scores import METRICS
from mixwell.report.compare import page
from mixwell.report.glossary import method_note
from mixwell.training.evaluate import MEASURED, headline, title_of
from mixwell.utils.console import screen_width, write_wrapped
from mixwell.utils.files import write_text


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout; cells are wrapped between words."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", title_style="bold")
    width = Console().width
    for number, column in enumerate(columns):
        words = [word for row in rows for word in str(row[number]).split()] + column.split()
        longest = min(max(map(len, words), default=1), width // 2)
        table.add_column(column, no_wrap=number == 0, overflow="fold", min_width=longest)
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
        write_wrapped(f"{name}: trained{kept}; no rows were held out, so nothing was measured")
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
    if isinstance(about, dict) and about.get("threshold") is not None:
        write_wrapped(
            f"threshold    {about['threshold']:.3f}: {about['precision']:.1%} of the answers are right, and "
            f"{about['coverage']:.1%} of the texts get one (mixwell predict --abstain {about['wanted']:g})",
            indent=13,
        )
    print(f'predict      mixwell predict {result.folder} "a text"')


def show_methods() -> None:
    """Print all methods, those of other packages too: what they blend, what a step costs, when to use them."""
    known = summaries()
    side = max(map(len, known)) + 2
    for name, summary in known.items():
        note = method_note(name)
        words = f"{note.blends} Cost: {note.cost}. Use: {note.use}." if note else f"{summary}."
        write_wrapped(f"{name:<{side}}{words}", indent=side)
    print()
    write_wrapped("Train with one: mixwell train FILE --method NAME. Which one helps on FILE: mixwell compare FILE.")


def write_comparison(done: Any) -> Path:
    """Write the page of a `mixwell.compare.run.Done` into the folder of its records; return its path."""
    target = Path(done.folder) / "report.html"
    write_text(target, page(done.summary, place=target.parent))
    return target


def show_comparison(done: Any, written: Path | None = None) -> None:
    """Print the tables and conclusions of a `mixwell.compare.run.Done`.

    Args:
        done: the comparison.
        written: its page, if there is one.
    """
    for group in done.summary.groups:
        if group.comparison is not None:
            write_wrapped(f"{group.title}: {tables.about(group)}")
            print(f"\n{tables.table(group, screen_width())}\n")
            write_wrapped(tables.footnote(group))
            if group.tests:
                print(f"\n{tables.further_texts(group, screen_width())}")
        for sentence in group.sentences:
            write_wrapped(sentence)
        print()
    if done.race is not None:
        for line in (*done.race.lines(), ""):
            write_wrapped(line)
    print(f"records   {done.folder}\npage      {written or f'mixwell report {done.folder}'}")
