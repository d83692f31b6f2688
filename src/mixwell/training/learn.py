"""Learning: the probe, fine-tuning, and which of the two to keep."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from mixwell.metrics.measure import measure
from mixwell.metrics.tasks import REGRESSION
from mixwell.training import advice, probe
from mixwell.training.baseline import Probing
from mixwell.training.finetune import train_final, train_folds, train_once
from mixwell.training.fitting import FitResult
from mixwell.training.held_out import HeldOut, fine_tuning_is_better, probe_is_better
from mixwell.training.prepare import Ready, uses_plain_loss
from mixwell.training.run_folder import RunFolder
from mixwell.training.search import search
from mixwell.training.settings import FROZEN
from mixwell.utils.console import Reporter


@dataclass
class Outcome:
    """What learning gave; the model has its final weights, before any temperature.

    Attributes:
        method: what the model was trained by: the method, or `probe`.
        fitted: the last training, with the history that the page shows.
        held: the held-out rows of the candidate that was kept; None where nothing was held out.
        temperature: chosen on them; None for regression.
        note: about the temperature.
        baselines: guessing and the probe on the same rows, and the fine-tuned model where the probe was kept.
        sentences: what happened, for the user.
        warnings: what the user should look at.
        searched: what was tried, where there was a budget for that.
    """

    method: str
    fitted: FitResult
    held: HeldOut | None
    temperature: float | None
    note: str | None
    baselines: dict[str, Any]
    sentences: list[str]
    warnings: list[str]
    searched: dict[str, Any] | None = None


def learn(ready: Ready, folder: RunFolder, reporter: Reporter) -> Outcome:
    """Fit the probe, fine-tune, and keep the better one; the model is left with its final weights."""
    settings = ready.settings
    base = Probing(ready)
    held_probe = base.held_out()
    shown = held_probe or base.out_of_fold()
    baselines = _baselines(ready, base, shown)
    sentences = [advice.opening(baselines, shown)]
    reporter.say(sentences[0])
    frozen = settings.method in FROZEN
    free = ready.auto and base.model is not None and uses_plain_loss(settings)
    held: HeldOut | None
    searched: dict[str, Any] | None = None
    if settings.budget is not None and not frozen:
        found = search(ready, base, folder.folds, reporter)
        fitted, held, searched = found.fitted, found.held, found.summary
        sentences += found.sentences
        settings = ready.settings = found.settings
    else:
        fitted, held = _train(ready, base, shown, folder, reporter)
    method = settings.method if frozen else settings.mixing
    warnings: list[str] = []
    if held is not None and held_probe is not None and settings.method != "probe":
        better = _probe_is_kept(settings.method, held, held_probe)
        take_probe = free and better
        sentences.append(advice.closing(held, held_probe, taken=take_probe))
        reporter.say(sentences[-1])
        if take_probe:
            baselines["fine_tuned"] = _measured(held)
            held, method, frozen = held_probe, "probe", True
            settings = dataclasses.replace(settings, method="probe")
        elif better:
            warnings.append(advice.NOT_ABOVE_PROBE)
        warnings += advice.about_training(fitted, settings)
    if settings.method == "contrastive":
        base.deploy_tuned(reporter)
    elif frozen:
        base.deploy()
    elif ready.folds is not None:
        fitted = train_final(ready, base, fitted, folder, reporter)
    temperature, note = (None if ready.task == REGRESSION else 1.0, None)
    if held is not None:
        temperature, note = held.temperature()
        warnings += advice.about_classes(held, ready.data.labels)
    elif temperature is not None:
        note = "no temperature: no rows were held out to fit one on"
    for warning in [*warnings, *([note] if note else [])]:
        reporter.note(warning)
    return Outcome(method, fitted, held, temperature, note, baselines, sentences, warnings, searched)


def _train(
    ready: Ready, base: Probing, shown: HeldOut, folder: RunFolder, reporter: Reporter
) -> tuple[FitResult, HeldOut | None]:
    """Train in the one way that the settings name, as far as held-out rows need it."""
    if ready.settings.method == "contrastive":
        return _no_training(ready), base.contrastive_held_out(reporter)
    if ready.settings.method in FROZEN:
        return _no_training(ready), shown
    if ready.folds is not None:
        return train_folds(ready, base, folder, reporter)
    return train_once(ready, base, folder, reporter)


def _probe_is_kept(method: str | None, held: HeldOut, probe: HeldOut) -> bool:
    """A few dozen rows cannot show that `contrastive` is better, which it mostly is; fine-tuning has to show it."""
    if method == "contrastive":
        return probe_is_better(held, probe)
    return not fine_tuning_is_better(held, probe)


def _no_training(ready: Ready) -> FitResult:
    """What stands in for a training where only a probe is fitted."""
    return FitResult([], 0, 0, 0, False, 0.0, None, ready.mixer)


def _baselines(ready: Ready, base: Probing, held: HeldOut) -> dict[str, Any]:
    guess = probe.guess_rate(ready.labels("train"), ready.task)
    made: dict[str, Any] = {} if guess is None else {"guessing": {"accuracy": guess}}
    made["probe"] = {**_measured(held), "rows": len(held.logits), "measured_on": held.split}
    if "test" in ready.rows:  # beside the model's numbers on the same rows
        outputs = base.whole.outputs(base.features["test"])
        made["probe"]["test"] = measure(outputs, ready.labels("test"), ready.task)
    return made


def _measured(held: HeldOut) -> dict[str, Any]:
    """Metrics of held-out rows, and the loss after a temperature that other parts chose."""
    metrics: dict[str, Any] = measure(held.logits, held.labels, held.task)
    if held.task != REGRESSION:
        metrics["nll_after_temperature"] = float(held.scaled_losses().mean())
    return metrics
