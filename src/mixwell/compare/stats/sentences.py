"""A comparison in words: what to use, and how certain that is."""

from __future__ import annotations

from dataclasses import dataclass

from mixwell.compare.stats.bootstrap import AFTER, metric_info
from mixwell.compare.stats.verdicts import (
    BETTER,
    CALIBRATION,
    PRIMARY,
    UNSURE,
    WORSE,
    Comparison,
    Difference,
    MetricRow,
)

_PERCENT = {"accuracy", "subset_accuracy", "micro_f1", "macro_f1", "ece", "adaptive_ece"}
VERDICT_WORDS = {BETTER: "is better", WORSE: "is worse", UNSURE: "shows no significant difference"}


def summary_sentence(comparison: Comparison, metric: str | None = None, calibration_metric: str | None = None) -> str:
    """One plain sentence: what to use, and how certain that is.

    Args:
        comparison: from `compare`.
        metric: the metric that decides; accuracy, micro-F1 or mean squared error by task.
        calibration_metric: the metric for the probabilities; the NLL after temperature, if it was compared.
    """
    metric = PRIMARY[comparison.task] if metric is None else metric
    if calibration_metric is None:
        usual = CALIBRATION.get(comparison.task, "")
        calibration_metric = next((m for m in (usual, "nll") if m in comparison.metrics), None)
    plain = "plain training" if comparison.baseline == "none" else repr(comparison.baseline)
    words = _Words(comparison, plain)
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
    """

    comparison: Comparison
    plain: str

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
        words = f"Use {best.method}: {self._against(best, metric)}"
        if calibration_metric:
            words += f"; {self._standing(best.method, calibration_metric)}"
        if len(winners) > 1:
            more = ", ".join(row.method for row in winners[1:])
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
            f"{best.method}: {self._against(best, calibration_metric)}; {self._standing(best.method, metric)}."
        )

    def keep(self, rows: list[MetricRow], metric: str) -> str:
        """No method is better than the baseline."""
        closest = rows[0]
        d = closest.difference
        assert d is not None
        words = f"Nothing beats {self.plain}, so keep it: the closest in {metric_info(metric).title} is "
        words += f"{closest.method} ({_evidence(d, metric, self.comparison.level)}), {d.verdict}"
        worse = len(self.ranked(metric, WORSE))
        if worse and d.verdict != WORSE:
            words += f", and {worse} of {len(rows)} {'is' if worse == 1 else 'are'} worse"
        ahead = (d.mean > 0) == closest.higher_is_better and d.mean != 0  # else more seeds are not worth advising
        return words + (f"; {d.note.split('; ')[0]}." if ahead and d.verdict == UNSURE else ".")

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


def _evidence(d: Difference, metric: str, level: float) -> str:
    """`+1.9 points, 95 % interval +0.8 to +3.0, adjusted p = 0.004, 5 seeds`."""
    scale, unit = (100, " points") if metric.removesuffix(AFTER) in _PERCENT else (1, "")
    gain, lo, hi = (f"{scale * v:+.1f}" if scale == 100 else f"{v:+.3g}" for v in (d.mean, d.lo, d.hi))
    p = "adjusted p < 0.001" if d.p_holm < 0.001 else f"adjusted p = {d.p_holm:.2g}"
    seeds = f"{d.seeds} seed{'s' if d.seeds > 1 else ''}"
    return f"{gain}{unit}, {100 * level:g} % interval {lo} to {hi}, {p}, {seeds}"
