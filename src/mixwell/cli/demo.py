"""`mixwell demo`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    output: Annotated[
        str, typer.Option("--output", "-o", help="The folder for the records and the page.")
    ] = "demo-run",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds for each method; 3 at least to know anything.")] = 3,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")] = False,
) -> None:
    """Compare plain training with AMPLIFY on the bundled messages and real weights, in a few minutes."""
    from mixwell.demo import demo

    demo(output, seeds=seeds, quiet=quiet)
