"""`mixwell inspect`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    model: Annotated[str, typer.Argument(help="minilm, a folder or a hub id.")],
    task: Annotated[
        str | None,
        typer.Option(help="sequence, token, span or image. Default: what the model was saved for, else sequence."),
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code of the model.")] = False,
) -> None:
    """Show where a model can be mixed, each point proved to fire, and which methods it takes for which tasks."""
    from mixwell.methods import inspection
    from mixwell.report.terminal import show_table
    from mixwell.training import models, quiet_libraries

    with quiet_libraries():
        loaded = models.load_for(model, task, trust_remote_code=trust_remote_code)
        found = inspection.inspect(loaded)
    size = sum(parameter.numel() for parameter in loaded.parameters())
    show_table(f"{found.title}, {size / 1e6:.1f} M parameters", ["point", "count", "where, or why not"], found.rows())
    show_table("methods", ["method", "fits", "serves labels of", "why not"], found.method_rows())
