"""`auto` as a method of a comparison: the way to train is chosen on folds of the training rows alone."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from mixwell.compare.references import frozen_features
from mixwell.training import recipe
from mixwell.training.folds import fold_of_rows
from mixwell.training.prepare import Ready
from mixwell.training.probe import fit_probe, put_into
from mixwell.training.search import search
from mixwell.utils.console import Reporter

if TYPE_CHECKING:
    from mixwell.data import TextData
    from mixwell.training.models import LoadedModel
    from mixwell.training.settings import TrainSettings


class _FirstWeights:
    """The first weights of a run, and the probe that its head may start from."""

    def __init__(self, ready: Ready, *, pairs: bool) -> None:
        self.ready = ready
        model = ready.loaded.model
        self.classes = model.config.num_labels
        self.y = ready.labels("train")
        self.first = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.features = None
        if ready.settings.start == "probe":
            size = ready.settings.eval_batch_size
            self.features = frozen_features(ready.loaded, ready.rows["train"], size, pairs=pairs)
            self.whole = fit_probe(self.features, self.y, ready.task, self.classes, ready.folds)

    def restore(self) -> None:
        """Give the model its first weights back."""
        self.ready.loaded.model.load_state_dict(self.first)
        self.ready.loaded.model.zero_grad(set_to_none=True)

    def start(self, rows: Any) -> None:
        """Give the model its first weights, and the head the probe of these rows if it is to start there."""
        self.restore()
        if self.features is not None:
            strength = self.whole.strength
            own = fit_probe(self.features[rows], self.y[rows], self.ready.task, self.classes, strength=strength)
            put_into(self.ready.loaded.model.classifier, own, self.whole.start_scale)


def choose_way(
    budget: float, settings: TrainSettings, data: TextData, loaded: LoadedModel, rows: dict[str, Any]
) -> tuple[TrainSettings, dict[str, Any]]:
    """The settings with the way to train that folds of the training rows favour, and the story of the search.

    Args:
        budget: the most that it may cost, in plain trainings.
        settings: of the comparison, for plain training.
        data: of the run.
        loaded: the model with its first weights, which it has again afterwards.
        rows: the tokenised splits; only `train` is looked at.
    """
    train = rows["train"]
    chosen = recipe.recipe(len(train), loaded.parameters, pooled=False)
    filled = dataclasses.replace(recipe.fill_in(settings, chosen), budget=budget)
    labels = np.asarray(train.with_format("numpy")["labels"])
    folds = fold_of_rows(labels, data.row_keys("train").folded, data.task, 0, recipe.FOLDS)
    ready = Ready(filled, data, loaded, {"train": train}, settings.max_length, folds, [])
    base = _FirstWeights(ready, pairs="text_pair" in data.train.column_names)
    found = search(ready, base, None, Reporter())
    base.restore()
    names = ("method", "method_options", "label_smoothing")
    return dataclasses.replace(settings, **{name: getattr(found.settings, name) for name in names}), found.summary
