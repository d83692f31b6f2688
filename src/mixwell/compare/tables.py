"""A summary as tables for the terminal, Markdown, CSV, JSON and LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mixwell.compare.spec import BASELINE
from mixwell.compare.stats.verdicts import PRIMARY, Difference
from mixwell.compare.summary import TEMPERATURE, Column, Group, Summary
from mixwell.utils.cells import harmless

JSON_FORMAT = "mixwell comparison 1"


def export(summary: Summary, format: str) -> str:
    """The summary as a text: `md`, `csv`, `json` or `latex`."""
    writers: dict[str, Callable[[Summary], str]] = {"md": markdown, "csv": to_csv, "json": to_json, "latex": latex}
    return writers[format](summary)


# --- the leaderboard as texts -----------------------------------------------------------------------------------------


def figure(value: float, column: Column) -> str:
    """A number of a column as text."""
    if not math.isfinite(value):
        return "-"
    if column.percent:
        return f"{100 * value:.1f}"
    return f"{value:.4f}" if column.metric != "seconds_per_step" else f"{value:.3g}"


def _signed(value: float, column: Column) -> str:
    return "-" if not math.isfinite(value) else f"{100 * value:+.1f}" if column.percent else f"{value:+.4f}"


def change(difference: Difference | None, column: Column) -> str:
    """A difference with its interval."""
    if difference is None:
        return ""
    lo, hi = (_signed(end, column) for end in (difference.lo, difference.hi))
    return f"{_signed(difference.mean, column)} [{lo}, {hi}]"


def header(group: Group) -> list[str]:
    """The names of the leaderboard's columns; the first metric comes with its difference and verdict."""
    names = [f"{column.title} %" if column.percent else column.title for column in group.columns]
    return ["method", "seeds", names[0], "difference", "verdict", *names[1:]]


def table(group: Group, width: int | None = None) -> str:
    """The leaderboard as lines of text; where they are too wide, the last columns are left out.

    Args:
        group: a comparison.
        width: of the screen; None for no limit.
    """
    lines = [header(group), *leaderboard(group)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    count = len(widths)
    while width is not None and count > 5 and sum(widths[:count]) + 2 * (count - 1) > width:
        count -= 1
    texts = ["  ".join(cell.ljust(size) for cell, size in zip(line[:count], widths)).rstrip() for line in lines]
    return "\n".join([texts[0], "-" * max(len(text) for text in texts), *texts[1:]])


def table_line(group: Group, method: str) -> list[str]:
    """A line of the leaderboard; a mark after a number means better (+) or worse (-) than plain training."""
    main, *others = group.columns
    row = group.row(method, main.metric)
    assert row is not None
    spread = f" ± {figure(row.sd, main)}" if math.isfinite(row.sd) else ""
    line = [method, str(row.seeds), figure(row.mean, main) + spread]
    if method == BASELINE:
        line += ["", "baseline"]
    elif method == TEMPERATURE:
        line += ["same decisions", ""]
    else:
        line += [change(row.difference, main), row.difference.verdict if row.difference else ""]
    for column in others:
        other = group.row(method, column.metric)
        if other is None:
            line.append("")
            continue
        mark = {"better": " +", "worse": " -"}.get(other.difference.verdict, "") if other.difference else ""
        line.append(figure(other.mean, column) + mark)
    return line


def about(group: Group) -> str:
    """The numbers of rows and seeds, and how to read the table."""
    few, many = group.train_rows
    if not many:
        return "no training finished"
    rows = f"{few:,}" if few == many else f"{few:,} to {many:,}"
    return f"{rows} training rows, {group.test_rows:,} test rows, {len(group.seeds)} seeds of plain training"


def footnote(group: Group) -> str:
    """How to read the table."""
    level = group.comparison.level if group.comparison else 0.95
    return (
        f"Mean ± standard deviation over seeds. Difference: to plain training, paired by seed and test row, with its "
        f"{100 * level:g} % interval. Verdicts, and the marks + (better) and - (worse), are adjusted over methods. "
        f"T: temperature."
    )


def failures(group: Group) -> list[str]:
    """The failed cells, one line each."""
    return [f"failed: {one.spec.label}, seed {one.spec.seed}: {one.reason}" for one in group.failed]


def leaderboard(group: Group) -> list[list[str]]:
    """All lines of the leaderboard."""
    return [table_line(group, method) for method in group.methods]


# --- formats ---------------------------------------------------------------------------------------------------------


def markdown(summary: Summary) -> str:
    """Markdown: for each comparison the conclusion and the leaderboard."""

    def safe(text: str) -> str:
        for sign in "\\`*_[]<>|":
            text = text.replace(sign, "\\" + sign)
        return " ".join(text.split())

    lines = ["# Comparison", ""]
    for group in summary.groups:
        lines += [f"## {safe(group.title)}", "", *(safe(sentence) for sentence in group.sentences), ""]
        if group.comparison is not None:
            names = header(group)
            lines += [f"{about(group)}.", "", f"| {' | '.join(names)} |", f"|{'|'.join(['---'] * len(names))}|"]
            lines += [f"| {' | '.join(safe(cell) for cell in line)} |" for line in leaderboard(group)]
            lines += ["", footnote(group), ""]
        lines += [f"- {safe(line)}" for line in failures(group)] + [""] * bool(group.failed)
    lines += [f"- {safe(note)}" for note in summary.notes]
    return "\n".join(lines).rstrip() + "\n"


_FIELDS = (
    "data", "sample", "comparison", "model", "task", "method", "metric", "higher_is_better", "seeds", "mean", "sd",
    "difference", "lo", "hi", "p", "p_adjusted", "sign_flip_p", "effect_size", "verdict", "seeds_needed", "note",
)  # fmt: skip


def to_csv(summary: Summary, *, raw: bool = False) -> str:
    """CSV: a line for each comparison, method and metric, all metrics included.

    Args:
        summary: of the records.
        raw: leave texts as they are, also those that a spreadsheet would run as formulas.
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _FIELDS, lineterminator="\n")
    writer.writeheader()
    for group in summary.groups:
        for method in group.methods:
            for metric in group.comparison.metrics if group.comparison else ():
                row = group.row(method, metric)
                if row is None:
                    continue
                values: dict[str, Any] = {
                    "data": group.spec.name, "sample": group.spec.sample.title, "comparison": group.title,
                    "model": Path(group.spec.model).name, "task": group.spec.task, "method": method, "metric": metric,
                    "higher_is_better": row.higher_is_better, "seeds": row.seeds, "mean": row.mean, "sd": row.sd,
                }  # fmt: skip
                d = row.difference
                if d is not None:
                    values |= {
                        "difference": d.mean, "lo": d.lo, "hi": d.hi, "p": d.p, "p_adjusted": d.p_holm,
                        "sign_flip_p": d.sign_flip_p, "verdict": d.verdict, "effect_size": d.effect_size,
                        "seeds_needed": d.seeds_needed, "note": d.note,
                    }  # fmt: skip
                cells = {name: _blank(value) for name, value in values.items()}
                writer.writerow(cells if raw else {name: harmless(value) for name, value in cells.items()})
    return stream.getvalue()


def _blank(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def to_json(summary: Summary) -> str:
    """JSON: everything."""
    comparisons = []
    for group in summary.groups:
        comparisons.append(
            {
                "title": group.title,
                "data": group.spec.name,
                "sample": group.spec.sample.title,
                "model": Path(group.spec.model).name,
                "settings": dict(group.spec.settings),
                "seeds": list(group.seeds),
                "train_rows": list(group.train_rows),
                "test_rows": group.test_rows,
                "primary": PRIMARY[group.spec.task],
                "sentences": list(group.sentences),
                "comparison": group.comparison.to_dict() if group.comparison else None,
                "temperature": group.temperature.to_dict() if group.temperature else None,
                "failed": [
                    {"method": one.spec.label, "seed": one.spec.seed, "reason": one.reason, "cell": one.spec.key}
                    for one in group.failed
                ],
            }
        )
    values = {"format": JSON_FORMAT, "comparisons": comparisons, "notes": list(summary.notes)}
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$",
}  # fmt: skip


def latex_text(text: str) -> str:
    """A text with LaTeX's signs made harmless."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


def latex(summary: Summary) -> str:
    """LaTeX: a booktabs table for each comparison."""
    lines = ["% \\usepackage{booktabs}"]
    for group in summary.groups:
        if group.comparison is None:
            continue
        names = header(group)
        caption = latex_text(f"{group.title}. {footnote(group)}")
        lines += ["\\begin{table}", "\\centering", f"\\caption{{{caption}}}"]
        lines += [f"\\begin{{tabular}}{{l{'r' * (len(names) - 1)}}}", "\\toprule", _latex_row(names), "\\midrule"]
        lines += [_latex_row(line) for line in leaderboard(group)]
        lines += ["\\bottomrule", "\\end{tabular}", "\\end{table}", ""]
        lines += [f"% {latex_text(sentence)}" for sentence in group.sentences]
    return "\n".join(lines) + "\n"


def _latex_row(values: Sequence[str]) -> str:
    return " & ".join(map(latex_text, values)) + r" \\"
