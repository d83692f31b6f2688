"""A text classifier on any encoder: pool the tokens, drop out, one linear layer.

For encoders that were trained to give one vector per text, such as those of sentence-transformers. This file needs
torch and transformers only; it is copied beside the weights, so that `trust_remote_code=True` loads them anywhere.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForTextEncoding, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from .configuration_pooled import PooledConfig


def encoder_class(config: Any) -> tuple[Any, dict[str, Any]]:
    """The Auto class for an encoder's config, and what to tell it so that no unused pooler is made."""
    auto = AutoModelForTextEncoding if config.is_encoder_decoder else AutoModel
    known = auto._model_mapping.get(type(config), None)
    takes = () if known is None else inspect.signature(known.__init__).parameters
    return auto, {"add_pooling_layer": False} if "add_pooling_layer" in takes else {}


def pool(hidden: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """Make one vector per row (B, H) from tokens (B, T, H) and their mask (B, T); without a mask all tokens count."""
    if mask is None:
        mask = hidden.new_ones(hidden.shape[:2], dtype=torch.long)
    if pooling == "mean":
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
    places = torch.arange(mask.shape[1], device=mask.device) * mask
    # argmax gives the first of equal values: the first real token, wherever the padding is.
    at = mask.to(torch.long).argmax(1) if pooling == "cls" else places.argmax(1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), at]


def split_pairs(ids: Tensor, mask: Tensor, separator: int) -> tuple[Tensor, Tensor]:
    """Take rows `[CLS] a [SEP] b [SEP]`, padded on the right, apart into `[CLS] a [SEP]` and `[CLS] b [SEP]`.

    Args:
        ids: (B, T).
        mask: (B, T).
        separator: the id of [SEP]; two in a row (RoBERTa) count as one.

    Returns:
        Ids and mask (2B, T): all first texts, then all second ones.
    """
    width = ids.shape[1]
    place = torch.arange(width, device=ids.device).expand_as(ids)
    found = (ids == separator) & (mask > 0) & (place > 0)
    end = found.long().argmax(1, keepdim=True)
    after = (end + 1).clamp(max=width - 1)
    start = after + (ids.gather(1, after) == separator).long()
    source = start + place - 1
    second = torch.where(place == 0, ids[:, :1], ids.gather(1, source.clamp(0, width - 1)))
    kept = (place == 0) | (source < mask.sum(1, keepdim=True))
    masks = torch.cat([((place <= end) & (mask > 0)).to(mask.dtype), kept.to(mask.dtype)])
    return torch.cat([ids, second]), masks


class PooledForSequenceClassification(PreTrainedModel):
    """An encoder, a pooled vector, and a linear layer that makes the logits."""

    config_class = PooledConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: PooledConfig, encoder: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        if encoder is None:
            auto, options = encoder_class(config.text_config)
            encoder = auto.from_config(config.text_config, **options)
        self.num_labels = config.num_labels
        self.encoder = encoder
        self.dropout = nn.Dropout(config.classifier_dropout)
        parts = 1 if config.pair_separator is None else 4
        self.classifier = nn.Linear(parts * config.text_config.hidden_size, config.num_labels)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The word embedding of the encoder."""
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embedding of the encoder."""
        self.encoder.set_input_embeddings(value)

    def features(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        """The pooled vectors (B, H), or of pairs (B, 4H), and what the encoder returned."""
        separator, rows = self.config.pair_separator, 0
        if separator is not None:
            if input_ids is None:
                raise ValueError("a model that reads the texts of a pair one by one needs input_ids")
            rows = input_ids.shape[0]
            if attention_mask is None:
                attention_mask = torch.ones_like(input_ids)
            input_ids, attention_mask = split_pairs(input_ids, attention_mask, separator)
            kwargs.pop("token_type_ids", None)
        outputs = self.encoder(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **kwargs)
        pooled = pool(outputs[0], attention_mask, self.config.pooling)
        if self.config.normalize:
            pooled = nn.functional.normalize(pooled, dim=-1)
        if separator is not None:
            first, second = pooled[:rows], pooled[rows:]  # chunk() would fix the batch size of an exported graph
            pooled = torch.cat([first, second, (first - second).abs(), first * second], dim=-1)
        return pooled, outputs

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Logits (B, C), and the loss where labels are given; other arguments go to the encoder."""
        pooled, outputs = self.features(input_ids, attention_mask, **kwargs)
        logits = self.classifier(self.dropout(pooled))
        loss = None if labels is None else self.loss(logits, labels)
        result = SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=getattr(outputs, "hidden_states", None),
            attentions=getattr(outputs, "attentions", None),
        )
        wanted = self.config.return_dict if return_dict is None else return_dict
        return result if wanted else result.to_tuple()

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of the config's problem type, as in transformers' own classifiers."""
        problem = self.config.problem_type
        if problem is None:
            whole = not labels.is_floating_point()
            problem = "regression" if self.num_labels == 1 else "single_label_classification" if whole else "multi"
        if problem == "regression":
            return nn.functional.mse_loss(logits.squeeze(), labels.squeeze())
        if problem == "single_label_classification":
            return nn.functional.cross_entropy(logits, labels.view(-1))
        return nn.functional.binary_cross_entropy_with_logits(logits, labels)
