"""`mixwell report`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    folder: Annotated[str, typer.Argument(help="The folder of a comparison.")],
    format: Annotated[str | None, typer.Option("--format", "-f", help="md, csv, json, latex or html.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="The file to write; its name tells the format.")
    ] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
) -> None:
    """Show what a comparison found, from its records."""
    import sys

    from mixwell.compare import export, summary
    from mixwell.compare.records import Records
    from mixwell.files import write_text

    chosen = export.choose_format(format, output)
    text = export.export(summary.read_summary(Records(folder), level), chosen)
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)
        print(f"report in {output}", file=sys.stderr)
