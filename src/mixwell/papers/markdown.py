"""The tables of an experiment as Markdown, from what table.json holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mixwell.papers.protocols import get
from mixwell.papers.schema import METRICS, OURS

# How many digits a metric has in tables, and its name there.
_DIGITS = {"train_loss": 3, "time_ratio": 2, "seconds_saved": 0}
_NAMES = {"mcc": "MCC", "aurc": "AURC", "nll": "test loss", "ece": "ECE", "macro_f1": "macro-F1",
          "train_loss": "train loss", "nll_after": "test loss after T", "ece_after": "ECE after T",
          "nll_last": "validation loss of the last epoch", "time_ratio": "time",
          "seconds_saved": "seconds saved"}  # fmt: skip


def markdown(table: Mapping[str, Any], pictures: Mapping[str, str] | None = None) -> str:
    """The tables as Markdown, with the pictures that are beside it: name to what they show."""
    model = Path(table["model"]).name if table["model"] else "-"
    about = [
        f"# {table['experiment']}: {table['title']}",
        f"{table['number'].removeprefix('none: ')} of {table['paper']}.",
        f"Scale `{table['scale']}`, model `{model}`. {table['best_epoch']}"
        + (f" Published ±: {table['spread']}; ours: standard deviation over seeds." if table["spread"] else ""),
        f"Differences are paired, with {100 * table['level']:g} % intervals; + and - behind other metrics: better and "
        "worse than plain training (after T, the temperature, and of the last epoch over seeds alone); verdicts are "
        "adjusted over the rows "
        "(Holm), intervals are not; time: an epoch's, relative to plain training, which means little if anything else "
        "ran beside it (--workers) or it was interrupted.",
    ]
    if table["scale"] == "small":
        about.append(f"**{_small(table)}**")
    if table["scale"] == "smoke":
        about.append("**A smoke run: sample data and a tiny random model. It says nothing about the paper.**")
    about += [f"![{words}]({name})" for name, words in (pictures or {}).items()]
    parts = ["\n\n".join(about)]
    places = list(dict.fromkeys((entry["dataset"], entry["size"]) for entry in table["cells"]))
    parts += [_place(table, place) for place in places]
    if table["audit"]:
        parts.append(_audit(table))
    if table["orders"]:
        parts.append(_orders(table))
    for title, ours in (("What the paper says", False), ("Our questions", True)):
        if claims := [claim for claim in table["claims"] if claim["says"].startswith(OURS) == ours]:
            parts.append(_claims(title, claims))
    parts.append(_rest(table))
    return "\n\n".join(parts) + "\n"


def _small(table: Mapping[str, Any]) -> str:
    """What a run at scale small can say."""
    words = "A small run: a small model on samples of the data"
    if any(entry["published"] for entry in table["cells"]):
        other = any(entry["beside"] not in (None, entry["size"]) for entry in table["cells"])
        words += f", beside published numbers of {table['published_model']}{' on other amounts' if other else ''}"
        words += "; only directions can be compared"
    return f"{words}. What fails here fails for this model and these sizes."


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    texts = [[str(cell).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    texts.insert(1, ["---"] * len(header))
    return "\n".join("| " + " | ".join(row) + " |" for row in texts)


def _number(value: float | None, metric: str, signed: bool = False) -> str:
    if value is None:
        return ""
    return f"{value:{'+' if signed else ''}.{_DIGITS.get(metric, 2)}f}"


def _interval(difference: Mapping[str, Any] | None, metric: str) -> str:
    if difference is None:
        return ""
    mean, lo, hi = (_number(difference[name], metric, True) for name in ("mean", "lo", "hi"))
    return mean if difference["lo"] is None else f"{mean} [{lo}, {hi}]"


def _place(table: Mapping[str, Any], place: tuple[str, str]) -> str:
    """One data set at one size: one line per row, the main metric with its difference, then the others."""
    entries = {
        (entry["row"], entry["metric"]): entry for entry in table["cells"] if (entry["dataset"], entry["size"]) == place
    }
    metrics = list(dict.fromkeys(metric for _, metric in entries))
    printed = {metric: any(entries[key]["published"] for key in entries if key[1] == metric) for metric in metrics}
    header, experiment = ["row"], get(table["experiment"])
    for metric in metrics:
        name = _NAMES.get(metric, metric)
        if metric.startswith("nll") and experiment.factor != 1:
            name += f" x {experiment.factor:g}"
        if metric == "nll" and experiment.curve == "test_loss":
            name += ", last epoch"
        header += [f"{name} published", "measured"] if printed[metric] else [name]
        header += [f"difference to {table['plain']}", "verdict"] if metric == metrics[0] else []
    lines = []
    for row in dict.fromkeys(row for row, _ in entries):
        ours = any(entry["ours"] for (label, _), entry in entries.items() if label == row)
        line = [f"{row} (ours)" if ours else row]
        for metric in metrics:
            line += _columns(entries.get((row, metric)), metric, printed[metric], metric == metrics[0])
        lines.append(line)
    counts = {entry["seeds"] for entry in entries.values() if entry["seeds"]} or {0}
    seeds = max(counts)
    few = f"{min(counts)} to " if min(counts) < seeds else ""
    beside = next(iter(entries.values()))["beside"]
    stands = f", beside the published {beside}" if any(printed.values()) and beside not in (None, place[1]) else ""
    mean = next((entry["derived"] for entry in entries.values() if experiment.is_mean(place[0])), None)
    title = f"## {mean or place[0]}, {place[1]}{stands} ({few}{seeds} seed{'s' if seeds != 1 else ''})"
    return f"{title}\n\n{table_lines(header, lines)}"


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


def _audit(table: Mapping[str, Any]) -> str:
    lines = [
        [_NAMES.get(entry["metric"], entry["metric"]), entry["row"], f"{entry['dataset']}, {entry['size']}",
         _interval(entry["cost"], entry["metric"]), str(entry["cost"]["seeds"]), entry["verdict"]]
        for entry in sorted(table["audit"], key=lambda entry: list(METRICS).index(entry["metric"]))
    ]  # fmt: skip
    words = (
        f"What the published label mistake costs, with {100 * table['level']:g} % intervals: points of accuracy lost, "
        f"test loss x {get(table['experiment']).factor:g} and points of calibration error added. Verdicts are adjusted "
        "over the three baselines."
    )
    header = ["metric", "baseline", "data", "cost of the mistake", "seeds", "verdict"]
    return f"## The label mistake\n\n{words}\n\n{table_lines(header, lines)}"


def _orders(table: Mapping[str, Any]) -> str:
    lines = [
        [f"{order['dataset']}, {order['size']}", " > ".join(order["published"]), " > ".join(order["measured"]),
         f"{order['same_side']} of {order['pairs']}", f"{order['shown']} / {order['against']}", order["verdict"]]
        for order in table["orders"]
    ]  # fmt: skip
    header = ["data", "published order", "measured order", "pairs on the same side", "shown / against", "verdict"]
    return f"## Does the published order hold?\n\n{table_lines(header, lines)}"


def _claims(title: str, claims: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for claim in claims:
        published, metric = claim["published"], claim["metric"]
        size = published["difference"] if published["difference"] is not None else published["ratio"]
        detail = "; ".join(
            f"{pair['above']} to {pair['below']} ({pair['where']}): "
            + (f"{pair['ratio']:.2f} times" if "ratio" in pair else _interval(pair["difference"], metric))
            for pair in [pair for pair in claim["pairs"] if "difference" in pair][:4]
        )
        shown = f"{published['pairs_that_hold']} of {published['pairs_known']}" if published["pairs_known"] else "-"
        size = "" if size is None else f"{size:g}{_fits(claim)}"
        lines.append([claim["says"].removeprefix(OURS), size, shown, claim["tested"], claim["verdict"], detail])
    header = ["claim", "published size", "pairs in its own numbers", "tested", "verdict on the direction",
              "measured (first four)"]  # fmt: skip
    return f"## {title}\n\n{table_lines(header, lines)}"


def _fits(claim: Mapping[str, Any]) -> str:
    """Whether the interval of the one pair of a claim has its published size."""
    measured = [pair["difference"] for pair in claim["pairs"] if "difference" in pair]
    size = claim["published"]["difference"]
    if len(measured) != 1 or measured[0]["lo"] is None or size is None:
        return ""
    return " (in the interval)" if measured[0]["lo"] <= size <= measured[0]["hi"] else " (not in the interval)"


def _rest(table: Mapping[str, Any]) -> str:
    """What is missing, what is ours, remarks and the command."""
    parts = []
    left = [f"- {item['what']}: {item['why']}" for item in (*table["not_run"], *table["failed"])]
    if table["missing"]:
        left.insert(0, f"- {table['missing']} trainings have not been done yet: the same command does the rest")
    if left:
        parts.append("## Not run\n\n" + "\n".join(left))
    if table["cut"]:
        parts.append("## Left out on the command line\n\n" + "\n".join(f"- {text}" for text in table["cut"]))
    if table["unstated"]:
        ours = ", ".join(f"{name} {value}" for name, value in table["unstated"].items())
        parts.append(f"## Ours\n\nNot stated in the paper, so ours unless the scale has others: {ours}.")
    if table["notes"]:
        parts.append("## Remarks\n\n" + "\n".join(f"- {text}" for text in table["notes"]))
    commands = "\n".join(" ".join(command) for command in table["commands"])
    parts.append(f"## {'Commands' if len(table['commands']) > 1 else 'Command'}\n\n```\n{commands}\n```")
    return "\n\n".join(parts)
