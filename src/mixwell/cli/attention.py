"""`mixwell attention`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    model: Annotated[str, typer.Argument(help="minilm, a folder or a hub id.")],
    text: Annotated[str, typer.Argument(help="The text whose attention is drawn.")],
    text_b: Annotated[str | None, typer.Argument(help="The second text of a pair. Default: none.")] = None,
    partner: Annotated[
        str | None, typer.Option(help="The text it is mixed with. Default: a sentence about a parcel.")
    ] = None,
    partner_b: Annotated[str | None, typer.Option(help="The second text of the partner. Default: none.")] = None,
    methods: Annotated[str, typer.Option(help="Drawn side by side; names with commas.")] = "none,amplify,embedmix",
    lam: Annotated[float, typer.Option(help="The share of itself that the text keeps, 0 to 1.")] = 0.8,
    lams: Annotated[str, typer.Option(help="Further ones to choose from in the page.")] = "1.0,0.9,0.8,0.7,0.5",
    output: Annotated[str, typer.Option("--output", "-o", help="A .html page, or a .svg or .png picture.")] = (
        "attention.html"
    ),
    view: Annotated[str, typer.Option(help="lines, word, neurons or graph: of a picture, or first in a page.")] = (
        "lines"
    ),
    block: Annotated[int | None, typer.Option(help="From 0. Default: the fourth, as in the paper.")] = None,
    head: Annotated[int | None, typer.Option(help="From 0. Default: the one that changes most.")] = None,
    word: Annotated[
        str | None,
        typer.Option(help="A token of the text, or its position from 0. Default: the one that changes most."),
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code of the model.")] = False,
) -> None:
    """Draw what a model attends to while a text is mixed: lines, one word, neurons, a graph."""
    import sys

    from mixwell.report.attention import choice, pictures
    from mixwell.report.attention.capture import capture
    from mixwell.training import models, quiet_libraries

    # What can be told without the model is checked before it is loaded.
    kind, chosen = pictures.kind_of(output, view), choice.parse_methods(methods)
    values = choice.parse_lams(lam, lams)
    texts = choice.check_texts(text, text_b, partner, partner_b)
    with quiet_libraries():
        loaded = models.load(model, labels=["0", "1"], trust_remote_code=trust_remote_code)
        found = capture(loaded, *texts, methods=chosen, lam=lam, lams=values)
    size = pictures.write(output, kind, found, choice.choose(found, view=view, block=block, head=head, word=word))
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"attention in {output} ({size / 1e6:.1f} MB)", file=sys.stderr)
