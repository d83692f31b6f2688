"""Tokenising tables, with a cache on disk that processes can share."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell.utils.errors import OptionError
from mixwell.utils.files import atomic_folder, home, sha256_of
from mixwell.utils.options import check_whole

if TYPE_CHECKING:
    import datasets

_FORMAT = "mixwell tokens 2"
_CHECKSUM = "data.sha256"


class _AlreadyWritten(Exception):
    """Another process finished the same cache entry first."""


def cache_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """The cache folder: `cache_dir`, else `$MIXWELL_CACHE`, else `~/.cache/mixwell`."""
    if cache_dir is None:
        cache_dir = os.environ.get("MIXWELL_CACHE") or "~/.cache/mixwell"
    return home(cache_dir)


def tokenise(
    table: Any,
    tokenizer: Any,
    *,
    max_length: int,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    batch_size: int = 1000,
) -> datasets.Dataset:
    """Tokenise a table of `TextData`; rows keep their order, and nothing is padded.

    The result is mapped from a file in the cache, `<cache>/tokens/<key>`, where the key is a hash of the
    rows' texts and labels, the tokenizer's content and `max_length`. It is written beside its place and then
    renamed, so that processes doing the same at once each get a whole file.

    Args:
        table: columns `text`, maybe `text_pair` and `label`.
        tokenizer: a transformers tokenizer.
        max_length: the most tokens per row, special ones included; longer texts are cut (of a pair, the
            longer one).
        cache_dir: the cache folder; None for `$MIXWELL_CACHE`, else `~/.cache/mixwell`.
        progress: called with (rows done, rows in all) after each batch.
        batch_size: rows tokenised at once.

    Returns:
        A dataset with the columns `input_ids` (list of int32), `attention_mask` (list of int8),
        `token_type_ids` (list of int8) if the tokenizer makes them, and `labels` (int64, list<float32> or
        float32) if the table has labels. Row ids are left in the table, as collators cannot pad texts.

    Raises:
        OptionError: max_length or batch_size is too small, or the cache folder cannot be written.
    """
    _check_lengths(tokenizer, "text_pair" in table.column_names, max_length, batch_size)
    key = hashlib.sha256(f"{_FORMAT}\n{max_length}\n{table_hash(table)}\n{tokenizer_hash(tokenizer)}".encode())
    target = cache_folder(cache_dir) / "tokens" / key.hexdigest()[:32]
    schema = _schema(table, tokenizer)
    if (cached := _open(target, table.num_rows, schema)) is not None:
        if progress is not None:
            progress(table.num_rows, table.num_rows)
        return cached
    # Again, should another process clear the entry away between our writing and our reading.
    for _ in range(3):
        try:
            with atomic_folder(target) as folder:
                _write(folder / "data.arrow", table, tokenizer, max_length, batch_size, progress)
                (folder / _CHECKSUM).write_text(sha256_of(folder / "data.arrow") + "\n", encoding="ascii")
                if _open(target, table.num_rows, schema) is not None:
                    raise _AlreadyWritten
        except _AlreadyWritten:
            pass
        except OSError as error:
            # Losing the race for the rename looks like this too; then the winner's file is there.
            if _open(target, table.num_rows, schema) is None:
                raise OptionError(
                    f"cache folder {target.parent}: {error.strerror or error}; name another with cache_dir or "
                    "MIXWELL_CACHE"
                ) from error
        if (written := _open(target, table.num_rows, schema)) is not None:
            return written
    raise OptionError(f"cache folder {target.parent}: {target.name} cannot be read back; name another with cache_dir")


def _check_lengths(tokenizer: Any, pairs: bool, max_length: int, batch_size: int) -> None:
    check_whole(max_length, "max_length", 3)
    least = tokenizer.num_special_tokens_to_add(pair=pairs) + (2 if pairs else 1)
    if max_length < least:
        what = "pairs of texts" if pairs else "texts"
        raise OptionError(f"max_length must be at least {least} for {what} with this tokenizer, got {max_length}")
    check_whole(batch_size, "batch_size", 1)


def _open(folder: Path, rows: int, schema: Any) -> datasets.Dataset | None:
    """The dataset in a cache entry, or None when it is missing, damaged, changed or of another schema."""
    import datasets
    import pyarrow as pa

    path = folder / "data.arrow"
    try:
        if (folder / _CHECKSUM).read_text(encoding="ascii").strip() != sha256_of(path):
            return None
        dataset = datasets.Dataset.from_file(str(path))
    except (OSError, ValueError, pa.ArrowException):
        return None
    return dataset if len(dataset) == rows and dataset.data.schema.equals(schema) else None


def _schema(table: Any, tokenizer: Any) -> Any:
    """The columns of a cache entry and their types."""
    import pyarrow as pa

    fields = [("input_ids", pa.list_(pa.int32())), ("attention_mask", pa.list_(pa.int8()))]
    if "token_type_ids" in tokenizer.model_input_names:
        fields.append(("token_type_ids", pa.list_(pa.int8())))
    if "label" in table.column_names:
        kind = table.schema.field("label").type
        # A model's outputs are float32, and its loss wants targets of the same type.
        fields.append(("labels", pa.float32() if pa.types.is_floating(kind) else kind))
    return pa.schema(fields)


def _write(
    path: Path,
    table: Any,
    tokenizer: Any,
    max_length: int,
    batch_size: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    import pyarrow as pa

    pairs = "text_pair" in table.column_names
    labelled = "label" in table.column_names
    schema = _schema(table, tokenizer)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for start in range(0, table.num_rows, batch_size):
            part = table.slice(start, batch_size)
            texts = [part[name].to_pylist() for name in ("text", "text_pair") if pairs or name == "text"]
            encoded = tokenizer(
                *texts, truncation=True, max_length=max_length, padding=False, return_attention_mask=True
            )
            columns = [pa.array(encoded[field.name], field.type) for field in schema if field.name != "labels"]
            if labelled:
                columns.append(part["label"].combine_chunks().cast(schema.field("labels").type))
            writer.write_batch(pa.record_batch(columns, schema=schema))
            if progress is not None:
                progress(start + part.num_rows, table.num_rows)


def table_hash(table: Any) -> str:
    """SHA-256 over the texts and labels of a table."""
    names = [name for name in ("text", "text_pair", "label") if name in table.column_names]
    total = hashlib.sha256(repr(names).encode())
    for batch in table.select(names).to_batches(max_chunksize=1000):
        # Rows as JSON: lengths and types are in it, and it does not depend on how Arrow lays chunks out.
        for row in zip(*(batch[name].to_pylist() for name in names)):
            total.update(json.dumps(row).encode())
    return total.hexdigest()


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 over what a tokenizer does: its vocabulary, rules and special tokens, not its name or path."""
    total = hashlib.sha256()
    properties = {
        "inputs": list(tokenizer.model_input_names),
        "truncation_side": getattr(tokenizer, "truncation_side", ""),
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
    }
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = json.loads(backend.to_str())
        # Left over from the last call, not part of what the tokenizer is.
        content["truncation"] = content["padding"] = None
        properties["content"] = content
    else:
        properties["class"] = type(tokenizer).__name__
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            for file in sorted(Path(folder).rglob("*")):
                if file.is_file():
                    total.update(f"\n{file.relative_to(folder)}\n".encode())
                    total.update(file.read_bytes())
    total.update(json.dumps(properties, sort_keys=True).encode())
    return total.hexdigest()
