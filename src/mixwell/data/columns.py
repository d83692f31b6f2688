"""Finding the text, pair and label columns, and making the text of a record."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mixwell.data.readers import Record, Rows
from mixwell.metrics.tasks import REGRESSION
from mixwell.utils.errors import DataError, OptionError, nearest

# In order of preference; the first name that the source has is taken. Names are compared without case.
PAIR_NAMES = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text_1", "text_2"),
    ("text_a", "text_b"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question", "passage"),
    ("query", "passage"),
)
TEXT_NAMES = (
    "text",
    "sentence",
    "sentence1",
    "question",
    "review",
    "message",
    "content",
    "comment",
    "tweet",
    "utterance",
    "query",
    "document",
    "body",
    "input",
    "prompt",
    "description",
    "headline",
    "title",
    "article",
    "abstract",
    "post",
    "sms",
    "phrase",
    "texts",
    "sentences",
)
LABEL_NAMES = (
    "label",
    "labels",
    "class",
    "category",
    "intent",
    "target",
    "sentiment",
    "topic",
    "emotion",
    "relation",
    "gold_label",
    "label_text",
    "tag",
    "tags",
    "genre",
    "classes",
    "categories",
    "score",
    "rating",
    "stars",
    "y",
    "answer",
    "output",
)
ENTITY_MARKERS = ("[E1]", "[/E1]", "[E2]", "[/E2]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Columns:
    """Which column plays which part.

    Attributes:
        text: the text column; `tokens` for relation records.
        text_pair: the second text of sentence pairs, or None.
        label: the label column, or None when none is wanted.
        entities: the head and tail columns of relation records, or None.
        notes: which columns were found, not named.
    """

    text: str
    text_pair: str | None = None
    label: str | None = None
    entities: tuple[str, str] | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def needed(self) -> list[str]:
        """The columns that must be read."""
        names = [self.text, self.text_pair, *(self.entities or ()), self.label]
        return [name for name in names if name is not None]

    def parts(self) -> dict[str, str]:
        """The columns by part, for reports."""
        head, tail = self.entities or (None, None)
        parts = {"text": self.text, "text_pair": self.text_pair, "label": self.label, "head": head, "tail": tail}
        return {part: name for part, name in parts.items() if name is not None}

    def texts(self, record: Record) -> tuple[str | None, str | None]:
        """The text and the pair text of a record; None where it is missing, empty or NaN.

        Raises:
            ValueError: the value cannot be a text; the message says why, not where.
        """
        if self.entities:
            head, tail = (record.get(name) for name in self.entities)
            return relation_text(record.get(self.text), head, tail), None
        pair = None if self.text_pair is None else as_text(record.get(self.text_pair), self.text_pair)
        return as_text(record.get(self.text), self.text), pair


def as_text(value: Any, column: str) -> str | None:
    """A cell as text; None when it is missing: null, NaN (also spelt out), empty or blanks only."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError(f"column {column!r} has a NUL character; remove it")
        return None if value in ("nan", "NaN") or not value.strip() else value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, (int, float)):
        return str(value)
    raise ValueError(f"column {column!r} holds a {type(value).__name__}, expected a text; name the text column")


def find_columns(
    rows: Rows,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    task: str | None = None,
    want_label: bool = True,
) -> Columns:
    """Settle which columns hold text, pair and label.

    A column that is named must exist. The others are found by well-known names (`TEXT_NAMES`, `PAIR_NAMES`,
    `LABEL_NAMES`), else by the values of the first rows when only one column can be meant. A pair is looked
    for only when the text column is not named.

    Raises:
        DataError: a named column is missing, or the choice is not clear.
    """
    named = _check_named(rows, {"text": text, "text_pair": text_pair, "label": label})
    names, head = rows.columns, rows.head()
    if not head:
        raise DataError(f"{rows.name}: no rows, only a header; add data rows")
    notes: list[str] = []
    entities = _relation_columns(names, head) if text is None and text_pair is None else None
    if entities:
        text = "tokens"
        notes.append("relation records: text made of the tokens with the entities marked")
    folded = {name.casefold(): name for name in reversed(names)}
    if text is None and text_pair is None:
        text, text_pair = _known_pair(folded, label)
    if text is None:
        text = _known_name(TEXT_NAMES, folded, {label, text_pair})
    if text is None and not want_label and len(names) == 1:
        text = names[0]
    used = {text, text_pair, *(entities or ())}
    if want_label and label is None:
        label = _known_name(LABEL_NAMES, folded, used)
    if text is None:
        fit = [name for name in names if name not in (label, text_pair) and _is_prose(head, name)]
        text = _only(rows, "text", fit)
    if want_label and label is None:
        used = {text, text_pair, *(entities or ())}
        fit = [name for name in names if name not in used and _is_label(head, name, task)]
        label = _only(rows, "label", fit)
    columns = Columns(text, text_pair, label if want_label else None, entities)
    chosen = [f"{part} = {name!r}" for part, name in columns.parts().items() if name not in named]
    if chosen:
        notes.insert(0, f"columns found: {', '.join(chosen)}")
    return replace(columns, notes=tuple(notes))


def _check_named(rows: Rows, parts: dict[str, str | None]) -> list[str]:
    """The columns that the user named; raises if one is missing or named twice."""
    names = rows.columns
    for part, name in parts.items():
        if name is not None and name not in names:
            raise DataError(
                f"{rows.name}: no column {name!r} for {part}{nearest(name, names)}; its columns are {_listed(names)}"
            )
    named = [name for name in parts.values() if name is not None]
    if len(set(named)) < len(named):
        raise OptionError(f"text, text_pair and label must be different columns, got {', '.join(named)}")
    return named


def _known_pair(folded: dict[str, str], label: str | None) -> tuple[str | None, str | None]:
    """The first two columns with well-known names of a pair, if there are any; `folded` has names without case."""
    free = {key: name for key, name in folded.items() if name != label}
    return next(((free[first], free[second]) for first, second in PAIR_NAMES if {first, second} <= free.keys()),
                (None, None))  # fmt: skip


def _known_name(known: Sequence[str], folded: dict[str, str], taken: set[str | None]) -> str | None:
    """The first column with a well-known name that is not taken."""
    return next((folded[key] for key in known if key in folded and folded[key] not in taken), None)


def check_columns(rows: Rows, columns: Columns) -> None:
    """Raise a `DataError` unless a further file has the columns that the first one has."""
    for name in columns.needed:
        if name not in rows.columns:
            raise DataError(
                f"{rows.name}: no column {name!r}, which the train data have{nearest(name, rows.columns)}; "
                f"its columns are {_listed(rows.columns)}"
            )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:20])
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _only(rows: Rows, part: str, fit: list[str]) -> str:
    if len(fit) == 1:
        return fit[0]
    why = f"{_listed(fit)} could be it" if fit else "none looks like it"
    header = "" if rows.typed else "; the first line is read as the header"
    raise DataError(
        f"{rows.name}: cannot tell the {part} column among {_listed(rows.columns)} ({why}{header}); name "
        f"it with --{part} ({part}= in Python)"
    )


def _relation_columns(names: list[str], head: list[Record]) -> tuple[str, str] | None:
    """The columns of the two entities of relation records, whose words are in `tokens`."""
    if "tokens" in names and isinstance(head[0].get("tokens"), list):
        return next((pair for pair in (("head", "tail"), ("h", "t")) if set(pair) <= set(names)), None)
    return None


def _values(head: list[Record], name: str) -> list[Any]:
    values = [record.get(name) for record in head]
    return [value for value in values if value is not None and value != ""]


def _is_prose(head: list[Record], name: str) -> bool:
    """Whether a column looks like running text: strings, at least half of them of two words or more."""
    values = _values(head, name)
    if not values or not all(isinstance(value, str) for value in values):
        return False
    return sum(len(value.split()) > 1 for value in values) * 2 >= len(values)


def _is_label(head: list[Record], name: str, task: str | None) -> bool:
    """Whether a column looks like labels: values that repeat, numbers for regression, or lists."""
    values = _values(head, name)
    if not values or any(isinstance(value, dict) for value in values):
        return False
    if task == REGRESSION:
        return all(
            NUMBER.fullmatch(value.strip()) if isinstance(value, str) else isinstance(value, (int, float))
            for value in values
        )
    if any(isinstance(value, list) for value in values):
        return all(isinstance(value, list) for value in values)
    return len({str(value) for value in values}) < len(values)


@dataclass
class RowNumbers:
    """Rows for a message, `row 3` or `rows 3, 8, 9, 11, 12 and 4 more`: how many, and the numbers of the first."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, row: int) -> None:
        """Count one more row."""
        self.count += 1
        if self.count <= 5:
            self.first.append(row)

    def __str__(self) -> str:
        more = f" and {self.count - 5} more" if self.count > 5 else ""
        return f"row{'s' if self.count > 1 else ''} {', '.join(map(str, self.first))}{more}"


class TextReader:
    """Takes the texts of the rows of one source and keeps count of those that are missing."""

    def __init__(self, rows: Rows, columns: Columns) -> None:
        self.rows = rows
        self.columns = columns
        self._missing: dict[str, RowNumbers] = {}

    def take(self, record: Record, row: int) -> tuple[str, str | None] | None:
        """The text and pair of a record, or None when one is missing (`check` then raises).

        Raises:
            DataError: a value that is no text.
        """
        try:
            text, pair = self.columns.texts(record)
        except ValueError as error:
            raise DataError(f"{self.rows.name}: row {row}: {error}") from error
        if text is None:
            self._missing.setdefault(self.columns.text, RowNumbers()).add(row)
        if pair is None and self.columns.text_pair is not None:
            self._missing.setdefault(self.columns.text_pair, RowNumbers()).add(row)
            return None
        return None if text is None else (text, pair)

    def missing(self) -> str:
        """Which rows have no text; empty if all have one."""
        return next((f"column {name!r} is empty or NaN in {rows}" for name, rows in self._missing.items()), "")

    def check(self) -> None:
        """Raise a `DataError` that names the rows without text, if there are any."""
        if missing := self.missing():
            raise DataError(f"{self.rows.name}: {missing}; fill these rows in or remove them")


def relation_text(tokens: Any, head: Any, tail: Any) -> str | None:
    """The text of a relation record: its tokens joined by blanks, with the two entities marked.

    `[E1] ... [/E1]` go around the first mention of the head and `[E2] ... [/E2]` around that of the tail, as
    tokens of their own: `[E1] Ada [/E1] was born in [E2] London [/E2] .` Give the tokenizer the four
    `ENTITY_MARKERS` as special tokens if they are to stay whole.

    Args:
        tokens: the words.
        head: the first entity: an object with `positions` (or `pos`), a list of mentions, each a list of
            token indices from 0; or FewRel's own `[name, id, positions]`; or an object with `name` alone,
            which is then looked up in the tokens.
        tail: the second entity, in the same form.

    Raises:
        ValueError: the tokens or positions cannot be used.
    """
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ValueError("'tokens' must be a list of words")
    if not any(token.strip() for token in tokens):
        return None
    before: dict[int, list[str]] = {}
    after: dict[int, list[str]] = {}
    spans = [(*_mention(entity, tokens, name), name) for entity, name in ((head, "head"), (tail, "tail"))]
    # Longer spans open first and close last, so that nested entities give nested markers.
    for start, end, name in sorted(spans, key=lambda span: (span[1] - span[0], span[2]), reverse=True):
        opening, closing = ENTITY_MARKERS[:2] if name == "head" else ENTITY_MARKERS[2:]
        before.setdefault(start, []).append(opening)
        after.setdefault(end, []).insert(0, closing)
    words: list[str] = []
    for position, token in enumerate(tokens):
        words += [*before.get(position, ()), token, *after.get(position, ())]
    text = " ".join(words)
    if "\0" in text:
        raise ValueError("column 'tokens' has a NUL character; remove it")
    return text


def _mention(entity: Any, tokens: list[str], what: str) -> tuple[int, int]:
    positions: Any = None
    name = ""
    if isinstance(entity, dict):
        positions = entity.get("positions", entity.get("pos"))
        name = str(entity.get("name") or "")
    elif isinstance(entity, list) and len(entity) == 3 and isinstance(entity[0], str):
        name, _, positions = entity
    if isinstance(positions, list) and positions:
        first = positions[0] if isinstance(positions[0], list) else positions
        if first and all(isinstance(index, int) and 0 <= index < len(tokens) for index in first):
            return min(first), max(first)
        raise ValueError(f"{what!r} has positions {first} outside the {len(tokens)} tokens (they count from 0)")
    words = name.casefold().split()
    folded = [token.casefold() for token in tokens]
    for start in range(len(tokens) - len(words) + 1 if words else 0):
        if folded[start : start + len(words)] == words:
            return start, start + len(words) - 1
    raise ValueError(f"{what!r} has no positions, and its name {name!r} is not among the tokens")
