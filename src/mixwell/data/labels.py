"""Collecting labels while rows stream by, then settling the task and the class numbers."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mixwell.data.columns import NUMBER
from mixwell.data.readers import Rows
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE
from mixwell.utils.errors import DataError
from mixwell.utils.records import parse_json

# What a label was in the source: "raw" is a CSV cell, whose type shows only when all are known.
Scalar = tuple[str, str]
Value = tuple[str, Any]

_INTEGER = re.compile(r"[+-]?(0|[1-9]\d*)")
_LEADING_ZERO = re.compile(r"[+-]?0\d+")
_KINDS = {"str": "texts", "int": "whole numbers", "float": "numbers", "bool": "booleans"}
_CHUNK = 4096


@dataclass
class LabelCollector:
    """Takes labels row by row as codes of distinct values, so that memory grows with their number only.

    Attributes:
        column: the label column, for messages.
        task: the task if the user gave it.
    """

    column: str
    task: str | None
    values: dict[Value, int] = field(default_factory=dict)
    firsts: list[str] = field(default_factory=list)
    codes: dict[str, array[int]] = field(default_factory=dict)
    numbers: dict[str, array[float]] = field(default_factory=dict)

    def add(self, split: str, rows: Rows, row: int, raw: Any) -> bool:
        """Take one label; False when it is missing.

        Raises:
            DataError: the value can be no label; the message names file, row and column.
        """
        names = rows.class_names.get(self.column)
        try:
            value = self._value(raw, rows.typed, names)
            if value is not None and self.task == REGRESSION:
                self.numbers.setdefault(split, array("d")).append(_number(*value))
                return True
        except ValueError as error:
            raise DataError(f"{rows.name}: row {row}, column {self.column!r}: {error}") from error
        if value is None:
            return False
        code = self.values.setdefault(value, len(self.values))
        if code == len(self.firsts):
            self.firsts.append(f"{rows.name}: row {row}")
        self.codes.setdefault(split, array("q")).append(code)
        return True

    def _value(self, raw: Any, typed: bool, names: list[str] | None) -> Value | None:
        if isinstance(raw, (list, tuple)):
            items = [self._value(item, typed, names) for item in raw]
            if any(item is None or item[0] == "list" for item in items):
                raise ValueError("a list of labels must hold texts or whole numbers only")
            if len(set(items)) < len(items):
                raise ValueError(
                    f"{raw!s:.60} repeats a label; write the names of the labels that apply, not 0 and 1 for each"
                )
            return "list", tuple(items)
        if raw is None or (isinstance(raw, float) and math.isnan(raw)):
            return None
        if isinstance(raw, str):
            text = raw.strip()
            if not text or text in ("nan", "NaN"):
                return None
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ValueError("not valid text (a lone surrogate); mend it") from None
            if "\0" in text:
                raise ValueError("a label has a NUL character; remove it")
            return ("str" if typed else "raw"), text
        if isinstance(raw, bool):
            return "bool", str(raw).lower()
        if isinstance(raw, int):
            if names is None:
                return "int", str(raw)
            if raw == -1:  # how the datasets library marks rows without a label
                return None
            if not 0 <= raw < len(names):
                raise ValueError(f"class number {raw}, but there are {len(names)} class names")
            return "str", names[raw]
        if isinstance(raw, float):
            return "float", repr(raw)
        raise ValueError(f"a label of type {type(raw).__name__}; expected a text, a number, a boolean or a list")

    def finish(self) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        """Settle the task and the class numbers.

        Returns:
            The task, given or recognised by the labels; the class names in the order of the class numbers, none for
            regression; and per source split a pyarrow array: int64, list<float32> (multi-hot) or float64.

        Raises:
            DataError: the labels do not fit the task, are of mixed types, or are all the same.
        """
        import numpy as np
        import pyarrow as pa

        if self.task == REGRESSION:
            return REGRESSION, (), {name: pa.array(np.array(v)) for name, v in self.numbers.items()}
        values = self._split_cells()
        lists = [kind == "list" for kind, _ in values]
        scalar_sets = [items if kind == "list" else ((kind, items),) for kind, items in values]
        if any(lists):
            if self.task == SINGLE:
                raise self._fault(lists.index(True), f"a list of labels; use task {MULTI!r}")
            if not all(lists):
                raise self._fault(lists.index(False), "one label where others are lists; write a list in every row")
        multi = any(lists) or self.task == MULTI
        scalars: dict[Scalar, int] = {}
        for code, members in enumerate(scalar_sets):
            for scalar in members:
                scalars.setdefault(scalar, code)
        canonical = self._settle(scalars)
        whole = all(_INTEGER.fullmatch(name) for name in canonical.values())
        labels = tuple(sorted(set(canonical.values()), key=int if whole else None))
        where = self.firsts[0].rsplit(": ", 1)[0]
        if len(labels) < 2:
            only = f"all rows have the label {labels[0]!r}" if labels else "no row has a label"
            raise DataError(f"{where}: column {self.column!r}: {only}; two are needed")
        index = {name: number for number, name in enumerate(labels)}
        sets = [sorted({index[canonical[scalar]] for scalar in members}) for members in scalar_sets]
        if multi and len({tuple(members) for members in sets}) == 1:
            named = ", ".join(labels[number] for number in sets[0])
            raise DataError(
                f"{where}: column {self.column!r}: all rows have the same labels ({named}), so nothing can be "
                f"learned; write the names of the labels that apply, not 0 and 1 for each"
            )
        codes = {split: np.frombuffer(numbers, dtype=np.int64) for split, numbers in self.codes.items()}
        if multi:
            arrays = {split: _multi_hot(rows, sets, len(labels)) for split, rows in codes.items()}
        else:
            classes = np.array([members[0] for members in sets], dtype=np.int64)
            arrays = {split: pa.array(classes[rows]) for split, rows in codes.items()}
        return MULTI if multi else SINGLE, labels, arrays

    def _fault(self, code: int, what: str) -> DataError:
        return DataError(f"{self.firsts[code]}, column {self.column!r}: {what}")

    def _split_cells(self) -> list[Value]:
        """The distinct values, with cells that stand for several labels turned into lists."""
        values = list(self.values)
        listed = bool(values) and all(kind == "raw" and _looks_listed(text) for kind, text in values)
        if self.task != MULTI and not (self.task is None and listed):
            return values
        separator = "|" if any("|" in text for kind, text in values if kind in ("raw", "str")) else ";"
        return [
            self._cell(code, value, separator) if value[0] in ("raw", "str") else value
            for code, value in enumerate(values)
        ]

    def _cell(self, code: int, value: Value, separator: str) -> Value:
        kind, text = value
        if _looks_listed(text):
            try:
                items = parse_json(text)
            except ValueError as error:
                raise self._fault(code, f"{text!r:.60} is not a JSON list ({error})") from error
            try:
                labels = self._value(items, True, None)
            except ValueError as error:
                raise self._fault(code, str(error)) from error
            assert labels is not None
            return labels
        names = [name for part in text.split(separator) if (name := part.strip())]
        return "list", tuple((kind, name) for name in dict.fromkeys(names))

    def _settle(self, scalars: dict[Scalar, int]) -> dict[Scalar, str]:
        """Each label's name; raises if they are not of one type."""
        kinds = {kind for kind, _ in scalars} - {"raw"}
        cells = {text for kind, text in scalars if kind == "raw"}
        if cells:
            kinds.add(_cell_kind(cells))
        if kinds <= {"str", "int"}:
            return {scalar: scalar[1] for scalar in scalars}
        if kinds == {"bool"}:
            return {scalar: scalar[1].casefold() for scalar in scalars}
        if not kinds <= {"int", "float"}:
            named = " and ".join(sorted(_KINDS[kind] for kind in kinds))
            other = next(code for (kind, _), code in scalars.items() if kind != next(iter(scalars))[0])
            raise self._fault(other, f"the labels mix {named}; write all of them in one way")
        whole = all(float(text).is_integer() for _, text in scalars)
        if whole and self.task in (SINGLE, MULTI):
            return {scalar: _whole(scalar[1]) for scalar in scalars}
        first = next(scalar for scalar in scalars if not _INTEGER.fullmatch(scalar[1]))
        advice = f"task {SINGLE!r} to take these whole numbers as classes" if whole else "write class names as text"
        what = f"the label {first[1]} is a float; use task {REGRESSION!r} to predict numbers, or {advice}"
        raise self._fault(scalars[first], what)


def _number(kind: str, text: Any) -> float:
    """A label as a number."""
    if kind in ("int", "float") or (kind in ("raw", "str") and NUMBER.fullmatch(text)):
        number = float(text)
        if math.isfinite(number):
            return number
    shown = "a list" if kind == "list" else repr(text)
    raise ValueError(f"{shown:.60} is no number, which task {REGRESSION!r} needs")


def _whole(text: str) -> str:
    """A whole number without a sign + or decimals; of any length, so not by way of a float if it can be helped."""
    return str(int(text) if _INTEGER.fullmatch(text) else int(float(text)))


def _looks_listed(text: str) -> bool:
    return text.startswith("[") and text.endswith("]")


def _cell_kind(cells: Iterable[str]) -> str:
    """The type of CSV cells; whole numbers with leading zeros are names (post codes and the like)."""
    cells = list(cells)
    if all(_INTEGER.fullmatch(cell) for cell in cells):
        return "int"
    if all(cell.casefold() in ("true", "false") for cell in cells):
        return "bool"
    if all(NUMBER.fullmatch(cell) and not _LEADING_ZERO.fullmatch(cell) for cell in cells):
        return "float"
    return "str"


def _multi_hot(codes: Any, sets: list[list[int]], width: int) -> Any:
    """The rows' label sets as a pyarrow chunked array of list<float32>, each of length `width`."""
    import numpy as np
    import pyarrow as pa

    chunks = []
    for start in range(0, len(codes), _CHUNK):
        part = codes[start : start + _CHUNK]
        hot = np.zeros((len(part), width), dtype=np.float32)
        for row, code in enumerate(part):
            hot[row, sets[code]] = 1.0
        offsets = np.arange(0, (len(part) + 1) * width, width, dtype=np.int32)
        chunks.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(hot.ravel())))
    return pa.chunked_array(chunks, type=pa.list_(pa.float32()))
