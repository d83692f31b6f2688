"""The main job in a few minutes: plain training against AMPLIFY on the sample data, with real weights."""

from __future__ import annotations

import os
from pathlib import Path

# 9 runs of 60 updates: small batches, since four minutes must do and fewer updates learn too little.
PER_CLASS = 20
SETTINGS = {"epochs": 4, "batch_size": 16, "patience": 0}
METHODS = ["none", "amplify"]


def demo(output: str | Path = "demo-run", *, seeds: int = 3, quiet: bool = False) -> Path:
    """Run the comparison, print its table and write its page.

    Args:
        output: the folder for the records and `report.html`; a demo that was stopped goes on there.
        seeds: for each method.
        quiet: print only the result.

    Returns:
        The page.
    """
    from mixwell.compare import export, run
    from mixwell.compare.grid import make_grid
    from mixwell.data import sample_folder
    from mixwell.files import write_text

    grid = make_grid(
        {},
        {
            "data": [str(sample_folder())],
            "methods": METHODS,
            "seeds": seeds,
            "per_class": [PER_CLASS],
            "settings": dict(SETTINGS),
        },
    )
    workers = min(2, os.cpu_count() or 1)
    if not quiet:
        print(
            f"Training MiniLM on {PER_CLASS} customer messages of each of 12 intents: plain, with label smoothing and "
            f"with AMPLIFY, {seeds} seeds each, {workers} at a time. A few minutes on two cores.\n"
        )
    done = run.run(grid, output, engine=lambda: run.make_engine("local", workers), view=run.make_view(workers, quiet))
    for group in done.summary.groups:
        if group.comparison is not None:
            print(f"{export.about(group)}\n\n{export.table(group)}\n\n{export.footnote(group)}\n")
        for sentence in group.sentences:
            print(sentence)
    page = Path(output) / "report.html"
    write_text(page, export.export(done.summary, "html"))
    run.check_failures(done)
    print(f"\npage      {page}   (table and plots; open it in a browser)")
    print("next      mixwell compare YOUR.csv --methods none,amplify,tmix,manifold --seeds 5 --workers 2")
    print("          mixwell train YOUR.csv --method amplify")
    return page
