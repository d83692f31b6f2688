"""The page about one run of `mixwell train`, made from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mixwell import calibration
from mixwell.data import texts_of
from mixwell.errors import MixwellError
from mixwell.modelcard import MEASURED, headline, read_metrics, table_of
from mixwell.report import story
from mixwell.report.look import loss_views, method_view
from mixwell.report.page import render
from mixwell.runs import RunFolder

TEMPLATE = "run.html.j2"


def page(folder: Path, *, texts: bool = True) -> str:
    """The page of a finished run, as HTML.

    Args:
        folder: of the run.
        texts: show the texts of the most confident mistakes, if the data are still there.

    Raises:
        RunError: it is no finished run.
    """
    record, metrics = RunFolder(folder).read_record(), read_metrics(folder)
    found, why = _texts(record, headline(metrics)) if texts else (None, "the page was made without texts")
    return page_of(folder, record, metrics, found, why)


def page_of(
    folder: Path, record: dict[str, Any], metrics: dict[str, Any], texts: list[str] | None, why: str = ""
) -> str:
    """The page as HTML; see `prepare`."""
    return render(TEMPLATE, **prepare(folder, record, metrics, texts, why))


def prepare(
    folder: Path, record: dict[str, Any], metrics: dict[str, Any], texts: list[str] | None, why: str
) -> dict[str, Any]:
    """What the template shows, as plain values.

    Args:
        folder: of the run, with its predictions.
        record: of run.json.
        metrics: of metrics.json.
        texts: of the test rows, or None.
        why: there are none.
    """
    name, labels, shown = metrics["method"]["method"], record["data"]["labels"], headline(metrics)
    single = metrics["task"] == calibration.SINGLE and shown is not None
    seeds = [_outputs(folder, labels, metrics, shown)] if single and shown else []
    told = story.describe(name, metrics["task"], labels, seeds, texts, story.curves([metrics["history"]]))
    part: dict[str, Any] = metrics[shown] if shown else {"before": {}}
    rows = [
        (calibration.METRICS[key].title, f"{value:.4f}", f"{part['after'][key]:.4f}" if "after" in part else "")
        for key, value in part["before"].items()
    ]
    settings = {**record["settings"], "max_length": record["model"]["max_length"]}
    return {
        "title": f"{Path(str(record['data']['source'])).name}: {name}",
        "sentences": _sentences(record, metrics),
        "metrics": rows,
        "measured": MEASURED[shown] if shown else "",
        "tempered": "after" in part,
        "temperature": metrics["temperature"],
        "losses": loss_views({name: told}, {name: 1}),
        "kept": _kept(metrics),
        "method": method_view(told, None, {name: 1}),
        "why_no_texts": why if texts is None else "",
        "settings": [(key.replace("_", " "), str(value)) for key, value in settings.items() if value is not None],
        "options": [(key, str(value)) for key, value in metrics["method"]["options"].items() if value is not None],
        "notes": list(record["notes"]),
        "rows_of": record["data"]["rows"],
        "folder": folder.name,
        "versions": ", ".join(f"{key} {value}" for key, value in record["versions"].items()),
    }


def _kept(metrics: dict[str, Any]) -> str:
    """Which epoch the model is of."""
    if not metrics["history"]:
        return ""
    if metrics.get("folds"):
        return (
            f"The curves are means over {metrics['folds']} folds. Epoch {metrics['best_epoch']} of {metrics['epochs']} "
            f"has the lowest held-out loss after a temperature; so many epochs of all rows made the model."
        )
    if "validation" not in metrics:
        return f"The last epoch, {metrics['best_epoch']}, was kept: no rows were held out."
    by = f"the best by {metrics['best_metric']} on validation"
    return f"Epoch {metrics['best_epoch']} of {metrics['epochs']} was kept: {by}."


def _sentences(record: dict[str, Any], metrics: dict[str, Any]) -> list[str]:
    shown = headline(metrics)
    if shown is None:
        return ["No rows were held out, so nothing was measured."]
    part, rows = metrics[shown], f"{metrics[shown]['rows']:,} {MEASURED[shown]}"
    before = part["before"]
    if metrics["task"] == calibration.REGRESSION:
        return [f"The mean squared error on {rows} is {before['mse']:.4g}."]
    if metrics["task"] == calibration.MULTI:
        first = f"Micro-F1 on {rows} is {100 * before['micro_f1']:.1f} %."
    else:
        error = 100 * (before["accuracy"] * (1 - before["accuracy"]) / max(part["rows"], 1)) ** 0.5
        first = f"Right on {100 * before['accuracy']:.1f} % of {rows} (standard error {error:.1f})."
        probe = metrics.get("baselines", {}).get("probe")
        if probe:
            guess = metrics["baselines"]["guessing"]["accuracy"]
            first += f" Guessing: {100 * guess:.1f} %; the probe: {100 * probe['accuracy']:.1f} % of held-out rows."
    if "after" not in part:
        return [first]
    words = f"A temperature of {metrics['temperature']:.2f} takes the calibration error from "
    words += f"{100 * before['ece']:.1f} % to {100 * part['after']['ece']:.1f} %."
    if metrics.get("temperature_note"):
        words = f"{metrics['temperature_note'][:1].upper()}{metrics['temperature_note'][1:]}."
    return [first, words]


def _outputs(folder: Path, labels: list[str], metrics: dict[str, Any], split: str) -> story.Seed:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(str(folder / "predictions.parquet"))
    table = table.filter(pc.equal(table["split"], split))
    numbers = {label: at for at, label in enumerate(labels)}
    truth = np.array([numbers[label] for label in table["label"].to_pylist()], dtype=np.int64)
    return story.Seed(np.array(table["logits"].to_pylist(), dtype=np.float64), truth, metrics["temperature"])


def _texts(record: dict[str, Any], split: str | None) -> tuple[list[str] | None, str]:
    from mixwell.training.settings import TrainSettings

    try:
        found = TrainSettings.from_dict(record["settings"]).load_data()
    except (MixwellError, OSError) as error:
        return None, f"the data cannot be read any more ({error})"
    if found.fingerprint != record["data"]["fingerprint"]:
        return None, "the data changed since the run"
    return (texts_of(table_of(found, split)) if split else []), ""
