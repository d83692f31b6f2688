"""Locks that go away with the process that holds them, however that ends.

A lock is one byte of a file. POSIX record locks work on shared file systems (NFS) too, and a forked data loader does
not inherit them, so that it cannot outlive a killed run; on Windows the C library locks the byte.

The locks of a comparison are bytes of one file, at a place given by the name of the run: nothing to clean up, and no
moment at which a lock file is removed under another process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mixwell.utils.errors import RunError

if sys.platform == "win32":  # pragma: no cover - tried on no Windows machine
    import msvcrt

    def _lock(handle: int, place: int) -> None:
        os.lseek(handle, place, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    def _unlock(handle: int, place: int) -> None:
        os.lseek(handle, place, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(handle: int, place: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)

    def _unlock(handle: int, place: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_UN, 1, place)


_BEHIND = 1 << 40  # far behind the content, which others may read meanwhile


def take_lock(handle: int, path: Path, place: int = _BEHIND) -> bool:
    """Try to lock one byte of an open file; False when another process has it.

    Raises:
        RunError: the file system has no locks; the message names `path`.
    """
    try:
        _lock(handle, place)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise RunError(
            f"{path}: the file system gives no locks ({error.strerror}); choose another place with --output"
        ) from error
    return True


_OPEN: set[str] = set()  # files open in this process: closing one twice opened would drop the locks of both


class CellLocks:
    """The locks in a folder, for this process; one at a time for each folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".locks"
        self._held: set[str] = set()
        self._handle: int | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[CellLocks]:
        """Open the lock file inside; all locks are gone afterwards."""
        name = str(self.path.resolve())
        if name in _OPEN:
            raise RunError(f"{self.path.parent} is in use by this process; wait for it to end")
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        _OPEN.add(name)
        try:
            yield self
        finally:
            _OPEN.discard(name)
            os.close(self._handle)
            self._handle = None
            self._held.clear()

    def take(self, key: str) -> bool:
        """Try to lock a run; False when another process has it.

        Raises:
            RunError: the file system has no locks.
        """
        if key in self._held:
            return False
        assert self._handle is not None
        taken = take_lock(self._handle, self.path, _place(key))
        if taken:
            self._held.add(key)
        return taken

    def release(self, key: str) -> None:
        """Let a run go."""
        if key in self._held and self._handle is not None:
            self._held.discard(key)
            _unlock(self._handle, _place(key))


def _place(key: str) -> int:
    return int(key[:15], 16)  # below 2 ** 60: inside what file systems allow
