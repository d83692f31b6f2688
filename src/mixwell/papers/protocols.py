"""All experiments of the papers by name, from the TOML files of this folder; `schema` says what a file holds."""

from __future__ import annotations

import functools
from pathlib import Path

from mixwell.papers import reading
from mixwell.papers.experiment import Experiment
from mixwell.utils.errors import DataError, OptionError, nearest

FOLDER = Path(__file__).parent
_ORDER = ("amplify", "nlu", "batchmixup", "attentionmix")


def names() -> list[str]:
    """Return the names of all experiments, in the order of papers and tables."""
    return list(_all())


def get(name: str) -> Experiment:
    """Return an experiment by name.

    Raises:
        OptionError: there is none of that name.
    """
    known = _all()
    if name not in known:
        raise OptionError(f"paper experiment {name!r} is unknown{nearest(name, known)}; known: {', '.join(known)}")
    return known[name]


@functools.lru_cache(maxsize=1)
def _all() -> dict[str, Experiment]:
    experiments: dict[str, Experiment] = {}
    files = {file.stem: file for file in FOLDER.glob("*.toml")}
    for stem in sorted(files, key=lambda stem: (_ORDER.index(stem) if stem in _ORDER else len(_ORDER), stem)):
        for experiment in reading.load(files[stem]):
            if experiment.name in experiments:
                raise DataError(f"{files[stem].name}: experiment {experiment.name!r} is in another file too")
            experiments[experiment.name] = experiment
    return experiments
