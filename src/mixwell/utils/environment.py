"""The processes of a run, and the versions its numbers depend on."""

from __future__ import annotations

import contextlib
import os


def rank() -> int:
    """The number of this process among those of torchrun or accelerate launch; 0 when alone."""
    try:
        return int(os.environ.get("RANK", "0"))
    except ValueError:
        return 0


def processes() -> int:
    """How many processes torchrun or accelerate launch started; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def versions() -> dict[str, str]:
    """The versions that a run's numbers depend on."""
    import platform
    from importlib import metadata

    from mixwell._version import __version__

    found = {"mixwell": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "accelerate", "tokenizers", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def git_commit() -> str | None:
    """The commit of the working folder's repository, with `+` behind it when files were changed; None without git."""
    import subprocess

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
