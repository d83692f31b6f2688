"""Which part of many like cases a test takes: MIXWELL_SLOW_TESTS=1 takes all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

ALL = bool(os.environ.get("MIXWELL_SLOW_TESTS"))
T = TypeVar("T")


def some(values: Iterable[T], every: int, first: int = 0) -> list[T]:
    """Every so many of the values, for cases that take one path through the code; all with MIXWELL_SLOW_TESTS=1."""
    chosen = list(values)
    return chosen if ALL else chosen[first::every]
