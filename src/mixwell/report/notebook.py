"""Results as small pieces of HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from mixwell.compare import tables
from mixwell.compare.summary import Summary
from mixwell.metrics.scores import METRICS
from mixwell.training.evaluate import MEASURED, headline, title_of


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers."""

    def line(tag: str, cells: Sequence[str]) -> str:
        sides = ["left", *["right"] * (len(cells) - 1)]
        inner = (f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells))
        return f"<tr>{''.join(inner)}</tr>"

    body = "".join(line("td", [str(cell) for cell in row]) for row in rows)
    return f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>"


def run_html(folder: Path, metrics: dict[str, Any]) -> str:
    """What a finished run came to."""
    if not metrics:
        return f"<p>A run in <code>{escape(str(folder))}</code></p>"
    shown = headline(metrics)
    name = escape(title_of(metrics["method"]["method"]))
    parts = [f"<p><b>{name}</b>"]
    if shown is None:
        parts[0] += ": no rows were held out, so nothing was measured</p>"
    else:
        before, after = metrics[shown]["before"], metrics[shown].get("after")
        scale = "" if metrics["temperature"] is None else f", temperature {metrics['temperature']:.3f}"
        parts[0] += f": {metrics[shown]['rows']} {escape(MEASURED[shown])}{scale}</p>"
        columns = ["metric", "before temperature", "after"] if after else ["metric", "value"]
        rows = [
            [METRICS[each].title, f"{value:.4f}", *([f"{after[each]:.4f}"] if after else [])]
            for each, value in before.items()
        ]
        parts.append(table_html(columns, rows))
    notes = [*metrics.get("sentences", []), *metrics.get("warnings", [])]
    parts += [f"<p>{escape(note)}</p>" for note in notes]
    parts.append(f"<p>run folder <code>{escape(str(folder))}</code></p>")
    return "".join(parts)


def comparison_html(folder: Path, summary: Summary) -> str:
    """The tables of a comparison, and what they say."""
    parts = []
    for group in summary.groups:
        if group.comparison is not None:
            parts.append(f"<p><b>{escape(group.title)}</b>: {escape(tables.about(group))}</p>")
            parts.append(table_html(tables.header(group), tables.leaderboard(group)))
            parts.append(f"<p><small>{escape(tables.footnote(group))}</small></p>")
        parts += [f"<p>{escape(sentence)}</p>" for sentence in group.sentences]
    return "".join([*parts, f"<p>records <code>{escape(str(folder))}</code></p>"])
