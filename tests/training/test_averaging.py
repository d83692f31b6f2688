"""The running mean of the weights: against a slow mean, in training, and through a checkpoint."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_training import calm, data_file, load, settings, tiny, tokens  # noqa: F401

from mixwell.training.averaging import WeightAverage


def walk(average: WeightAverage, steps: int, first: int = 1) -> list[np.ndarray]:
    """Let the weights jump about; returns them after each update."""
    average.begin()
    seen = []
    for step in range(first, first + steps):
        torch.manual_seed(step)
        with torch.no_grad():
            average.model.weight.normal_()
        seen.append(average.model.weight.detach().double().numpy().copy())
        average.after(step)
    return seen


@given(st.integers(1, 6), st.integers(1, 12))
def test_the_mean_of_all_at_first_and_of_about_so_many_later(updates: int, steps: int) -> None:
    average = WeightAverage(torch.nn.Linear(3, 2, bias=False), updates)
    seen = walk(average, steps)
    # The plain mean of the first `updates`; then each moves it by one part of so many.
    wanted = np.mean(seen[:updates], axis=0)
    for weight in seen[updates:]:
        wanted = wanted * (updates - 1) / updates + weight / updates
    assert np.allclose(average.mean["weight"].numpy(), wanted, atol=1e-6)
    with average.in_model():
        assert np.allclose(average.model.weight.detach().numpy(), wanted, atol=1e-6)
    assert np.array_equal(average.model.weight.detach().double().numpy(), seen[-1])


def test_frozen_weights_are_left_alone() -> None:
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    average = WeightAverage(model, 4)
    walk(average, 3)
    assert set(average.mean) == {"weight"}


def test_a_checkpoint_has_the_mean(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5").mkdir()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2, bias=False)
    whole = WeightAverage(model, 3)
    walk(whole, 9)
    half = WeightAverage(model, 3, tmp_path)
    walk(half, 5)
    half.on_save(None, SimpleNamespace(global_step=5, is_world_process_zero=True), None)
    rest = WeightAverage(model, 3, tmp_path, tmp_path / "checkpoint-5")
    walk(rest, 4, first=6)
    assert torch.equal(rest.mean["weight"], whole.mean["weight"])


def trained(tiny: Path, tokens: Any, **options: Any) -> tuple[Any, Any, list[Any]]:
    """A model trained in memory, its tokenizer, and the validation logits of each epoch."""
    from mixwell.training import fit

    loaded, outputs = load(tiny), list[Any]()
    keep_last = options.pop("keep_last", True)
    chosen = settings(tiny, Path("none"), Path("none"), method="none", epochs=3, **options)
    fit(
        loaded.model, loaded.tokenizer, tokens["train"], tokens["validation"], chosen, keep_last=keep_last,
        epoch_logits=outputs,
    )  # fmt: skip
    return loaded.model, loaded.tokenizer, outputs


@pytest.mark.parametrize("keep_last", [True, False])
def test_what_is_kept_is_what_was_evaluated(tiny: Path, tokens: Any, keep_last: bool) -> None:
    from mixwell.training.predict import logits

    model, tokenizer, outputs = trained(tiny, tokens, average=6, keep_last=keep_last, learning_rate=0.01)
    found = logits(model, tokenizer, tokens["validation"])
    assert any(np.allclose(found, each, atol=1e-5) for each in (outputs[-1:] if keep_last else outputs))
    other = trained(tiny, tokens, average=0, keep_last=True, learning_rate=0.01)[2]
    assert not np.allclose(outputs[-1], other[-1], atol=1e-3)


def test_a_mean_over_one_update_is_the_last_weights(tiny: Path, tokens: Any) -> None:
    one, last = (trained(tiny, tokens, average=updates)[0].state_dict() for updates in (1, 0))
    assert all(torch.equal(one[name], last[name]) for name in last)


@pytest.mark.parametrize("method", ["remix", "nonlinear"])
def test_a_run_of_a_method_that_learns(tiny: Path, data_file: Path, tmp_path: Path, method: str) -> None:
    """Its checkpoints hold the model, the mean and what the method learned, and each goes where it belongs."""
    from mixwell.api import train

    options = {} if method == "remix" else {"label_policy": "learned"}
    chosen = settings(tiny, data_file, tmp_path / "run", method=method, method_options=options, epochs=2, average=3)
    assert train(chosen, quiet=True).metrics["best_epoch"] in (1, 2)


def test_a_tied_weight_gets_the_mean(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from mixwell.training.checkpoints import AVERAGE, load_weights

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(2, 2, bias=False)
            self.second = torch.nn.Linear(2, 2, bias=False)
            self.second.weight = self.first.weight

    model = Tied()
    save_file({"second.weight": torch.zeros(2, 2)}, str(tmp_path / "model.safetensors"))
    save_file({"first.weight": torch.ones(2, 2)}, str(tmp_path / AVERAGE))
    load_weights(model, tmp_path)
    assert torch.equal(model.second.weight, torch.ones(2, 2))
