"""The top of a comparison's page: what was compared, one sentence, three large numbers; and the dots of its seeds."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any

from mixwell.compare import tables
from mixwell.compare.columns import Column
from mixwell.compare.spec import BASELINE
from mixwell.compare.stats.bootstrap import AFTER, metric_info
from mixwell.compare.stats.judge import BETTER, EQUAL
from mixwell.compare.stats.learned import GUESSING
from mixwell.compare.stats.verdicts import CALIBRATION, PRIMARY, MetricRow
from mixwell.compare.summary import TEMPERATURE, Group, Summary
from mixwell.utils.titles import method_title

_SECOND = {"single_label": ("ece_after", "nll_after"), "multi_label": ("ece_after",), "regression": ("pearson", "mae")}


def facts(summary: Summary) -> list[tuple[str, str]]:
    """Data, model, rows, seeds and date of a comparison, as far as its groups have them in common."""
    groups = [group for group in summary.groups if group.records]
    if not groups:
        return []
    values = [
        ("data", _some([group.spec.name for group in groups])),
        ("model", _some([group.spec.model.rstrip("/").split("/")[-1] for group in groups])),
        ("training rows", _some([f"{group.train_rows[1]:,}" for group in groups])),
        ("test rows", _some([f"{group.test_rows:,}" for group in groups])),
        ("seeds", _some([str(len(group.seeds)) for group in groups])),
        ("finished", _date(summary)),
    ]
    return [(name, text) for name, text in values if text]


def _some(values: list[str]) -> str:
    """Up to three different values; of more, how many."""
    different = list(dict.fromkeys(values))
    return ", ".join(different) if len(different) <= 3 else f"{len(different)} different"


def _date(summary: Summary) -> str:
    """The day on which the last run was recorded."""
    times = [
        record.path.stat().st_mtime for group in summary.groups for record in group.records if record.path.exists()
    ]
    return f"{datetime.fromtimestamp(max(times), timezone.utc):%-d %B %Y}" if times else ""


def _ready(summary: Summary) -> list[Group]:
    return [group for group in summary.groups if group.comparison is not None]


def _others(group: Group, metric: str) -> list[MetricRow]:
    """The trained methods other than plain training that have a difference, the best first."""
    names = [name for name in group.methods if name not in (BASELINE, TEMPERATURE, GUESSING)]
    rows = [row for name in names if (row := group.row(name, metric)) is not None and row.difference is not None]
    sign = 1 if metric_info(metric).higher_is_better else -1
    return sorted(rows, key=lambda row: -sign * row.difference.mean if row.difference else 0.0)


def _winners(group: Group, metric: str) -> list[MetricRow]:
    return [row for row in _others(group, metric) if row.difference and row.difference.verdict == BETTER]


def headline(summary: Summary) -> str:
    """The whole comparison in one sentence for somebody who reads nothing else."""
    ready = _ready(summary)
    if not ready:
        return "Nothing can be compared yet." if summary.groups else ""
    if len(ready) == 1:
        return _one(ready[0])
    won = [group.title for group in ready if _winners(group, PRIMARY[group.spec.task])]
    if not won:
        return f"In none of the {len(ready)} comparisons is any method significantly better than plain training."
    words = f"In {len(won)} of {len(ready)} comparisons a method is significantly better than plain training: "
    words += f"{'; '.join(won)}."
    return f"{words} Each comparison was judged separately: of many, some win by chance."


def _one(group: Group) -> str:
    metric = PRIMARY[group.spec.task]
    rows, title = _others(group, metric), metric_info(metric).title
    if group.learning is not None and group.learning.headline:
        return f"{group.learning.headline.split(':')[0]}, so no method can be judged."
    if not rows:
        return "Only plain training has finished, so there is nothing to compare it with yet."
    if all(row.difference and row.difference.seeds == 1 for row in rows):
        return "One seed is too little to judge any method: run at least three."
    winners = _winners(group, metric)
    if winners and winners[0].difference:
        gain = _size(winners[0].difference.mean, group.columns[0])
        more = len(winners) - 1
        also = f" So {'does one other method' if more == 1 else f'do {more} other methods'}." if more else ""
        return f"{method_title(winners[0].method)} beats plain training by {gain} of {title}.{also}"
    calibration = CALIBRATION.get(group.spec.task, "")
    better = _winners(group, calibration) if group.row(BASELINE, calibration) else []
    if better:
        return (
            f"No method is clearly ahead of plain training in {title}, but {method_title(better[0].method)} gives "
            f"better probabilities."
        )
    if all(row.difference and row.difference.verdict == EQUAL for row in rows):
        return "All methods are practically equal to plain training here: keep it."
    return f"No method is clearly ahead of plain training in {title} here: keep it."


def _size(change: float, column: Column) -> str:
    """A gain without its sign."""
    return f"{100 * abs(change):.1f} points" if column.percent else f"{abs(change):.3g}"


def numbers(summary: Summary) -> list[dict[str, str]]:
    """Three large numbers: value, what it is, and a line about it."""
    ready = _ready(summary)
    if len(ready) != 1:
        runs = sum(len(group.records) for group in summary.groups)
        won = sum(bool(_winners(group, PRIMARY[group.spec.task])) for group in ready)
        methods = {name for group in ready for name in group.methods} - {TEMPERATURE, GUESSING}
        return [
            {"value": f"{won} of {len(ready)}", "what": "comparisons with a winner", "more": "against plain training"},
            {"value": str(len(methods)), "what": "methods", "more": "plain training included"},
            {"value": str(runs), "what": "finished runs", "more": "each with a seed of its own or shared by methods"},
        ][: 3 if ready else 0]
    group, main = ready[0], ready[0].columns[0]
    winners, rows = _winners(group, main.metric), _others(group, main.metric)
    chosen = winners[0].method if winners else BASELINE
    row = group.row(chosen, main.metric)
    assert row is not None
    name = "plain training" if chosen == BASELINE else method_title(chosen)
    spread = f"± {tables.figure(row.sd, main)} over {row.seeds} seeds" if math.isfinite(row.sd) else "one seed"
    shown = [{"value": _value(row.mean, main), "what": f"{main.title} with {name}", "more": spread}]
    if rows and (d := rows[0].difference) is not None:
        lo, hi = (tables.figure(end, main) if end < 0 else f"+{tables.figure(end, main)}" for end in (d.lo, d.hi))
        who = method_title(rows[0].method)
        sign = "\u2212" if d.mean < 0 else "+"
        more = f"{who}, {'' if winners else 'the closest; '}between {lo} and {hi}".replace("-", "\u2212")
        shown.append({"value": f"{sign}{_size(d.mean, main)}", "what": "difference to plain training", "more": more})
    columns = {column.metric: column for column in group.columns}
    for metric in _SECOND[group.spec.task]:
        own, plain = group.row(chosen, metric), group.row(BASELINE, metric)
        if metric in columns and own is not None and plain is not None:
            column = columns[metric]
            title = {"ece_after": "calibration error"}.get(metric, column.title)
            more = "after a temperature" if metric.endswith(AFTER) else ""
            more += f"{'; ' if more else ''}plain: {_value(plain.mean, column)}" if chosen != BASELINE else ""
            shown.append({"value": _value(own.mean, column), "what": f"{title} with {name}", "more": more})
            break
    return shown


def _value(value: float, column: Column) -> str:
    return f"{100 * value:.1f} %" if column.percent else f"{value:.3g}"


def by_seed(group: Group, method: str, metric: str) -> list[tuple[int, float]]:
    """A method's difference to plain training for each seed that both have, from the records.

    Args:
        group: the comparison.
        method: label of the method; for plain training with a temperature, its gain over plain training without.
        metric: its name; with the ending of those after temperature.
    """
    wanted = BASELINE if method == TEMPERATURE else method

    def values(label: str, *, after: bool) -> dict[int, float]:
        name, part = metric.removesuffix(AFTER), "after" if after else "before"
        own = [record for record in group.records if record.spec.label == label]
        results: dict[int, Any] = {record.spec.seed: record.result["test"].get(part, {}).get(name) for record in own}
        return {seed: float(value) for seed, value in results.items() if value is not None and math.isfinite(value)}

    after = metric.endswith(AFTER)
    base, own = values(BASELINE, after=after), values(wanted, after=after or method == TEMPERATURE)
    return [(seed, own[seed] - base[seed]) for seed in sorted(own) if seed in base]
