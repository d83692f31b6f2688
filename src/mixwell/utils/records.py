"""JSON files of ours with a format line, and errors of writing in one line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mixwell.utils.errors import DISK_ERRORS, MixwellError, RunError


def damage(path: Path, what: object, advice: str = "bring the file back as it was") -> RunError:
    """The error for a file of ours that was changed or damaged."""
    text = " ".join(str(what).split())
    return RunError(f"{path}: damaged ({text if len(text) <= 200 else text[:200] + '...'}); {advice}")


@contextlib.contextmanager
def reading(folder: Path, advice: str) -> Iterator[None]:
    """Say of a folder of ours that its files are damaged or do not go together, whatever that leads to inside.

    For what is made of such files alone: no check of each value could know all ways in which they can be wrong.
    """
    try:
        yield
    except (MixwellError, MemoryError):
        raise
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise
        raise damage(folder, error, advice) from error
    except Exception as error:
        raise damage(folder, f"{type(error).__name__}: {error}", advice) from error


def parse_json(text: str | bytes) -> Any:
    """The value of JSON text; `ValueError` for whatever cannot be read, brackets without end too."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json(path: Path, format: str, what: str) -> dict[str, Any]:
    """Read a JSON file of ours; raise `RunError` when it is missing, damaged or of another version."""
    try:
        record = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path.parent}: not {what} (no {path.name})") from error
    except ValueError as error:
        raise RunError(f"{path}: damaged ({error})") from error
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
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
