"""`mixwell demo`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    output: Annotated[str, typer.Option("--output", "-o", help="The run folder.")] = "demo-run",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")] = False,
) -> None:
    """Train a calibrated classifier on sample messages, and see what mixing does to wrong labels, in three minutes."""
    from mixwell.demo import demo

    demo(output, quiet=quiet)
