"""`mixwell report`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    folder: Annotated[str, typer.Argument(help="The folder of a comparison, or of a run of mixwell train.")],
    format: Annotated[
        str | None,
        typer.Option(
            "--format", "-f", help="html, md, csv, json or latex. Default: by the output's name, else html.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="The file to write; its name tells the format. Default: FOLDER/report.html; "
            "other formats are printed.",
        ),
    ] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    equal_within: Annotated[
        float, typer.Option(help="Points of the main metric that count as no difference, in a comparison.")
    ] = 1.0,
    title: Annotated[str, typer.Option(help="Of the page.")] = "Comparison",
    raw_csv: Annotated[
        bool, typer.Option("--raw-csv", help="In CSV, leave texts as they are that a spreadsheet runs as formulas.")
    ] = False,
    texts: Annotated[bool, typer.Option(help="Show the texts of the most confident mistakes in the page.")] = True,
) -> None:  # fmt: skip
    """Make a page about a comparison or a run, or print its table, from what the folder holds."""
    import sys
    from pathlib import Path

    from mixwell.report import compare as export
    from mixwell.utils.errors import OptionError
    from mixwell.utils.files import write_text

    chosen, place = export.choose_format(format, output), Path(output).parent if output else None
    if (Path(folder) / "table.md").exists():
        raise OptionError(f"{folder}: the run of a paper; `mixwell paper table {folder}` makes its table and page")
    if (Path(folder) / "run.json").exists():
        from mixwell.report.run import page

        if format is not None and chosen != "html":
            raise OptionError(f"--format {chosen}: a single run has a page only; its numbers are in metrics.json")
        text = page(Path(folder), texts=texts, place=place)
    else:
        from mixwell.compare.records import Records
        from mixwell.compare.summary import read_summary

        summary = read_summary(Records(folder), level, equal_within, shown_only=chosen == "html")
        text = export.export(summary, chosen, title=title, texts=texts, place=place, raw_csv=raw_csv)
    if output is None and chosen == "html":
        output = str(Path(folder) / "report.html")
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)
        print(f"report in {output}", file=sys.stderr)
