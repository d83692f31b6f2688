"""Files and folders on their way through Ray's object store to nodes that do not see them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = 32 << 20  # bytes of a file in one object: the driver never holds more


@dataclass(frozen=True)
class Parcel:
    """A file or folder in the object store.

    Attributes:
        name: its last part: the end of a file's name decides how it is read.
        digest: of names and contents.
        files: of each file the path inside and references to its blocks; the path of a single file is empty.
    """

    name: str
    digest: str
    files: tuple[tuple[str, tuple[Any, ...]], ...]


def pack(ray: Any, path: Path, model: bool) -> Parcel:
    """Put a file or folder into the object store.

    Args:
        ray: the package.
        path: of the file or folder.
        model: take only what decides over a model's weights, config and tokenizer.
    """
    from mixwell.compare.planning import deciding_files

    if path.is_dir():
        inside = deciding_files(path) if model else sorted(each for each in path.rglob("*") if each.is_file())
        named = [(each.relative_to(path).as_posix(), each) for each in inside]
    else:
        named = [("", path)]
    total = hashlib.sha256()
    files = []
    for inner, file in named:
        total.update(f"\n{inner} {file.stat().st_size}\n".encode())
        blocks = []
        with open(file, "rb") as stream:
            while block := stream.read(_BLOCK):
                total.update(block)
                blocks.append(ray.put(block))
        files.append((inner, tuple(blocks)))
    return Parcel(path.name, total.hexdigest(), tuple(files))


def unpack(parcel: Parcel, cache_dir: str | None) -> str:
    """Write a parcel into the cache folder of a node, unless it is there; return its path."""
    import ray

    from mixwell.data import cache_folder

    target = cache_folder(cache_dir) / "sent" / parcel.digest[:32]
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=target.parent) as folder:
            whole = Path(folder) / "whole"
            for inner, blocks in parcel.files:
                path = whole / parcel.name / inner if inner else whole / parcel.name
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "wb") as stream:
                    for block in blocks:
                        stream.write(ray.get(block))
                    stream.flush()
                    os.fsync(stream.fileno())
            try:
                os.rename(whole, target)
            except OSError:
                if not target.is_dir():  # else another worker of this node was quicker
                    raise
    return str(target / parcel.name)
