"""Train methods side by side and report which is better, and how certain that is.

    grid -> planning -> schedule (locks, records) -> engines -> cell
    records -> summary (stats) -> tables, report

`run.run` is all of `mixwell compare`. What users know as a run of a comparison, one method trained with one seed, is a
cell in code and in records: `spec.CellSpec` describes it, `cell.run_cell` trains it, `records.Record` is its result.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class _Package(types.ModuleType):
    """A package that can be called: `mixwell.compare("reviews.csv")` is `mixwell.api.compare`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        # By name: the function stands above this package, as it draws pages too.
        return importlib.import_module("mixwell.api").compare(*args, **options)


sys.modules[__name__].__class__ = _Package
