"""Run the tutorials of docs/tutorials and write what they print below each block: `python tools/tutorials.py`.

Blocks of a page run one after the other in an empty folder: `python` blocks share their names, and what one prints
stands in the `text` block right below it; in a `console` block the lines that begin with `$ mixwell` are run and the
others are what they print. A test runs all pages and compares the words that Python prints; numbers, and what a
comparison comes to, may differ from machine to machine.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """The tutorials, without the page that lists them."""
    return sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")


@contextlib.contextmanager
def quiet_place(folder: Path) -> Iterator[None]:
    """Work in a folder, without warnings and progress bars."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.chdir(before)


def run_command(words: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `mixwell WORDS` in a folder."""
    line = [sys.executable, "-m", "mixwell", *words]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False)


def run(path: Path, folder: Path, run_command: Callable[..., Any] = run_command) -> str:
    """Run a page in a folder and return its text with what it prints now; `run_command` runs its commands."""
    text = path.read_text(encoding="utf-8")
    space: dict[str, Any] = {"__name__": "tutorial"}

    def replace(match: re.Match[str]) -> str:
        kind, code, _ = match.groups()
        if kind == "console":
            return f"```console\n{_console(code, folder, run_command)}```\n"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{path.name}", "exec"), space)
        shown = printed.getvalue()
        return f"```python\n{code}```\n" + (f"\n```text\n{shown}```\n" if shown else "")

    with quiet_place(folder):
        return BLOCK.sub(replace, text)


def _console(code: str, folder: Path, run_command: Callable[..., Any]) -> str:
    """The commands of a block, each with what it prints to standard output."""
    lines = []
    for command in re.findall(r"^\$ ((?:.*\\\n)*.*)", code, re.MULTILINE):
        words = shlex.split(command.replace("\\\n", " "))
        if words[0] != "mixwell":
            raise ValueError(f"a console block runs mixwell only, not {words[0]!r}")
        environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
        done = run_command(words[1:], folder, environment)
        if done.returncode != 0:
            raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        shown = "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())
        lines.append(f"$ {command}\n{shown}\n" if shown else f"$ {command}\n")
    return "".join(lines)


def words(text: str) -> str:
    """A text without its numbers, the spaces that align them, and what commands print."""
    text = re.sub(r"^```console\n.*?^```$", lambda match: _commands(match[0]), text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"[-+]?\d[\d.,]*(e-?\d+)?", "#", text))


def _commands(block: str) -> str:
    return "\n".join(re.findall(r"^\$ (?:.*\\\n)*.*", block, re.MULTILINE))


def main() -> None:
    """Run the named pages, or all, and write what changed."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    chosen = [Path(name) for name in sys.argv[1:]] or pages()
    for path in chosen:
        with tempfile.TemporaryDirectory() as folder:
            text = run(path.resolve(), Path(folder))
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
