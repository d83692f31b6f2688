"""Fine-tuning by pairs for a handful of rows per class: texts of one class are pulled together, others pushed apart.

N rows have N (N - 1) / 2 pairs, so few rows give many comparisons, and no head has to be learned meanwhile; a logistic
regression on the tuned features is fitted at the end. Idea, loss and the drawing of pairs are those of SetFit (Tunstall
et al. 2022); how strongly the regression is penalised is chosen on rows that the encoder was not tuned on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mixwell.training.optimiser import frozen_words
from mixwell.training.recipe import CONTRASTIVE_UPDATES

# Inverse strength of the penalty of the logistic regression where no rows are held out to choose it.
STRENGTH = 10.0


def draw_pairs(labels: Any, pairs: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Draw pairs of rows: every other one of the same class, as far as there are two classes.

    Args:
        labels: (N,).
        pairs: P, how many.
        rng: draws.

    Returns:
        (P,) first rows, (P,) second rows, (P,) whether they are of one class.
    """
    first = rng.integers(len(labels), size=pairs)
    one_class = np.arange(pairs) % 2 == 0
    if len(np.unique(labels)) == 1:
        one_class[:] = True
    second = [
        rng.choice(np.flatnonzero((labels == labels[row]) == same)) for row, same in zip(first, one_class, strict=True)
    ]
    return first, np.asarray(second), one_class


def cosine_loss(first: Any, second: Any, one_class: Any) -> Any:
    """Mean of (cosine - 1)^2 over pairs (P, H) of one class and of cosine^2 over the others; `one_class` is (P,)."""
    import torch

    return (torch.cosine_similarity(first, second) - one_class.to(first.dtype)).square().mean()


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
        batch_size: rows per update: two for each pair.
        seed: of pairs and dropout.
        updates: how many.
        freeze_words: whether the word embeddings stay as they are.
        progress: is told the number of updates done, and the loss.
    """
    import torch
    from transformers import DataCollatorWithPadding, get_linear_schedule_with_warmup, set_seed

    labels = np.asarray(labels)
    columns = rows.remove_columns("labels")[:]
    encoded = [dict(zip(columns, row)) for row in zip(*columns.values())]
    collate, device = DataCollatorWithPadding(tokenizer), next(model.parameters()).device
    set_seed(seed)
    rng = np.random.default_rng([seed, 20_261_117])
    with frozen_words(model, freeze_words):
        tuned = [p for name, p in model.named_parameters() if p.requires_grad and name.startswith("encoder.")]
        optimiser = torch.optim.AdamW(tuned, lr=learning_rate, weight_decay=0.01)
        schedule = get_linear_schedule_with_warmup(optimiser, updates // 10, updates)
        model.train()
        for update in range(updates):
            first, second, one_class = draw_pairs(labels, max(1, batch_size // 2), rng)
            batch = collate([encoded[row] for row in (*first, *second)]).to(device)
            features = model.features(**batch)[0]
            left, right = features.chunk(2)
            loss = cosine_loss(left, right, torch.as_tensor(one_class, device=device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(tuned, 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
            if progress is not None:
                progress(update + 1, float(loss.detach()))
    model.eval()
