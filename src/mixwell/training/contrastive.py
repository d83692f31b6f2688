"""Fine-tuning by pairs for a handful of rows per class: texts of one class are pulled together, others pushed apart.

A batch of B rows has B (B - 1) / 2 pairs, so few rows give many comparisons, and no head has to be learned meanwhile;
a logistic regression on the tuned features is fitted at the end. The idea and the cosine loss are those of SetFit
(Tunstall et al. 2022), which draws single pairs; taking all pairs of a batch makes more of each text that is encoded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mixwell.training.optimiser import frozen_words
from mixwell.training.pair_loss import pair_loss
from mixwell.training.recipe import CONTRASTIVE_UPDATES

# Inverse strength of the penalty of the logistic regression on tuned features of length 1. Cross-validation cannot
# choose it: the encoder has seen all rows.
STRENGTH = 10.0


def draw_batch(places: list[Any], size: int, rng: np.random.Generator) -> list[int]:
    """Rows of several classes, at least two of each where there are two.

    Args:
        places: for each class the numbers of its rows.
        size: of the batch.
        rng: draws.
    """
    each = max(2, size // len(places))
    classes = rng.permutation(len(places))[: max(2, size // each)]
    return [int(row) for at in classes for row in rng.permutation(places[at])[:each]]


def tune(
    model: Any,
    tokenizer: Any,
    rows: Any,
    labels: Any,
    *,
    learning_rate: float,
    batch_size: int,
    seed: int,
    updates: int = CONTRASTIVE_UPDATES,
    freeze_words: bool = True,
    progress: Any = None,
) -> None:
    """Tune the encoder of a pooled classifier in place; its head is not touched.

    Args:
        model: a `PooledForSequenceClassification`.
        tokenizer: pads the batches.
        rows: tokenised rows.
        labels: (N,) their classes.
        learning_rate: the highest.
        batch_size: rows per update.
        seed: of batches and dropout.
        updates: how many.
        freeze_words: whether the word embeddings stay as they are.
        progress: is told the number of updates done, and the loss.
    """
    import torch
    from transformers import DataCollatorWithPadding, get_linear_schedule_with_warmup, set_seed

    labels = np.asarray(labels)
    places = [np.flatnonzero(labels == each) for each in np.unique(labels)]
    columns = rows.remove_columns("labels")[:] if hasattr(rows, "column_names") else None
    encoded = list(rows) if columns is None else [dict(zip(columns, each)) for each in zip(*columns.values())]
    collate, device = DataCollatorWithPadding(tokenizer), next(model.parameters()).device
    set_seed(seed)
    rng = np.random.default_rng([seed, 20_261_117])
    with frozen_words(model, freeze_words):
        tuned = [each for name, each in model.named_parameters() if each.requires_grad and name.startswith("encoder.")]
        optimiser = torch.optim.AdamW(tuned, lr=learning_rate, weight_decay=0.01)
        schedule = get_linear_schedule_with_warmup(optimiser, updates // 10, updates)
        model.train()
        for update in range(updates):
            chosen = draw_batch(places, batch_size, rng)
            batch = collate([encoded[row] for row in chosen]).to(device)
            loss = pair_loss(model.features(**batch)[0], torch.as_tensor(labels[chosen], device=device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(tuned, 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
            if progress is not None:
                progress(update + 1, float(loss.detach()))
    model.eval()
