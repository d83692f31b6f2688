"""One method in detail: reliability, classes, mistakes, losses and cost, as numbers and as values for the template.

They come from the records themselves (logits and labels), so that they are those of the same runs as the leaderboard.
Texts are not in the records; they are read again from the data, if these still exist and are unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mixwell.compare.records import Record
from mixwell.compare.spec import BASELINE, CellSpec, chosen_test_rows
from mixwell.data import texts_of
from mixwell.metrics.calibration import Bin, ece, reliability_bins
from mixwell.metrics.scores import softmax
from mixwell.metrics.tasks import SINGLE
from mixwell.report import charts, matrix
from mixwell.utils.errors import MixwellError
from mixwell.utils.titles import method_title

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_MISTAKES = 8
_MOST_MOVED = 20
_LOSSES = {"train": "training loss", "validation": "validation loss", "test": "test loss"}

Curve = list[tuple[float, float, float, float]]  # step, mean, least and most


@dataclass(frozen=True)
class SeedOutputs:
    """What one trained model predicts for the test rows.

    Attributes:
        logits: (N, C).
        labels: (N,) the true classes.
        temperature: of the model; None where there is none.
    """

    logits: NDArray[Any]
    labels: NDArray[Any]
    temperature: float | None

    def probabilities(self, *, calibrated: bool) -> NDArray[np.float64]:
        """(N, C), after the temperature if `calibrated`."""
        return softmax(self.logits / ((self.temperature if calibrated else None) or 1.0))


@dataclass(frozen=True)
class Classes:
    """How well each class is recognised.

    Attributes:
        names: of all classes.
        recall: (C,) share of each class's rows that are right, mean over seeds; NaN for a class without rows.
        support: (C,) test rows of each class.
        confusion: (C, C) rows of a class (first index) that are taken for another, summed over seeds.
    """

    names: list[str]
    recall: NDArray[np.float64]
    support: NDArray[np.int64]
    confusion: NDArray[np.int64]


@dataclass(frozen=True)
class Mistake:
    """A test row for which another class is predicted, with high confidence.

    Attributes:
        row: number of the test row, from 0.
        text: of it; None when the data are not available.
        truth: its class.
        guess: the predicted class.
        confidence: mean over seeds, after the temperature.
        wrong: in how many seeds it is wrong.
        seeds: of how many.
    """

    row: int
    text: str | None
    truth: str
    guess: str
    confidence: float
    wrong: int
    seeds: int


@dataclass(frozen=True)
class MethodDetails:
    """One method in one comparison; parts that a task does not have are None or empty.

    Attributes:
        name: of the method.
        reliability: before and after the temperature: title, the bars of a reliability diagram over all seeds together,
            and the mean of the seeds' calibration errors.
        classes: how well each class is recognised.
        mistakes: the most confident ones.
        losses: of `curves`.
        ratio: seconds of a step against plain training: mean, and the ends of its interval.
    """

    name: str
    reliability: list[tuple[str, list[Bin], float]]
    classes: Classes | None
    mistakes: list[Mistake]
    losses: dict[str, Curve]
    ratio: tuple[float, float, float] | None


def read_texts(spec: CellSpec) -> tuple[list[str] | None, str]:
    """The texts of the test rows of a cell, and if they are not available, why."""
    try:
        data = spec.source.load()
    except (MixwellError, OSError) as error:
        return None, f"the data cannot be read any more ({error})"
    if data.fingerprint != spec.fingerprint:
        return None, "the data changed since the records were made"
    chosen = chosen_test_rows(data.test.num_rows, spec.max_test)
    return texts_of(data.test if chosen is None else data.test.take(chosen)), ""


def from_records(records: Sequence[Record], plain: Sequence[Record], texts: Sequence[str] | None) -> MethodDetails:
    """The details of one method of a comparison.

    Args:
        records: its finished cells of one comparison.
        plain: those of plain training, for the cost.
        texts: of the test rows, or None.
    """
    seeds = []
    for record in records:
        outputs = record.outputs()
        seeds.append(SeedOutputs(outputs["test_logits"], outputs["test_labels"], record.result["temperature"]))
    losses = curves([record.result["history"] for record in records])
    first = records[0]
    if texts is not None and len(texts) != len(seeds[0].labels):
        texts = None  # of other rows than the records have
    ratio = _ratio(records, plain)
    return describe(first.spec.label, first.spec.task, first.result["labels"], seeds, texts, losses, ratio)


def describe(
    name: str,
    task: str,
    labels: Sequence[str],
    seeds: Sequence[SeedOutputs],
    texts: Sequence[str] | None,
    losses: dict[str, Curve],
    ratio: tuple[float, float, float] | None = None,
) -> MethodDetails:
    """The details of one method, from what its trained models predict for the test rows.

    Args:
        name: of the method.
        task: of the data.
        labels: names of the classes.
        seeds: the outputs of each trained model.
        texts: of the test rows, or None.
        losses: of `curves`.
        ratio: cost of a step against plain training.
    """
    if task != SINGLE or not seeds:
        return MethodDetails(name, [], None, [], losses, ratio)
    reliability, truth = [], [seed.labels for seed in seeds]
    for title, calibrated in (("before temperature", False), ("after temperature", True)):
        probabilities = [seed.probabilities(calibrated=calibrated) for seed in seeds]
        error = float(np.mean([ece(probs, classes) for probs, classes in zip(probabilities, truth)]))
        reliability.append((title, reliability_bins(np.concatenate(probabilities), np.concatenate(truth)), error))
    classes, mistakes = _classes(seeds, list(labels)), _mistakes(seeds, list(labels), texts)
    return MethodDetails(name, reliability, classes, mistakes, losses, ratio)


def _classes(seeds: Sequence[SeedOutputs], names: list[str]) -> Classes:
    count = len(names)
    confusion = np.zeros((count, count), dtype=np.int64)
    for seed in seeds:
        np.add.at(confusion, (seed.labels, seed.logits.argmax(axis=1)), 1)
    total = confusion.sum(axis=1)
    support = total // max(len(seeds), 1)
    recall = np.where(total > 0, np.diag(confusion) / np.maximum(total, 1), np.nan)
    return Classes(list(names), recall, support, confusion)


def _mistakes(seeds: Sequence[SeedOutputs], names: list[str], texts: Sequence[str] | None) -> list[Mistake]:
    """The rows that the seeds together get wrong with the highest mean probability."""
    probs = np.mean([seed.probabilities(calibrated=True) for seed in seeds], axis=0)
    truth = seeds[0].labels
    guess = probs.argmax(axis=1)
    confidence = probs.max(axis=1)
    rows = np.flatnonzero(guess != truth)
    rows = rows[np.argsort(-confidence[rows], kind="stable")][:MOST_MISTAKES]
    wrong = np.sum([seed.logits.argmax(axis=1) != truth for seed in seeds], axis=0)
    return [
        Mistake(
            row, None if texts is None else texts[row], names[truth[row]], names[guess[row]],
            float(confidence[row]), int(wrong[row]), len(seeds),
        )
        for row in rows.tolist()
    ]  # fmt: skip


def curves(histories: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Curve]:
    """Mean, least and most over seeds of each kind of loss, at the steps that all seeds reached.

    Args:
        histories: of `FitResult`, one per seed.

    Returns:
        For `train`, `validation` and `test`, as far as they are known: step, mean, least and most.
    """
    losses: dict[str, Curve] = {}
    for kind in _LOSSES:
        points = []
        for epoch in zip(*histories):  # up to the shortest history
            values = [_loss(row, kind) for row in epoch]
            if all(map(math.isfinite, values)):
                points.append((float(epoch[0]["step"]), float(np.mean(values)), min(values), max(values)))
        if points:
            losses[kind] = points
    return losses


def _loss(row: dict[str, Any], kind: str) -> float:
    """A loss of an epoch; NaN where there is none."""
    part = row.get(kind) or {}
    loss = row.get("train_loss") if kind == "train" else part.get("loss", part.get("nll", part.get("mse")))
    return math.nan if loss is None else float(loss)


def _ratio(records: Sequence[Record], plain: Sequence[Record]) -> tuple[float, float, float] | None:
    """Seconds per step against plain training with the same seed: mean of the ratios and a 95 % interval."""
    from scipy import special  # not stats, which takes a second to import

    base = {record.spec.seed: record.result["timing"]["seconds_per_step"] for record in plain}
    logs = [
        math.log(seconds / base[record.spec.seed])
        for record in records
        if (seconds := record.result["timing"]["seconds_per_step"]) and base.get(record.spec.seed)
    ]
    if not logs or records[0].spec.label == BASELINE:
        return None
    mean = float(np.mean(logs))
    if len(logs) < 2:
        return math.exp(mean), math.nan, math.nan
    half = float(special.stdtrit(len(logs) - 1, 0.975)) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


# --- for the template ------------------------------------------------------------------------------------------------


def loss_views(methods: Mapping[str, MethodDetails], numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """The charts of the losses over training, one line per method.

    Args:
        methods: by name.
        numbers: of their series.
    """
    charts_of_losses = []
    for kind, title in _LOSSES.items():
        series = [
            charts.Series(method_title(name), numbers[name], method.losses[kind])
            for name, method in sorted(methods.items(), key=lambda item: numbers[item[0]])
            if kind in method.losses
        ]
        if series:
            picture = charts.lines(
                series, label=f"{title} over training", x_title="updates", y_title=title, marks=False, from_zero=True
            )
            charts_of_losses.append({"title": title.capitalize(), "picture": picture})
    return charts_of_losses


def method_view(method: MethodDetails, plain: MethodDetails | None, numbers: Mapping[str, int]) -> dict[str, Any]:
    """What `method.html.j2` shows of a method.

    Args:
        method: of a comparison, or the only one of a run.
        plain: plain training, to compare with; None where there is none.
        numbers: of the series.
    """
    reliability = [
        {
            "title": title,
            "error": f"{100 * error:.1f} %",
            "picture": charts.reliability(
                bins, label=f"Reliability of {method_title(method.name)} {title}: calibration error {100 * error:.1f} %"
            ),
        }
        for title, bins, error in method.reliability
    ]
    return {
        "label": method.name,
        "name": method_title(method.name),
        "reliability": reliability,
        "classes": _class_view(method, method.classes, plain, numbers) if method.classes is not None else None,
        "mistakes": method.mistakes,
    }


def _class_view(
    method: MethodDetails, classes: Classes, plain: MethodDetails | None, numbers: Mapping[str, int]
) -> dict[str, Any]:
    base = plain.classes if plain is not None else None
    before = np.full_like(classes.recall, math.nan) if base is None else base.recall
    rows = [
        charts.ClassChange(name, float(share), float(value), int(count))
        for name, share, value, count in zip(classes.names, before, classes.recall, classes.support)
        if count
    ]
    moved = sorted((row for row in rows if row.plain != row.value), key=lambda row: -abs(row.plain - row.value))
    moved = sorted(moved[:_MOST_MOVED], key=lambda row: row.plain - row.value)
    picture, against = None, base is not None and method.name != BASELINE
    if against and moved:
        picture = charts.dumbbells(
            moved, label=f"Share right by class, plain training and {method_title(method.name)}",
            method=method_title(method.name),
            number=numbers[method.name],
        )  # fmt: skip
    return {
        "rows": rows,
        "against": against,
        "picture": picture,
        "moved": len(moved),
        "matrix": matrix.view(classes.names, classes.confusion),
    }
