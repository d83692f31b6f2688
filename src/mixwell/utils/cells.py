"""Cells of CSV files that a spreadsheet would run as formulas."""

from __future__ import annotations

import re
from typing import Any

# What makes a formula of a cell, as OWASP lists it; some spreadsheets take the wide signs for the narrow ones.
_FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def harmless(value: Any) -> Any:
    """A cell for a CSV file: a text that a spreadsheet would run as a formula gets an apostrophe in front.

    Numbers stay as they are, also those that are texts, such as -1.5.
    """
    if isinstance(value, (list, tuple, dict)):
        value = str(value)
    if not isinstance(value, str) or not _FORMULA.match(value) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}"
