"""`mixwell predict`."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def command(
    run: Annotated[str, typer.Argument(help="A run folder, the model folder in it, or a folder of mixwell export.")],
    source: Annotated[
        list[str], typer.Argument(help="A file, one or more texts, or - for lines of stdin.", metavar="FILE|TEXT...")
    ],
    format: Annotated[
        str | None,
        typer.Option(
            "--format", "-f", help="table, csv, jsonl or parquet. Default: by the output's name, else a table."
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="A file; its name tells the format. Default: print.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="The text column, or several as in title,body. Default: as in training.")
    ] = None,
    text_pair: Annotated[
        str | None, typer.Option(help="The column of the second text. Default: as in training.")
    ] = None,
    on_empty: Annotated[str, typer.Option(help="A row without text: error, or skip it and say so.")] = "error",
    only_predictions: Annotated[
        bool, typer.Option("--only-predictions", help="Leave the other columns of the file out.")
    ] = False,
    abstain: Annotated[
        float | None,
        typer.Option(help="Answer only when sure, for this share of right answers. Default: always.", metavar="SHARE"),
    ] = None,
    ood: Annotated[
        bool, typer.Option("--ood", help="Add scores that are higher for texts unlike those of training.")
    ] = False,
    out_of_scope: Annotated[
        str | None,
        typer.Option(help="A file of texts of other kinds: do the scores of --ood tell them apart? Default: none."),
    ] = None,
    raw_csv: Annotated[
        bool,
        typer.Option("--raw-csv", help="In CSV, leave texts as they are that a spreadsheet runs as formulas."),
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 32,
    device: Annotated[
        str | None, typer.Option(help="Such as cpu or cuda:1. Default: a GPU where there is one.")
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code of the model.")] = False,
) -> None:
    """Predict labels and calibrated probabilities, for files of any size."""
    import sys

    from mixwell.training.abstain import sentence
    from mixwell.training.onnx import open_classifier
    from mixwell.training.prediction_files import Tally, choose_format, open_source, write_predictions

    chosen = choose_format(format, output)
    opened = open_source(source)
    classifier = open_classifier(run, device=device, trust_remote_code=trust_remote_code)
    point = None if abstain is None else classifier.threshold(abstain)
    how: dict[str, Any] = {"text": text, "text_pair": text_pair, "batch_size": batch_size, "on_empty": on_empty}
    how |= {"ood": ood or out_of_scope is not None, "note": lambda note: print(f"note: {note}", file=sys.stderr)}
    tally, outside = Tally(), Tally()
    if out_of_scope is not None:
        for _ in outside.watch(classifier.records(open_source([out_of_scope]), **how)):
            pass
    batches = classifier.records(
        opened, **how, keep_columns=not only_predictions, threshold=None if point is None else point.threshold
    )
    rows = write_predictions(tally.watch(batches), chosen, output, sys.stdout, raw_csv=raw_csv)
    if output:
        print(f"{rows} predictions in {output}", file=sys.stderr)
    if point is not None:
        print(
            f"answered {tally.answered} of {rows} rows; {sentence(classifier.record['abstain'], point)}",
            file=sys.stderr,
        )
    if out_of_scope is not None:
        print(tally.apart_from(outside), file=sys.stderr)
