"""The config of a pooled text classifier: an encoder's own config, and how its tokens become one vector."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

POOLINGS = ("mean", "cls", "last")


class PooledConfig(PreTrainedConfig):
    """Config of `PooledForSequenceClassification`.

    Attributes:
        text_config: the config of the encoder.
        pooling: `mean` over the tokens that are no padding, `cls` for the first of them, `last` for the last.
        normalize: scale the pooled vector to length 1, as sentence-transformers' Normalize does.
        classifier_dropout: of the pooled vector, in training.
        pair_separator: the id of the token between the two texts of a pair, for a model that encodes them one by one
            and classifies [a, b, |a - b|, a * b]; None for a model that reads a pair as one text.
    """

    model_type = "mixwell_pooled"
    sub_configs = {"text_config": AutoConfig}  # noqa: RUF012 - as transformers has it

    def __init__(
        self,
        text_config: Any = None,
        pooling: str = "mean",
        normalize: bool = False,
        classifier_dropout: float = 0.1,
        pair_separator: int | None = None,
        **kwargs: Any,
    ) -> None:
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
        if text_config is None:
            text_config = AutoConfig.for_model("bert")
        elif isinstance(text_config, dict):
            rest = {name: value for name, value in text_config.items() if name != "model_type"}
            text_config = AutoConfig.for_model(text_config["model_type"], **rest)
        self.text_config = text_config
        self.pooling = pooling
        self.normalize = normalize
        self.classifier_dropout = classifier_dropout
        self.pair_separator = pair_separator
        kwargs.setdefault("pad_token_id", getattr(text_config, "pad_token_id", None))
        super().__init__(**kwargs)
