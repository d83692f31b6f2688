"""Figures: curves over training from the records, and those that are drawn from parameters alone.

A figure without trainings for the compare engine is a folder with figure.json (parameters and all numbers that are
drawn), figure.svg and table.md; the two last can be made again from the first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from mixwell._version import __version__
from mixwell.compare.stats.intervals import interval
from mixwell.core.blend import compose
from mixwell.core.draw import generator, sample_beta
from mixwell.papers.experiment import Experiment, Request
from mixwell.papers.markdown import table_lines
from mixwell.papers.protocols import get
from mixwell.papers.results import Results
from mixwell.papers.run_file import FIGURE, anonymous
from mixwell.papers.run_file import FORMAT as RUN_FORMAT
from mixwell.report.plots import BLACK, BLUE, GREEN, GREY, ORANGE, figure
from mixwell.utils.errors import OptionError
from mixwell.utils.files import write_json, write_text
from mixwell.utils.records import read_json

FORMAT = "mixwell paper figure 1"
COLOURS = (BLACK, BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9")
LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1)), (0, (8, 3)), (0, (2, 2)))

SHOWN = 3  # draws in the picture: the first ones
GRID = 45
CLOUD = 50  # points of each class in the picture


# --- curves over training --------------------------------------------------------------------------------------------


def curves(results: Results, experiment: Experiment) -> str:
    """The mean over seeds of the training or test loss, one panel per data set and one line per row, as SVG."""
    assert experiment.curve is not None
    kind, words = experiment.curve, {"train_loss": "training loss", "test_loss": "test loss"}[experiment.curve]
    groups: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for run in results.runs:
        groups.setdefault((run.dataset, run.size), {}).setdefault(run.row, []).append(run.result["curve"])
    with figure(4.6 * len(groups), 3.8, ncols=len(groups), squeeze=False) as (_, axes, buffer):
        for panel, ((dataset, size), rows) in zip(axes[0], groups.items()):
            for number, (row, seeds) in enumerate(rows.items()):
                length = min(map(len, seeds))
                losses = np.array([[point[kind] for point in curve[:length]] for curve in seeds], dtype=np.float64)
                steps = [point["step"] for point in seeds[0][:length]]
                colour = COLOURS[number % len(COLOURS)]
                panel.plot(steps, losses.mean(0), color=colour, linestyle=LINES[number % len(LINES)], label=row)
                if len(seeds) > 1:
                    low, high = losses.min(0), losses.max(0)
                    panel.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0)
            panel.set(xlabel="updates", ylabel=words, title=f"{dataset}, {size}")
            panel.grid(axis="y")
            panel.legend(fontsize=8)
    return buffer.getvalue()


# --- figures from parameters -----------------------------------------------------------------------------------------


def run(experiment: Experiment, request: Request, path: Path) -> dict[str, Any]:
    """Compute what a figure shows, unless it is there already, and draw it."""
    for name in ("only", "rows", "seeds", "model", "data", "hub"):
        value = getattr(request, name)
        if value not in (None, ()) and value is not False:  # 0 is a value
            raise OptionError(f"--{name} does not go with {experiment.name}: it is drawn from parameters alone")
    parameters = experiment.figure_parameters(request.scale)
    file = path / FIGURE
    if not file.is_file() or read_json(file, FORMAT, "a figure")["parameters"] != parameters:
        numbers = _MAKERS[experiment.name](parameters)
        head = {"format": FORMAT, "version": __version__, "experiment": experiment.name, "scale": request.scale}
        _write(file, {**head, "command": list(request.command), "parameters": parameters, "numbers": numbers})
    write_json(path / "run.json", _run_json(experiment.name))
    return draw(path)


def _write(file: Path, content: Mapping[str, Any]) -> None:
    """Many numbers: on one line."""
    write_text(file, json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")


def _run_json(name: str) -> dict[str, Any]:
    return {"format": RUN_FORMAT, "experiment": name, "records": FIGURE}


def draw(path: Path) -> dict[str, Any]:
    """Draw a figure from its figure.json and describe it in table.md; returns what figure.json holds."""
    content = read_json(path / FIGURE, FORMAT, "a figure; run it again")
    experiment = get(content["experiment"])
    write_text(path / "figure.svg", _DRAWERS[experiment.name](content))
    notes = "\n".join(f"- {note}" for note in (*experiment.notes, *experiment.paper.notes))
    parts = [
        f"# {experiment.name}: {experiment.title}",
        f"{experiment.number} of {experiment.paper.authors}: {experiment.paper.title}. {experiment.paper.reference}.",
        f"![{experiment.shows}](figure.svg)",
        _TABLES[experiment.name](content),
        f"## Remarks\n\n{notes}",
        f"## Command\n\n```\n{' '.join(content['command'])}\n```",
    ]
    write_text(path / "table.md", "\n\n".join(parts) + "\n")
    return content


def pack(source: Path, target: Path) -> Path:
    """Copy a figure's numbers to a folder for committing, without the user's paths, and draw it there."""
    content = read_json(source / FIGURE, FORMAT, "a figure; run it again")
    _write(target / FIGURE, {**content, "command": anonymous(content["command"])})
    write_json(target / "run.json", _run_json(content["experiment"]))
    draw(target)
    return target


def recompute(path: Path) -> tuple[bool, list[str]]:
    """Compute a figure's numbers again; returns whether they are the same, and lines that say so."""
    content = read_json(path / FIGURE, FORMAT, "a figure; run it again")
    name = content["experiment"]
    # Through JSON, which has no other floats than the file's, and lists for tuples.
    numbers = json.loads(json.dumps(_MAKERS[name](content["parameters"])))
    if numbers == content["numbers"]:
        return True, [f"{name}: the same numbers, bit for bit"]
    before, now = _TABLES[name](content), _TABLES[name]({**content, "numbers": numbers})
    if before == now:
        return True, [f"{name}: the same numbers in the digits that the table prints"]
    return False, ["recorded", before, "now", now, f"{name}: other numbers: another version or kind of processor?"]


def rounded(values: Any, digits: int = 5) -> list[float]:
    """Numbers with so many digits, for JSON."""
    return [float(f"{value:.{digits}g}") for value in values]


# --- amplify-figure2 -------------------------------------------------------------------------------------------------


def densities(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The density of Beta(alpha, alpha), and of lambda under each rule, on evenly spaced points inside (0, 1)."""
    from scipy import integrate, stats

    count = parameters["points"]
    x = np.arange(1, count + 1) / (count + 1)
    upper = x[x >= 0.5]
    numbers: dict[str, Any] = {"x": rounded(x), "folded_x": rounded(upper), "beta": {}, "folded": {}, "max_of": {}}
    numbers["means"] = {"folded": {}, "max_of": {}}
    for alpha in parameters["alphas"]:
        numbers["beta"][str(alpha)] = rounded(stats.beta.pdf(x, alpha, alpha))
        numbers["folded"][str(alpha)] = rounded(2 * stats.beta.pdf(upper, alpha, alpha))
        # E max(l, 1 - l) = 1 - the integral of P(lam <= t) over t; P(lam <= t) = 2 F(t) - 1 from 1/2 on.
        area = integrate.quad(lambda t, a=alpha: 2 * stats.beta.cdf(t, a, a) - 1, 0.5, 1)[0]
        numbers["means"]["folded"][str(alpha)] = rounded([1 - area])[0]
    alpha = parameters["samples_alpha"]
    for samples in parameters["samples"]:
        below = stats.beta.cdf(x, alpha, alpha)
        numbers["max_of"][str(samples)] = rounded(samples * below ** (samples - 1) * stats.beta.pdf(x, alpha, alpha))
        area = integrate.quad(lambda t, n=samples: stats.beta.cdf(t, alpha, alpha) ** n, 0, 1)[0]
        numbers["means"]["max_of"][str(samples)] = rounded([1 - area])[0]
    return numbers


def draw_densities(content: Mapping[str, Any]) -> str:
    """Three panels: Beta(alpha, alpha), the largest of n draws, and the larger of l and 1 - l."""
    numbers, parameters = content["numbers"], content["parameters"]
    panels: Sequence[tuple[str, Sequence[float], Mapping[str, Sequence[float]], str]] = (
        ("beta: l from Beta(alpha, alpha)", numbers["x"], numbers["beta"], "alpha = "),
        (f"max_of: largest of n, alpha = {parameters['samples_alpha']}", numbers["x"], numbers["max_of"], "n = "),
        ("folded: max(l, 1 - l)", numbers["folded_x"], numbers["folded"], "alpha = "),
    )
    with figure(12.0, 3.8, ncols=3, sharey=True) as (_, axes, buffer):
        for panel, (title, x, lines, name) in zip(axes, panels):
            for number, (key, density) in enumerate(lines.items()):
                style = {"color": COLOURS[number % len(COLOURS)], "linestyle": LINES[number % len(LINES)]}
                panel.plot(x, density, label=f"{name}{key}", linewidth=1.5, **style)
            panel.set(xlabel="λ", title=title, xlim=(0, 1), ylim=(0, 4))
            panel.grid(axis="y")
            panel.legend(fontsize=8)
        axes[0].set_ylabel("density")
    return buffer.getvalue()


def table_densities(content: Mapping[str, Any]) -> str:
    """The means of lambda under each rule."""
    means, parameters = content["numbers"]["means"], content["parameters"]
    rows = [[f"max_of, alpha = {parameters['samples_alpha']}, n = {key}", f"{value:.4f}", f"{0.5 ** int(key):.4f}"]
            for key, value in means["max_of"].items()]  # fmt: skip
    rows += [[f"folded, alpha = {key}", f"{value:.4f}", "0"] for key, value in means["folded"].items()]
    rows.append(["beta, any alpha", "0.5000", "0.5"])
    return table_lines(["rule", "mean of lambda", "share below 1/2"], rows)


# --- batchmixup-figure1 ----------------------------------------------------------------------------------------------


def plane(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Two Gaussian classes in the plane, five rows each, and a small network.

    The hidden vectors of the ten rows are what BatchMixup mixes, as it does with the sentence vectors of a Transformer.
    Trains both networks on every draw; returns accuracies, and regions for the first draws.
    """
    means, spread = np.array(parameters["means"]), float(parameters["spread"])
    reach = float(np.abs(means).max() + 3 * spread)
    ticks = np.linspace(-reach, reach, GRID)
    grid = torch.tensor(np.stack(np.meshgrid(ticks, ticks), -1).reshape(-1, 2), dtype=torch.float32)
    accuracy: dict[str, list[float]] = {row["label"]: [] for row in parameters["rows"]}
    shown: list[dict[str, Any]] = []
    first = int(parameters["first_draw"])
    for draw in range(first, first + parameters["draws"]):
        rng = np.random.default_rng(draw)
        points = means[:, None] + spread * rng.normal(size=(len(means), parameters["points_per_class"], 2))
        shots = parameters["shots"]
        rows = torch.tensor(points[:, :shots].reshape(-1, 2), dtype=torch.float32)
        rest = torch.tensor(points[:, shots:].reshape(-1, 2), dtype=torch.float32)
        labels = torch.arange(len(means)).repeat_interleave(shots)
        classes = torch.arange(len(means)).repeat_interleave(points.shape[1] - shots)
        entry: dict[str, Any] = {"draw": draw, "regions": {}, "accuracy": {}}
        for row in parameters["rows"]:
            network = train_network(rows, labels, row, parameters, seed=draw)
            with torch.no_grad():
                right = float((network(rest).argmax(1) == classes).float().mean())
                region = network(grid).softmax(1)[:, 1]
            accuracy[row["label"]].append(round(right, 6))
            entry["accuracy"][row["label"]] = round(right, 6)
            entry["regions"][row["label"]] = [round(float(value), 4) for value in region]
        if draw < first + SHOWN:
            few = [
                point
                for kind in range(len(means))
                for point in torch.nonzero(classes == kind).flatten()[:CLOUD].tolist()
            ]
            entry |= {"rows": np.round(rows.numpy().astype(float), 3).tolist(), "labels": labels.tolist()}
            entry |= {"points": np.round(rest[few].numpy().astype(float), 3).tolist(), "classes": classes[few].tolist()}
            shown.append(entry)
    half = float(np.linalg.norm(means[0] - means[1])) / 2 / spread
    best = 0.5 * (1 + math.erf(half / math.sqrt(2)))
    return {"accuracy": accuracy, "best_possible": best, "grid": np.round(ticks, 4).tolist(), "shown": shown}


def train_network(rows: Any, labels: Any, row: Mapping[str, Any], parameters: Mapping[str, Any], seed: int) -> Any:
    """Train a network with one hidden layer on all rows at once, with BatchMixup on the hidden vectors or without.

    Args:
        rows: (B, 2).
        labels: (B,).
        row: of the protocol: `method`, and `weights`, `loss_form` and `points` as of the method batchmixup.
        parameters: of the figure.
        seed: of the network and of the mixing.
    """
    width = parameters["hidden"]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        hidden = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.ReLU())
        head = torch.nn.Linear(width, len(parameters["means"]))
    network = torch.nn.Sequential(hidden, head)
    optimiser = torch.optim.Adam(network.parameters(), lr=parameters["learning_rate"])
    rng = generator(seed, 1)
    for _ in range(parameters["epochs"]):
        vectors = hidden(rows)
        if row["method"] == "batchmixup":
            wide = 1 if row.get("weights") == "sample" else width
            policy = sample_beta(1.0, (row.get("points", len(rows)), len(rows), wide), rng).float()
            share = torch.softmax(policy, dim=1).expand(-1, -1, width)
            points = compose(share, vectors)
            if row.get("loss_form") == "dot":
                loss = -(points * compose(share, head.weight[labels])).sum(1).mean()
            else:
                logits = head(points)
                wanted = share.mean(2) @ F.one_hot(labels, logits.shape[1]).float()
                loss = -(wanted * logits.log_softmax(1)).sum(1).mean()
        else:
            loss = F.cross_entropy(head(vectors), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


def draw_plane(content: Mapping[str, Any]) -> str:
    """The regions of both networks for the first draws, and the ten training rows: one line of panels per draw."""
    numbers = content["numbers"]
    shown, ticks = numbers["shown"], numbers["grid"]
    labels = list(numbers["accuracy"])
    with figure(3.4 * len(labels), 3.3 * len(shown), nrows=len(shown), ncols=len(labels), squeeze=False) as (
        _,
        axes,
        buffer,
    ):
        for line, draw_ in zip(axes, shown):
            for panel, label in zip(line, labels):
                region = np.array(draw_["regions"][label]).reshape(len(ticks), len(ticks))
                panel.contourf(ticks, ticks, region, levels=[0, 0.5, 1], colors=[BLUE, ORANGE], alpha=0.25)
                panel.contour(ticks, ticks, region, levels=[0.5], colors=[GREY], linewidths=1)
                for kind, (mark, colour) in enumerate((("o", BLUE), ("s", ORANGE))):
                    cloud = np.array([p for p, c in zip(draw_["points"], draw_["classes"]) if c == kind])
                    train = np.array([p for p, c in zip(draw_["rows"], draw_["labels"]) if c == kind])
                    panel.plot(cloud[:, 0], cloud[:, 1], ".", color=colour, markersize=1.5, alpha=0.5)
                    panel.plot(train[:, 0], train[:, 1], mark, color=colour, markeredgecolor=BLACK, markersize=7)
                accuracy = draw_["accuracy"][label]
                panel.set(title=f"{label}\ndraw {draw_['draw']}: {100 * accuracy:.1f} %", xticks=[], yticks=[])
                panel.set(xlim=(ticks[0], ticks[-1]), ylim=(ticks[0], ticks[-1]))  # points beyond are not shown
    return buffer.getvalue()


def table_plane(content: Mapping[str, Any]) -> str:
    """The accuracies over all draws, and their paired difference."""
    numbers = content["numbers"]
    first, *others = numbers["accuracy"]
    plain = np.array(numbers["accuracy"][first])
    rows = []
    for label in (first, *others):
        values = np.array(numbers["accuracy"][label])
        gap = interval(values - plain, None, 0)
        shown = f"{100 * gap.mean:+.2f} [{100 * gap.lo:+.2f}, {100 * gap.hi:+.2f}]" if label != first else ""
        spread = f" ± {100 * values.std(ddof=1):.2f}" if len(values) > 1 else ""
        wins = "" if label == first else f"{int((values > plain).sum())} / {int((values < plain).sum())}"
        rows.append([label, f"{100 * values.mean():.2f}{spread}", shown.replace("nan", "-"), wins])
    best = 100 * numbers["best_possible"]
    head = (
        f"Accuracy in % over {len(plain)} draws of ten training rows; the best possible is {best:.2f} %. The picture "
    )
    head += f"has the first {len(numbers['shown'])} draws, whatever came of them."
    return f"{head}\n\n{table_lines(['row', 'accuracy', f'difference to {first}', 'draws better / worse'], rows)}"


_MAKERS = {"amplify-figure2": densities, "batchmixup-figure1": plane}
_DRAWERS = {"amplify-figure2": draw_densities, "batchmixup-figure1": draw_plane}
_TABLES = {"amplify-figure2": table_densities, "batchmixup-figure1": table_plane}
