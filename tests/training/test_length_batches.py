"""Batches of similar length: every row once, in batches that come in any order."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as some
from test_heads import pooled_folder

from mixwell.data import load, tokenise
from mixwell.training import TrainSettings, models
from mixwell.training.fitting import fit
from mixwell.training.length_batches import NEAR, LengthBatches


@given(some.lists(some.integers(1, 200), min_size=1, max_size=150), some.integers(1, 20), some.integers(0, 99))
def test_every_row_once(lengths: list[int], batch_size: int, seed: int) -> None:
    torch.manual_seed(seed)
    batches = LengthBatches(lengths, batch_size)
    order = list(batches)
    assert sorted(order) == list(range(len(lengths))) and len(batches) == len(lengths)
    torch.manual_seed(seed)
    assert list(batches) == order


def test_rows_of_a_batch_are_alike_and_batches_are_shuffled() -> None:
    """Within a batch lengths spread by about a quarter of what they do at random; over an epoch there is no trend."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 105, 640)
    spreads, trends, firsts = [], [], set()
    for seed in range(40):
        torch.manual_seed(seed)
        order = np.array(list(LengthBatches(lengths, 16)))
        means = lengths[order].reshape(-1, 16)
        spreads.append(np.ptp(means, axis=1).mean())
        trends.append(np.corrcoef(np.arange(40), means.mean(axis=1))[0, 1])
        firsts.add(int(order[0]))
    assert np.mean(spreads) < 100 * 1.6 / NEAR
    assert abs(np.mean(trends)) < 0.1
    assert len(firsts) > 30


def test_only_the_last_batch_is_short() -> None:
    torch.manual_seed(0)
    order = np.array(list(LengthBatches(np.arange(70), 16)))
    whole = [order[at : at + 16] for at in range(0, 64, 16)]
    assert all(np.ptp(batch) < 69 for batch in whole) and len(order[64:]) == 6


def test_training_goes_by_it(tmp_path: Path) -> None:
    """Batches of a training spread less in length than those of one without it; each row still comes once per epoch."""
    encoder = pooled_folder(tmp_path / "encoder", pooling_mode_mean_tokens=True)
    rng = np.random.default_rng(0)
    lines = [
        f"{'good bad '[5 * (at % 2) :][:4]} {'film ' * int(rng.integers(1, 24))}".strip() + f",{at % 2}"
        for at in range(96)
    ]
    source = tmp_path / "films.csv"
    source.write_text("text,label\n" + "\n".join(lines), encoding="utf-8")
    data = load(str(source), hold_out_from=1000)
    spreads = {}
    for grouped in (False, True):
        loaded = models.load(str(encoder), task=data.task, labels=data.labels, seed=0, pooling="auto")
        table = tokenise(data.train, loaded.tokenizer, max_length=32, cache_dir=str(tmp_path))
        seen: list[Any] = []
        handle = loaded.model.register_forward_pre_hook(
            lambda module, inputs, kwargs, seen=seen: seen.append(kwargs["attention_mask"].sum(1)), with_kwargs=True
        )
        settings = TrainSettings("-", method="none", epochs=2, batch_size=8, max_length=32, average=0)
        fit(loaded.model, loaded.tokenizer, table, None, dataclasses.replace(settings, group_by_length=grouped))
        handle.remove()
        batches = [mask for mask in seen if len(mask) == 8]
        assert len(batches) >= 2 * len(table) // 8
        spreads[grouped] = np.mean([float(mask.max() - mask.min()) for mask in batches])
    assert spreads[True] < 0.6 * spreads[False]
