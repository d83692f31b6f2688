"""What of an experiment is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Request:
    """What of a protocol is asked for.

    Attributes:
        name: of the experiment.
        scale: full, small or smoke.
        data: the folder with one folder per data set.
        model: another model than the scale's.
        hub: load data sets from the hub that are not in `data`.
        only: data sets to run; empty for all.
        rows: rows to run, plain training besides; empty for all.
        seeds: how many; None for the scale's number.
        command: the command line, for the record.
        cache_dir: for tokenised texts and the tiny model.
    """

    name: str
    scale: str = "full"
    data: str | None = None
    model: str | None = None
    hub: bool = False
    only: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    seeds: int | None = None
    command: tuple[str, ...] = ()
    cache_dir: str | None = None

    def folder(self) -> Path:
        """The folder of a run without a name."""
        return Path("runs") / f"{self.name}-{self.scale}"
