"""The data of a protocol: found in a local folder or on the hub, split as the paper did, capped, and nothing copied.

Which row is in which split is written to a splits file (row numbers, no texts) that the runs' data source names. Smoke
runs need no network and no weights: their model is a tiny random BERT whose tokenizer is made of the sample data.
"""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixwell.compare.spec import DataSource, chosen_test_rows
from mixwell.data import TextData, cache_folder, load, sample_folder
from mixwell.data.sources import SPLIT_NAMES, data_suffix
from mixwell.data.splits import TEST_FRACTION, VALIDATION_FRACTION, KeyMaker, cut, strata
from mixwell.metrics.tasks import SINGLE
from mixwell.papers.experiment import Experiment
from mixwell.papers.schema import SAMPLE, SPLITS, DataSet, SplitPart
from mixwell.utils.errors import DataError
from mixwell.utils.files import atomic_folder, home

# Papers that cut validation from train anew for each seed.
NEW_CUT_PER_SEED = ("amplify",)
BLOCKS, HEADS, WIDTH, POSITIONS = 3, 2, 32, 64
# [unused0] stands at 1 as in BERT's own vocabularies.
SPECIAL = ("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class LocatedData:
    """Where a data set was found; `problem` says exactly what is missing, None if nothing is.

    `arguments` are those of `mixwell.data.load` that name files and columns; `validation_from_test` is a number of rows
    to move from test to validation, as the paper did, which `load` has no argument for.
    """

    path: Path | None
    problem: str | None
    arguments: dict[str, Any] = field(default_factory=dict)
    validation_from_test: int | None = None


def locate(dataset: DataSet, root: str | Path | None, hub: bool = False) -> LocatedData:
    """Find a data set: below `root`, else on the hub where that is allowed."""
    local = _locate_folder(dataset, root)
    if local.problem is None or not hub or dataset.hub is None:
        return local
    arguments = {"source": dataset.hub, "label": dataset.hub_label or dataset.label}
    return LocatedData(None, None, arguments, _validation_from_test(dataset))


def _locate_folder(dataset: DataSet, root: str | Path | None) -> LocatedData:
    """Look for the local folder below `root`, and say what of it is missing.

    Args:
        dataset: of a protocol.
        root: the user's folder of data sets, one folder each; None if there is none.
    """
    if dataset.key == SAMPLE.key:
        return LocatedData(sample_folder(), None, {"source": str(sample_folder()), "label": "label"})
    instead = f", or add --hub to load {dataset.hub} from the hub" if dataset.hub else ""
    more = f" ({dataset.available})" if dataset.available else ""
    if dataset.folder is None or root is None:
        where = f"a folder named {dataset.folder}" if dataset.folder else "a local folder"
        return LocatedData(None, f"{dataset.title}: needs {where} below --data{instead}{more}")
    path = home(root) / dataset.folder
    if not path.is_dir():
        return LocatedData(None, f"{dataset.title}: there is no folder {path}; put it there{instead}{more}")
    files = _split_files(path)
    needed = {part.source for part in dataset.splits.values()} or {"train"}
    missing = [split for split in SPLITS if split in needed and split not in files]
    if missing:
        has = ", ".join(file.name for file in files.values()) or "no data file"
        words = f"{dataset.title}: {path} has {has}; add {', '.join(missing)} (CSV, JSON lines or Parquet)"
        return LocatedData(path, f"{words}{instead}{more}")
    arguments: dict[str, Any] = {"source": str(files["train"]), "label": dataset.label}
    for split in ("validation", "test"):
        part = dataset.splits.get(split, SplitPart("train"))
        # Parts of train, and validation rows out of test, are cut when the data are prepared.
        if part.source != "train" and (split, part.source) != ("validation", "test"):
            arguments[split] = str(files[part.source])
    return LocatedData(path, None, arguments, _validation_from_test(dataset))


def _validation_from_test(dataset: DataSet) -> int | None:
    """How many rows of test become validation; None if validation comes from elsewhere."""
    part = dataset.splits.get("validation")
    return part.rows if part is not None and part.source == "test" else None


def _split_files(folder: Path) -> dict[str, Path]:
    """The data files of a folder by split."""
    files: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        suffix = data_suffix(file)
        if suffix and file.is_file() and not file.name.startswith("."):
            stem = file.name.casefold().removesuffix(".gz").removesuffix(suffix)
            split = SPLIT_NAMES.get(stem)
            if split is not None:
                files.setdefault(split, file)
    return files


def split_seed(experiment: Experiment, dataset: DataSet, seed: int) -> int:
    """The seed of the cut: the run's where the paper cuts anew for each seed, else 0."""
    cut = any(name != "train" and part.source == "train" for name, part in dataset.splits.items())
    return seed if cut and experiment.paper.key in NEW_CUT_PER_SEED else 0


def prepare(
    dataset: DataSet,
    located: LocatedData,
    *,
    seed: int,
    validation_rows: int | None,
    test_rows: int | None,
    folder: Path,
) -> DataSource:
    """Split a data set as its protocol says and return a data source for its runs.

    Args:
        dataset: of the protocol.
        located: from `locate`, without a problem.
        seed: of the cut.
        validation_rows: the most rows of validation, a fixed choice; None for all.
        test_rows: likewise of test.
        folder: for the splits file.

    Raises:
        DataError: the data cannot be used.
    """
    files = dict(located.arguments)
    source = files.pop("source")
    loaded = load(source, **files)
    tables = dict(loaded.splits) if not dataset.splits else _split(loaded, dataset, located, seed)
    if located.validation_from_test is not None:
        whole = tables["test"].num_rows
        tables["validation"], tables["test"] = _parted(tables["test"], located.validation_from_test)
        if not tables["test"].num_rows:
            raise DataError(
                f"{dataset.title}: {source} has {whole} test rows, and the protocol takes "
                f"{located.validation_from_test} of them for validation; bring more test rows"
            )
    for name, most in (("validation", validation_rows), ("test", test_rows)):
        if most is not None:
            tables[name] = _parted(tables[name], most)[0]
    path = folder / f"{dataset.key}-{seed}.json"
    dataclasses.replace(loaded, splits=tables).save_splits(path)
    return DataSource(source, **files, splits_file=str(path)).resolved()


def _split(loaded: TextData, dataset: DataSet, located: LocatedData, seed: int) -> dict[str, Any]:
    """Train, validation and test of a protocol out of the splits of the source.

    `load` fills what the source lacks from train; the rows' ids say where they really are from.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.concat_tables(loaded.splits.values())
    original = {name: _in_order(whole.filter(pc.starts_with(whole["row_id"], f"{name}:"))) for name in loaded.splits}
    defaults = {"test": TEST_FRACTION, "validation": VALIDATION_FRACTION}
    tables: dict[str, Any] = {"train": original["train"]}
    shares: dict[str, float] = {}
    for name, default in defaults.items():
        part = dataset.splits.get(name, SplitPart("train"))
        if part.source == "train":
            shares[name] = part.share or default
        elif (name, part.source) != ("validation", "test"):
            # Local files are read under the name of the split they stand for; the hub has its own names.
            tables[name] = original[name if located.path is not None else part.source]
            if not tables[name].num_rows:
                raise DataError(f"{dataset.title}: {loaded.source} has no {part.source} rows with labels; bring them")
    if shares:
        tables |= _cut(loaded.task, tables["train"], shares, seed)
    return tables


def _cut(task: str, train: Any, shares: dict[str, float], seed: int) -> dict[str, Any]:
    """Cut shares from train by label, as `mixwell.data.load` does."""
    maker = KeyMaker()
    pairs = train["text_pair"].to_pylist() if "text_pair" in train.column_names else [None] * train.num_rows
    for text, pair in zip(train["text"].to_pylist(), pairs):
        maker.add(text, pair)
    rows = cut(maker.finish(), strata(task, train["label"]), shares, seed, every_stratum=task == SINGLE)
    return {name: train.take(chosen) for name, chosen in rows.items()}


def _in_order(table: Any) -> Any:
    """Rows by their numbers in the source."""
    import numpy as np

    numbers = [int(name.split(":")[1]) for name in table["row_id"].to_pylist()]
    return table.take(np.argsort(numbers, kind="stable"))


def _parted(table: Any, most: int) -> tuple[Any, Any]:
    """A fixed choice of rows, and the others."""
    chosen = chosen_test_rows(table.num_rows, most)
    if chosen is None:
        return table, table.slice(0, 0)
    taken = set(chosen)
    return table.take(chosen), table.take([row for row in range(table.num_rows) if row not in taken])


# --- the tiny model --------------------------------------------------------------------------------------------------


def tiny_folder(cache_dir: str | None = None) -> Path:
    """The folder of the tiny model, made if it is not there.

    Args:
        cache_dir: see `mixwell.data.cache_folder`.
    """
    folder = cache_folder(cache_dir) / "papers" / "tiny-1"
    if not (folder / "config.json").is_file():
        with atomic_folder(folder) as place:
            _build_tiny(place)
    return folder


def _build_tiny(folder: Path) -> None:
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
