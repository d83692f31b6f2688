"""`mixwell inspect`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    model: Annotated[str, typer.Argument(help="minilm, a folder or a hub id.")],
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code of the model.")] = False,
) -> None:
    """Show where a model can be mixed, each point proved to fire, and which methods it takes."""
    from mixwell import inspection, models
    from mixwell.cli import show_table
    from mixwell.training import quiet_libraries

    with quiet_libraries():
        loaded = models.load(model, labels=["0", "1"], trust_remote_code=trust_remote_code)
        found = inspection.inspect(loaded.model)
    title = (
        f"{found.model}: {found.points.depth} blocks, {found.points.layout}, {loaded.parameters / 1e6:.1f} M parameters"
    )
    show_table(title, ["point", "count", "where, or why not"], found.rows())
    show_table(
        "methods", ["method", "fits", "why not"], [(n, "no" if w else "yes", w) for n, w in found.methods.items()]
    )
