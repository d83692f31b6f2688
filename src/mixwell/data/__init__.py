"""Reading, checking, splitting and tokenising labelled texts.

`load` makes a `TextData` of a file, folder, saved data set or hub id; `tokenise` makes its tables ready for a
model; `iter_rows` streams files for prediction. Importing this package loads neither pyarrow nor datasets.
"""

from __future__ import annotations

from pathlib import Path

from .columns import TASKS
from .loading import load
from .relations import ENTITY_MARKERS, relation_text
from .rows import iter_rows
from .splits import SPLITS
from .textdata import TextData, texts_of
from .tokenise import cache_folder, tokenise

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
