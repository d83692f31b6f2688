"""`--budget`: which way to train is best for these rows?

Several are tried on the folds, and plain training stands unless another is better beyond chance. The measure is the
held-out loss after a temperature, row by row against plain training: accuracy on a few hundred rows is too coarse to
choose by, and a loss before a temperature rewards whoever is least sure.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from mixwell.methods.attach import attach
from mixwell.metrics.tasks import REGRESSION
from mixwell.training.budget import PLAIN, WAYS, BudgetPlan, Way, plan
from mixwell.training.finetune import FoldTraining, Starts
from mixwell.training.fitting import FitResult, method_options
from mixwell.training.held_out import HeldOut, standard_error
from mixwell.training.prepare import Ready
from mixwell.training.settings import TrainSettings
from mixwell.utils.console import Reporter
from mixwell.utils.errors import MixwellError

# The chance of leaving plain training though nothing is better, over all candidates.
RISK = 0.05
# A candidate whose loss is higher than the lowest by so many standard errors is given up after two folds.
BEHIND = 1.0


@dataclass
class Trial:
    """A candidate on its way through the folds.

    Attributes:
        way: how it trains.
        training: its folds.
        given_up: why it trains no more; None while it does.
    """

    way: Way
    training: FoldTraining
    given_up: str | None = None

    def held(self, folds: list[int] | None = None) -> HeldOut:
        """What it says about the held-out rows of the folds so far, or of some of them."""
        return self.training.chosen(folds)[1]


@dataclass(frozen=True)
class Searched:
    """What a search found.

    Attributes:
        settings: of the run, with the way to train that was chosen.
        fitted: its folds, with the epoch that they chose.
        held: what it says about held-out rows.
        summary: for metrics.json and the page: `budget`, `most` and `spent` (in plain trainings), `chosen`, and
            `candidates` with what is known of each.
        sentences: the summary in words.
    """

    settings: TrainSettings
    fitted: FitResult
    held: HeldOut
    summary: dict[str, Any]
    sentences: list[str]


def search(ready: Ready, base: Starts, place: Path | None, reporter: Reporter) -> Searched:
    """Try the candidates on the folds; keep plain training unless another one is better beyond chance.

    Args:
        ready: data, model and settings, with `budget` and folds.
        base: gives the model its first weights.
        place: the folder for what was tried, to go on from there; None to write nothing.
        reporter: is told of the progress.
    """
    budget = ready.settings.budget
    assert budget is not None and ready.folds is not None
    trials = candidates(ready, base, place)
    count = int(ready.folds.max()) + 1
    planned = plan(budget, count, len(trials))
    trials = trials[: planned.tried]
    names = ", ".join(each.way.name for each in trials)
    sentences = [
        f"{len(trials)} ways to train: {names}; {count} folds and a final training cost at most {planned.most:.1f} "
        f"plain trainings (budget {budget:g})"
    ]
    reporter.say(sentences[0])
    for fold in range(count):
        going = [each for each in trials if each.given_up is None]
        for trial in going:
            if len(going) > 1 or fold == 0:
                reporter.say(f"fold {fold + 1} of {count}: {trial.way.name}")
            else:
                reporter.say(f"fold {fold + 1} of {count}: only {trial.way.name} is left")
            trial.training.train(fold, reporter)
        if fold + 1 < count:
            give_up(going, planned.kept, behind=fold > 0)
    chosen, why = choose(trials)
    sentences.append(why)
    fitted, held = chosen.training.chosen()
    summary = _summary(trials, chosen, planned, budget, fitted, ready.settings)
    sentences += [f"{each.way.name} was given up: {each.given_up}" for each in trials if each.given_up]
    for sentence in sentences[1:]:
        reporter.say(sentence)
    return Searched(chosen.training.ready.settings, fitted, held, summary, sentences)


def candidates(ready: Ready, base: Starts, place: Path | None) -> list[Trial]:
    """The ways to train that the model and the task allow, each with the run's settings changed to it; see `search`."""
    made = []
    for each in WAYS:
        if each.label_smoothing and ready.task == REGRESSION:
            continue
        one = dataclasses.replace(ready, settings=each.settings(ready.settings))
        model = ready.loaded.model
        try:
            options = method_options(one.settings, ready.rows["train"], ready.task, model.config.num_labels)
            attach(model, each.method, **options).detach()
        except MixwellError:
            if each is PLAIN:
                raise
            continue
        folder = None if place is None else place / each.name.replace(" ", "-")
        made.append(Trial(each, FoldTraining(one, base, folder)))
    return made


def gain_over(trial: HeldOut, plain: HeldOut) -> tuple[float, float]:
    """By how much the loss is lower than that of plain training on the same rows, and its standard error."""
    gain = plain.scaled_losses() - trial.scaled_losses()
    return float(gain.mean()), standard_error(gain)


def needed(alternatives: int) -> float:
    """How many standard errors a gain needs to be beyond chance, if the best of so many alternatives is looked at."""
    return NormalDist().inv_cdf(1 - RISK / max(1, alternatives))


def give_up(going: list[Trial], most: int, *, behind: bool) -> None:
    """Give up candidates: all but the `most` best, and, if asked for, those clearly behind the best.

    Plain training goes on, unless one candidate alone can go on and that one is better beyond chance.
    """
    held = {each.way.name: each.held() for each in going}
    ranked = sorted(going, key=lambda each: float(held[each.way.name].scaled_losses().mean()))
    best = ranked[0]
    if behind:
        for trial in ranked[1:]:
            mean, error = gain_over(held[best.way.name], held[trial.way.name])
            if trial.way is not PLAIN and mean > BEHIND * error:
                trial.given_up = f"its loss was {mean:.3f} (standard error {error:.3f}) above that of the best"
    left = [each for each in ranked if each.given_up is None]
    if len(left) <= most:
        return
    first = [each for each in left if each.way is PLAIN]
    if most == 1:
        mean, error = gain_over(held[best.way.name], held[PLAIN.name])
        first = [best] if mean > needed(len(going) - 1) * error else first
    stay = (first + [each for each in left if each not in first])[:most]
    for trial in left:
        if trial not in stay:
            trial.given_up = "the budget has no room for it"


def choose(trials: list[Trial]) -> tuple[Trial, str]:
    """The candidate to keep, and why."""
    left = [each for each in trials if each.given_up is None]
    plain = next((each for each in left if each.way is PLAIN), None)
    if plain is None:
        return left[0], f"{left[0].way.name} is kept: after the first fold it was better than plain beyond chance"
    others = [each for each in left if each is not plain]
    if not others:
        return plain, "plain training is kept: nothing else was left after the first folds"
    found = {each.way.name: gain_over(each.held(), plain.held()) for each in others}
    best = max(others, key=lambda each: found[each.way.name][0])
    mean, error = found[best.way.name]
    if mean > needed(len(trials) - 1) * error:
        return best, (
            f"{best.way.name} is kept: its loss against plain training is {-mean:+.3f} (standard error "
            f"{error:.3f}), beyond chance"
        )
    return plain, (
        f"plain training is kept: the loss of {best.way.name} against it is {-mean:+.3f} (standard error "
        f"{error:.3f}), not beyond chance"
    )


def _summary(
    trials: list[Trial], chosen: Trial, planned: BudgetPlan, budget: float, fitted: FitResult, settings: TrainSettings
) -> dict[str, Any]:
    """What metrics.json keeps of the search."""
    rows = []
    plain = next(each for each in trials if each.way is PLAIN)
    for trial in trials:
        found, held = trial.training.chosen()
        row: dict[str, Any] = {
            "name": trial.way.name, "method": trial.way.method, "options": trial.way.options,
            "label_smoothing": trial.way.label_smoothing, "folds": len(trial.training.done),
            "epoch": found.best_epoch, "accuracy": held.accuracy, "loss": float(held.scaled_losses().mean()),
            "cost": round(trial.training.cost, 2), "given_up": trial.given_up,
        }  # fmt: skip
        if trial is not plain:
            both = [fold for fold in trial.training.done if fold in plain.training.done]
            row["gain"], row["gain_error"] = gain_over(trial.held(both), plain.held(both))
        rows.append(row)
    final = fitted.best_epoch / (settings.epochs or 1)
    return {
        "budget": budget, "most": round(planned.most, 2), "chosen": chosen.way.name,
        "spent": round(sum(each.training.cost for each in trials) + final, 2), "candidates": rows,
    }  # fmt: skip
