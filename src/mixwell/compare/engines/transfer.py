"""Send files and folders through Ray's object store to nodes that do not see them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixwell.compare.engines.base import first_line
from mixwell.compare.spec import PATH_FIELDS, CellSpec
from mixwell.compare.weights import deciding_files
from mixwell.data import cache_folder
from mixwell.training import models
from mixwell.utils.errors import OptionError, RunError

_BLOCK = 32 << 20  # bytes of a file in one object: the driver never holds more


@dataclass(frozen=True)
class Package:
    """A file or folder in the object store.

    Attributes:
        name: its last part: the end of a file's name decides how it is read.
        digest: of names and contents.
        files: of each file the path inside and references to its blocks; the path of a single file is empty.
    """

    name: str
    digest: str
    files: tuple[tuple[str, tuple[Any, ...]], ...]


def pack(ray: Any, path: Path, model: bool) -> Package:
    """Put a file or folder into the object store.

    Args:
        ray: the package.
        path: of the file or folder.
        model: take only what decides over a model's weights, config and tokenizer.
    """
    if path.is_dir():
        inside = deciding_files(path) if model else sorted(file for file in path.rglob("*") if file.is_file())
        named = [(file.relative_to(path).as_posix(), file) for file in inside]
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
    return Package(path.name, total.hexdigest(), tuple(files))


def unpack(package: Package, cache_dir: str | None) -> str:
    """Write a package into the cache folder of a node, unless it is there; return its path."""
    import ray

    target = cache_folder(cache_dir) / "sent" / package.digest[:32]
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=target.parent) as folder:
            whole = Path(folder) / "whole"
            for inner, blocks in package.files:
                path = whole / package.name / inner if inner else whole / package.name
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
    return str(target / package.name)


class FileSender:
    """The files that cells read on this machine, and those that were put into the object store.

    Args:
        ray: the package, connected.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._packages: dict[str, Package] = {}
        self._files: dict[tuple[Any, ...], dict[str, str]] = {}

    def files(self, spec: CellSpec) -> dict[str, str]:
        """What a cell reads from disks: the names in its specification, and where they are on this machine."""
        key = (spec.source, spec.model, *spec.conditions.files())
        if key not in self._files:
            names = [*(getattr(spec.source, field) for field in PATH_FIELDS), *spec.conditions.files()]
            files = {name: name for name in names if isinstance(name, str) and os.path.exists(name)}
            with contextlib.suppress(OptionError):
                source = models.resolve(spec.model)
                if os.path.isdir(source):
                    files[spec.model] = source
            self._files[key] = files
        return self._files[key]

    def packages(self, spec: CellSpec) -> dict[str, Package]:
        """The files of a cell that are in the object store."""
        return {name: self._packages[name] for name in self.files(spec) if name in self._packages}

    def has(self, name: str) -> bool:
        """Whether a file is in the object store."""
        return name in self._packages

    def send(self, spec: CellSpec, name: str) -> None:
        """Put a file or folder of a cell into the object store, once.

        Raises:
            RunError: it cannot be read, or the store is full.
        """
        if name in self._packages:
            return
        path = self.files(spec)[name]
        try:
            self._packages[name] = pack(self._ray, Path(path), name == spec.model)
        except (OSError, self._ray.exceptions.RayError) as error:
            raise RunError(f"{path}: cannot be sent to the nodes ({first_line(error)})") from error

    def clear(self) -> None:
        """Let go of the object store."""
        self._packages.clear()
