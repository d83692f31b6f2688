"""Texts of relation records: tokens with the two entities marked."""

from __future__ import annotations

from typing import Any

ENTITY_MARKERS = ("[E1]", "[/E1]", "[E2]", "[/E2]")


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
