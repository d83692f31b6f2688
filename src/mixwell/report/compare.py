"""A comparison in any format: one of the tables of `compare.tables`, or a page.

`prepare` makes plain values of a summary, the template lays them out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixwell.compare import tables
from mixwell.compare.columns import Column
from mixwell.compare.records import Record
from mixwell.compare.spec import BASELINE, REFERENCES, canonical
from mixwell.compare.stats.bootstrap import metric_info
from mixwell.compare.stats.judge import BETTER, WORSE
from mixwell.compare.stats.verdicts import CALIBRATION, PRIMARY
from mixwell.compare.summary import TEMPERATURE, Group, Summary
from mixwell.report import charts, details, glossary, links, verdict
from mixwell.report.page import render
from mixwell.utils.errors import OptionError, nearest
from mixwell.utils.titles import method_title

TEMPLATE = "compare.html.j2"
FORMATS = ("md", "csv", "json", "latex", "html")
_SUFFIXES = {".md": "md", ".csv": "csv", ".json": "json", ".tex": "latex", ".html": "html", ".htm": "html"}
_SHORT = {"aurc": "AURC", "nll": "NLL", "nll_after": "NLL after T", "ece": "ECE", "ece_after": "ECE after T"}
_SETTINGS_FIRST = ("epochs", "batch_size", "learning_rate", "max_length", "patience", "best_metric")


@dataclass(frozen=True)
class BoardCell:
    """A cell of the leaderboard: what is shown, the value it is sorted by, its classes and the id of a definition."""

    text: str
    value: str = ""
    kind: str = ""
    about: str = ""


@dataclass(frozen=True)
class BoardHead:
    """The head of a column: whether it holds numbers, and whether low ones come first when it is sorted."""

    name: str
    number: bool = True
    low: bool = False

    @property
    def meaning(self) -> str:
        """Its definition; empty without one."""
        return glossary.term(self.name)


def choose_format(format: str | None, output: str | None) -> str:
    """The requested format, or that of a file's name; a page otherwise.

    Raises:
        OptionError: it is unknown.
    """
    if format is None:
        return _SUFFIXES.get(Path(output).suffix.lower(), "md") if output else "html"
    if format not in FORMATS:
        raise OptionError(f"format {format!r} is unknown{nearest(format, FORMATS)}; use one of {', '.join(FORMATS)}")
    return format


def export(
    summary: Summary,
    format: str,
    *,
    title: str = "Comparison",
    texts: bool = True,
    place: Path | None = None,
    raw_csv: bool = False,
) -> str:
    """The summary as a text of one of the `FORMATS`.

    Args:
        summary: of the records.
        format: one of the `FORMATS`.
        title: of the page.
        texts: show texts of test rows in the page.
        place: the folder that the page is written to, for its links; None for that of the records.
        raw_csv: leave texts in CSV as they are, also those that a spreadsheet would run as formulas.
    """
    if format == "csv":
        return tables.to_csv(summary, raw=raw_csv)
    return page(summary, title=title, texts=texts, place=place) if format == "html" else tables.export(summary, format)


def page(summary: Summary, *, title: str = "Comparison", texts: bool = True, place: Path | None = None) -> str:
    """The page as HTML.

    Args:
        summary: of the records.
        title: of the page.
        texts: show the texts of the most confident mistakes.
        place: the folder that the page is written to, for its links; None for that of the records.
    """
    return render(TEMPLATE, scripts=("compare.js",), **prepare(summary, title=title, texts=texts, place=place))


def prepare(
    summary: Summary, *, title: str = "Comparison", texts: bool = True, place: Path | None = None
) -> dict[str, Any]:
    """What the template shows, as plain values."""
    names = _method_names(summary)
    numbers = {name: number for number, name in enumerate(names)}
    groups, board = [_group(group, numbers, texts) for group in summary.groups], _board(summary)
    about = glossary.methods_for(_unique(name for group in summary.groups for name in group.methods))
    return {
        "title": title,
        "notes": list(summary.notes),
        "groups": groups,
        "facts": verdict.facts(summary),
        "verdict": verdict.headline(summary),
        "numbers": verdict.numbers(summary),
        "runs": links.runs_beside(summary, place),
        "board": board,
        "meanings": {each["id"]: each["words"] for each in about},
        "terms": glossary.terms_for([head.name for head in board["heads"]]),
        "about_methods": about,
        "growth": _growth(summary, numbers),
        "data_names": _unique(group["data"] for group in groups),
        "samples": _unique(group["sample"] for group in groups),
        "methods": [(name, method_title(name)) for name in names],
        "focus": next((name for group in groups for name in group["order"] if name != BASELINE), BASELINE),
        "legend": [
            {"name": name, "title": method_title(name), "key": charts.key(number)} for name, number in numbers.items()
        ],
        "commands": list(summary.commands),
        "versions": _versions(summary),
    }


def _unique(values: Any) -> list[str]:
    return list(dict.fromkeys(values))


def _method_names(summary: Summary) -> list[str]:
    """All trained methods, plain training first: the order gives the colours, the same in all charts."""
    names = _unique(name for group in summary.groups if group.comparison for name in group.comparison.methods)
    return sorted(names, key=lambda name: name != BASELINE)


# --- the leaderboard --------------------------------------------------------------------------------------------------


def _board(summary: Summary) -> dict[str, Any]:
    """All candidates of all comparisons in one table; a comparison without a metric leaves its cell empty."""
    ready = [group for group in summary.groups if group.comparison is not None]
    columns = list({column.metric: column for group in ready for column in group.columns}.values())
    heads = [BoardHead("method", number=False)]
    sizes = len({group.train_rows for group in ready}) > 1  # one size for all stands above the table
    if len(summary.groups) > 1:
        heads += [BoardHead("data", number=False), *([BoardHead("training rows", low=True)] if sizes else [])]
    for column in columns:
        low = column.metric == "seconds_per_step" or not metric_info(column.metric).higher_is_better
        heads.append(BoardHead(f"{column.title} %" if column.percent else column.title, low=low))
        if column is columns[0]:
            heads += [BoardHead("difference"), BoardHead("verdict", number=False)]
    heads.append(BoardHead("seeds"))
    named = Counter((group.spec.name, group.spec.title) for group in ready)
    mixed = len({group.columns[0].metric for group in ready}) > 1
    rows = []
    for group in ready:
        # What distinguishes it from others of the same data and sample: model, settings.
        unique = named[group.spec.name, group.spec.title] == 1
        place = (group.spec.name if unique else group.title) if len(summary.groups) > 1 else ""
        rows += [_board_row(group, method, columns, place=place, sizes=sizes, mixed=mixed) for method in group.methods]
    return {"heads": heads, "rows": rows}


def _board_row(
    group: Group, method: str, columns: list[Column], *, place: str, sizes: bool, mixed: bool
) -> dict[str, Any]:
    main = group.columns[0]
    first = group.row(method, main.metric)
    assert first is not None
    few, many = group.train_rows
    difference = first.difference if method != TEMPERATURE else None
    standing = {BASELINE: "baseline", TEMPERATURE: "same decisions"}.get(method, "")
    standing = difference.verdict if difference else standing
    cells = [BoardCell(method_title(method), method, kind="t", about=glossary.anchor(method))]
    if place:
        cells.append(BoardCell(place, kind="t"))
    if place and sizes:
        cells.append(BoardCell(f"{few:,}" if few == many else f"{few:,}-{many:,}", str(many)))
    unit = f" {main.title}" if mixed and difference else ""
    changes = [
        BoardCell(tables.change(difference, main) + unit, _value(difference.mean if difference else math.nan)),
        BoardCell(standing, kind=f"t {standing}" if standing in (BETTER, WORSE) else "t"),
    ]
    for column in columns:
        if len(columns) > 1 and column is columns[1]:
            cells += changes
        row = group.row(method, column.metric)
        if row is None:
            cells.append(BoardCell(""))
            continue
        spread = f" ± {tables.figure(row.sd, column)}" if column is main and math.isfinite(row.sd) else ""
        kind = row.difference.verdict if row.difference and group.judges(column.metric) else ""
        kind = kind if kind in (BETTER, WORSE) else ""
        cells.append(BoardCell(tables.figure(row.mean, column) + spread, _value(row.mean), kind))
    cells += [*(changes if len(columns) == 1 else []), BoardCell(str(first.seeds or ""), str(first.seeds))]
    return {
        "cells": cells,
        "data": group.spec.name,
        "sample": group.spec.title,
        "base": method == BASELINE,
    }


def _value(number: float) -> str:
    return repr(float(number)) if math.isfinite(number) else ""


# --- over the training rows -------------------------------------------------------------------------------------------


def _growth(summary: Summary, numbers: dict[str, int]) -> list[dict[str, Any]]:
    """Charts over the size of the sample, for data sets that were compared at several."""
    ready = [group for group in summary.groups if group.comparison is not None]
    by_common: dict[str, dict[int, Group]] = {}
    for group in ready:  # what differs in nothing but the size of the sample; of one size the first
        common = canonical({**group.spec.group(), "sample": None, "name": group.spec.name})
        by_common.setdefault(common, {}).setdefault(group.train_rows[1], group)
    growth = []
    for by_size in by_common.values():
        groups = [by_size[size] for size in sorted(by_size)]
        if len(groups) < 2:
            continue
        metrics = [PRIMARY[groups[0].spec.task]]
        metrics += ["ece", "ece_after"] if groups[0].spec.task != "regression" else []
        pictures = [_growth_picture(groups, metric, numbers) for metric in metrics]
        growth.append({"data": groups[0].spec.name, "pictures": pictures})
    return growth


def _growth_picture(groups: list[Group], metric: str, numbers: dict[str, int]) -> dict[str, Any]:
    """One metric over the size of the sample."""
    scale = 1.0 if groups[0].spec.task == "regression" else 100.0
    series = []
    for method, number in numbers.items():
        points = [_point(group, method, metric, scale) for group in groups]
        known = [point for point in points if point is not None]
        if known:
            series.append(charts.Series(method_title(method), number, known))
    title = _metric_title(metric)
    picture = charts.lines(
        series, label=f"{title} against training rows, {groups[0].spec.name}", x_title="training rows",
        y_title=f"{title}{' %' if scale == 100 else ''}", log=True, whole=True,
    )  # fmt: skip
    return {"title": title, "picture": picture}


def _point(group: Group, method: str, metric: str, scale: float) -> tuple[float, float, float, float] | None:
    assert group.comparison is not None
    if method not in group.comparison.methods:
        return None
    row = group.row(method, metric)
    if row is None:
        return None
    low, high = (row.mean - row.sd, row.mean + row.sd) if math.isfinite(row.sd) else (math.nan, math.nan)
    return float(group.train_rows[1]), scale * row.mean, scale * low, scale * high


def _metric_title(metric: str) -> str:
    words = metric_info(metric).title
    return words[0].upper() + words[1:]


# --- one comparison ---------------------------------------------------------------------------------------------------


def _group(group: Group, numbers: dict[str, int], with_texts: bool) -> dict[str, Any]:
    texts, why = None, "" if with_texts else "the page was made without texts"
    if with_texts and group.records:
        texts, why = details.read_texts(group.spec)
    by_method: dict[str, list[Record]] = {}
    for record in group.records:
        by_method.setdefault(record.spec.label, []).append(record)
    plain = by_method.get(BASELINE, [])
    order = [name for name in group.methods if name in by_method]  # without the temperature, which trains nothing
    methods = {name: details.from_records(by_method[name], plain, texts) for name in order}
    return {
        "title": group.title,
        "order": order,
        "data": group.spec.name,
        "sample": group.spec.title,
        "task": group.spec.task,
        "sentences": list(group.sentences),
        "about": tables.about(group),
        "forests": _forests(group),
        "tests": tables.further_tests(group),
        "level": f"{100 * group.comparison.level:g} %" if group.comparison else "",
        "losses": details.loss_views(methods, numbers),
        "methods": [details.method_view(methods[name], methods.get(BASELINE), numbers) for name in order],
        "why_no_texts": why if texts is None else "",
        "cost": _cost(methods),
        "settings": _settings(group),
        "failures": tables.failures(group),
    }


def _forests(group: Group) -> list[dict[str, Any]]:
    """Forest plots: of the main metric, of the calibration and of what else the leaderboard shows."""
    if group.comparison is None or len(group.comparison.methods) < 2:
        return []
    wanted = [PRIMARY[group.spec.task], "aurc", CALIBRATION.get(group.spec.task, ""), "nll", "ece", "ece_after"]
    wanted.append("macro_f1")
    percent = {column.metric for column in group.columns if column.percent} | {"macro_f1"}
    forests = []
    for metric in _unique(wanted):
        if metric not in group.comparison.metrics:
            continue
        info, scale = metric_info(metric), 100.0 if metric in percent else 1.0
        rows = _forest_rows(group, metric, scale)
        if rows:
            better, title = "right" if info.higher_is_better else "left", _metric_title(metric)
            label = f"Difference to plain training in {info.title}, {group.title}"
            picture = charts.forest(rows, label=label, better=better, unit=", points" if scale == 100 else "")
            forests.append({"title": title, "short": _SHORT.get(metric, title), "picture": picture})
    return forests


def _forest_rows(group: Group, metric: str, scale: float) -> list[charts.ForestRow]:
    column = Column(metric, metric_info(metric).title, scale == 100)
    rows = []
    for name in group.methods:
        row = group.row(name, metric)
        if row is None or row.difference is None or (name == TEMPERATURE and not metric.startswith(("nll", "ece"))):
            continue
        d = row.difference
        judged = d.verdict if group.judges(metric) else ""
        words = ", ".join(filter(None, [tables.change(d, column), judged]))
        ends = (scale * d.lo, scale * d.hi, scale * d.lo_adjusted, scale * d.hi_adjusted)
        dots = [(seed, scale * value) for seed, value in verdict.by_seed(group, name, metric)]
        columns = (method_title(name), scale * d.mean, ends[0], ends[1], judged, words, ends[2], ends[3], tuple(dots))
        rows.append(charts.ForestRow(*columns, aside=name in REFERENCES))
    return rows


def _cost(methods: dict[str, details.MethodDetails]) -> Any:
    rows = []
    for name, method in methods.items():
        if method.ratio is not None:
            mean, lo, hi = method.ratio
            words = f"{mean:.2f} times the seconds of a plain step"
            words += f" [{lo:.2f}, {hi:.2f}]" if math.isfinite(lo) else ""
            rows.append(charts.ForestRow(method_title(name), mean, lo, hi, "", words))
    if not rows:
        return None
    return {
        "picture": charts.forest(
            rows, label="Seconds per step against plain training", better="left", zero=1.0,
            unit="seconds per step, plain training = 1",
        ),
        "rows": [(row.name, row.words) for row in rows],
    }  # fmt: skip


def _settings(group: Group) -> list[tuple[str, str]]:
    spec, settings = group.spec, dict(group.spec.settings)
    names = dict.fromkeys(name for name in (*_SETTINGS_FIRST, *settings) if name in settings)
    rows = [
        ("model", spec.model.rstrip("/").split("/")[-1]),
        ("weights", spec.weights[:16]),
        ("data", spec.name),
        ("sample", spec.sample.title),
        *([("conditions", spec.conditions.title)] if spec.conditions.title else []),
        *((f"further test {file.name}", file.path.split("/")[-1]) for file in spec.conditions.tests),
        *([("foreign texts", spec.conditions.ood.path.split("/")[-1])] if spec.conditions.ood else []),
        ("test rows", f"{group.test_rows:,}"),
        ("seeds", ", ".join(map(str, group.seeds))),
        ("task", spec.task),
    ]
    if re.fullmatch(r"[0-9a-f]{16,}", spec.fingerprint):
        rows.insert(3, ("fingerprint of the data", spec.fingerprint[:16]))
    values = {name: "none" if settings[name] in (None, {}, []) else str(settings[name]) for name in names}
    return rows + [(name.replace("_", " "), value) for name, value in values.items()]


def _versions(summary: Summary) -> str:
    versions = [record.result["versions"] for group in summary.groups for record in group.records]
    texts = _unique(", ".join(f"{name} {number}" for name, number in one.items()) for one in versions)
    return "; ".join(texts)
