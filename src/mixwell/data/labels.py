"""Collecting labels while rows stream by, then settling the task and the class numbers."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mixwell.data.readers import Rows
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE
from mixwell.utils.errors import DataError

# What a label was in the source: "raw" is a CSV cell, whose type shows only when all are known.
Scalar = tuple[str, str]
Value = tuple[str, Any]

_INTEGER = re.compile(r"[+-]?(0|[1-9]\d*)")
_LEADING_ZERO = re.compile(r"[+-]?0\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_KINDS = {"str": "texts", "int": "whole numbers", "float": "numbers", "bool": "booleans"}
_CHUNK = 4096


@dataclass
class Encoded:
    """Labels as numbers.

    Attributes:
        task: given, or recognised by the labels.
        labels: the class names, in the order of the class numbers; empty for regression.
        arrays: per source split a pyarrow array: int64, list<float32> (multi-hot) or float64.
    """

    task: str
    labels: tuple[str, ...]
    arrays: dict[str, Any]


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
        except ValueError as error:
            raise DataError(f"{rows.name}: row {row}, column {self.column!r}: {error}") from error
        if value is None:
            return False
        if self.task == REGRESSION:
            self.numbers.setdefault(split, array("d")).append(self._number(rows, row, value))
            return True
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
            if "\0" in text or not text.isascii():
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

    def _number(self, rows: Rows, row: int, value: Value) -> float:
        kind, text = value
        if kind in ("int", "float") or (kind in ("raw", "str") and _NUMBER.fullmatch(text)):
            number = float(text)
            if math.isfinite(number):
                return number
        shown = "a list" if kind == "list" else repr(text)
        raise DataError(
            f"{rows.name}: row {row}, column {self.column!r}: {shown:.60} is no number, which task {REGRESSION!r} needs"
        )

    def finish(self) -> Encoded:
        """Settle the task and the class numbers.

        Raises:
            DataError: the labels do not fit the task, are of mixed types, or are all the same.
        """
        import numpy as np
        import pyarrow as pa

        if self.task == REGRESSION:
            return Encoded(REGRESSION, (), {name: pa.array(np.array(v)) for name, v in self.numbers.items()})
        values = self._split_cells()
        lists = [value[0] == "list" for value in values]
        if any(lists):
            if self.task == SINGLE:
                raise self._fault(lists.index(True), f"a list of labels; use task {MULTI!r}")
            if not all(lists):
                raise self._fault(lists.index(False), "one label where others are lists; write a list in every row")
        multi = any(lists) or self.task == MULTI
        scalars: dict[Scalar, int] = {}
        for code, value in enumerate(values):
            for scalar in value[1] if value[0] == "list" else (value,):
                scalars.setdefault(scalar, code)
        kind, canonical = self._settle(scalars)
        if kind == "int" or all(_INTEGER.fullmatch(name) for name in canonical.values()):
            labels = tuple(sorted(set(canonical.values()), key=int))
        else:
            labels = tuple(sorted(set(canonical.values())))
        if len(labels) < 2:
            only = f"all rows have the label {labels[0]!r}" if labels else "no row has a label"
            raise DataError(f"{self.firsts[0].rsplit(': ', 1)[0]}: column {self.column!r}: {only}; two are needed")
        index = {name: number for number, name in enumerate(labels)}
        sets = [
            sorted({index[canonical[scalar]] for scalar in (value[1] if value[0] == "list" else (value,))})
            for value in values
        ]
        if multi and len({tuple(members) for members in sets}) == 1:
            where, named = self.firsts[0].rsplit(": ", 1)[0], ", ".join(labels[number] for number in sets[0])
            raise DataError(
                f"{where}: column {self.column!r}: all rows have the same labels ({named}), so nothing can be "
                f"learned; write the names of the labels that apply, not 0 and 1 for each"
            )
        arrays = {}
        for split, codes in self.codes.items():
            rows = np.frombuffer(codes, dtype=np.int64)
            if multi:
                arrays[split] = _multi_hot(rows, sets, len(labels))
            else:
                arrays[split] = pa.array(np.array([members[0] for members in sets], dtype=np.int64)[rows])
        return Encoded(MULTI if multi else SINGLE, labels, arrays)

    def _fault(self, code: int, what: str) -> DataError:
        return DataError(f"{self.firsts[code]}, column {self.column!r}: {what}")

    def _split_cells(self) -> list[Value]:
        """The distinct values, with cells that stand for several labels turned into lists."""
        values = list(self.values)
        cells = [text for kind, text in values if kind in ("raw", "str")]
        if self.task == MULTI:
            separator = "|" if any("|" in text for text in cells) else ";"
            return [
                value if value[0] not in ("raw", "str") else self._cell(code, value, separator)
                for code, value in enumerate(values)
            ]
        if self.task is None and cells and all(kind == "raw" and _looks_listed(text) for kind, text in values):
            return [self._cell(code, value, None) for code, value in enumerate(values)]
        return values

    def _cell(self, code: int, value: Value, separator: str | None) -> Value:
        kind, text = value
        if _looks_listed(text):
            try:
                items = json.loads(text)
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

    def _settle(self, scalars: dict[Scalar, int]) -> tuple[str, dict[Scalar, str]]:
        """The type of all labels, and each label's name."""
        kinds = {kind for kind, _ in scalars} - {"raw"}
        cells = {text for kind, text in scalars if kind == "raw"}
        if cells:
            kinds.add(_cell_kind(cells))
        if kinds <= {"str", "int"}:
            return ("int" if kinds == {"int"} else "str"), {scalar: scalar[1] for scalar in scalars}
        if kinds == {"bool"}:
            return "bool", {scalar: scalar[1].casefold() for scalar in scalars}
        if not kinds <= {"int", "float"}:
            named = " and ".join(sorted(_KINDS[kind] for kind in kinds))
            other = next(code for (kind, _), code in scalars.items() if kind != next(iter(scalars))[0])
            raise self._fault(other, f"the labels mix {named}; write all of them in one way")
        whole = all(float(text).is_integer() for _, text in scalars)
        if whole and self.task in (SINGLE, MULTI):
            return "int", {scalar: _whole(scalar[1]) for scalar in scalars}
        first = next(scalar for scalar in scalars if not _INTEGER.fullmatch(scalar[1]))
        advice = f"use task {REGRESSION!r} to predict numbers, "
        if whole:
            advice += f"or task {SINGLE!r} to take these whole numbers as classes"
        else:
            advice += "or write class names as text"
        raise self._fault(scalars[first], f"the label {first[1]} is a float; {advice}")


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
    if all(_NUMBER.fullmatch(cell) and not _LEADING_ZERO.fullmatch(cell) for cell in cells):
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
