"""A tiny random BERT whose tokenizer is made of the sample data: smoke runs need no network and no weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from mixwell.data import cache_folder, sample_folder
from mixwell.utils.files import atomic_folder

BLOCKS, HEADS, WIDTH, POSITIONS = 3, 2, 32, 64
# [unused0] stands at 1 as in BERT's own vocabularies.
SPECIAL = ("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tiny_folder(cache_dir: str | None = None) -> Path:
    """The folder of the model, made if it is not there.

    Args:
        cache_dir: see `mixwell.data.cache_folder`.
    """
    folder = cache_folder(cache_dir) / "papers" / "tiny-1"
    if not (folder / "config.json").is_file():
        with atomic_folder(folder) as place:
            _build(place)
    return folder


def _build(folder: Path) -> None:
    import csv

    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    normalise, split = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    with open(sample_folder() / "train.csv", encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            counts.update(word for word, _ in split.pre_tokenize_str(normalise.normalize_str(row["text"])))
    letters = sorted({letter for word in counts for letter in word})
    words = sorted(word for word, count in counts.items() if count > 1 and len(word) > 1)
    tokens = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *words]
    inner = Tokenizer(models.WordPiece({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalise, split
    ends = [(name, SPECIAL.index(name)) for name in ("[SEP]", "[CLS]")]
    inner.post_processor = processors.BertProcessing(*ends)
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=POSITIONS,
    ).save_pretrained(folder)  # fmt: skip
    config = BertConfig(
        vocab_size=len(tokens), hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=BLOCKS,
        num_attention_heads=HEADS, max_position_embeddings=POSITIONS, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
