"""Write the parts of the docs that come from the code and the records, so that they cannot go stale.

`python tools/docs_fragments.py FOLDER` writes them; pages take them in with `--8<-- "NAME.md"`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pictures import ROOT, costs

# The rows of the packs' tables that are a method with its own options, by method.
PACKS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "amplify": (
        ("amplify-table2-small", "Ours", "as published"),
        ("amplify-table2-small", "AMPLIFY, consistent", "`consistent=True`"),
        ("amplify-table2-small", "AMPLIFY, padding kept", '`padding="keep"`'),
    ),
    "embedmix": (("amplify-table2-small", "EmbedMix", ""),),
    "sentencemix": (("amplify-table2-small", "SentenceMix", ""),),
    "tmix": (("amplify-table2-small", "TMix", ""),),
    "cls": (("nlu-table2-small", "CLS", ""), ("nlu-table3-small", "CLS", "")),
    "input": (
        ("nlu-table2-small", "Input", ""),
        ("nlu-table3-small", "Input", ""),
        ("nlu-table5-small", "SEP (pair)", ""),
    ),
    "manifold": (("nlu-table2-small", "Mani", ""), ("nlu-table3-small", "Mani", "")),
}
DATA = {"sst2": "SST-2", "trec_fine": "TREC-fine", "mrpc": "MRPC", "imdb": "IMDb", "agnews": "AGNews"}


def fragments() -> Iterator[tuple[str, str]]:
    """All parts: their names and texts."""
    from mixwell.core.method import Method
    from mixwell.methods.registry import load_all

    methods = load_all()
    shared = {field.name for field in dataclasses.fields(Method)}
    yield "options-of-all", options(Method, {name for name in shared if name != "mutual"})
    for name, kind in methods.items():
        own = {field.name for field in dataclasses.fields(kind) if field.init} - shared
        yield f"options-{name}", options(kind, own) if own else "It has no options of its own."
        yield f"cost-{name}", cost(name)
        yield f"result-{name}", result(name)
    yield "commands", commands()
    yield "errors", errors()
    yield "settings", settings()
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](../")
    yield "changelog", changes.partition("\n")[2]
    yield "citation", "```yaml\n" + (ROOT / "CITATION.cff").read_text(encoding="utf-8") + "```"


def options(kind: Any, names: set[str]) -> str:
    """A table of the options of a method, from the fields of its dataclass."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(kind):
        if field.name in names:
            other = [f"`{key}`" for key, value in getattr(kind, "aliases", {}).items() if value == field.name]
            also = f" (or {', '.join(other)})" if other else ""
            lines.append(f"| `{field.name}`{also} | `{field.default!r}` | {cell(field.metadata['help'])} |")
    return "\n".join(lines)


def cost(name: str) -> str:
    """One sentence on what a step costs, from docs/benchmarks.md."""
    measured = costs()
    if name not in measured:
        return "Not measured yet."
    ratio, low, high = measured[name]
    again = measured["plain again"]
    noise = f"plain training against itself: {again[1]:.2f} to {again[2]:.2f}"
    return (
        f"{ratio:.2f} times the CPU time of a plain step (95 % interval {low:.2f} to {high:.2f}; {noise}), MiniLM, "
        "32 rows of 64 tokens, two CPU cores: [benchmarks](../benchmarks.md#what-a-mixed-step-costs)."
    )


def result(name: str) -> str:
    """What was measured of a method, from the packs' tables."""
    several = len({form for _, _, form in PACKS.get(name, ())}) > 1
    lines = [
        f"| data, training rows | {'form | ' if several else ''}accuracy | difference | verdict | NLL | after T |",
        f"|---|{'---|' if several else ''}---:|---|---|---|---|",
    ]
    for pack, row, form in PACKS.get(name, ()):
        table = json.loads((ROOT / "docs" / "results" / pack / "table.json").read_text(encoding="utf-8"))
        cells = {(c["dataset"], c["size"], c["row"], c["metric"]): c for c in table["cells"] if "derived" not in c}
        for dataset, size in dict.fromkeys((key[0], key[1]) for key in cells):
            if (dataset, size, row, "accuracy") not in cells or dataset not in DATA:
                continue
            plain, own = (
                {key: cells[dataset, size, which, key] for key in ("accuracy", "nll", "nll_after")}
                for which in (table["plain"], row)
            )
            gap = own["accuracy"]["difference"]
            losses = [f"{plain[key]['mean'] / 100:.2f}, {own[key]['mean'] / 100:.2f}" for key in ("nll", "nll_after")]
            lines.append(
                f"| [{DATA[dataset]}](../results/{pack}/table.md), {size} | {form + ' | ' if several else ''}"
                f"{own['accuracy']['mean']:.1f} % | {gap['mean']:+.1f} [{gap['lo']:+.1f}, {gap['hi']:+.1f}] | "
                f"{gap['verdict']} | {' | '.join(losses)} |"
            )
    if len(lines) == 2:
        return "No training of this method at a size that says anything is stored in the repository yet."
    return "\n".join(lines) + (
        "\n\nMiniLM. Differences to plain training in points, paired over seeds, with 95 % intervals; verdicts are "
        "adjusted over the methods of a table. NLL, the test loss: of plain training, then of this method; T is a "
        "temperature. [What we found](../results.md) has the whole of it."
    )


def commands() -> str:
    """The help of every command, as it prints it at 84 columns."""
    import typer
    from typer.testing import CliRunner

    from mixwell.cli import build_app
    from mixwell.cli import commands as names

    def parts(words: list[str]) -> list[list[str]]:
        found = getattr(_click(typer, build_app, words), "commands", {})
        return [[*words, name] for name in sorted(found)]

    pages = []
    for words in [[], *([name] for name in names())]:
        for line in [words, *(parts(words) if words else [])]:
            runner = CliRunner(env={"COLUMNS": "84", "TERMINAL_WIDTH": "84", "NO_COLOR": "1", "TERM": "dumb"})
            shown = runner.invoke(build_app(line), [*line, "--help"], prog_name="mixwell")
            if shown.exit_code != 0:
                raise RuntimeError(f"mixwell {' '.join(line)} --help: {shown.output}")
            text = re.sub(r"\x1b\[[0-9;]*m", "", shown.output).strip("\n")
            pages.append(f"## {' '.join(['mixwell', *line])}\n\n```text\n{text}\n```\n")
    return "\n".join(pages)


def _click(typer: Any, build_app: Any, words: list[str]) -> Any:
    command = typer.main.get_command(build_app(words))
    for word in words:
        command = command.commands[word]
    return command


def errors() -> str:
    """A table of the errors that a user can put right."""
    from mixwell.utils import errors as module

    lines = ["| error | also a | meaning |", "|---|---|---|"]
    for name, kind in vars(module).items():
        if isinstance(kind, type) and issubclass(kind, module.MixwellError):
            bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
            lines.append(f"| `{name}` | {bases} | {cell((kind.__doc__ or '').strip())} |")
    return "\n".join(lines)


def settings() -> str:
    """A table of the fields of TrainSettings, which are the options of training and the keys of a grid file."""
    from mixwell.training.settings import TrainSettings

    lines = ["| key | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(TrainSettings):
        if field.metadata.get("help"):
            default = field.default if field.default is not dataclasses.MISSING else None
            value = "" if default is None else f"`{default!r}`"
            lines.append(f"| `{field.name}` | {value} | {cell(str(field.metadata['help']))} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """A text that fits a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def write(folder: Path) -> None:
    """Write all parts to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in fragments():
        (folder / f"{name}.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    write(Path(sys.argv[1]))
