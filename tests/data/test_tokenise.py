"""Tokenising, its cache, and the memory of it all."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from mixwell import data
from mixwell.data.tokenise import table_hash, tokenizer_hash
from mixwell.utils.errors import OptionError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "the", "##s", "a"]


def make_tokenizer(words: list[str] = WORDS, types: bool = True) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ["input_ids", "token_type_ids", "attention_mask"] if types else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=names,
    )


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


def write(path: Path, rows: Any, header: Any = ("text", "label")) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)
    return path


@pytest.fixture
def loaded(tmp_path: Path) -> data.TextData:
    rows = [(f"the {'good' if at % 2 else 'bad'} film " + "a " * (at % 7), at % 2) for at in range(60)]
    return data.load(write(tmp_path / "d.csv", rows))


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "tokens").iterdir())


def test_columns_and_values(tmp_path: Path, tokenizer: Any, loaded: data.TextData) -> None:
    found = data.tokenise(loaded.train, tokenizer, max_length=6, cache_dir=tmp_path / "c", batch_size=7)
    assert found.column_names == ["input_ids", "attention_mask", "token_type_ids", "labels"]
    assert len(found) == loaded.train.num_rows
    expected = tokenizer(loaded.train["text"].to_pylist(), truncation=True, max_length=6)
    assert found["input_ids"][:] == expected["input_ids"]
    assert found["attention_mask"][:] == expected["attention_mask"]
    assert found["token_type_ids"][:] == expected["token_type_ids"]
    assert found["labels"][:] == loaded.train["label"].to_pylist()
    assert max(map(len, found["input_ids"])) == 6
    assert found.features["labels"].dtype == "int64"


def test_pairs_without_types_and_without_labels(tmp_path: Path) -> None:
    rows = [("good film", f"bad film {at}", at % 2) for at in range(20)]
    pairs = data.load(write(tmp_path / "d.csv", rows, header=("text", "text_pair", "label")))
    plain = make_tokenizer(types=False)
    found = data.tokenise(pairs.test.drop_columns(["label"]), plain, max_length=16, cache_dir=tmp_path / "c")
    assert found.column_names == ["input_ids", "attention_mask"]
    assert found[0]["input_ids"].count(3) == 2
    typed = data.tokenise(pairs.test, make_tokenizer(), max_length=16, cache_dir=tmp_path / "c")
    assert set(typed[0]["token_type_ids"]) == {0, 1}


def test_labels_of_other_tasks(tmp_path: Path, tokenizer: Any) -> None:
    path = write(tmp_path / "d.csv", [(f"good {at}", at / 4) for at in range(40)])
    numbers = data.load(path, task="regression")
    found = data.tokenise(numbers.train, tokenizer, max_length=8, cache_dir=tmp_path / "c")
    assert found.features["labels"].dtype == "float32"
    assert found["labels"][:] == numbers.train["label"].to_pylist()
    path = write(tmp_path / "e.csv", [(f"good {at}", json.dumps(["a", "b", "c"][: at % 4])) for at in range(80)])
    multi = data.load(path)
    found = data.tokenise(multi.train, tokenizer, max_length=8, cache_dir=tmp_path / "c", batch_size=13)
    assert found["labels"][:] == multi.train["label"].to_pylist()


def test_collates_and_pads(tmp_path: Path, tokenizer: Any, loaded: data.TextData) -> None:
    from transformers import DataCollatorWithPadding

    found = data.tokenise(loaded.train, tokenizer, max_length=16, cache_dir=tmp_path / "c")
    batch = DataCollatorWithPadding(tokenizer)([found[at] for at in range(5)])
    assert batch["input_ids"].shape == batch["attention_mask"].shape
    assert batch["labels"].tolist() == loaded.train["label"].to_pylist()[:5]


def test_cache(tmp_path: Path, tokenizer: Any, loaded: data.TextData, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "c"
    monkeypatch.setenv("MIXWELL_CACHE", str(cache))
    calls: list[tuple[int, int]] = []
    rows = loaded.train.num_rows
    data.tokenise(loaded.train, tokenizer, max_length=8, batch_size=20, progress=lambda *at: calls.append(at))
    assert calls == [(20, rows), (40, rows), (rows, rows)]
    (entry,) = entries(cache)
    stamp = (entry / "data.arrow").stat().st_mtime_ns
    calls.clear()
    # The tokenizer's truncation state changed with the call above; that is no new tokenizer.
    data.tokenise(loaded.train, make_tokenizer(), max_length=8, progress=lambda *at: calls.append(at))
    assert calls == [(rows, rows)]
    assert (entry / "data.arrow").stat().st_mtime_ns == stamp
    data.tokenise(loaded.train, tokenizer, max_length=9)
    data.tokenise(loaded.test, tokenizer, max_length=8)
    data.tokenise(loaded.train, make_tokenizer([*WORDS, "new"]), max_length=8)
    assert len(entries(cache)) == 4


def test_damaged_cache_is_made_anew(tmp_path: Path, tokenizer: Any, loaded: data.TextData) -> None:
    cache = tmp_path / "c"
    first = data.tokenise(loaded.train, tokenizer, max_length=8, cache_dir=cache)["input_ids"][:]
    (entry,) = entries(cache)
    for content in (b"", b"nonsense", (entry / "data.arrow").read_bytes()[:300]):
        (entry / "data.arrow").write_bytes(content)
        again = data.tokenise(loaded.train, tokenizer, max_length=8, cache_dir=cache)
        assert again["input_ids"][:] == first
    assert entries(cache) == [entry]


def test_failure_leaves_nothing(tmp_path: Path, tokenizer: Any, loaded: data.TextData) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.tokenise(loaded.train, tokenizer, max_length=8, cache_dir=tmp_path / "c", progress=stop)
    assert entries(tmp_path / "c") == []


def test_beaten_by_another_process(tmp_path: Path, tokenizer: Any, loaded: data.TextData) -> None:
    """The other's file appears while ours is being written."""
    done = []

    def other(*at: int) -> None:
        if not done:
            done.append(at)
            data.tokenise(loaded.train, tokenizer, max_length=8, cache_dir=tmp_path / "c")

    found = data.tokenise(loaded.train, tokenizer, max_length=8, cache_dir=tmp_path / "c", progress=other)
    assert len(found) == loaded.train.num_rows
    assert len(entries(tmp_path / "c")) == 1


def _work(path: str, cache: str, start: Any) -> None:
    loaded = data.load(path)
    tokenizer = make_tokenizer()
    start.wait(60)
    for length in range(8, 16):
        found = data.tokenise(loaded.train, tokenizer, max_length=length, cache_dir=cache, batch_size=5)
        assert len(found["input_ids"][:]) == loaded.train.num_rows


def test_processes_at_once(tmp_path: Path, loaded: data.TextData) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    work = [context.Process(target=_work, args=(str(tmp_path / "d.csv"), str(tmp_path / "c"), start)) for _ in range(2)]
    for process in work:
        process.start()
    for process in work:
        process.join(120)
    assert [process.exitcode for process in work] == [0, 0]
    assert len(entries(tmp_path / "c")) == 8


@pytest.mark.parametrize("value", [2, 0, -1, 2.5, True, None])
def test_max_length(tmp_path: Path, tokenizer: Any, loaded: data.TextData, value: Any) -> None:
    with pytest.raises(OptionError, match="max_length must be a whole number of at least 3"):
        data.tokenise(loaded.train, tokenizer, max_length=value, cache_dir=tmp_path)


def test_max_length_of_pairs_and_other_options(tmp_path: Path, tokenizer: Any, loaded: data.TextData) -> None:
    pairs = loaded.train.append_column("text_pair", loaded.train["text"])
    with pytest.raises(OptionError, match="at least 5 for pairs"):
        data.tokenise(pairs, tokenizer, max_length=4, cache_dir=tmp_path)
    with pytest.raises(OptionError, match="batch_size"):
        data.tokenise(loaded.train, tokenizer, max_length=8, cache_dir=tmp_path, batch_size=0)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OptionError, match=r"cache folder .*MIXWELL_CACHE"):
        data.tokenise(loaded.train, tokenizer, max_length=8, cache_dir=tmp_path / "file")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MIXWELL_CACHE", raising=False)
    assert data.cache_folder() == Path(os.path.expanduser("~/.cache/mixwell"))
    monkeypatch.setenv("MIXWELL_CACHE", str(tmp_path))
    assert data.cache_folder() == tmp_path
    assert data.cache_folder("x") == Path("x")


def test_hashes(loaded: data.TextData) -> None:
    table = loaded.train
    assert table_hash(table) == table_hash(table.combine_chunks())
    assert table_hash(table) == table_hash(table.drop_columns(["row_id"]))
    assert table_hash(table) != table_hash(table.drop_columns(["label"]))
    one, two = make_tokenizer(), make_tokenizer()
    one(["good"], truncation=True, max_length=5)
    assert tokenizer_hash(one) == tokenizer_hash(two)
    two.add_special_tokens({"additional_special_tokens": list(data.ENTITY_MARKERS)})
    assert tokenizer_hash(one) != tokenizer_hash(two)
    assert tokenizer_hash(make_tokenizer(types=False)) != tokenizer_hash(one)


def test_tokenizer_in_python(tmp_path: Path, loaded: data.TextData) -> None:
    from transformers import ByT5Tokenizer

    slow = ByT5Tokenizer()
    assert tokenizer_hash(slow) == tokenizer_hash(ByT5Tokenizer())
    assert tokenizer_hash(slow) != tokenizer_hash(ByT5Tokenizer(extra_ids=7))
    found = data.tokenise(loaded.test, slow, max_length=8, cache_dir=tmp_path / "c")
    assert found["input_ids"][:] == slow(loaded.test["text"].to_pylist(), truncation=True, max_length=8)["input_ids"]


def test_python_memory_does_not_grow_with_the_rows(tmp_path: Path, tokenizer: Any) -> None:
    """Rows go to Arrow batch by batch; as Python objects they would take about 10 MB here."""
    rows = [(f"the good film number {at} " + "bad " * 20, at % 2) for at in range(20000)]
    path = write(tmp_path / "d.csv", rows)
    del rows
    data.tokenise(data.load(path).test.slice(0, 5), tokenizer, max_length=8, cache_dir=tmp_path / "c")  # imports
    tracemalloc.start()
    try:
        found = data.load(path)
        loading = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        data.tokenise(found.test, tokenizer, max_length=32, cache_dir=tmp_path / "c")
        tokenising = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert loading < 6e6
    assert tokenising < 6e6
