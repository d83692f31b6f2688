"""From which probability on a model answers: chosen on held-out rows for a wanted share of right answers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from mixwell.metrics.scores import sigmoid, softmax
from mixwell.metrics.tasks import MULTI, REGRESSION
from mixwell.metrics.thresholds import Point, choose_point, confidences, crossed, frontier
from mixwell.training.evaluate import MEASURED
from mixwell.utils.errors import OptionError

if TYPE_CHECKING:
    from mixwell.training.held_out import HeldOut


def describe(held: HeldOut | None, temperature: float | None, wanted: float) -> dict[str, Any] | None:
    """What a model folder says of thresholds; None where nothing was held out.

    Args:
        held: the held-out rows of the model.
        temperature: of the model.
        wanted: the share of right answers that `threshold` is chosen for.

    Returns:
        `split` and `rows` that chose; `accuracy` if all are answered; `wanted`, and for it `threshold` (None where it
        is out of reach), `coverage`, `precision`, and `crossed`, the last two with thresholds that other rows chose;
        `points`, threshold, coverage and precision of others to choose from.
    """
    if held is None or held.task == REGRESSION:
        return None
    known = held.known()
    logits, labels = held.logits[known], held.labels[known]
    probabilities = (sigmoid if held.task == MULTI else softmax)(logits / (temperature or 1.0))
    if held.task == MULTI:
        right = ((logits > 0) == (labels > 0.5)).all(axis=1)
    else:
        right = logits.argmax(axis=1) == labels
    conf = confidences(probabilities, held.task)
    points = frontier(conf, right)
    point = choose_point(points, wanted)
    coverage, precision = crossed(conf, right, held.parts[known], wanted)
    return {
        "split": held.split,
        "rows": len(conf),
        "accuracy": float(np.mean(right)),
        "wanted": wanted,
        **(dataclasses.asdict(point) if point else {"threshold": None, "coverage": None, "precision": None}),
        "crossed": {"coverage": coverage, "precision": precision},
        "points": [[each.threshold, each.coverage, each.precision] for each in points],
    }


def threshold_for(about: dict[str, Any] | None, wanted: float) -> Point:
    """The threshold for a wanted share of right answers, from what `describe` says.

    Raises:
        OptionError: it is no share, nothing was held out, or it is out of reach.
    """
    if not 0 < wanted <= 1:
        raise OptionError(f"abstain must be above 0 and at most 1, a share of right answers such as 0.9, got {wanted}")
    if about is None:
        raise OptionError(
            "abstain: no rows were held out when this model was trained (or it predicts numbers), so no threshold can "
            "be chosen; train with folds or a validation split"
        )
    points = [Point(*each) for each in about["points"]]
    point = choose_point(points, wanted)
    if point is None:
        most = f"{points[-1].precision:.3f} at most" if points else "nothing: they are too few"
        raise OptionError(
            f"abstain: no threshold gives {wanted:g} right answers on the {about['rows']} held-out rows; it is {most}"
        )
    return point


def sentence(about: dict[str, Any], point: Point) -> str:
    """What a threshold did on the held-out rows."""
    return (
        f"from a probability of {point.threshold:.3f} on, {point.precision:.1%} of the answers are right and "
        f"{point.coverage:.1%} of the texts get one ({about['rows']} {MEASURED[about['split']]}; "
        f"{about['accuracy']:.1%} right if all do)"
    )
