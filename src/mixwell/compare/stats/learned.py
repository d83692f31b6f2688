"""Did the models learn anything? Guessing, collapsed runs, and fine-tuning that stays below a probe.

No method verdict comes from models that learned nothing: of two that guess, one is ahead by luck. A collapsed run is
at the level of guessing while the others learn. It says something about the method, but an average over three to five
seeds cannot weigh it: whether one of them collapses is chance. So collapses are counted and shown, and verdicts on the
methods concerned are withheld.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.metrics.measure import measure
from mixwell.metrics.scores import METRICS
from mixwell.metrics.tasks import MULTI, REGRESSION
from mixwell.utils.titles import method_title

GUESSING = "guessing"
COLLAPSED_BELOW = 0.25  # of the way from guessing to the median run
_ERRORS = 2.0  # standard errors above guessing, to have learned something


def guess_outputs(labels: NDArray[Any], task: str, classes: int) -> NDArray[np.float64]:
    """What guessing says of each row: the frequencies of the classes in the test rows themselves, or their mean.

    Nobody who guesses knows these, so it is the best that guessing could do.

    Args:
        labels: (N,), (N, C) or targets.
        task: of the data.
        classes: C.
    """
    n = len(labels)
    if task == REGRESSION:
        return np.full(np.shape(labels), np.mean(labels, axis=0), dtype=np.float64)
    if task == MULTI:
        share = np.clip(np.mean(labels, axis=0), 1e-6, 1 - 1e-6)
        return np.tile(np.log(share / (1 - share)), (n, 1))
    counts = np.bincount(np.asarray(labels), minlength=classes)
    return np.tile(np.log(np.maximum(counts, 1e-6) / n), (n, 1))


def guess_metrics(labels: NDArray[Any], task: str, classes: int) -> dict[str, float]:
    """The metrics of guessing."""
    return measure(guess_outputs(labels, task, classes), labels, task)


@dataclass(frozen=True)
class Learning:
    """What the models of a comparison learned.

    Attributes:
        guess: the metrics of guessing.
        collapsed: method -> its seeds at the level of guessing while others learn.
        headline: what stands above all, when it makes verdicts meaningless; empty if nothing does.
        runs: method -> how many runs it has.
    """

    guess: dict[str, float]
    collapsed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    headline: str = ""
    runs: dict[str, int] = field(default_factory=dict)

    def withheld(self, baseline: str) -> dict[str, str]:
        """Which methods get no verdict, and why; for `Rules`."""
        if self.headline:
            return {"": self.headline}
        reasons = {method: self.words(method) for method in self.collapsed}
        if baseline in reasons:
            return {"": f"{reasons[baseline]}, so there is nothing sound to compare with"}
        return reasons

    def words(self, method: str) -> str:
        """How many runs of a method collapsed."""
        count = len(self.collapsed[method])
        who = "plain training" if method == "none" else method_title(method)
        return f"{count} of {self.runs[method]} runs of {who} collapsed to the level of guessing"


def what_was_learned(
    values: Mapping[str, Mapping[int, float]],
    labels: Sequence[NDArray[Any]],
    task: str,
    metric: str,
    classes: int,
    apart: Collection[str] = (),
    probe: str = "probe",
) -> Learning:
    """Look for collapsed runs, for models that guess, and for fine-tuning below the probe.

    Args:
        values: method -> seed -> the main metric.
        labels: the test labels of each test set.
        task: of the data.
        metric: the main metric's name.
        classes: C.
        apart: the references, which are no fine-tuning.
        probe: the name of the probe among them.
    """
    each = [guess_metrics(one, task, classes) for one in labels]
    guess = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
    sign = 1.0 if METRICS[metric].higher_is_better else -1.0
    tuned = {method: runs for method, runs in values.items() if method not in apart and runs}
    runs = {method: len(seeds) for method, seeds in tuned.items()}
    if not tuned:
        return Learning(guess, runs=runs)
    floor = sign * guess[metric]
    # Guessing among N rows errs itself, so a run must be clearly above.
    margin = _ERRORS * _guess_error(guess[metric], metric, int(np.mean([len(one) for one in labels])))
    means = {method: sign * float(np.mean(list(seeds.values()))) for method, seeds in tuned.items()}
    every = [sign * value for seeds in tuned.values() for value in seeds.values()]
    middle = float(np.median(every))
    if max(means.values()) <= floor + margin and max(every) <= floor + 2 * margin:
        words = _value(guess[metric], metric)
        best = max(means, key=lambda name: means[name])
        who = "plain training" if best == "none" else method_title(best)
        text = (
            f"Nothing was learned: no fine-tuned model is clearly better than guessing ({words}; the best, {who}, has "
            f"{_value(sign * means[best], metric)}), so no method is judged; train longer, with another learning rate, "
            f"or on more rows"
        )
        return Learning(guess, {}, text, runs)
    collapsed: dict[str, tuple[int, ...]] = {}
    if middle > floor + margin:
        limit = floor + COLLAPSED_BELOW * (middle - floor)
        found = {m: tuple(s for s, value in seeds.items() if sign * value <= limit) for m, seeds in tuned.items()}
        collapsed = {method: seeds for method, seeds in found.items() if seeds}
    headline = ""
    if values.get(probe):
        reached = sign * float(np.mean(list(values[probe].values())))
        top = max(means.values())
        if top < reached:
            headline = (
                f"Fine-tuning stays below the probe: a logistic regression on the frozen features has "
                f"{_value(sign * reached, metric)}, the best fine-tuned model {_value(sign * top, metric)}, "
                f"so no method is judged; use the probe, or train longer or on more rows"
            )
    return Learning(guess, collapsed, headline, runs)


def _guess_error(guess: float, metric: str, rows: int) -> float:
    """The standard error of guessing on so many rows."""
    if metric == "mse":
        return guess * float(np.sqrt(2 / max(rows, 1)))
    share = min(max(guess, 0.05), 0.95)
    return float(np.sqrt(share * (1 - share) / max(rows, 1)))


def _value(value: float, metric: str) -> str:
    return f"{metric.replace('_', ' ')} {value:.3g}" if metric == "mse" else f"{100 * value:.1f} %"
