"""Labels as scikit-learn's users have them, and the class names that training gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.utils.errors import DataError, OptionError


@dataclass(frozen=True)
class Target:
    """Labels of a `TextClassifier`.

    Attributes:
        classes: (C,) the distinct labels, sorted; for an indicator matrix the numbers of its columns.
        names: what the model folder calls them.
        multi: whether a text may have several.
        values: (N,) class numbers, or (N, C) of 0 and 1; empty where only the classes are known.
    """

    classes: NDArray[Any]
    names: tuple[str, ...]
    multi: bool
    values: Any

    def __len__(self) -> int:
        return len(self.values)

    def labels(self) -> list[Any]:
        """The names of each row: one, or a list."""
        if self.multi:
            return [[self.names[at] for at in np.flatnonzero(row)] for row in self.values]
        return [self.names[at] for at in self.values]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, without the rows."""
        kind = self.classes.dtype.str if self.classes.dtype != object else "O"
        return {"classes": self.classes.tolist(), "dtype": kind, "names": list(self.names), "multi": self.multi}

    @classmethod
    def from_dict(cls, about: dict[str, Any]) -> Target:
        """What `to_dict` said."""
        kind = object if about["dtype"] == "O" else np.dtype(about["dtype"])
        return cls(np.array(about["classes"], dtype=kind), tuple(about["names"]), about["multi"], ())

    @classmethod
    def of_names(cls, names: list[str], *, multi: bool) -> Target:
        """Of a model whose labels are known by their names only."""
        return cls(np.arange(len(names)) if multi else np.array(names), tuple(names), multi, ())


def label_column(X: Any, y: Any, estimator: str) -> Any:
    """The labels: `y`, or the column of `X` that it names.

    Raises:
        OptionError: there are none.
    """
    if y is None:
        raise OptionError(f"{estimator} requires y to be passed, but the target y is None")
    if not isinstance(y, str):
        return y
    columns = [str(name) for name in (X.column_names if hasattr(X, "column_names") else getattr(X, "columns", []))]
    if y not in columns:
        raise DataError(f"no column {y!r} for the labels; its columns are {', '.join(columns) or 'none'}")
    return X[y]


def read_target(y: Any) -> Target:
    """Labels of any kind.

    Raises:
        OptionError: they are numbers with decimals, of mixed types, missing, or all the same.
    """
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import column_or_1d

    columns = [str(name) for name in getattr(y, "columns", ())]
    values = _array(y)
    if values.ndim == 2 and values.shape[1] > 1:
        return _indicator(values, columns)
    values = column_or_1d(values, warn=True)
    if not len(values):
        raise OptionError("y is empty: there is nothing to train on")
    missing = [at for at, value in enumerate(values.tolist()) if value is None or value != value]
    if missing:
        raise OptionError(f"Input y contains NaN or None, first in y[{missing[0]}]; fill it in or remove the row")
    try:
        check_classification_targets(values)
        if type_of_target(values) not in ("binary", "multiclass"):
            raise ValueError("labels of this kind are unknown")
        classes, numbers = np.unique(values, return_inverse=True)
    except (TypeError, ValueError) as error:
        raise OptionError(f"y: {error}; use one type of labels, or mixwell.train with task='regression'") from error
    if len(classes) < 2:
        raise OptionError(f"y has one class only ({classes[0]!r}); two are needed")
    return Target(classes, _names(classes.tolist()), False, numbers)


def _array(y: Any) -> NDArray[Any]:
    """An array of what the libraries call columns."""
    if hasattr(y, "toarray"):  # a sparse indicator matrix
        y = y.toarray()
    if type(y).__module__.startswith("datasets"):
        y = list(y)
    if isinstance(y, (list, tuple)):
        _check_list(y)
    values = y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(y)
    if values.dtype == object and values.ndim == 1 and all(isinstance(value, str) for value in values):
        return np.asarray(values, dtype=object)
    return np.asarray(values)


def _check_list(y: Any) -> None:
    """Raise for what NumPy would make something else of."""
    listed = [value for value in y if isinstance(value, (list, tuple, set))]
    if any(isinstance(value, set) or not all(isinstance(each, (int, float)) for each in value) for value in listed):
        raise OptionError(
            "y holds lists of labels; make an indicator matrix of them: sklearn.preprocessing.MultiLabelBinarizer"
        )
    texts = [isinstance(value, str) for value in y if value is not None]
    if any(texts) and not all(texts):
        raise OptionError(f"y[{texts.index(not texts[0])}] is of another type than y[0]; use one type of labels")


def _indicator(values: NDArray[Any], columns: list[str]) -> Target:
    if not np.isin(values, (0, 1)).all():
        raise OptionError("y has several columns: they must hold 0 and 1 only, one column per label")
    names = _names(columns or [str(at) for at in range(values.shape[1])])
    return Target(np.arange(values.shape[1]), names, True, values.astype(np.int64))


def _names(classes: list[Any]) -> tuple[str, ...]:
    """Names for classes: their texts, or numbers where these are not told apart as names."""
    names = tuple(str(each) for each in classes)
    plain = all(name and name == name.strip() and name.casefold() != "nan" and name.isprintable() for name in names)
    return names if plain and len(set(names)) == len(names) else tuple(f"LABEL_{at}" for at in range(len(names)))
