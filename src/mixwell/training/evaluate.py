"""The numbers of a trained model: its temperature, its metrics, and which rows speak for it."""

from __future__ import annotations

from typing import Any

from mixwell.metrics.measure import measure
from mixwell.metrics.scores import classwise
from mixwell.metrics.tasks import REGRESSION
from mixwell.metrics.temperature import MAX_TEMPERATURE, MIN_TEMPERATURE, fit_temperature
from mixwell.utils.titles import method_title

# Methods of `train` that are no way of mixing, as people call them.
TITLES = {
    "none": "plain fine-tuning",
    "probe": "logistic regression on frozen features",
    "contrastive": "logistic regression on features tuned by pairs",
}

# The splits a run may be measured on, the most honest first, and what people call their rows.
MEASURED = {"test": "test rows", "out_of_fold": "rows, each held out once", "validation": "validation rows"}


def title_of(method: str) -> str:
    """What to call a method in texts for people."""
    return TITLES.get(method) or method_title(method)


def temperature_of(found: Any, labels: Any, task: str) -> tuple[float | None, str | None]:
    """Fit the temperature on validation logits; return it and, where it is not to be trusted, a note.

    When every validation row is right by a margin, the likelihood rises without end as the temperature falls. That
    says the set is too small, not that the model is always right, so the temperature stays at 1.
    """
    if task == REGRESSION:
        return None, None
    fitted = fit_temperature(found, labels, task)
    if fitted <= MIN_TEMPERATURE:
        return 1.0, (
            "the best temperature is the lowest allowed (all validation rows are predicted right, or the logits hardly "
            "differ), so it stays at 1: more validation rows or longer training are needed to fit one"
        )
    if fitted >= MAX_TEMPERATURE:
        return fitted, "the model has learned next to nothing: the best temperature is the highest allowed"
    return fitted, None


def evaluate(found: Any, labels: Any, task: str, temperature: float | None, names: tuple[str, ...]) -> dict[str, Any]:
    """The metrics of one split: before and after the temperature, and for each class.

    Args:
        found: (N, C) logits.
        labels: the labels.
        task: of the data.
        temperature: from validation; None for regression.
        names: of the classes.
    """
    result: dict[str, Any] = {"rows": len(found), "before": measure(found, labels, task)}
    if temperature is not None:
        result["after"] = measure(found, labels, task, temperature)
    if task != REGRESSION:
        per_class = classwise(found, labels, task)
        support, ratios = per_class.pop("support"), per_class
        result["per_class"] = {
            name: {**{ratio: float(values[number]) for ratio, values in ratios.items()}, "rows": int(support[number])}
            for number, name in enumerate(names)
        }
    return result


def headline(metrics: dict[str, Any]) -> str | None:
    """The split whose numbers speak for a run; None where nothing was held out."""
    return next((name for name in MEASURED if name in metrics), None)
