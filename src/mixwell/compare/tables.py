"""A summary as tables for the terminal, Markdown, CSV, JSON and LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mixwell.compare.columns import Column
from mixwell.compare.conditions import CHOSEN
from mixwell.compare.spec import BASELINE
from mixwell.compare.stats.judge import Difference
from mixwell.compare.stats.learned import GUESSING
from mixwell.compare.stats.verdicts import PRIMARY
from mixwell.compare.summary import TEMPERATURE, Group, Summary
from mixwell.utils.cells import harmless
from mixwell.utils.console import fit_table
from mixwell.utils.titles import method_title

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
    """The leaderboard as lines of text; where they are too wide, the last columns are left out and named.

    Args:
        group: a comparison.
        width: of the screen; None for no limit.
    """
    return "\n".join(fit_table([header(group), *leaderboard(group)], width, keep=5))


def table_line(group: Group, method: str) -> list[str]:
    """A line of the leaderboard; a mark after a number means better (+) or worse (-) than plain training."""
    main, *others = group.columns
    row = group.row(method, main.metric)
    assert row is not None
    spread = f" ± {figure(row.sd, main)}" if math.isfinite(row.sd) else ""
    collapsed = group.learning.collapsed.get(method, ()) if group.learning else ()
    count = str(row.seeds or "") + (f" ({len(collapsed)} collapsed)" if collapsed else "")
    line = [method_title(method), count, figure(row.mean, main) + spread]
    if method == BASELINE:
        line += ["", "baseline"]
    elif method == GUESSING:
        line += ["", ""]
    elif method == TEMPERATURE:
        line += ["same decisions", ""]
    else:
        line += [change(row.difference, main), row.difference.verdict if row.difference else ""]
    for column in others:
        other = group.row(method, column.metric)
        if other is None:
            line.append("")
            continue
        verdict = other.difference.verdict if other.difference and group.judges(column.metric) else ""
        mark = {"better": " +", "worse": " -"}.get(verdict, "")
        line.append(figure(other.mean, column) + mark)
    return line


def about(group: Group) -> str:
    """The numbers of rows and seeds, and how to read the table."""
    few, many = group.train_rows
    if not many:
        return "no training finished"
    rows = f"{few:,}" if few == many else f"{few:,} to {many:,}"
    return f"{rows} training rows, {group.test_rows:,} test rows, {len(group.seeds)} seeds of plain training"


def further_tests(group: Group) -> dict[str, list[list[str]]]:
    """Per further test set the lines of a table, the first with the names of its columns."""
    found: dict[str, list[list[str]]] = {}
    for name, comparison in group.tests.items():
        columns = [column for column in group.columns if column.metric in comparison.metrics]
        titles = [f"{column.title} %" if column.percent else column.title for column in columns]
        lines = [["method", titles[0], "difference", "verdict", *titles[1:]]]
        sign = 1 if comparison.rows[0].higher_is_better else -1
        ranked = sorted(comparison.methods, key=lambda label: -sign * comparison.row(label, columns[0].metric).mean)
        for method in ranked:
            row = comparison.row(method, columns[0].metric)
            verdict = row.difference.verdict if row.difference else "baseline"
            line = [method_title(method), figure(row.mean, columns[0]), change(row.difference, columns[0]), verdict]
            for column in columns[1:]:
                other = comparison.row(method, column.metric)
                mark = {"better": " +", "worse": " -"}.get(other.difference.verdict, "") if other.difference else ""
                line.append(figure(other.mean, column) + mark)
            lines.append(line)
        found[name] = lines
    return found


def further_texts(group: Group, width: int | None = None) -> str:
    """The tables of further test sets as text; empty without any. `width` is that of the screen, if there is one."""
    texts = []
    for name, lines in further_tests(group).items():
        texts.append(f"{'Beside it, the' if name == CHOSEN else 'Tested on'} {name}:")
        texts += [*fit_table(lines, width, keep=4), ""]
    return "\n".join(texts)


def footnote(group: Group) -> str:
    """How to read the table."""
    level = group.comparison.level if group.comparison else 0.95
    return (
        f"Mean ± standard deviation over seeds. Difference: to plain training, paired by seed and test row, with its "
        f"{100 * level:g} % interval. Verdicts, and the marks + (better) and - (worse), are adjusted over methods and "
        f"over looks at fewer seeds; {_equal_words(group)}. AURC: mean share of mistakes over all coverages when the "
        f"surest rows are answered first. T: temperature; NLL and ECE before it get no marks. Guessing: the most "
        f"frequent class, always."
    )


def _equal_words(group: Group) -> str:
    points = group.rules.equal_within
    if points is None:
        return "none is called practically equal"
    return f"practically equal: within {100 * points:g} point{'' if points == 0.01 else 's'}"


def failures(group: Group) -> list[str]:
    """The failed cells, one line each."""
    return [f"failed: {method_title(one.spec.label)}, seed {one.spec.seed}: {one.reason}" for one in group.failed]


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
            for name, (head, *rest) in further_tests(group).items():
                lines += [f"### {safe(name)}", "", f"| {' | '.join(head)} |", f"|{'|'.join(['---'] * len(head))}|"]
                lines += [f"| {' | '.join(safe(cell) for cell in line)} |" for line in rest] + [""]
        lines += [f"- {safe(line)}" for line in failures(group)] + [""] * bool(group.failed)
    lines += [f"- {safe(note)}" for note in summary.notes]
    return "\n".join(lines).rstrip() + "\n"


_FIELDS = (
    "data", "sample", "conditions", "test_set",
    "comparison", "model", "task", "method", "metric", "higher_is_better", "seeds", "mean", "sd",
    "difference", "lo", "hi", "lo_adjusted", "hi_adjusted", "p", "p_adjusted", "p_equal", "sign_flip_p", "effect_size",
    "detectable", "correlation", "collapsed", "verdict", "note",
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
        rows = [row for method in group.methods for metric in group.comparison.metrics
                if (row := group.row(method, metric)) is not None] if group.comparison else []  # fmt: skip
        further = [(name, row) for name, comparison in group.tests.items() for row in comparison.rows]
        for test_set, row in [*(("", row) for row in rows), *further]:
            method, metric = row.method, row.metric
            values: dict[str, Any] = {
                    "data": group.spec.name, "sample": group.spec.sample.title, "test_set": test_set,
                    "conditions": group.spec.conditions.title, "comparison": group.title,
                    "model": Path(group.spec.model).name, "task": group.spec.task, "method": method, "metric": metric,
                    "higher_is_better": row.higher_is_better, "seeds": row.seeds, "mean": row.mean, "sd": row.sd,
                    "collapsed": len(group.learning.collapsed.get(method, ())) if group.learning else None,
                }  # fmt: skip
            d = row.difference
            if d is not None:
                values |= {
                        "difference": d.mean, "lo": d.lo, "hi": d.hi, "lo_adjusted": d.lo_adjusted,
                        "hi_adjusted": d.hi_adjusted, "p": d.p, "p_adjusted": d.p_holm, "p_equal": d.p_equal,
                        "sign_flip_p": d.sign_flip_p, "effect_size": d.effect_size, "detectable": d.detectable,
                        "correlation": d.correlation, "note": d.note,
                        "verdict": d.verdict if group.judges(metric) else None,
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
                "conditions": group.spec.conditions.identity(seeded=False),
                "model": Path(group.spec.model).name,
                "settings": dict(group.spec.settings),
                "seeds": list(group.seeds),
                "train_rows": list(group.train_rows),
                "test_rows": group.test_rows,
                "primary": PRIMARY[group.spec.task],
                "sentences": list(group.sentences),
                "judged": [metric for metric in group.comparison.metrics if group.judges(metric)]
                if group.comparison
                else [],
                "guessing": group.learning.guess if group.learning else None,
                "collapsed": {name: list(seeds) for name, seeds in group.learning.collapsed.items()}
                if group.learning
                else {},
                "looks": list(group.rules.looks or ()),
                "comparison": group.comparison.to_dict() if group.comparison else None,
                "tests": {name: comparison.to_dict() for name, comparison in group.tests.items()},
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
