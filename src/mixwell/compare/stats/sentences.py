"""A comparison in words: what to use, and how certain that is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mixwell.compare.stats.bootstrap import AFTER, metric_info
from mixwell.compare.stats.judge import BETTER, EQUAL, UNSURE, WITHHELD, WORSE, Difference
from mixwell.compare.stats.verdicts import CALIBRATION, PRIMARY, Comparison, MetricRow
from mixwell.utils.titles import method_title

_PERCENT = {"accuracy", "subset_accuracy", "micro_f1", "macro_f1", "ece", "adaptive_ece"}
VERDICT_WORDS = {
    BETTER: "is better",
    WORSE: "is worse",
    UNSURE: "shows no significant difference",
    EQUAL: "is practically equal",
    WITHHELD: "is not judged",
}


def summary_sentence(
    comparison: Comparison,
    metric: str | None = None,
    calibration_metric: str | None = None,
    *,
    one_training_set: bool = False,
) -> str:
    """One plain sentence: what to use, and how certain that is.

    Args:
        comparison: from `compare`.
        metric: the metric that decides; accuracy, micro-F1 or mean squared error by task.
        calibration_metric: the metric for the probabilities; the NLL after temperature, if it was compared. Never the
            one before: a method can lower that by being more timid, and be worse in all else.
        one_training_set: whether all seeds had the same training rows, so that nothing is known about others.
    """
    metric = PRIMARY[comparison.task] if metric is None else metric
    if calibration_metric is None and CALIBRATION.get(comparison.task) in comparison.metrics:
        calibration_metric = CALIBRATION[comparison.task]
    plain = "plain training" if comparison.baseline == "none" else repr(comparison.baseline)
    words = _Words(comparison, plain, ", for this training set" if one_training_set else "")
    rows = words.ranked(metric)
    if not rows:
        return f"Only {plain} was trained, so there is nothing to compare."
    if all(row.difference and row.difference.seeds == 1 for row in rows):
        return (
            f"Keep {plain} for now: with one seed nothing can be said about the methods, only about these "
            f"trained models, so run at least 3 seeds."
        )
    winners = words.ranked(metric, BETTER)
    if winners:
        return words.use(winners, metric, calibration_metric)
    calibrated = words.ranked(calibration_metric, BETTER) if calibration_metric else []
    if calibrated and calibration_metric:
        return words.use_for_probabilities(calibrated, metric, calibration_metric)
    if all(row.difference and row.difference.mean == row.difference.sd == 0 for row in rows):
        return f"Nothing beats {plain}, so keep it: no method changes the {metric_info(metric).title} of any seed."
    return words.keep(rows, metric)


@dataclass(frozen=True)
class _Words:
    """The sentences about a comparison.

    Attributes:
        comparison: from `compare`.
        plain: what the baseline is called.
        limit: what the finding is limited to, to stand behind it.
    """

    comparison: Comparison
    plain: str
    limit: str = ""

    def ranked(self, metric: str, verdict: str | None = None) -> list[MetricRow]:
        """Rows of the other methods with that verdict, the largest gain first."""
        others = [method for method in self.comparison.methods if method != self.comparison.baseline]
        rows = [row for method in others if (row := self.comparison.row(method, metric)).difference]
        sign = 1 if metric_info(metric).higher_is_better else -1
        rows = [row for row in rows if verdict is None or (row.difference and row.difference.verdict == verdict)]
        return sorted(rows, key=lambda row: -sign * row.difference.mean if row.difference else 0.0)

    def use(self, winners: list[MetricRow], metric: str, calibration_metric: str | None) -> str:
        """Some methods are better than the baseline."""
        best = winners[0]
        words = f"Use {method_title(best.method)}: {self._against(best, metric)}{self.limit}"
        if calibration_metric:
            words += f"; {self._standing(best.method, calibration_metric)}"
        if len(winners) > 1:
            more = ", ".join(method_title(row.method) for row in winners[1:])
            words += f"; {more} also beat{'s' if len(winners) == 2 else ''} {self.plain}, "
            words += "and which is best was not tested"
        return words + "."

    def use_for_probabilities(self, calibrated: list[MetricRow], metric: str, calibration_metric: str) -> str:
        """Some methods have better probabilities only."""
        worse = {row.method for row in self.ranked(metric, WORSE)}
        harmless = [row for row in calibrated if row.method not in worse]
        best = (harmless or calibrated)[0]
        return (
            f"Nothing beats {self.plain} in {metric_info(metric).title}, but for better probabilities use "
            f"{method_title(best.method)}: {self._against(best, calibration_metric)}{self.limit}; "
            f"{self._standing(best.method, metric)}."
        )

    def keep(self, rows: list[MetricRow], metric: str) -> str:
        """No method is better than the baseline."""
        closest = rows[0]
        d = closest.difference
        assert d is not None
        words = f"Nothing beats {self.plain}, so keep it: the closest in {metric_info(metric).title} is "
        words += (
            f"{method_title(closest.method)} ({_evidence(d, metric, self.comparison.level)}), {d.verdict}{self.limit}"
        )
        for verdict in (WORSE, EQUAL):
            count = len(self.ranked(metric, verdict))
            if count and d.verdict != verdict:
                words += f", and {count} of {len(rows)} {'is' if count == 1 else 'are'} {verdict}"
        if d.verdict == UNSURE and math.isfinite(d.detectable):
            size = _change(d.detectable, metric).lstrip("+")
            words += f"; with {d.seeds} seeds a difference of {size} or more would have been found in 80 % of cases"
        return words + "."

    def _against(self, row: MetricRow, metric: str) -> str:
        assert row.difference is not None
        # Both over the seeds in common, as the difference is: where some failed, the means of all are others.
        base = row.difference.base
        mean = base + row.difference.mean
        return (
            f"{row.title} {_figure(mean, metric)} against {_figure(base, metric)} with {self.plain} "
            f"({_evidence(row.difference, metric, self.comparison.level)})"
        )

    def _standing(self, method: str, metric: str) -> str:
        row = self.comparison.row(method, metric)
        verdict = row.difference.verdict if row.difference else UNSURE
        return f"its {row.title} {VERDICT_WORDS[verdict]}{' too' if verdict == BETTER else ''}"


def _figure(value: float, metric: str) -> str:
    return f"{100 * value:.1f} %" if metric.removesuffix(AFTER) in _PERCENT else f"{value:.3g}"


def _change(value: float, metric: str) -> str:
    """A difference with its unit."""
    return f"{100 * value:+.1f} points" if metric.removesuffix(AFTER) in _PERCENT else f"{value:+.3g}"


def _evidence(d: Difference, metric: str, level: float) -> str:
    """`+1.9 points, 95 % interval +0.8 to +3.0, adjusted p = 0.004, 5 seeds`."""
    lo, hi = (_change(value, metric).removesuffix(" points") for value in (d.lo, d.hi))
    p = "adjusted p < 0.001" if d.p_holm < 0.001 else f"adjusted p = {d.p_holm:.2g}"
    seeds = f"{d.seeds} seed{'s' if d.seeds > 1 else ''}"
    return f"{_change(d.mean, metric)}, {100 * level:g} % interval {lo} to {hi}, {p}, {seeds}"
