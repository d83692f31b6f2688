"""The running mean of the weights, which is evaluated and kept instead of the last ones.

With steps that are large enough to get anywhere on a few hundred rows, the loss on other rows jumps from epoch to
epoch until the learning rate is nearly 0, and by then the model has overfitted. The mean over the last updates is where
the jumps go around (Polyak and Juditsky 1992; Izmailov et al. 2018): the epoch that folds choose is a good one, not
a lucky one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from mixwell.training.checkpoints import AVERAGE


class WeightAverage(TrainerCallback):
    """Keeps the running mean of the weights that are trained.

    After update n the mean moves by 1/n of the way to the weights, and by 1/`updates` from there on.

    Args:
        model: whose weights.
        updates: over about how many the mean is taken.
        checkpoints: where Trainer writes them; None for nowhere.
        start: the checkpoint that training continues from.
    """

    def __init__(self, model: Any, updates: int, checkpoints: Path | None = None, start: Path | None = None) -> None:
        self.model, self.updates, self.checkpoints, self.start = model, updates, checkpoints, start
        self.trained: dict[str, Any] = {}
        self.mean: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin."""
        self.begin()

    def begin(self) -> None:
        """Find what is trained, and the mean of a training that is continued."""
        from safetensors.torch import load_file

        self.trained = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        if self.start is not None:
            read = load_file(str(self.start / AVERAGE))
            self.mean = {name: read[name].to(each.device) for name, each in self.trained.items()}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the mean."""
        self.after(state.global_step)

    def after(self, update: int) -> None:
        """Move the mean towards the weights after an update, counted from 1."""
        if not self.mean:
            self.mean = {name: each.detach().float().clone().contiguous() for name, each in self.trained.items()}
        share = max(1 / self.updates, 1 / update)
        weights = [each.detach().float() for each in self.trained.values()]
        torch._foreach_lerp_(list(self.mean.values()), weights, share)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the mean into the checkpoint."""
        from safetensors.torch import save_file

        if self.checkpoints is not None and state.is_world_process_zero:
            save_file(self.mean, str(self.checkpoints / f"checkpoint-{state.global_step}" / AVERAGE))

    def into_model(self) -> None:
        """Give the model the mean for good."""
        with torch.no_grad():
            for name, mean in self.mean.items():
                self.trained[name].copy_(mean)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Give the model the mean inside, and its own weights back."""
        own = {name: each.detach().clone() for name, each in self.trained.items()}
        self.into_model()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weight in own.items():
                    self.trained[name].copy_(weight)

    def around(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        """An evaluation of the mean instead of the weights of the moment."""

        def evaluate_mean(*args: Any, **kwargs: Any) -> Any:
            with self.in_model():
                return evaluate(*args, **kwargs)

        return evaluate_mean
