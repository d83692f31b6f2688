"""What a run leaves: its record, the model folder with its card, metrics, predictions and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixwell import calibration, runs
from mixwell.errors import RunError
from mixwell.files import atomic_folder, atomic_path, home, write_json, write_text
from mixwell.prediction import MODEL_FORMAT, logits

if TYPE_CHECKING:
    from mixwell.data import TextData
    from mixwell.models import LoadedModel
    from mixwell.progress import Reporter
    from mixwell.training.run import Outcome, Ready
    from mixwell.training.settings import TrainSettings

METRICS_FORMAT = "mixwell metrics 1"
# The splits a run may be measured on, the most honest first, and what people call their rows.
MEASURED = {"test": "test rows", "out_of_fold": "rows, each held out once", "validation": "validation rows"}


def make_record(
    settings: TrainSettings, found: TextData, loaded: LoadedModel, mixer: dict[str, Any], length: int, notes: list[str]
) -> dict[str, Any]:
    """What run.json says from the beginning on.

    Args:
        settings: of the run.
        found: the data.
        loaded: the model.
        mixer: of `Mixer.to_dict`.
        length: the most tokens of a row.
        notes: what the user was told.
    """
    values = settings.to_dict()
    for name in ("data", "model", "validation", "test"):  # so that --resume works from any folder
        if isinstance(values[name], str) and home(values[name]).exists():
            values[name] = str(home(values[name]).resolve())
    return {
        "settings": values,
        "mixer": mixer,
        "model": {
            "name": settings.model,
            "class": type(loaded.model).__name__,
            "parameters": loaded.parameters,
            "commit": loaded.commit,
            "max_length": length,
        },
        "data": {
            "source": found.source,
            "fingerprint": found.fingerprint,
            "task": found.task,
            "labels": list(found.labels),
            "columns": found.columns,
            "leaks": found.leaks,
            "rows": {name: table.num_rows for name, table in found.splits.items()},
        },
        "seeds": {"seed": settings.seed, "split_seed": settings.split_seed, "sample_seed": settings.sample_seed},
        "processes": runs.processes(),
        "notes": notes,
        "versions": runs.versions(),
        "git_commit": runs.git_commit(),
    }


def temperature_of(found: Any, labels: Any, task: str) -> tuple[float | None, str | None]:
    """Fit the temperature on validation logits; return it and, where it is not to be trusted, a note.

    When every validation row is right by a margin, the likelihood rises without end as the temperature falls. That
    says the set is too small, not that the model is always right, so the temperature stays at 1.
    """
    if task == calibration.REGRESSION:
        return None, None
    fitted = calibration.fit_temperature(found, labels, task)
    if fitted <= calibration.MIN_TEMPERATURE:
        return 1.0, (
            "the best temperature is the lowest allowed (all validation rows are predicted right, or the logits hardly "
            "differ), so it stays at 1: more validation rows or longer training are needed to fit one"
        )
    if fitted >= calibration.MAX_TEMPERATURE:
        return fitted, "the model has learned next to nothing: the best temperature is the highest allowed"
    return fitted, None


def evaluate(found: Any, labels: Any, task: str, temperature: float | None, names: tuple[str, ...]) -> dict[str, Any]:
    """The metrics of one split: before and after the temperature, and for each class.

    Args:
        found: (N, C) logits.
        labels: the labels.
        task: of the data.
        temperature: from validation; None for regression.
        names: of the classes.
    """
    result: dict[str, Any] = {"rows": len(found), "before": calibration.metrics(found, labels, task)}
    if temperature is not None:
        result["after"] = calibration.metrics(found, labels, task, temperature)
    if task != calibration.REGRESSION:
        each = calibration.classwise(found, labels, task)
        result["per_class"] = {
            name: {
                "precision": float(each["precision"][at]),
                "recall": float(each["recall"][at]),
                "f1": float(each["f1"][at]),
                "rows": int(each["support"][at]),
            }
            for at, name in enumerate(names)
        }
    return result


def headline(metrics: dict[str, Any]) -> str | None:
    """The split whose numbers speak for a run; None where nothing was held out."""
    return next((name for name in MEASURED if name in metrics), None)


def write_results(
    folder: runs.RunFolder, record: dict[str, Any], ready: Ready, outcome: Outcome, reporter: Reporter
) -> dict[str, Any]:
    """Evaluate a trained model and write all of the run folder but metrics.json.

    Test rows are only looked at: the temperature and all choices come from other held-out rows.

    Args:
        folder: of the run.
        record: what run.json holds.
        ready: data, model and settings; the model has its final weights.
        outcome: what learning gave.
        reporter: is told of what is odd.

    Returns:
        What metrics.json is to hold.
    """
    from mixwell.data import texts_of
    from mixwell.report import plots
    from mixwell.report import run as run_page

    data, loaded, task, fitted = ready.data, ready.loaded, ready.task, outcome.fitted
    outputs: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    if outcome.held is not None:
        outputs[outcome.held.split], labels[outcome.held.split] = outcome.held.logits, outcome.held.labels
    if "test" in ready.rows:
        outputs["test"] = logits(
            loaded.model, loaded.tokenizer, ready.rows["test"], batch_size=ready.settings.eval_batch_size
        )
        labels["test"] = ready.labels("test")
    metrics: dict[str, Any] = {
        "format": METRICS_FORMAT,
        "task": task,
        "method": {**fitted.mixer, "method": outcome.method},
        "temperature": outcome.temperature,
        "temperature_note": outcome.note,
        "best_epoch": fitted.best_epoch,
        "best_metric": ready.settings.best_metric,
        "epochs": fitted.epochs,
        "steps": fitted.steps,
        "stopped_early": fitted.stopped_early,
        "learning_rate": fitted.learning_rate,
        "folds": 0 if ready.folds is None else int(ready.folds.max()) + 1,
        "baselines": outcome.baselines,
        "sentences": outcome.sentences,
        "warnings": outcome.warnings,
    }
    for name, found in outputs.items():
        metrics[name] = evaluate(found, labels[name], task, outcome.temperature, data.labels)
    metrics["history"] = fitted.history
    shown = headline(metrics)
    with runs.writing(folder.path):
        with atomic_folder(folder.model) as target:
            write_model(target, record, ready, metrics)
        write_table(folder.path / "predictions.parquet", data, outputs, outcome.temperature)
        if fitted.history:
            write_text(folder.path / "loss.svg", plots.losses(fitted.history, fitted.best_epoch))
        if task == calibration.SINGLE and shown is not None:
            panels = []
            for title, t in (("before temperature", 1.0), ("after", outcome.temperature or 1.0)):
                probs = calibration.softmax(outputs[shown] / t)
                panels.append((title, calibration.reliability_bins(probs, labels[shown]),
                               calibration.ece(probs, labels[shown])))  # fmt: skip
            write_text(folder.path / "reliability.svg", plots.reliability(panels))
        texts = None if shown is None else texts_of(table_of(data, shown))
        write_text(folder.path / "report.html", run_page.page_of(folder.path, record, metrics, texts))
    return metrics


def table_of(data: TextData, split: str) -> Any:
    """The texts of a split that was measured; those out of fold are the training rows."""
    return data.splits["train" if split == "out_of_fold" else split]


def write_model(target: Path, record: dict[str, Any], ready: Ready, metrics: dict[str, Any]) -> None:
    """Write a folder that `transformers.pipeline` and `mixwell predict` load.

    The temperature goes into the last linear layer, so that whoever loads the folder gets calibrated probabilities; the
    model in memory is left as it was.
    """
    from mixwell.training.heads import scale_logits

    model, data, temperature = ready.loaded.model, ready.data, metrics["temperature"]
    inside = temperature is not None and scale_logits(model, 1.0 / temperature)
    try:
        model.save_pretrained(str(target))
    finally:
        if inside:
            scale_logits(model, temperature)
    tokenizer, longest = ready.loaded.tokenizer, ready.loaded.tokenizer.model_max_length
    tokenizer.model_max_length = ready.length  # so that truncation elsewhere cuts where training did
    try:
        tokenizer.save_pretrained(str(target))
    finally:
        tokenizer.model_max_length = longest
    about = {
        "format": MODEL_FORMAT,
        "task": data.task,
        "labels": list(data.labels),
        "pairs": "text_pair" in data.train.column_names,
        "columns": data.columns,
        "trust_remote_code": record["settings"]["trust_remote_code"],
        "temperature": temperature,
        "temperature_in_weights": inside,
        "max_length": ready.length,
        "method": metrics["method"],
        "versions": record["versions"],
    }
    write_json(target / "mixwell.json", about)
    write_text(target / "README.md", card(record, metrics))


def write_table(path: Path, data: TextData, outputs: dict[str, Any], temperature: float | None) -> None:
    """Write predictions.parquet.

    Its columns are `split`, `row_id`, `label`, `predicted`, `logits`, and for classes `probabilities` and
    `calibrated`, the probabilities after the temperature.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for name, found in outputs.items():
        table = table_of(data, name)
        truth = table["label"].to_pylist()
        columns: dict[str, Any] = {"split": pa.array([name] * len(found)), "row_id": table["row_id"].combine_chunks()}
        if data.task == calibration.REGRESSION:
            columns |= {"label": pa.array(truth), "predicted": pa.array(found[:, 0].astype(float))}
        else:
            if data.task == calibration.MULTI:
                columns["label"] = pa.array([_named(row, data.labels) for row in truth], pa.list_(pa.string()))
                columns["predicted"] = pa.array([_named(row, data.labels) for row in found], pa.list_(pa.string()))
                chance = calibration.sigmoid
            else:
                columns["label"] = pa.array([data.labels[at] for at in truth])
                columns["predicted"] = pa.array([data.labels[at] for at in found.argmax(axis=1)])
                chance = calibration.softmax
            columns["probabilities"] = pa.array(list(chance(found)))
            columns["calibrated"] = pa.array(list(chance(found / (temperature or 1.0))))
        columns["logits"] = pa.array(list(np.asarray(found, dtype=np.float32)))
        tables.append(pa.table(columns))
    if tables:
        with atomic_path(path) as temporary:
            pq.write_table(pa.concat_tables(tables), str(temporary))


def _named(row: Any, names: tuple[str, ...]) -> list[str]:
    return [name for name, value in zip(names, row) if value > 0]


def _elsewhere(kind: str) -> list[str]:
    """How to load the folder without mixwell."""
    if kind != "PooledForSequenceClassification":
        return ["`transformers.pipeline` loads the folder too and gives the same probabilities."]
    return [
        "`transformers.pipeline` gives the same probabilities: after `import mixwell`, or without mixwell by",
        "`pipeline('text-classification', 'this/folder', trust_remote_code=True)`, which runs the code in it. For long",
        "texts add `truncation=True` to the call.",
    ]


def read_metrics(folder: Path) -> dict[str, Any]:
    """Read metrics.json of a finished run.

    Raises:
        RunError: it is missing, damaged or of another version.
    """
    if not (folder / "metrics.json").is_file():
        raise RunError(f"{folder}: not a finished run (no metrics.json)")
    return runs.read_json(folder / "metrics.json", METRICS_FORMAT, "a finished run")


def _numbers(metrics: dict[str, Any], shown: str) -> list[str]:
    """The table of a card."""
    part = metrics[shown]
    after = part.get("after")
    how = {
        "test": "which had no part in training or in any choice",
        "out_of_fold": "by models that were not trained on them; this model was then trained on all of them",
        "validation": "which also chose the epoch, so that the numbers may be a little too good",
    }[shown]
    lines = [f"On {part['rows']:,} {MEASURED[shown]}, {how}:", ""]
    lines += ["| metric | before temperature | after |", "|---|---:|---:|"] if after else ["| metric | |", "|---|---:|"]
    for name, value in part["before"].items():
        second = f" {after[name]:.4f} |" if after else ""
        lines.append(f"| {calibration.METRICS[name].title} | {value:.4f} |{second}")
    probe = metrics.get("baselines", {}).get("probe", {}).get("accuracy")
    if probe is not None:
        lines += ["", f"A logistic regression on the frozen features has an accuracy of {probe:.4f} on held-out rows."]
    return lines


def card(record: dict[str, Any], metrics: dict[str, Any]) -> str:
    """The model card: method, numbers and limits, as Markdown with the hub's header."""
    data, model, method = record["data"], record["model"], metrics["method"]
    options = ", ".join(f"{key}={value}" for key, value in method["options"].items() if value is not None)
    temperature, shown = metrics["temperature"], headline(metrics)
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-classification",
        "tags: [mixwell, mixup, calibration]",
        "---",
        "",
        f"# {Path(data['source']).name}: {model['name'].rstrip('/').split('/')[-1]} with {method['method']}",
        "",
        f"Trained with mixwell {record['versions']['mixwell']} from "
        f"`{Path(model['name']).name}` ({model['parameters'] / 1e6:.0f} million parameters) by `{method['method']}`"
        f"{f' ({options})' if options else ''}.",
        "",
        "## Numbers",
        "",
    ]
    if shown is None:
        lines.append("No rows were held out, so nothing was measured.")
    else:
        lines += _numbers(metrics, shown)
    chosen_on = metrics.get("out_of_fold") or metrics.get("validation")
    if temperature is not None and chosen_on is not None:
        rows = chosen_on["rows"]
        lines += [
            "",
            f"Temperature: {temperature:.4f}, chosen on {rows:,} held-out rows. The last linear layer carries it, so "
            f"that all who load this folder get calibrated probabilities.",
        ]
    rows = data["rows"]
    lines += [
        "",
        "## Use",
        "",
        "```python",
        "from mixwell.prediction import Classifier",
        "",
        'Classifier.load("this/folder").predict(["a text"])',
        "```",
        "",
        *_elsewhere(model["class"]),
        "",
        "## Data and limits",
        "",
        f"- {rows['train']:,} training, {rows['validation']:,} validation and {rows['test']:,} test rows; fingerprint "
        f"`{data['fingerprint'][:16]}`.",
        f"- Texts longer than {model['max_length']} tokens were cut.",
    ]
    if data["labels"]:
        shown = ", ".join(data["labels"][:20]) + (" ..." if len(data["labels"]) > 20 else "")
        lines.append(f"- Labels: {shown}. The model always chooses among these, also for texts of other kinds.")
    if any(data["leaks"].values()):
        lines.append(f"- Texts also in training: {json.dumps(data['leaks'])}; the numbers may be too good.")
    lines += [
        "- Probabilities are meant for data like the training rows; elsewhere they may be off.",
        f"- One run with seed {record['settings']['seed']}: another seed gives somewhat other numbers.",
        "",
    ]
    return "\n".join(lines)
