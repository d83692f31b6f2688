"""Writing files so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def home(path: str | os.PathLike[str]) -> Path:
    """A path with a leading `~` put in full; as it is where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


@contextlib.contextmanager
def _taking_files(target: Path) -> Iterator[None]:
    """Say of a folder that is there but takes no files (/proc and its like) what is wrong, as other folders do."""
    try:
        yield
    except FileNotFoundError as error:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target)) from error


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder and its parents, unless they are there."""
    with _taking_files(Path(path)):
        Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


def _share(path: Path, mode: int) -> None:
    """Give a temporary file or folder, which is private, the rights that open() or mkdir() would have given."""
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(path, mode & ~umask)


@contextlib.contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `target`; on success it is flushed and renamed onto `target`.

    On an exception the temporary file is removed and `target` is left as it was. The name ends as the
    target's does, for writers that choose a format by suffix.

    Args:
        target: the file to write.
    """
    target = Path(os.path.realpath(target))  # a link stays, and what it points to is replaced
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if target.exists() and not target.is_file():
        yield target  # a device or a pipe: there is nothing to keep whole, and a rename would take its place
        return
    with _taking_files(target):
        make_folder(target.parent)
        handle, name = tempfile.mkstemp(prefix=f".{target.stem}.tmp-", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        _share(temporary, 0o666)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, read in blocks."""
    total = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def write_text(target: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `target` atomically, as UTF-8."""
    write_bytes(target, text.encode("utf-8"))


def write_bytes(target: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `target` atomically."""
    with atomic_path(target) as path:
        path.write_bytes(data)


def write_json(target: str | os.PathLike[str], value: Any) -> None:
    """Write `value` to `target` atomically, as indented JSON with a final newline."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # of a file name that is no UTF-8
        text = json.dumps(value, indent=2)
    write_text(target, text + "\n")


@contextlib.contextmanager
def atomic_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder beside `target`; on success it takes `target`'s place.

    A folder that stands at `target` is moved aside first and removed after the rename, so that a crash leaves
    one whole version.

    Args:
        target: the folder to write.
    """
    target = Path(target)
    make_folder(target.parent)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.tmp-", dir=target.parent))
    try:
        yield temporary
        for path in [temporary, *temporary.rglob("*")]:  # safetensors makes its files private too
            _share(path, 0o777 if path.is_dir() else 0o666)
        aside = None
        if target.exists():
            aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
            os.replace(target, aside / target.name)
        os.replace(temporary, target)
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
