"""What a page about a comparison tells, as plain numbers: from records and their summary, before any layout.

A page looks at the records themselves (logits and labels), so that reliability, classes and mistakes are those of the
same runs as the leaderboard. Texts are not in the records; they are read again from the data, when these are still
there and unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mixwell import calibration
from mixwell.calibration import Bin
from mixwell.compare.records import Record
from mixwell.compare.spec import BASELINE, CellSpec, chosen_test_rows
from mixwell.data import texts_of
from mixwell.errors import MixwellError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_CLASSES = 12
MOST_MISTAKES = 8


@dataclass(frozen=True)
class Seed:
    """What one trained model says about the test rows.

    Attributes:
        logits: (N, C).
        labels: (N,) the true classes.
        temperature: of the model; None where there is none.
    """

    logits: NDArray[Any]
    labels: NDArray[Any]
    temperature: float | None

    def probabilities(self, warm: bool) -> NDArray[np.float64]:
        """(N, C), after the temperature if `warm`."""
        return calibration.softmax(self.logits / ((self.temperature if warm else None) or 1.0))


@dataclass(frozen=True)
class Reliability:
    """The bars of a reliability diagram over all seeds together, and the mean of the seeds' calibration errors."""

    bins: list[Bin]
    error: float


@dataclass(frozen=True)
class Classes:
    """How well each class is found.

    Attributes:
        names: of all classes.
        recall: (C,) share of each class's rows that are found, mean over seeds; NaN for a class without rows.
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
    """A test row that is taken for another class, with high confidence.

    Attributes:
        row: number of the test row, from 0.
        text: of it; None when the data are not at hand.
        truth: its class.
        guess: the class it is taken for.
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
class Method:
    """One method in one comparison; parts that a task does not have are None or empty."""

    name: str
    before: Reliability | None
    after: Reliability | None
    classes: Classes | None
    mistakes: list[Mistake]
    losses: dict[str, list[tuple[float, float, float, float]]]
    ratio: tuple[float, float, float] | None


def read_texts(spec: CellSpec) -> tuple[list[str] | None, str]:
    """The texts of the test rows of a cell, and if they cannot be had, why."""
    try:
        found = spec.source.load()
    except (MixwellError, OSError) as error:
        return None, f"the data cannot be read any more ({error})"
    if found.fingerprint != spec.fingerprint:
        return None, "the data changed since the records were made"
    table = found.test
    chosen = chosen_test_rows(table.num_rows, spec.max_test)
    if chosen is not None:
        table = table.take(chosen)
    return texts_of(table), ""


def tell(records: Sequence[Record], plain: Sequence[Record], texts: Sequence[str] | None) -> Method:
    """All about one method.

    Args:
        records: its finished cells of one comparison.
        plain: those of plain training, for the cost.
        texts: of the test rows, or None.
    """
    seeds = []
    for record in records:
        outputs = record.outputs()
        seeds.append(Seed(outputs["test_logits"], outputs["test_labels"], record.result["temperature"]))
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
    seeds: Sequence[Seed],
    texts: Sequence[str] | None,
    losses: dict[str, list[tuple[float, float, float, float]]],
    ratio: tuple[float, float, float] | None = None,
) -> Method:
    """All about one method, from what its trained models say about the test rows.

    Args:
        name: of the method.
        task: of the data.
        labels: names of the classes.
        seeds: the outputs of each trained model.
        texts: of the test rows, or None.
        losses: of `curves`.
        ratio: cost of a step against plain training.
    """
    if task != calibration.SINGLE or not seeds:
        return Method(name, None, None, None, [], losses, ratio)
    before, after = (_reliability(seeds, warm) for warm in (False, True))
    found = _classes(seeds, list(labels))
    return Method(name, before, after, found, _mistakes(seeds, list(labels), texts), losses, ratio)


def _reliability(seeds: Sequence[Seed], warm: bool) -> Reliability:
    made, labels = [seed.probabilities(warm) for seed in seeds], [seed.labels for seed in seeds]
    errors = [calibration.ece(probs, truth) for probs, truth in zip(made, labels)]
    return Reliability(
        calibration.reliability_bins(np.concatenate(made), np.concatenate(labels)), float(np.mean(errors))
    )


def _classes(seeds: Sequence[Seed], names: list[str]) -> Classes:
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


def _mistakes(seeds: Sequence[Seed], names: list[str], texts: Sequence[str] | None) -> list[Mistake]:
    """The rows that the seeds together get wrong with the highest mean probability."""
    probs = np.mean([seed.probabilities(True) for seed in seeds], axis=0)
    truth = seeds[0].labels
    guess = probs.argmax(axis=1)
    sure = probs.max(axis=1)
    rows = np.flatnonzero(guess != truth)
    rows = rows[np.argsort(-sure[rows], kind="stable")][:MOST_MISTAKES]
    wrong = np.sum([seed.logits.argmax(axis=1) != truth for seed in seeds], axis=0)
    return [
        Mistake(
            row, None if texts is None else texts[row], names[truth[row]], names[guess[row]], float(sure[row]),
            int(wrong[row]), len(seeds),
        )
        for row in rows.tolist()
    ]  # fmt: skip


def curves(histories: Sequence[Sequence[dict[str, Any]]]) -> dict[str, list[tuple[float, float, float, float]]]:
    """Mean, least and most over seeds of each kind of loss, at the steps that all seeds reached.

    Args:
        histories: of `FitResult`, one a seed.

    Returns:
        For `train`, `validation` and `test`, as far as they are known: step, mean, least and most.
    """
    made: dict[str, list[tuple[float, float, float, float]]] = {}
    for kind in ("train", "validation", "test"):
        found = [[(row["step"], _loss(row, kind)) for row in history] for history in histories]
        points = []
        for at in range(min(map(len, found), default=0)):
            values = [curve[at][1] for curve in found]
            known = [each for each in values if each is not None and math.isfinite(each)]
            if len(known) == len(values):
                points.append((float(found[0][at][0]), float(np.mean(known)), min(known), max(known)))
        if points:
            made[kind] = points
    return made


def _loss(row: dict[str, Any], kind: str) -> float | None:
    part = row.get(kind) or {}
    found = row.get("train_loss") if kind == "train" else part.get("loss", part.get("nll", part.get("mse")))
    return None if found is None else float(found)


def _ratio(records: Sequence[Record], plain: Sequence[Record]) -> tuple[float, float, float] | None:
    """Seconds a step against plain training with the same seed: mean of the ratios and a 95 % interval."""
    from scipy import stats

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
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
