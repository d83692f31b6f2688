"""Training on a tiny BERT, and the helpers that other tests of runs share."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixwell.errors import MixwellError, OptionError, RunError

WORDS = "film plot actor scene very the a is was it this that so too".split()
GOOD, BAD = ["good", "great", "bright"], ["bad", "awful", "dull"]
SOURCE = Path(__file__).resolve().parents[1] / "src"
BASE: dict[str, Any] = {"epochs": 4, "batch_size": 8, "learning_rate": 3e-3, "warmup": 0.0, "weight_decay": 0.0}


def make_model(folder: Path) -> Path:
    """A random BERT without a head, and a word tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.set_num_threads(1)
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


def rows(count: int, seed: int = 0) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    made = []
    for at in range(count):
        words = [draw.choice(WORDS) for _ in range(draw.randint(2, 8))] + [draw.choice(BAD if at % 2 else GOOD)]
        draw.shuffle(words)
        made.append((" ".join(words), "neg" if at % 2 else "pos"))
    return made


def write_csv(path: Path, lines: list[tuple[str, str]], header: str = "text,label") -> Path:
    path.write_text("\n".join([header, *(f"{text},{label}" for text, label in lines)]) + "\n", encoding="utf-8")
    return path


def run_command(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """The real command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "mixwell", *map(str, words)], capture_output=True, text=True, timeout=300, **options
    )


@pytest.fixture(scope="session", autouse=True)
def calm(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ.update(
        HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", CI="1",
        MIXWELL_CACHE=str(tmp_path_factory.mktemp("cache")), PYTHONPATH=str(SOURCE), COLUMNS="200",
    )  # fmt: skip


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("data") / "films.csv", rows(120))


def settings(tiny: Path, data_file: Path, output: Path, **changes: Any) -> Any:
    from mixwell.training import TrainSettings

    return TrainSettings(**{**BASE, "data": str(data_file), "model": str(tiny), "output": str(output), **changes})
