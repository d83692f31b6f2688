"""What a run leaves to read: table.json, table.md, figures and a page; all can be made again from the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mixwell.errors import RunError
from mixwell.files import write_json, write_text
from mixwell.papers.protocols import METRICS, OURS, get

PAGE = "report.html"
# How many digits a metric has in tables, and its name there.
_DIGITS = {"train_loss": 3, "time_ratio": 2, "seconds_saved": 0}
_NAMES = {"mcc": "MCC", "nll": "test loss", "ece": "ECE", "macro_f1": "macro-F1", "train_loss": "train loss",
          "nll_after": "test loss after T", "ece_after": "ECE after T",
          "nll_last": "validation loss of the last epoch", "time_ratio": "time",
          "seconds_saved": "seconds saved"}  # fmt: skip


def write(folder: str | Path, level: float = 0.95) -> dict[str, Any]:
    """Make the tables of a run's folder, or of a pack, from its records; returns what table.json holds.

    Raises:
        RunError: the folder is neither.
    """
    from mixwell.compare import export
    from mixwell.papers import figures, measured, pictures, tables

    path = Path(folder)
    if measured.read_run(path)["records"] == measured.FIGURE:
        return figures.draw(path)
    found = measured.read(path)
    made = tables.build(found, level)
    write_json(path / "table.json", made)
    experiment = get(made["experiment"])
    if experiment.curve is not None and found.cells:
        write_text(path / "figure.svg", figures.curves(found, experiment))
    drawn = pictures.draw(made)
    for name, picture in drawn.items():
        write_text(path / name, picture)
    write_text(path / "table.md", markdown(made, {name: pictures.NAMES[name] for name in drawn}))
    summary = measured.summary(path, level)
    if summary is not None:
        write_text(
            path / PAGE, export.export(summary, "html", title=f"{experiment.name}: {made['title']}", texts=False)
        )
    elif found.run["records"] != measured.PACKED:
        (path / PAGE).unlink(missing_ok=True)  # of records that were fewer or others
    return made


def pack(folder: str | Path, target: str | Path, *, add: bool = False) -> Path:
    """Write the compact records of a run and the tables made of them to a folder for committing.

    Args:
        folder: of the run.
        target: the folder to write to.
        add: keep what is packed there, as `packs.pack` says; the page of the part is then one more file.
    """
    from mixwell.papers import figures, measured, packs

    source, path = Path(folder), Path(target)
    run = measured.read_run(source)
    packs.check_target(path, run)
    if run["records"] == measured.FIGURE:
        if add:
            raise RunError(f"--add: {source} is a figure, which has no parts; leave --add out")
        return figures.pack(source, path)
    pages = dict(measured.read(path).run.get("pages", {})) if add else {}
    added = {name: (page, (source / name).read_text(encoding="utf-8")) for name, page in _pages(source).items()}
    packs.pack(source, path, add=add)
    write(path)
    for name, (page, text) in added.items():
        name = f"report-{'-'.join(page['datasets'])}.html" if add else name
        write_text(path / name, text)
        pages[name] = page
    _keep_pages(path, pages)
    return path


def _pages(source: Path) -> dict[str, Any]:
    """The pages of a run or of a pack: file name to data sets and number of trainings.

    A pack has too little to make one: they come from the whole records.
    """
    from mixwell.papers import measured

    found = measured.read(source)
    pages = found.run.get("pages")
    if pages is None:
        parts = list(dict.fromkeys(cell.dataset for cell in found.cells))
        pages = {PAGE: {"datasets": parts, "cells": len(found.cells)}}
    return {name: page for name, page in pages.items() if (source / name).is_file()}


def _keep_pages(path: Path, pages: Mapping[str, Any]) -> None:
    """Remove the pages of a pack that are of fewer trainings than its tables, and note the others."""
    from mixwell.papers import measured

    found = measured.read(path)
    sizes = Counter(cell.dataset for cell in found.cells)
    kept = {name: page for name, page in pages.items() if page["cells"] == sum(sizes[key] for key in page["datasets"])}
    for file in path.glob("report*.html"):
        if file.name not in kept:
            file.unlink()
    write_json(path / "run.json", {**found.run, "pages": kept})


# --- Markdown --------------------------------------------------------------------------------------------------------


def markdown(made: Mapping[str, Any], pictures: Mapping[str, str] | None = None) -> str:
    """The tables as Markdown, with the pictures that are beside it: name to what they show."""
    about = [
        f"# {made['experiment']}: {made['title']}",
        f"{made['number'].removeprefix('none: ')} of {made['paper']}.",
        f"Scale `{made['scale']}`, model `{Path(made['model']).name if made['model'] else '-'}`. {made['best_epoch']}"
        + (f" Published ±: {made['spread']}; ours: standard deviation over seeds." if made["spread"] else ""),
        f"Differences are paired, with {100 * made['level']:g} % intervals; + and - behind other metrics: better and "
        "worse than plain training (after T, the temperature, and of the last epoch over seeds alone); verdicts are "
        "adjusted over the rows "
        "(Holm), intervals are not; time: an epoch's, relative to plain training, which means little if anything else "
        "ran beside it (--workers) or it was interrupted.",
    ]
    if made["scale"] == "small":
        about.append(f"**{_small(made)}**")
    if made["scale"] == "smoke":
        about.append("**A smoke run: sample data and a tiny random model. It says nothing about the paper.**")
    about += [f"![{words}]({name})" for name, words in (pictures or {}).items()]
    parts = ["\n\n".join(about)]
    places = list(dict.fromkeys((cell["dataset"], cell["size"]) for cell in made["cells"]))
    parts += [_place(made, place) for place in places]
    if made["audit"]:
        parts.append(_audit(made))
    if made["orders"]:
        parts.append(_orders(made))
    for title, ours in (("What the paper says", False), ("Our questions", True)):
        if claims := [claim for claim in made["claims"] if claim["says"].startswith(OURS) == ours]:
            parts.append(_claims(title, claims))
    parts.append(_rest(made))
    return "\n\n".join(parts) + "\n"


def _small(made: Mapping[str, Any]) -> str:
    """What a run at scale small can say."""
    words = "A small run: a small model on samples of the data"
    if any(cell["published"] for cell in made["cells"]):
        other = any(cell["beside"] not in (None, cell["size"]) for cell in made["cells"])
        words += f", beside published numbers of {made['published_model']}{' on other amounts' if other else ''}"
        words += "; only directions can be compared"
    return f"{words}. What fails here fails for this model and these sizes."


def lines_of(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    texts = [[str(cell).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    texts.insert(1, ["---"] * len(header))
    return "\n".join("| " + " | ".join(row) + " |" for row in texts)


def _number(value: float | None, metric: str, signed: bool = False) -> str:
    if value is None:
        return ""
    return f"{value:{'+' if signed else ''}.{_DIGITS.get(metric, 2)}f}"


def _interval(found: Mapping[str, Any] | None, metric: str) -> str:
    if found is None:
        return ""
    ends = (
        "" if found["lo"] is None else f" [{_number(found['lo'], metric, True)}, {_number(found['hi'], metric, True)}]"
    )
    return _number(found["mean"], metric, True) + ends


def _place(made: Mapping[str, Any], place: tuple[str, str]) -> str:
    """One data set at one size: a line a row, the main metric with its difference, then the others."""
    cells = {(c["row"], c["metric"]): c for c in made["cells"] if (c["dataset"], c["size"]) == place}
    metrics = list(dict.fromkeys(metric for _, metric in cells))
    printed = {metric: any(cells[key]["published"] for key in cells if key[1] == metric) for metric in metrics}
    header, experiment = ["row"], get(made["experiment"])
    for metric in metrics:
        name = _NAMES.get(metric, metric)
        if metric.startswith("nll") and experiment.factor != 1:
            name += f" x {experiment.factor:g}"
        if metric == "nll" and experiment.curve == "test_loss":
            name += ", last epoch"
        header += [f"{name} published", "measured"] if printed[metric] else [name]
        header += [f"difference to {made['plain']}", "verdict"] if metric == metrics[0] else []
    lines = []
    for row in dict.fromkeys(row for row, _ in cells):
        ours = any(cell["ours"] for (label, _), cell in cells.items() if label == row)
        line = [f"{row} (ours)" if ours else row]
        for metric in metrics:
            line += _columns(cells.get((row, metric)), metric, printed[metric], metric == metrics[0])
        lines.append(line)
    counts = {cell["seeds"] for cell in cells.values() if cell["seeds"]} or {0}
    seeds = max(counts)
    few = f"{min(counts)} to " if min(counts) < seeds else ""
    beside = next(iter(cells.values()))["beside"]
    stands = f", beside the published {beside}" if any(printed.values()) and beside not in (None, place[1]) else ""
    mean = next((cell["derived"] for cell in cells.values() if get(made["experiment"]).is_mean(place[0])), None)
    title = f"## {mean or place[0]}, {place[1]}{stands} ({few}{seeds} seed{'s' if seeds != 1 else ''})"
    return f"{title}\n\n{lines_of(header, lines)}"


def _columns(entry: Mapping[str, Any] | None, metric: str, printed: bool, main: bool) -> list[str]:
    """One metric of a row: what is published, what was measured, and how it differs from plain training.

    Other metrics than the main one have the verdict as a mark: + is better, - is worse.
    """
    if entry is None:
        return [""] * (1 + printed + 2 * main)
    difference = entry["difference"] or {}
    mark = {"better": " +", "worse": " -"}.get(difference.get("verdict", ""), "") if not main else ""
    spread = f" ± {_number(entry['sd'], metric)}" if entry["sd"] is not None else ""
    line = [entry["published"] or ""] if printed else []
    line.append(_number(entry["mean"], metric) + spread + mark)
    return [*line, _interval(entry["difference"], metric), difference.get("verdict", "")] if main else line


def _audit(made: Mapping[str, Any]) -> str:
    lines = [
        [_NAMES.get(entry["metric"], entry["metric"]), entry["row"], f"{entry['dataset']}, {entry['size']}",
         _interval(entry["cost"], entry["metric"]), str(entry["cost"]["seeds"]), entry["verdict"]]
        for entry in sorted(made["audit"], key=lambda entry: list(METRICS).index(entry["metric"]))
    ]  # fmt: skip
    words = (
        f"What the published label mistake costs, with {100 * made['level']:g} % intervals: points of accuracy lost, "
        f"test loss x {get(made['experiment']).factor:g} and points of calibration error added. Verdicts are adjusted "
        "over the three baselines."
    )
    header = ["metric", "baseline", "data", "cost of the mistake", "seeds", "verdict"]
    return f"## The label mistake\n\n{words}\n\n{lines_of(header, lines)}"


def _orders(made: Mapping[str, Any]) -> str:
    lines = [
        [f"{order['dataset']}, {order['size']}", " > ".join(order["published"]), " > ".join(order["measured"]),
         f"{order['same_side']} of {order['pairs']}", f"{order['shown']} / {order['against']}", order["verdict"]]
        for order in made["orders"]
    ]  # fmt: skip
    header = [
        "data",
        "published order",
        "measured order",
        "pairs on the same side",
        "shown / against",
        "verdict",
    ]
    return f"## Does the published order hold?\n\n{lines_of(header, lines)}"


def _claims(title: str, claims: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for claim in claims:
        published, metric = claim["published"], claim["metric"]
        size = published["difference"] if published["difference"] is not None else published["ratio"]
        detail = "; ".join(
            f"{pair['above']} to {pair['below']} ({pair['where']}): "
            + (f"{pair['ratio']:.2f} times" if "ratio" in pair else _interval(pair["difference"], metric))
            for pair in [each for each in claim["pairs"] if "difference" in each][:4]
        )
        shown = f"{published['pairs_that_hold']} of {published['pairs_known']}" if published["pairs_known"] else "-"
        lines.append(
            [
                claim["says"].removeprefix(OURS),
                "" if size is None else f"{size:g}{_fits(claim)}",
                shown,
                claim["tested"],
                claim["verdict"],
                detail,
            ]
        )
    header = ["claim", "published size", "pairs in its own numbers", "tested", "verdict on the direction",
              "measured (first four)"]  # fmt: skip
    return f"## {title}\n\n{lines_of(header, lines)}"


def _fits(claim: Mapping[str, Any]) -> str:
    """Whether the interval of the one pair of a claim has its published size."""
    found, size = [pair["difference"] for pair in claim["pairs"] if "difference" in pair], claim["published"]
    if len(found) != 1 or found[0]["lo"] is None or size["difference"] is None:
        return ""
    return " (in the interval)" if found[0]["lo"] <= size["difference"] <= found[0]["hi"] else " (not in the interval)"


def _rest(made: Mapping[str, Any]) -> str:
    """What is missing, what is ours, remarks and the command."""
    parts = []
    left = [f"- {each['what']}: {each['why']}" for each in (*made["not_run"], *made["failed"])]
    if made["missing"]:
        left.insert(0, f"- {made['missing']} trainings have not been done yet: the same command does the rest")
    if left:
        parts.append("## Not run\n\n" + "\n".join(left))
    if made["cut"]:
        parts.append("## Left out on the command line\n\n" + "\n".join(f"- {text}" for text in made["cut"]))
    if made["unstated"]:
        ours = ", ".join(f"{name} {value}" for name, value in made["unstated"].items())
        parts.append(f"## Ours\n\nNot stated in the paper, so ours unless the scale has others: {ours}.")
    if made["notes"]:
        parts.append("## Remarks\n\n" + "\n".join(f"- {text}" for text in made["notes"]))
    commands = "\n".join(" ".join(command) for command in made["commands"])
    parts.append(f"## {'Commands' if len(made['commands']) > 1 else 'Command'}\n\n```\n{commands}\n```")
    return "\n\n".join(parts)
