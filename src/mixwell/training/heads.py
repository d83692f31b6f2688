"""How the tokens of a text become one vector, as the encoder was trained to do it, and the classifier on top of that.

An encoder of sentence-transformers says in `modules.json` and its pooling folder how it is pooled. Where nothing is
stated, the classifier that transformers has for the architecture is taken.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixwell.utils.errors import MixwellError, OptionError, nearest
from mixwell.utils.records import parse_json

MODEL_TYPE = "mixwell_pooled"
POOLINGS = ("auto", "model", "mean", "cls", "last")
# sentence-transformers' names, old (one flag each) and new (one word).
_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "mean": "mean",
    "cls": "cls",
    "lasttoken": "last",
}


@dataclass(frozen=True)
class Pooling:
    """How an encoder is pooled.

    Attributes:
        kind: `mean`, `cls` or `last`; `model` for the architecture's own head.
        note: what the user should know about the choice; empty if nothing.
    """

    kind: str
    note: str = ""


def choose_pooling(pooling: str, source: str) -> Pooling:
    """Turn `auto` into the pooling that the encoder's own files name.

    Args:
        pooling: one of `POOLINGS`.
        source: a folder or hub id.

    Raises:
        OptionError: there is no such pooling.
    """
    if pooling not in POOLINGS:
        raise OptionError(f"pooling {pooling!r} is unknown{nearest(str(pooling), POOLINGS)}; use {', '.join(POOLINGS)}")
    if pooling != "auto":
        return Pooling(pooling)
    modules = _read_json(source, "modules.json")
    for module in modules if isinstance(modules, list) else []:
        if isinstance(module, Mapping) and str(module.get("type", "")).endswith("Pooling"):
            return _stated(_read_json(source, f"{module.get('path')}/config.json"))
    return Pooling("model")


def _stated(config: Any) -> Pooling:
    """The pooling of a sentence-transformers pooling config."""
    if not isinstance(config, Mapping):
        return Pooling("mean", "the encoder has a pooling module without a readable config: its tokens are averaged")
    flags = [name for name, value in config.items() if name.startswith("pooling_mode") and value is True]
    modes = config.get("pooling_mode")
    on = [modes] if isinstance(modes, str) else modes if isinstance(modes, list) else flags
    kinds = [_FLAGS.get(str(name)) for name in on]
    if len(kinds) == 1 and kinds[0] is not None:
        return Pooling(kinds[0])
    shown = " and ".join(str(name).removeprefix("pooling_mode_") for name in on) or "nothing"
    return Pooling("mean", f"the encoder was trained with the pooling {shown}: its tokens are averaged instead")


def _read_json(source: str, name: str) -> Any:
    """A JSON file of a model folder or of the hub; None where it is missing or unreadable."""
    path: str | Path | None = Path(source) / name
    if not Path(source).is_dir():
        from transformers.utils.hub import cached_file

        try:
            path = cached_file(
                source, name, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
            )
        except OSError:
            return None
    try:
        return None if path is None else parse_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def load_pooled(source: str, pooling: str, options: Mapping[str, Any], *, trust_remote_code: bool = False) -> Any:
    """Load an encoder and put a new pooled head on it.

    The head is drawn from torch's global generator. Weights are float32.

    Args:
        source: a folder or hub id.
        pooling: `mean`, `cls` or `last`.
        options: of the config: `num_labels` or `id2label` and `label2id`, and `problem_type`.
        trust_remote_code: run code that comes with the encoder.

    Returns:
        The model, and what `from_pretrained` says about the encoder's weights.
    """
    import torch
    from transformers import AutoConfig

    from mixwell.training.configuration_pooled import PooledConfig
    from mixwell.training.modeling_pooled import PooledForSequenceClassification, encoder_class

    body = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    auto, extra = encoder_class(body)
    encoder, loading = auto.from_pretrained(
        source,
        config=body,
        trust_remote_code=trust_remote_code,
        use_safetensors=True,
        dtype=torch.float32,
        output_loading_info=True,
        **extra,
    )
    stated = (getattr(body, name, None) for name in ("classifier_dropout", "hidden_dropout_prob", "dropout"))
    dropout = next((value for value in stated if isinstance(value, (int, float))), 0.1)
    encoder.config._name_or_path = ""  # a path of this machine has no place in a saved config
    config = PooledConfig(
        text_config=encoder.config,
        pooling=pooling,
        classifier_dropout=float(dropout),
        dtype="float32",
        attn_implementation=encoder.config._attn_implementation,
        **options,
    )
    model = PooledForSequenceClassification(config, encoder)
    prefix = f"{model.base_model_prefix}."
    missing = [prefix + name for name in loading["missing_keys"]]
    mismatched = [(prefix + name, *rest) for name, *rest in loading["mismatched_keys"]]
    return model, {"missing_keys": missing, "mismatched_keys": mismatched}


def probe_model(model: Any, tokenizer: Any, *, pairs: bool) -> Any:
    """The model whose frozen features a probe is fitted on: the same one, or for pairs one that reads them apart.

    It shares the encoder. For a classifier with the head of its architecture None: its features are the mean over the
    tokens, but there is no model to deploy them with.
    """
    from mixwell.training.modeling_pooled import PooledForSequenceClassification

    if not is_pooled(model):
        return None
    separator = pair_separator(tokenizer) if pairs and model.config.pair_separator is None else None
    if separator is None:
        return model
    config = copy.deepcopy(model.config)
    config.pair_separator = separator
    config.text_config = model.encoder.config
    return PooledForSequenceClassification(config, model.encoder)


def pair_separator(tokenizer: Any) -> int | None:
    """The id between the texts of a pair, if pairs can be taken apart at it; None where they cannot.

    Tried on a pair: the parts must be what the tokenizer makes of each text alone.
    """
    import torch

    from mixwell.training.modeling_pooled import split_pairs

    separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if separator is None or tokenizer.padding_side != "right":
        return None
    texts = ("one text", "and a longer one")
    pair = torch.tensor([tokenizer(*texts)["input_ids"]])
    if not bool((pair[0, 1:] == separator).any()):
        return None
    ids, mask = split_pairs(pair, torch.ones_like(pair), separator)
    parts = [row[kept.bool()].tolist() for row, kept in zip(ids, mask)]
    return int(separator) if parts == [tokenizer(text)["input_ids"] for text in texts] else None


def is_pooled(model: Any) -> bool:
    """Whether a model is our pooled classifier."""
    return getattr(getattr(model, "config", None), "model_type", None) == MODEL_TYPE


def scale_logits(model: Any, factor: float) -> bool:
    """Multiply a model's logits by a factor, in its last linear layer; return False where that cannot be proved.

    The layer is found by a probe, as the points of the methods are, so that any architecture's head will do.
    """
    import torch

    from mixwell.core.layout import find_points

    try:
        sites = find_points(model).found.get("sentence")
    except MixwellError:
        return False
    layer = sites[0].module if sites else None
    if not isinstance(layer, torch.nn.Linear):
        return False
    with torch.no_grad():
        layer.weight.mul_(factor)
        if layer.bias is not None:
            layer.bias.mul_(factor)
    return True
