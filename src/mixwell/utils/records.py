"""JSON files of ours with a format line, and errors of writing in one line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mixwell.utils.errors import RunError


def read_json(path: Path, format: str, what: str) -> dict[str, Any]:
    """Read a JSON file of ours; raise `RunError` when it is missing, damaged or of another version."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path.parent}: not {what} (no {path.name})") from error
    except ValueError as error:
        raise RunError(f"{path}: damaged ({error})") from error
    if not isinstance(record, dict) or record.get("format") != format:
        found = record.get("format") if isinstance(record, dict) else None
        raise RunError(f"{path}: expected {format!r}, found {found!r}; it was written by another version of mixwell")
    return record


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the libraries raise when a file cannot be written into one line that names `path`."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror or error}); put that right and use --resume"
        ) from error
    except (SafetensorError, RuntimeError) as error:
        signs = ("os error", "I/O error", "PytorchStreamWriter", "file write failed", "unexpected pos")
        if not any(sign in str(error) for sign in signs):
            raise
        raise RunError(
            f"{path}: cannot be written (no space left, or a limit on the size of files); make room and use --resume"
        ) from error
