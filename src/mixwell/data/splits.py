"""Row keys, stratified cuts, nested samples and leaks.

All choices rest on hashes of the rows' texts, mixed with the seed: they are the same on every machine and in
every process, and do not change when the rows of a file change places.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mixwell.metrics.tasks import REGRESSION, SINGLE
from mixwell.utils.errors import DataError, OptionError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]
    Words = NDArray[np.uint64]

SPLITS = ("train", "validation", "test")
VALIDATION_FRACTION = 0.1
TEST_FRACTION = 0.2
# Label sets of multi-label data with fewer rows than this are cut as one stratum.
RARE_SET = 10


def fold(text: str) -> str:
    """A text without case and with every run of white space as one blank, to compare texts by."""
    return " ".join(text.casefold().split())


@dataclass(frozen=True)
class RowKeys:
    """Hashes of the rows of one split.

    Attributes:
        exact: of text and pair as they are, shape (rows, 2), uint64.
        folded: of text and pair after `fold`, shape (rows,), uint64.
    """

    exact: Any
    folded: Any

    def __len__(self) -> int:
        return len(self.folded)

    def take(self, rows: Any) -> RowKeys:
        """The keys of some rows."""
        return RowKeys(self.exact[rows], self.folded[rows])


class KeyMaker:
    """Hashes rows as they stream by: 24 bytes per row."""

    def __init__(self) -> None:
        self._exact = bytearray()
        self._folded = bytearray()

    def add(self, text: str, pair: str | None) -> None:
        """Take one row.

        Raises:
            UnicodeEncodeError: a text has lone surrogates.
        """
        second = "" if pair is None else pair
        # The length of the first part keeps ("ab", "c") and ("a", "bc") apart.
        exact = f"{len(text)}:{text}{second}".encode()
        self._exact += hashlib.blake2b(exact, digest_size=16).digest()
        first = fold(text)
        self._folded += hashlib.blake2b(f"{len(first)}:{first}{fold(second)}".encode(), digest_size=8).digest()

    def finish(self) -> RowKeys:
        """The keys of all rows taken."""
        import numpy as np

        exact = np.frombuffer(bytes(self._exact), dtype="<u8").reshape(-1, 2)
        return RowKeys(exact.astype(np.uint64), np.frombuffer(bytes(self._folded), dtype="<u8").astype(np.uint64))


def check_seed(seed: object, name: str = "seed") -> int:
    """Return `seed` if it is a whole number.

    Raises:
        OptionError: it is not.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise OptionError(f"{name} must be a whole number, got {seed!r}")
    return seed


def _scramble(words: Words) -> Words:
    """The splitmix64 finaliser, element by element."""
    import numpy as np

    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _seed_word(purpose: str, seed: int) -> np.uint64:
    import numpy as np

    digest = hashlib.blake2b(f"{purpose}:{seed}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _cut_order(keys: RowKeys, seed: int) -> Indices:
    """All rows in random order; equal folded texts stand together, so that a cut seldom parts them."""
    import numpy as np

    mixed = _scramble(keys.folded ^ _seed_word("split", seed))
    return np.lexsort((keys.exact[:, 1], keys.exact[:, 0], mixed))


def _sample_order(keys: RowKeys, seed: int) -> Indices:
    """All rows in random order, duplicates as far apart as other rows."""
    import numpy as np

    by_text = np.lexsort((keys.exact[:, 1], keys.exact[:, 0], keys.folded))
    again = np.zeros(len(keys), dtype=np.uint64)
    ordered = keys.folded[by_text]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(keys) else np.zeros(0, dtype=np.int64)
    lengths = np.diff(np.r_[starts, len(keys)])
    again[by_text] = (np.arange(len(keys)) - np.repeat(starts, lengths)).astype(np.uint64)
    mixed = _scramble(_scramble(keys.folded ^ _seed_word("sample", seed)) + again)
    return np.lexsort((keys.exact[:, 1], keys.exact[:, 0], mixed))


def strata(task: str, label: Any) -> Indices:
    """The stratum of each row: its class; its label set, rare sets pooled; or 0 for regression.

    Args:
        task: the task.
        label: the label column, a pyarrow chunked array.
    """
    import numpy as np

    if task == SINGLE:
        return label.to_numpy().astype(np.int64)
    if task == REGRESSION:
        return np.zeros(len(label), dtype=np.int64)
    hot = np.packbits(multi_hot(label) > 0, axis=1)
    _, stratum, counts = np.unique(hot, axis=0, return_inverse=True, return_counts=True)
    stratum = stratum.reshape(-1).astype(np.int64) + 1
    return np.where(counts[stratum - 1] < RARE_SET, 0, stratum)


def multi_hot(label: Any) -> Any:
    """A multi-label column as a numpy array, shape (rows, labels), float32."""
    import numpy as np

    if not len(label):
        return np.zeros((0, 0), dtype=np.float32)
    # flatten() minds slices, where .values does not.
    flat = label.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(label), -1)


def shares(sizes: Indices, fraction: float, least: Indices, most: Indices) -> Indices:
    """How many rows each stratum gives: its share by largest remainders, within `least` and `most`.

    Args:
        sizes: rows in each stratum.
        fraction: the share of the whole.
        least: the fewest each may give.
        most: the most each may give.
    """
    import numpy as np

    ideal = sizes * fraction
    given = np.floor(ideal + 1e-9).astype(np.int64)
    rest = round(float(sizes.sum()) * fraction) - int(given.sum())
    if rest > 0:
        # Of equal remainders the larger stratum comes first, then the lower number.
        order = np.lexsort((np.arange(len(sizes)), -sizes, -np.round(ideal - given, 9)))
        given[order[:rest]] += 1
    return np.minimum(np.maximum(given, least), most)


def cut(
    keys: RowKeys, stratum: Indices, fractions: dict[str, float], seed: int, *, every_stratum: bool
) -> dict[str, Indices]:
    """Cut rows into train and the splits of `fractions`, stratified.

    Args:
        keys: the rows.
        stratum: the stratum of each row.
        fractions: the share of each split to cut, such as `{"test": 0.2, "validation": 0.1}`.
        seed: the seed.
        every_stratum: whether every stratum gives each split a row where it has enough.

    Returns:
        Per split the row numbers, ascending; what is left is `train`.
    """
    import numpy as np

    _, where, sizes = np.unique(stratum, return_inverse=True, return_counts=True)
    order = _cut_order(keys, seed)
    by_stratum = order[np.argsort(where.reshape(-1)[order], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    left = sizes.copy()
    parts: dict[str, Indices] = {}
    for name, fraction in fractions.items():
        # Every stratum keeps a row for train.
        most = np.maximum(left - 1, 0)
        least = np.minimum(most, 1) if every_stratum else np.zeros_like(most)
        given = shares(sizes, fraction, least, most)
        rows = [by_stratum[start : start + count] for start, count in zip(starts, given)]
        parts[name] = np.sort(np.concatenate(rows))
        starts, left = starts + given, left - given
    rows = [by_stratum[start : start + count] for start, count in zip(starts, left)]
    parts["train"] = np.sort(np.concatenate(rows))
    return parts


def keep_texts_together(parts: dict[str, Indices], keys: RowKeys) -> int:
    """Move rows whose text, case and white space aside, is also in train or in an earlier split; returns how many."""
    import numpy as np

    moved = 0
    order = ["train", *(name for name in parts if name != "train")]
    for position, name in enumerate(order):
        for earlier in order[:position]:
            both = np.isin(keys.folded[parts[name]], keys.folded[parts[earlier]])
            if both.all():
                continue  # nothing would be left of the split
            moved += int(both.sum())
            parts[earlier] = np.sort(np.concatenate([parts[earlier], parts[name][both]]))
            parts[name] = parts[name][~both]
    return moved


def keep_labels_in_train(parts: dict[str, Indices], hot: Any, keys: RowKeys, seed: int) -> list[int]:
    """Move rows back to train so that train has every label; returns the labels that needed it."""
    import numpy as np

    rank = np.argsort(_cut_order(keys, seed))
    moved = []
    for label in range(hot.shape[1]):
        if hot[parts["train"], label].any():
            continue
        moved.append(label)
        has = np.flatnonzero(hot[:, label])
        row = has[np.argmin(rank[has])]
        for name in parts:
            parts[name] = parts[name][parts[name] != row]
        parts["train"] = np.sort(np.append(parts["train"], row))
    return moved


def sample_rows(
    keys: RowKeys,
    stratum: Indices,
    members: Sequence[Indices],
    seed: int,
    *,
    fraction: float | None,
    per_class: int | None,
    max_train: int | None,
) -> Indices:
    """Choose train rows, nested: for one seed a smaller sample lies inside a larger one.

    Rows are put in one order of which every beginning is stratified: first the first row of each class, then
    the rows by their rank within the stratum, relative to its size.

    Args:
        keys: the rows.
        stratum: the stratum of each row.
        members: per class the rows that have it (multi-label: a row may be in several).
        seed: the seed.
        fraction: the share of rows to keep.
        per_class: the rows of each class to keep.
        max_train: the most rows to keep.

    Returns:
        Row numbers, ascending.
    """
    import numpy as np

    total = len(keys)
    rank = np.argsort(_sample_order(keys, seed))
    _, where, sizes = np.unique(stratum, return_inverse=True, return_counts=True)
    where = where.reshape(-1)
    by_stratum = np.lexsort((rank, where))
    inside = np.empty(total, dtype=np.int64)
    inside[by_stratum] = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    priority = (inside + 0.5) / sizes[where]
    firsts = {int(rows[np.argmin(rank[rows])]) for rows in members if len(rows)}
    priority[list(firsts)] = 0.0
    queue = np.lexsort((rank, priority))
    if per_class is not None:
        kept = np.zeros(total, dtype=bool)
        for rows in members:
            kept[rows[np.argsort(rank[rows])][:per_class]] = True
        queue = queue[kept[queue]]
    if fraction is not None:
        queue = queue[: max(int(total * fraction + 0.5), len(firsts), 1)]
    if max_train is not None:
        queue = queue[:max_train]
    return np.sort(queue)


def leaked(train: RowKeys, other: RowKeys) -> tuple[Any, int]:
    """Rows whose folded text is in both.

    Returns:
        A mask over the rows of `train`, and the number of rows of `other`.
    """
    import numpy as np

    return np.isin(train.folded, other.folded), int(np.isin(other.folded, train.folded).sum())


def check_fraction(value: object, name: str, *, whole: bool) -> float:
    """Return `value` if it is a number in (0, 1], or in (0, 1) unless `whole`.

    Raises:
        OptionError: it is not.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (0 < value < 1 or (whole and value == 1)):  # type: ignore[operator]
        expected = "above 0 and at most 1" if whole else "above 0 and below 1"
        raise OptionError(f"{name} must be a number {expected}, got {value!r}")
    return float(value)  # type: ignore[arg-type]


def check_classes(source: str, column: str, stratum: Indices, labels: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise a `DataError` if a class has too few rows to be cut.

    Args:
        source: the file, for the message.
        column: the label column, for the message.
        stratum: the class of each row.
        labels: the class names.
        wanted: the splits to cut.
    """
    import numpy as np

    counts = np.bincount(stratum, minlength=len(labels))
    single = [labels[int(number)] for number in np.flatnonzero(counts == 1)]
    if not single:
        return
    shown = ", ".join(repr(name) for name in single[:5]) + (f" and {len(single) - 5} more" if single[5:] else "")
    some = f"class {shown} has" if len(single) == 1 else f"classes {shown} have"
    doubt = ""
    if len(single) * 2 > len(stratum) and len(stratum) > 10:
        doubt = f"; are these {len(labels)} values in {len(stratum)} rows really labels?"
    raise DataError(
        f"{source}: column {column!r}: {some} one example, too few to cut {' and '.join(wanted)} by class; "
        f"add examples, use --rare drop or --rare merge, or give the splits as files of their own{doubt}"
    )
