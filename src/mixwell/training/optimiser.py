"""What is trained and how fast: frozen word embeddings, a higher learning rate for the head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def frozen_words(model: Any, freeze: bool | None) -> Iterator[None]:
    """Keep the word embeddings out of training inside, and give them back as they were."""
    words = model.get_input_embeddings() if freeze else None
    weight = getattr(words, "weight", None)
    if weight is None or not weight.requires_grad or tied(model, weight):
        yield
        return
    weight.requires_grad_(False)
    try:
        yield
    finally:
        weight.requires_grad_(True)


def head_optimiser(model: Any, arguments: Any, times: float) -> Any:
    """An optimiser of Trainer's kind in which the head has a higher learning rate; None where Trainer's own will do."""
    from transformers import Trainer

    body = f"{getattr(model, 'base_model_prefix', '')}."
    names = [name for name, each in model.named_parameters() if each.requires_grad]
    head = {name for name in names if not name.startswith(body)}
    if times == 1 or not head or len(head) == len(names) or arguments.deepspeed or arguments.fsdp:
        return None
    kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    # Trainer's own choice, which needs nothing of the instance: biases and norms do not decay.
    decays = set(Trainer.get_decay_parameter_names(None, model))
    groups = []
    for in_head in (False, True):
        for decay in (True, False):
            members = [
                each
                for name, each in model.named_parameters()
                if each.requires_grad and (name in head) == in_head and (name in decays) == decay
            ]
            if members:
                rate = arguments.learning_rate * (times if in_head else 1)
                decayed = arguments.weight_decay if decay else 0.0
                groups.append({"params": members, "lr": rate, "weight_decay": decayed})
    return kind(groups, **options)


def tied(model: Any, weight: Any) -> bool:
    """Whether a weight is shared by several modules, which might not want it frozen."""
    return sum(other is weight for _, other in model.named_parameters(remove_duplicate=False)) > 1
