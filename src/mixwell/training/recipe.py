"""How long, how fast and from where to train, by the size of the data: the numbers of `mixwell train`, in one place.

Few-sample fine-tuning needs more updates, not fewer (Mosbach et al. 2021; Zhang et al. 2021), and a head that starts
from a linear probe does not first undo the features under it (Kumar et al. 2022). What each number was chosen by is in
docs/recipe.md, with the table of `benchmarks/recipe.py`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixwell.training.settings import TrainSettings

BATCH = 16
# Rows are seen this often; small data sets are seen more often, up to the least number of updates.
EPOCHS = 6
LEAST_UPDATES = 60
MOST_EPOCHS = 60
# With fewer training rows than this nothing can be held out that would tell anything. What choices and a temperature
# would have done is left to methods whose probabilities are honest without a validation row: pairs of texts and a
# logistic regression, or mixing where there are no single classes.
FEW_ROWS = 100
FEW_ROWS_METHODS = ("contrastive", "manifold")
CONTRASTIVE_UPDATES = 80
# Few rows also want smaller steps.
FEW_ROWS_RATE = 0.5
# A new head has to find its scale; at the encoder's learning rate it is still growing when training ends.
HEAD_RATE = 10.0
# Below so many training rows, folds choose the epoch and the temperature; from there on a part is held out for that.
FOLDS_BELOW = 1000
FOLDS = 4
# Below so many training rows the word embeddings stay as they are: most words are never seen in training.
FROZEN_WORDS_BELOW = 5000
# Small models need larger steps. (most parameters in millions, learning rate)
LEARNING_RATES = ((40, 2e-4), (60, 1e-4), (90, 5e-5), (200, 2e-5), (500, 1e-5))
LARGE_LEARNING_RATE = 5e-6


@dataclass(frozen=True)
class Recipe:
    """What decides a training, in numbers.

    Attributes:
        batch_size: rows per step.
        epochs: how often each row is seen, at the most.
        learning_rate: the highest.
        head_rate: how many times that a new head has.
        start: where the head starts: `probe` or `random`.
        freeze_words: whether the word embeddings stay as they are.
    """

    batch_size: int
    epochs: int
    learning_rate: float
    head_rate: float
    start: str
    freeze_words: bool


def learning_rate(parameters: int) -> float:
    """The learning rate for a model of this size: 2e-4 for 22 million parameters, 2e-5 for 110 million."""
    for most, rate in LEARNING_RATES:
        if parameters <= most * 1e6:
            return rate
    return LARGE_LEARNING_RATE


def recipe(
    rows: int,
    parameters: int,
    *,
    pooled: bool,
    new_head: bool = True,
    pairs: bool = False,
    processes: int = 1,
    least_rows: int | None = None,
) -> Recipe:
    """The recipe for a data set and a model.

    Args:
        rows: of train.
        parameters: of the model.
        pooled: whether the head is a linear layer on pooled features, so that it can start from a probe.
        new_head: whether there is a head to start at all; a trained one is kept.
        pairs: whether texts come in pairs, which the encoder reads as one text but a probe one by one.
        processes: that share each step.
        least_rows: of a training with folds held out; None for `rows`.
    """
    batch = max(2, min(BATCH, least_rows or rows))
    per_epoch = math.ceil((least_rows or rows) / (batch * processes))
    epochs = min(MOST_EPOCHS, max(EPOCHS, math.ceil(LEAST_UPDATES / per_epoch)))
    return Recipe(
        batch_size=batch,
        epochs=epochs,
        learning_rate=learning_rate(parameters) * (FEW_ROWS_RATE if rows < FEW_ROWS else 1),
        head_rate=HEAD_RATE if pooled and new_head else 1.0,
        start="probe" if pooled and new_head and not pairs else "random",
        freeze_words=rows < FROZEN_WORDS_BELOW,
    )


def fill_in(settings: TrainSettings, chosen: Recipe) -> TrainSettings:
    """The settings with the recipe's numbers wherever the user gave none."""
    values = dataclasses.asdict(chosen)
    return dataclasses.replace(
        settings, **{name: value for name, value in values.items() if getattr(settings, name) is None}
    )
