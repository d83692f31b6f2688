"""Batches and adapters that leave a method nothing to work on."""

from __future__ import annotations

import pytest
import torch

import mixwell
import zoo
from mixwell.utils.errors import UnsupportedModelError


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(0, 5)])
def test_attentionmix_on_padding_only(kind: str, rows: slice) -> None:
    model, batch = zoo.tiny(kind).train(), zoo.batch(kind)
    batch["attention_mask"][rows] = 0
    with mixwell.attach(model, "attentionmix") as mixer:
        for _ in range(3):
            loss = model(**batch).loss
            loss.backward()
            assert torch.isfinite(loss)
            assert torch.isfinite(mixer.last.label_weight).all()
    assert all(torch.isfinite(gradient).all() for gradient in zoo.gradients(model).values())


@pytest.mark.parametrize("name", ["attentionmix", "ssmix"])
@pytest.mark.parametrize("config", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_prompt_tuning_is_refused_by_methods_that_read_tokens(name: str, config: str) -> None:
    import peft

    about = getattr(peft, config)(task_type="SEQ_CLS", num_virtual_tokens=3)
    model = peft.get_peft_model(zoo.tiny("bert"), about).train()
    with pytest.raises(UnsupportedModelError, match=r"prompt tuning.*use another method, or LoRA"):
        mixwell.attach(model, name)
    with mixwell.attach(model, "amplify"):
        model(**zoo.batch("bert")).loss.backward()
