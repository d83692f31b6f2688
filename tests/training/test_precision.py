"""Training in bfloat16: really in bfloat16, evaluated in float32, and the model is left as it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from test_heads import pooled_folder
from test_training import rows, write_csv

from mixwell.data import load, tokenise
from mixwell.training import TrainSettings, models
from mixwell.training.fitting import fit
from mixwell.training.predict import logits


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    """The same training in float32 and in bfloat16."""
    folder = tmp_path_factory.mktemp("precision")
    encoder = pooled_folder(folder / "encoder", pooling_mode_mean_tokens=True)
    data = load(str(write_csv(folder / "films.csv", rows(60))), hold_out_from=1000)
    made: dict[bool, dict[str, Any]] = {}
    for low in (False, True):
        loaded = models.load(str(encoder), task=data.task, labels=data.labels, seed=0, pooling="auto")
        table = tokenise(data.train, loaded.tokenizer, max_length=32, cache_dir=str(folder))
        dtypes: set[Any] = set()
        handle = loaded.model.classifier.register_forward_hook(
            lambda module, inputs, output, dtypes=dtypes: dtypes.add((module.training, output.dtype))
        )
        seen: list[Any] = []
        settings = TrainSettings(
            "-", method="manifold", epochs=2, batch_size=16, max_length=32, average=0, arguments={"bf16": low}
        )
        fit(
            loaded.model, loaded.tokenizer, table.select(range(40)), table.select(range(40, 60)), settings,
            keep_last=True, epoch_logits=seen,
        )  # fmt: skip
        first = {name: value.clone() for name, value in loaded.model.state_dict().items()}
        again: set[Any] = set()
        second = loaded.model.classifier.register_forward_hook(
            lambda module, inputs, output, again=again: again.add((module.training, output.dtype))
        )
        chosen: list[Any] = []
        fit(
            loaded.model, loaded.tokenizer, table.select(range(40)), table.select(range(40, 60)),
            dataclasses.replace(settings, epochs=1),
            before_choice=lambda model, chosen=chosen, rows=table, read=loaded: chosen.append(
                logits(model, read.tokenizer, rows.select(range(40, 60)), batch_size=64)
            ),
        )  # fmt: skip
        second.remove()
        then = logits(loaded.model, loaded.tokenizer, table.select(range(40, 60)), batch_size=64)
        loaded.model.load_state_dict(first)
        handle.remove()
        made[low] = {
            "again": again, "chosen": chosen[0], "then": then,
            "dtypes": dtypes, "seen": seen, "model": loaded.model,
            "now": logits(loaded.model, loaded.tokenizer, table.select(range(40, 60)), batch_size=64),
        }  # fmt: skip
    return made


def test_low_precision_is_for_training_only(trained: dict[bool, dict[str, Any]]) -> None:
    assert trained[False]["dtypes"] == {(True, torch.float32), (False, torch.float32)}
    assert trained[True]["dtypes"] == {(True, torch.bfloat16), (False, torch.float32)}
    for one in trained.values():  # a model that is trained again, as folds do
        assert one["again"] == one["dtypes"]
    apart = np.abs(trained[True]["seen"][-1] - trained[False]["seen"][-1]).max()
    assert 0 < apart < 0.1


def test_what_was_evaluated_is_what_is_kept(trained: dict[bool, dict[str, Any]]) -> None:
    for one in trained.values():
        np.testing.assert_allclose(one["seen"][-1], one["now"], atol=1e-6)
        np.testing.assert_allclose(one["chosen"], one["then"], atol=1e-6)
        assert not {"forward", "_original_forward", "_is_accelerate_prepared"} & set(vars(one["model"]))
        assert all(weight.dtype == torch.float32 for weight in one["model"].parameters())
