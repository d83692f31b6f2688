"""One method in detail, as plain numbers, before any layout: reliability, classes, mistakes, losses and cost.

They come from the records themselves (logits and labels), so that they are those of the same runs as the leaderboard.
Texts are not in the records; they are read again from the data, if these still exist and are unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mixwell.compare.records import Record
from mixwell.compare.spec import BASELINE, CellSpec, chosen_test_rows
from mixwell.data import texts_of
from mixwell.metrics.calibration import Bin, ece, reliability_bins
from mixwell.metrics.scores import softmax
from mixwell.metrics.tasks import SINGLE
from mixwell.utils.errors import MixwellError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_CLASSES = 12
MOST_MISTAKES = 8


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
class Reliability:
    """The bars of a reliability diagram over all seeds together, and the mean of the seeds' calibration errors."""

    bins: list[Bin]
    error: float


@dataclass(frozen=True)
class Classes:
    """How well each class is recognised.

    Attributes:
        names: of all classes.
        recall: (C,) share of each class's rows that are right, mean over seeds; NaN for a class without rows.
        support: (C,) test rows of each class.
        confusion: (C, C) rows of a class (first index) that are taken for another, summed over seeds.
        shown: numbers of the classes for the matrix: all, or those with the most mistakes.
    """

    names: list[str]
    recall: NDArray[np.float64]
    support: NDArray[np.int64]
    confusion: NDArray[np.int64]
    shown: list[int]


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
        before: reliability before the temperature.
        after: reliability after it.
        classes: how well each class is recognised.
        mistakes: the most confident ones.
        losses: of `curves`.
        ratio: seconds of a step against plain training: mean, and the ends of its interval.
    """

    name: str
    before: Reliability | None
    after: Reliability | None
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
    table = data.test
    chosen = chosen_test_rows(table.num_rows, spec.max_test)
    if chosen is not None:
        table = table.take(chosen)
    return texts_of(table), ""


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
        return MethodDetails(name, None, None, None, [], losses, ratio)
    return MethodDetails(
        name,
        before=_reliability(seeds, calibrated=False),
        after=_reliability(seeds, calibrated=True),
        classes=_classes(seeds, list(labels)),
        mistakes=_mistakes(seeds, list(labels), texts),
        losses=losses,
        ratio=ratio,
    )


def _reliability(seeds: Sequence[SeedOutputs], *, calibrated: bool) -> Reliability:
    probabilities = [seed.probabilities(calibrated=calibrated) for seed in seeds]
    labels = [seed.labels for seed in seeds]
    errors = [ece(probs, truth) for probs, truth in zip(probabilities, labels)]
    bins = reliability_bins(np.concatenate(probabilities), np.concatenate(labels))
    return Reliability(bins, float(np.mean(errors)))


def _classes(seeds: Sequence[SeedOutputs], names: list[str]) -> Classes:
    count = len(names)
    confusion = np.zeros((count, count), dtype=np.int64)
    for seed in seeds:
        np.add.at(confusion, (seed.labels, seed.logits.argmax(axis=1)), 1)
    total = confusion.sum(axis=1)
    support = total // max(len(seeds), 1)
    recall = np.where(total > 0, np.diag(confusion) / np.maximum(total, 1), np.nan)
    shown = list(range(count))
    if count > MOST_CLASSES:
        off = confusion - np.diag(np.diag(confusion))
        wrong = off.sum(axis=1) + off.sum(axis=0)
        shown = sorted(np.argsort(-wrong, kind="stable")[:MOST_CLASSES].tolist())
    return Classes(list(names), recall, support, confusion, shown)


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
    for kind in ("train", "validation", "test"):
        points = []
        for epoch in zip(*histories):  # up to the shortest history
            values = [_loss(row, kind) for row in epoch]
            known = [value for value in values if value is not None and math.isfinite(value)]
            if len(known) == len(values):
                points.append((float(epoch[0]["step"]), float(np.mean(known)), min(known), max(known)))
        if points:
            losses[kind] = points
    return losses


def _loss(row: dict[str, Any], kind: str) -> float | None:
    part = row.get(kind) or {}
    loss = row.get("train_loss") if kind == "train" else part.get("loss", part.get("nll", part.get("mse")))
    return None if loss is None else float(loss)


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
