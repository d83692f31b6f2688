"""How long, how fast and from where to train, by the size of the data: the numbers of `mixwell train`, in one place.

Few-sample fine-tuning needs more updates, not fewer (Mosbach et al. 2021; Zhang et al. 2021), and a head that starts
from a linear probe does not first undo the features under it (Kumar et al. 2022). What each number was chosen by is in
docs/explanation/recipe.md, with the table of `benchmarks/recipe.py`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixwell.training.settings import TrainSettings

BATCH = 16
# Updates to aim at, within a least and a most number of epochs; few rows are seen more often, up to a least number of
# updates.
UPDATES = 350
EPOCHS = (4, 10)
LEAST_UPDATES = 100
MOST_EPOCHS = 60
# With fewer training rows than this, pairs of texts teach more than single rows: they tune the encoder, and a logistic
# regression does the rest; where there are no single classes, mixing keeps a head from being too sure.
FEW_ROWS = 100
FEW_ROWS_METHODS = ("contrastive", "manifold")
# Pairs alone, without a head that learns beside them, want many gentle steps: rows per update (two per pair), updates,
# and this share of the learning rate.
CONTRASTIVE_BATCH = 8
CONTRASTIVE_UPDATES = 160
CONTRASTIVE_RATE = 0.3
# Weight of the pair loss beside the cross-entropy, and the fewest rows per class for it: with fewer, a batch has hardly
# a pair of one class, and all that is left is pushing texts apart.
PAIR_LOSS = 1.0
PAIR_LOSS_ROWS = 5
# The mean of the weights over about so many updates is kept instead of the last ones: two epochs of 300 rows.
AVERAGE = 40
# A new head has to find its scale; at the encoder's learning rate it is still growing when training ends.
HEAD_RATE = 10.0
# With fewer rows than this, nothing is held out: it would tell nothing.
LEAST_FOLDED = 10
# Below so many training rows, folds choose the epoch and the temperature; from there on a part is held out for that.
FOLDS_BELOW = 1000
FOLDS = 3
# The first fold ends after so many epochs without a lower held-out loss, and the others are as long.
FOLD_PATIENCE = 3
# Below so many training rows the word embeddings stay as they are: most words are never seen in training.
FROZEN_WORDS_BELOW = 5000
# Small models need larger steps. (most parameters in millions, learning rate)
LEARNING_RATES = ((40, 1e-4), (90, 5e-5), (200, 2e-5), (500, 1e-5))
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
        pair_loss: weight of a loss that pulls texts of one class together, beside the cross-entropy.
        average: over about how many updates the mean of the weights is kept; 0 for the last weights.
    """

    batch_size: int
    epochs: int
    learning_rate: float
    head_rate: float
    start: str
    freeze_words: bool
    pair_loss: float = 0.0
    average: int = 0


def learning_rate(parameters: int) -> float:
    """The learning rate for a model of this size: 1e-4 for 22 million parameters, 2e-5 for 110 million."""
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
    classes: int | None = None,
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
        classes: C, where each row has one; None otherwise, or where labels are mixed.
        processes: that share each step.
        least_rows: of a training with folds held out; None for `rows`.
    """
    batch = max(2, min(BATCH, least_rows or rows))
    per_epoch = math.ceil((least_rows or rows) / (batch * processes))
    fewest, usual = EPOCHS
    epochs = min(usual, max(fewest, math.ceil(UPDATES / per_epoch)))
    epochs = min(MOST_EPOCHS, max(epochs, math.ceil(LEAST_UPDATES / per_epoch)))
    pulled = pooled and new_head and not pairs and classes is not None and rows >= PAIR_LOSS_ROWS * classes
    return Recipe(
        batch_size=batch,
        epochs=epochs,
        learning_rate=learning_rate(parameters),
        head_rate=HEAD_RATE if pooled and new_head else 1.0,
        start="probe" if pooled and new_head and not pairs else "random",
        freeze_words=rows < FROZEN_WORDS_BELOW,
        pair_loss=PAIR_LOSS if pulled else 0.0,
    )


def fill_in(settings: TrainSettings, chosen: Recipe) -> TrainSettings:
    """The settings with the recipe's numbers wherever the user gave none; what the method does not use stays out."""
    values = {name: value for name, value in dataclasses.asdict(chosen).items() if settings.uses(name)}
    return dataclasses.replace(
        settings, **{name: value for name, value in values.items() if getattr(settings, name) is None}
    )
