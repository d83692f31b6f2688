"""The page about one run of `mixwell train`, made from its folder."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from mixwell.compare.spec import BASELINE
from mixwell.data import texts_of
from mixwell.metrics.scores import METRICS
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE
from mixwell.report import charts, details, glossary, links
from mixwell.report.page import render
from mixwell.training.artefacts import read_metrics, table_of
from mixwell.training.evaluate import MEASURED, headline, title_of
from mixwell.training.run_folder import RunFolder
from mixwell.training.settings import TrainSettings
from mixwell.utils.errors import MixwellError
from mixwell.utils.files import write_text
from mixwell.utils.records import reading

TEMPLATE = "run.html.j2"
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/'\",;:]+/)+")  # of a whole path


def page(folder: Path, *, texts: bool = True, place: Path | None = None) -> str:
    """The page of a finished run, as HTML.

    Args:
        folder: of the run.
        texts: show the texts of the most confident mistakes, if the data still exist.
        place: the folder that the page is written to, for its links; None for `folder`.

    Raises:
        RunError: it is no finished run.
    """
    record, metrics = RunFolder(folder).read_record(), read_metrics(folder)
    with reading(folder, "bring the run folder back as it was"):
        shown, why = _texts(record, headline(metrics)) if texts else (None, "the page was made without texts")
        return render(TEMPLATE, **prepare(folder, record, metrics, shown, why, place))


def illustrate(folder: Path, record: dict[str, Any], metrics: dict[str, Any], texts: list[str] | None) -> None:
    """Write loss.svg, reliability.svg and report.html into the folder of a run whose predictions are written.

    Args:
        folder: of the run.
        record: of run.json.
        metrics: of metrics.json.
        texts: of the rows that were measured; None to leave them out.
    """
    values = prepare(folder, record, metrics, texts)
    losses = [(f"{part['title']} (kept: epoch {metrics['best_epoch']})", part["picture"]) for part in values["losses"]]
    reliability = [
        (f"{part['title'].capitalize()}: calibration error {part['error']}", part["picture"])
        for part in values["method"]["reliability"]
    ]
    for name, pictures in (("loss.svg", losses), ("reliability.svg", reliability)):
        if pictures:
            write_text(folder / name, charts.as_file(pictures))
    write_text(folder / "report.html", render(TEMPLATE, **values))


def prepare(
    folder: Path,
    record: dict[str, Any],
    metrics: dict[str, Any],
    texts: list[str] | None,
    why: str = "",
    place: Path | None = None,
) -> dict[str, Any]:
    """What the template shows, as plain values.

    Args:
        folder: of the run, with its predictions.
        record: of run.json.
        metrics: of metrics.json.
        texts: of the test rows, or None.
        why: there are no texts.
        place: the folder that the page is written to, for its links; None for `folder`.
    """
    name, labels, shown = title_of(metrics["method"]["method"]), record["data"]["labels"], headline(metrics)
    single = metrics["task"] == SINGLE and shown is not None
    seeds = [_outputs(folder, labels, metrics, shown)] if single and shown else []
    method = details.describe(name, metrics["task"], labels, seeds, texts, details.curves([metrics["history"]]))
    part: dict[str, Any] = metrics[shown] if shown else {"before": {}}
    rows = [
        (METRICS[key].title, f"{value:.4f}", f"{part['after'][key]:.4f}" if "after" in part else "")
        for key, value in part["before"].items()
    ]
    settings = {**record["settings"], "max_length": record["model"]["max_length"]}
    for key in (
        "data",
        "model",
        "output",
        "validation",
        "test",
        "cache_dir",
    ):  # pages are passed on: no folders of ours
        if isinstance(settings.get(key), str) and Path(settings[key]).is_absolute():
            settings[key] = Path(settings[key]).name
    return {
        "title": f"{Path(str(record['data']['source'])).name}: {name}",
        "sentences": _sentences(record, metrics),
        "numbers": _numbers(metrics),
        "metrics": rows,
        "measured": MEASURED[shown] if shown else "",
        "calibrated": "after" in part,
        "temperature": metrics["temperature"],
        "tried": _tried(metrics.get("search")),
        "losses": details.loss_views({name: method}, {name: 1}),
        "kept": _kept(metrics),
        "method": details.method_view(method, None, {name: 1}),
        "why_no_texts": why if texts is None else "",
        "settings": [(key.replace("_", " "), str(value)) for key, value in settings.items() if value is not None],
        "options": _options(metrics["method"]),
        "notes": [_FOLDERS.sub("", note) for note in record["notes"]],
        "facts": _facts(folder, record),
        "comparisons": links.comparisons_beside(folder, str(record["data"]["source"]), place),
        "meanings": {METRICS[key].title: meaning for key, meaning in _meanings(part["before"]).items()},
        "terms": [(METRICS[key].title, meaning) for key, meaning in _meanings(part["before"]).items() if meaning],
        "folder": folder.name,
        "versions": ", ".join(f"{key} {value}" for key, value in record["versions"].items()),
    }


def _tried(searched: dict[str, Any] | None) -> dict[str, Any] | None:
    """A row per way to train that a budget had room for, and what the columns are."""
    if searched is None:
        return None
    rows = [
        {
            "name": each["name"],
            "folds": each["folds"],
            "accuracy": "" if each["accuracy"] is None else f"{100 * each['accuracy']:.1f} %",
            "loss": f"{each['loss']:.3f}",
            "gain": f"{-each['gain']:+.3f} ± {each['gain_error']:.3f}" if "gain" in each else "",
            "cost": f"{each['cost']:.1f}",
            "note": _fate(each, searched["chosen"]),
        }
        for each in searched["candidates"]
    ]  # fmt: skip
    words = (
        f"On held-out rows of the folds, each after the epoch that is best for it; the loss after a temperature, and "
        f"its difference from plain training with a standard error (lower is better). Costs are in plain trainings "
        f"on all rows; with the final training {searched['spent']:.1f} of {searched['budget']:g} were spent."
    )
    return {"rows": rows, "words": words}


def _fate(candidate: dict[str, Any], chosen: str) -> str:
    """What became of a way to train."""
    if candidate["name"] == chosen:
        return "kept"
    return f"given up: {candidate['given_up']}" if candidate["given_up"] else ""


def _numbers(metrics: dict[str, Any]) -> list[dict[str, str]]:
    """Up to three large numbers: value, what it is, and a line about it."""
    shown = headline(metrics)
    if shown is None:
        return []
    part, rows = metrics[shown], f"of {metrics[shown]['rows']:,} {MEASURED[shown]}"
    before, after = part["before"], part.get("after", part["before"])
    where = "after the temperature" if "after" in part else ""
    wanted = {
        SINGLE: [("accuracy", before, "right", rows), ("ece", after, "calibration error", where),
                 ("macro_f1", before, "macro-F1", "all classes count the same")],
        MULTI: [("micro_f1", before, "micro-F1", rows), ("ece", after, "calibration error", where)],
        REGRESSION: [("mse", before, "mean squared error", rows), ("pearson", before, "correlation", "Pearson")],
    }[metrics["task"]]  # fmt: skip
    return [
        {
            "value": f"{values[name]:.3g}" if metrics["task"] == REGRESSION else f"{100 * values[name]:.1f} %",
            "what": what,
            "more": more,
        }
        for name, values, what, more in wanted
        if name in values
    ]


_TERMS = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "aurc": "AURC", "excess_aurc": "excess AURC",
          "error_auroc": "error AUROC", "micro_f1": "micro-F1", "mse": "MSE", "mae": "MAE"}  # fmt: skip


def _meanings(metrics: dict[str, Any]) -> dict[str, str]:
    """The definition of each metric; empty where there is none."""
    return {key: glossary.TERMS.get(_TERMS.get(key, ""), "") for key in metrics}


def _facts(folder: Path, record: dict[str, Any]) -> list[tuple[str, str]]:
    """Data, model, rows and date of a run."""
    rows = [(f"{name} rows", f"{count:,}") for name, count in record["data"]["rows"].items()]
    day = datetime.fromtimestamp((folder / "run.json").stat().st_mtime, timezone.utc)
    model = str(record["model"]["name"]).rstrip("/").split("/")[-1]
    source = Path(str(record["data"]["source"])).name
    return [("data", source), ("model", model), *rows, ("trained", f"{day:%-d %B %Y}")]


def _kept(metrics: dict[str, Any]) -> str:
    """Which epoch's weights the model has."""
    if not metrics["history"]:
        return ""
    if metrics.get("folds"):
        return (
            f"The curves are means over {metrics['folds']} folds. Epoch {metrics['best_epoch']} of {metrics['epochs']} "
            f"has the lowest held-out loss after a temperature; the model was trained on all rows for as many epochs."
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
    if metrics["task"] == REGRESSION:
        return [f"The mean squared error on {rows} is {before['mse']:.4g}."]
    if metrics["task"] == MULTI:
        first = f"Micro-F1 on {rows} is {100 * before['micro_f1']:.1f} %."
    else:
        error = 100 * (before["accuracy"] * (1 - before["accuracy"]) / max(part["rows"], 1)) ** 0.5
        first = f"Right on {100 * before['accuracy']:.1f} % of {rows} (standard error {error:.1f})."
        probe = metrics.get("baselines", {}).get("probe")
        if probe:
            guess = metrics["baselines"]["guessing"]["accuracy"]
            same = probe.get("test") if shown == "test" else probe if probe["measured_on"] == shown else None
            where = "the same rows" if same else "held-out rows"
            first += f" Guessing: {100 * guess:.1f} %; the probe: {100 * (same or probe)['accuracy']:.1f} % of {where}."
    if "after" not in part:
        return [first]
    words = f"A temperature of {metrics['temperature']:.2f} takes the calibration error from "
    words += f"{100 * before['ece']:.1f} % to {100 * part['after']['ece']:.1f} %."
    if metrics.get("temperature_note"):
        words = f"{metrics['temperature_note'][:1].upper()}{metrics['temperature_note'][1:]}."
    return [first, words]


def _outputs(folder: Path, labels: list[str], metrics: dict[str, Any], split: str) -> details.SeedOutputs:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(str(folder / "predictions.parquet"))
    table = table.filter(pc.equal(table["split"], split))
    numbers = {label: number for number, label in enumerate(labels)}
    truth = np.array([numbers[label] for label in table["label"].to_pylist()], dtype=np.int64)
    logits = np.array(table["logits"].to_pylist(), dtype=np.float64)
    return details.SeedOutputs(logits, truth, metrics["temperature"])


def _texts(record: dict[str, Any], split: str | None) -> tuple[list[str] | None, str]:
    try:
        data = TrainSettings.from_dict(record["settings"]).load_data()
    except (MixwellError, OSError) as error:
        return None, f"the data cannot be read any more ({type(error).__name__})"
    if data.fingerprint != record["data"]["fingerprint"]:
        return None, "the data changed since the run"
    return (texts_of(table_of(data, split)) if split else []), ""


def _options(method: dict[str, Any]) -> list[tuple[str, str]]:
    """The options that had an effect: without mixing, only label smoothing has one."""
    given = {key: str(value) for key, value in method["options"].items() if value is not None}
    if method["method"] == BASELINE:
        given = {key: value for key, value in given.items() if key == "label_smoothing"}
    return list(given.items())
