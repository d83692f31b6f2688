"""An experiment in words: its grid, what is published, what the paper says, and what cannot run."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from mixwell.papers.experiment import Experiment
from mixwell.papers.schema import OURS, SCALES, DataSet, TableRow

_WIDTH = 118


def text(experiment: Experiment, scale: str | None = None) -> str:
    """All of an experiment as lines of text.

    Args:
        experiment: to describe.
        scale: only the grid of this scale; None for all.
    """
    if scale is not None:
        experiment.check_scale(scale)
    paper = experiment.paper
    parts = [
        f"{experiment.name}: {experiment.title}",
        f"{experiment.number.removeprefix('none: ')} of {paper.authors}: {paper.title}. {paper.reference}.",
        f"Available of the paper: {paper.text}.",
        experiment.shows,
    ]
    lines = [line for part in parts for line in textwrap.wrap(part, _WIDTH)]
    if experiment.trained:
        lines += _listed("rows", [_row(row) for row in experiment.rows])
        lines += _listed("data sets", [_data(data) for data in experiment.datasets])
        lines += _training(experiment)
    for name in (scale,) if scale else SCALES:
        lines += _grid(experiment, name)
    lines += _published(experiment)
    ours = [claim for claim in experiment.claims if claim.says.startswith(OURS)]
    published = [claim for claim in experiment.claims if claim not in ours]
    lines += _listed("what the paper says", [f"{claim.says} [{claim.metric}]" for claim in published])
    lines += _listed("our questions", [f"{claim.says.removeprefix(OURS)} [{claim.metric}]" for claim in ours])
    lines += _listed("not run by the project", [f"{item.what}: {item.why}" for item in experiment.not_run])
    lines += _listed("remarks", [*experiment.notes, *paper.notes])
    return "\n".join(lines) + "\n"


def _listed(title: str, texts: Sequence[str]) -> list[str]:
    if not texts:
        return []
    wrapper = textwrap.TextWrapper(_WIDTH, initial_indent="  ", subsequent_indent="    ")
    return ["", title, *(line for text in texts for line in wrapper.wrap(f"- {text}"))]


def _row(row: TableRow) -> str:
    if row.derived is not None:
        return f"{row.label}: {row.derived}"
    options = ", ".join(f"{name}={value}" for name, value in row.options.items())
    more = [f"blocks {', '.join(map(str, row.blocks))}"] if row.blocks else []
    more += [f"{row.draws} updates per mini-batch"] if row.draws > 1 else []
    more += ["with the published label mistake"] if row.fault else []
    more += ["ours"] if row.ours else []
    more += [row.notes] if row.notes else []
    return f"{row.label}: {row.method}({options})" + (f"; {'; '.join(more)}" if more else "")


def _data(data: DataSet) -> str:
    if data.derived is not None:
        return f"{data.key}: {data.derived}"
    where = [f"folder {data.folder}"] if data.folder else []
    where += [f"hub {data.hub}"] if data.hub else []
    parts = [f"{name} from {part.text}" for name, part in data.splits.items() if part.text != name]
    sizes = [f"{name} {size}" for name, size in data.published.items()]
    own = [f"{name} {value}" for name, value in (*data.training.items(), *data.options.items())]
    more = [data.metric, ", ".join(parts), f"in the paper: {', '.join(sizes)}" if sizes else "",
            f"with {', '.join(own)}" if own else "", data.difference, data.local, data.available]  # fmt: skip
    return f"{data.key}: {data.title} ({'; '.join(where)}); {'; '.join(text for text in more if text)}"


def _training(experiment: Experiment) -> list[str]:
    own = {key for data in experiment.datasets for key in data.training}
    unstated, departs = experiment.unstated, experiment.departs
    parts = {"as published": experiment.training.keys() - {*unstated, *departs}, "not stated, ours": {*unstated},
             "other than published (see the remarks)": {*departs}}  # fmt: skip
    texts = []
    for title, names in parts.items():
        values = [f"{name} {value}" for name, value in experiment.training.items() if name in names]
        texts += [f"{title}: {', '.join(values)}"] if values else []
    texts += [f"by data set: {', '.join(sorted(own))}"] if own else []
    texts.append("the best epoch is chosen on validation, never on test")
    return _listed("training", texts)


def _grid(experiment: Experiment, scale: str) -> list[str]:
    if not experiment.trained:
        parameters = experiment.figure_parameters(scale)
        return _listed(f"parameters at scale {scale}", [f"{name}: {value}" for name, value in parameters.items()])
    runs = experiment.runs(scale)
    axes = {
        name: list(dict.fromkeys(getattr(run, name) for run in runs)) for name in ("dataset", "size", "row", "seed")
    }
    model = runs[0].model
    texts = [
        f"{len(runs)} trainings of {model}: {len(axes['dataset'])} data sets ({', '.join(axes['dataset'])}), sizes "
        f"{', '.join(axes['size'])}, {len(axes['row'])} rows, {len(axes['seed'])} seeds",
    ]
    settings: dict[str, set[str]] = {}
    for run in runs:
        arguments = run.settings.get("arguments", {})
        for name, value in (run.settings | arguments).items():
            if name != "arguments":
                settings.setdefault(name, set()).add(str(value))
    texts.append(", ".join(f"{name} {' or '.join(sorted(values))}" for name, values in settings.items()))
    chosen = experiment.scale(scale)
    if chosen.test_rows or chosen.validation_rows:
        texts.append(f"at most {chosen.test_rows} test rows and {chosen.validation_rows} validation rows")
    return _listed(f"grid at scale {scale}", [*texts, *chosen.notes])


def _published(experiment: Experiment) -> list[str]:
    if not experiment.published:
        return ["", "published numbers", "  none"]
    lines = ["", "published numbers" + (f" (±: {experiment.spread_kind})" if experiment.spread_kind else "")]
    groups: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for number in experiment.published:
        groups.setdefault((number.metric, number.size), {}).setdefault(number.row, {})[number.dataset] = number.printed
    for (metric, size), rows in groups.items():
        columns = list(dict.fromkeys(data for values in rows.values() for data in values))
        table = [[f"{metric}, {size}", *columns], *([row, *(values.get(c, "") for c in columns)]
                                                   for row, values in rows.items())]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*table)]
        lines += ["  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in table]
    return lines
