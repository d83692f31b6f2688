"""The shape of the code: sizes of modules and functions, and who imports whom."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mixwell

SOURCE = Path(mixwell.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
SHORT_FUNCTIONS = ("core", "methods", "training", "compare")
# Not methods: the registry, and what turns names into objects.
NOT_METHODS = {"__init__.py", "registry.py", "attach.py", "inspection.py"}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_sizes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert text.count("\n") <= 400 or "Long because" in (ast.get_docstring(tree) or "")
    if path.relative_to(SOURCE).parts[0] in SHORT_FUNCTIONS:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, node.name
    if path.parent.name == "methods" and path.name not in NOT_METHODS:
        skipped = docstring_lines(tree)
        lines = [line.strip() for at, line in enumerate(text.splitlines(), 1) if at not in skipped]
        assert sum(bool(line) and not line.startswith("#") for line in lines) <= 80


def test_layers() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    if not command.exists():
        assert shutil.which("lint-imports"), "import-linter is one of the test requirements"
        command = Path(str(shutil.which("lint-imports")))
    done = subprocess.run(
        [str(command), "--no-cache"], cwd=SOURCE.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_docs_name_every_package() -> None:
    text = (SOURCE.parents[1] / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    for path in SOURCE.iterdir():
        if path.is_dir() and (path / "__init__.py").is_file():
            assert f"`{path.name}/`" in text, path.name
