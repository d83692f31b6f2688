"""A tiny random encoder, a word tokenizer and made-up rows."""

from __future__ import annotations

import random
from pathlib import Path

GOOD = ["good", "great", "lovely", "fine"]
BAD = ["bad", "awful", "poor", "dull"]
WORDS = ["the", "film", "was", "a", "plot", "it", "and", "scene", "one", "time", "actor", "story"]


def make_model(folder: Path) -> Path:
    """A random BERT without a head."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {token: at for at, token in enumerate([*special, *WORDS, *GOOD, *BAD])}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=32,
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, **size)).save_pretrained(folder)
    return folder


def write_rows(path: Path, count: int, draw: random.Random) -> Path:
    """Rows whose label is told by one word, with some noise."""
    lines = ["text,label"]
    for at in range(count):
        words = [draw.choice(WORDS) for _ in range(draw.randint(2, 8))] + [draw.choice(BAD if at % 2 else GOOD)]
        draw.shuffle(words)
        lines.append(f"{' '.join(words)},{'neg' if (at % 2) != (draw.random() < 0.1) else 'pos'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
