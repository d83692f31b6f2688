"""A lock for each cell, which goes away with the process that holds it, however that ends.

All locks are single bytes of one file, at a place given by the cell's name: nothing to clean up, and no moment at
which a lock file is removed under another process. POSIX record locks work on shared file systems (NFS) too.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from mixwell.errors import RunError

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
        """Try to lock a cell; False when another process has it.

        Raises:
            RunError: the file system has no locks.
        """
        if key in self._held:
            return False
        try:
            import fcntl
        except ImportError:  # pragma: no cover - Windows
            self._held.add(key)
            return True
        assert self._handle is not None
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(key))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise RunError(
                f"{self.path}: the file system gives no locks ({error.strerror}); choose another place with --output"
            ) from error
        self._held.add(key)
        return True

    def release(self, key: str) -> None:
        """Let a cell go."""
        if key not in self._held:
            return
        self._held.discard(key)
        with contextlib.suppress(ImportError):
            import fcntl

            assert self._handle is not None
            fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, _place(key))


def _place(key: str) -> int:
    return int(key[:15], 16)  # below 2 ** 60: inside what file systems allow
