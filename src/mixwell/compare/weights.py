"""Which files of a model folder decide what it computes, and a fingerprint over them."""

from __future__ import annotations

import hashlib
from pathlib import Path

_DECIDING = (".safetensors", ".json", ".txt", ".model", ".py", ".jinja")  # the ends of their names


def deciding_files(folder: Path) -> list[Path]:
    """The files of a model folder that decide what it computes, in order."""
    return sorted(file for file in folder.iterdir() if file.is_file() and file.suffix in _DECIDING)


def weights_fingerprint(source: str, commit: str | None) -> str:
    """SHA-256 over the files of a model folder, or the hub's id and commit.

    Args:
        source: from `models.resolve`.
        commit: of the hub.
    """
    folder = Path(source)
    if not folder.is_dir():
        return f"{source}@{commit}"
    total = hashlib.sha256()
    for file in deciding_files(folder):
        if file.name != "mixwell.json":
            total.update(f"\n{file.name} {file.stat().st_size}\n".encode())
            with open(file, "rb") as stream:
                while block := stream.read(1 << 20):
                    total.update(block)
    return total.hexdigest()
