"""`mixwell predict`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="A run folder, or the model folder in it.")],
    source: Annotated[
        list[str], typer.Argument(help="A file, one or more texts, or - for lines of stdin.", metavar="FILE|TEXT...")
    ],
    format: Annotated[str | None, typer.Option("--format", "-f", help="table, csv, jsonl or parquet.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="A file; its name tells the format.")] = None,
    text: Annotated[str | None, typer.Option(help="The text column.")] = None,
    text_pair: Annotated[str | None, typer.Option(help="The column of the second text.")] = None,
    on_empty: Annotated[str, typer.Option(help="A row without text: error, or skip it and say so.")] = "error",
    only_predictions: Annotated[
        bool, typer.Option("--only-predictions", help="Leave the other columns of the file out.")
    ] = False,
    raw_csv: Annotated[
        bool,
        typer.Option("--raw-csv", help="In CSV, leave texts as they are that a spreadsheet runs as formulas."),
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 64,
    device: Annotated[
        str | None, typer.Option(help="Such as cpu or cuda:1. Default: a GPU where there is one.")
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code of the model.")] = False,
) -> None:
    """Predict labels and calibrated probabilities, for files of any size."""
    import sys

    from mixwell.training.predict import Classifier
    from mixwell.training.prediction_files import choose_format, open_source, write_predictions

    chosen = choose_format(format, output)
    opened = open_source(source)
    classifier = Classifier.load(run, device=device, trust_remote_code=trust_remote_code)
    batches = classifier.records(
        opened, text=text, text_pair=text_pair, batch_size=batch_size, on_empty=on_empty,
        keep_columns=not only_predictions,
        note=lambda told: print(f"note: {told}", file=sys.stderr),
    )  # fmt: skip
    rows = write_predictions(batches, chosen, output, sys.stdout, raw_csv=raw_csv)
    if output:
        print(f"{rows} predictions in {output}", file=sys.stderr)
