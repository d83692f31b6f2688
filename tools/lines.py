"""How many lines the package has, at one commit or several.

    python tools/lines.py [COMMIT ...]     # HEAD by default

Lines of code are those with something other than a comment or a docstring on them.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
EMPTY = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
)  # fmt: skip


def count(source: str) -> tuple[int, int, int]:
    """All lines of a file, its lines of code, and those that import nothing."""
    tree = ast.parse(source)
    docs: set[int] = set()
    imports: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docs.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.update(range(node.lineno, (node.end_lineno or 0) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in EMPTY:
            code.update(range(token.start[0], token.end[0] + 1))
    code -= docs
    return source.count("\n"), len(code), len(code - imports)


def git(*words: str) -> str:
    """What a git command prints."""
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Print a line per commit."""
    print("| commit | files | lines | of code | without imports |\n|---|---:|---:|---:|---:|")
    for commit in sys.argv[1:] or ["HEAD"]:
        names = [name for name in git("ls-tree", "-r", "--name-only", commit, "src").split() if name.endswith(".py")]
        counted = [count(git("show", f"{commit}:{name}")) for name in names]
        lines, code, bare = (sum(column) for column in zip(*counted))
        print(f"| {git('rev-parse', '--short', commit).strip()} | {len(names)} | {lines} | {code} | {bare} |")


if __name__ == "__main__":
    main()
