"""Reading, checking, splitting and tokenising labelled texts.

`load` makes a `TextData` of a file, folder, saved data set or hub id; `tokenise` makes its tables ready for a
model; `iter_rows` streams files for prediction. Importing this package loads neither pyarrow nor datasets.
"""

from __future__ import annotations

from pathlib import Path

from mixwell.data.columns import ENTITY_MARKERS, relation_text
from mixwell.data.loading import load
from mixwell.data.rows import iter_rows
from mixwell.data.splits import SPLITS
from mixwell.data.textdata import TextData, texts_of
from mixwell.data.tokenise import cache_folder, tokenise
from mixwell.metrics.tasks import TASKS

__all__ = [
    "ENTITY_MARKERS",
    "SPLITS",
    "TASKS",
    "TextData",
    "cache_folder",
    "iter_rows",
    "load",
    "relation_text",
    "sample_folder",
    "texts_of",
    "tokenise",
]


def sample_folder() -> Path:
    """The folder of the sample data: train, validation and test as CSV with the columns text and label."""
    from importlib.resources import files

    return Path(str(files(__name__) / "sample"))
