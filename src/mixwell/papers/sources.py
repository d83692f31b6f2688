"""The data of a protocol: found in a local folder or on the hub, split as the paper did, capped, and nothing copied.

Which row is in which split is written to a splits file (row numbers, no texts) that the cells' data source names.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell.compare.spec import DataSource, chosen_test_rows
from mixwell.errors import DataError
from mixwell.papers.protocols import DataSet, Experiment, Located, Part

if TYPE_CHECKING:
    from mixwell.data import TextData

# Papers that cut validation from train anew for each seed.
NEW_CUT_A_SEED = ("amplify",)


def locate(dataset: DataSet, root: str | Path | None, hub: bool = False) -> Located:
    """Find a data set: below `root`, else on the hub where that is allowed."""
    found = dataset.locate(root)
    if found.problem is None or not hub or dataset.hub is None:
        return found
    held = dataset.splits.get("validation")
    moved = held.rows if held is not None and held.source == "test" else None
    return Located(None, None, {"source": dataset.hub, "label": dataset.hub_label or dataset.label}, moved)


def split_seed(experiment: Experiment, dataset: DataSet, seed: int) -> int:
    """The seed of the cut: the run's where the paper cuts anew for each seed, else 0."""
    cut = any(name != "train" and part.source == "train" for name, part in dataset.splits.items())
    return seed if cut and experiment.paper.key in NEW_CUT_A_SEED else 0


def prepare(
    dataset: DataSet,
    located: Located,
    *,
    seed: int,
    validation_rows: int | None,
    test_rows: int | None,
    folder: Path,
) -> DataSource:
    """Split a data set as its protocol says and return a data source for its cells.

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
    from mixwell import data as texts

    files = dict(located.arguments)
    source = files.pop("source")
    loaded = texts.load(source, **files)
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


def _split(loaded: TextData, dataset: DataSet, located: Located, seed: int) -> dict[str, Any]:
    """Train, validation and test of a protocol out of the splits of the source.

    `load` fills what the source lacks from train; the rows' ids say where they really are from.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from mixwell.data.splits import TEST_FRACTION, VALIDATION_FRACTION

    whole = pa.concat_tables(loaded.splits.values())
    found = {name: whole.filter(pc.starts_with(whole["row_id"], f"{name}:")) for name in loaded.splits}
    found = {name: _in_order(table) for name, table in found.items()}
    defaults = {"test": TEST_FRACTION, "validation": VALIDATION_FRACTION}
    tables: dict[str, Any] = {"train": found["train"]}
    shares: dict[str, float] = {}
    for name, default in defaults.items():
        part = dataset.splits.get(name, Part("train"))
        if part.source == "train":
            shares[name] = part.share or default
        elif (name, part.source) != ("validation", "test"):
            # Local files are read under the name of the split they stand for; the hub has its own names.
            tables[name] = found[name if located.path is not None else part.source]
            if not tables[name].num_rows:
                raise DataError(f"{dataset.title}: {loaded.source} has no {part.source} rows with labels; bring them")
    if shares:
        tables |= _cut(loaded.task, tables["train"], shares, seed)
    return tables


def _cut(task: str, train: Any, shares: dict[str, float], seed: int) -> dict[str, Any]:
    """Cut shares from train by label, as `mixwell.data.load` does."""
    from mixwell.data.splits import KeyMaker, cut, strata

    maker = KeyMaker()
    pairs = train["text_pair"].to_pylist() if "text_pair" in train.column_names else [None] * train.num_rows
    for text, pair in zip(train["text"].to_pylist(), pairs):
        maker.add(text, pair)
    rows = cut(maker.finish(), strata(task, train["label"]), shares, seed, each=task == "single_label")
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
