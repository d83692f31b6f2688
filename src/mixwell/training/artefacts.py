"""What a run leaves: its record, the model folder with its card, metrics, predictions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixwell.data import TextData, texts_of
from mixwell.metrics.scores import METRICS, sigmoid, softmax
from mixwell.metrics.tasks import MULTI, REGRESSION
from mixwell.training import abstain
from mixwell.training.evaluate import MEASURED, evaluate, headline, title_of
from mixwell.training.heads import scale_logits
from mixwell.training.predict import MODEL_FORMAT, logits
from mixwell.training.run_folder import RunFolder
from mixwell.utils.environment import git_commit, processes, versions
from mixwell.utils.errors import RunError
from mixwell.utils.files import atomic_folder, atomic_path, home, write_json, write_text
from mixwell.utils.records import damage, read_json, writing

if TYPE_CHECKING:
    from mixwell.training.learn import Outcome
    from mixwell.training.prepare import Ready


METRICS_FORMAT = "mixwell metrics 1"
# Draws what a person looks at: (run folder, its record, its metrics, the texts behind the numbers).
Illustrate = Callable[[Path, dict[str, Any], dict[str, Any], "list[str] | None"], None]


def make_record(ready: Ready) -> dict[str, Any]:
    """What run.json says from the beginning on."""
    settings, data, loaded = ready.settings, ready.data, ready.loaded
    values = settings.to_dict()
    for name in ("data", "model", "validation", "test"):  # so that --resume works from any folder
        if isinstance(values[name], str) and home(values[name]).exists():
            values[name] = str(home(values[name]).resolve())
    return {
        "settings": values,
        "mixer": ready.mixer,
        "model": {
            "name": settings.model,
            "class": type(loaded.model).__name__,
            "parameters": loaded.parameters,
            "commit": loaded.commit,
            "max_length": ready.length,
        },
        "data": {
            "source": data.source,
            "fingerprint": data.fingerprint,
            "task": data.task,
            "labels": list(data.labels),
            "columns": data.columns,
            "leaks": data.leaks,
            "rows": {name: table.num_rows for name, table in data.splits.items()},
        },
        "seeds": {"seed": settings.seed, "split_seed": settings.split_seed, "sample_seed": settings.sample_seed},
        "processes": processes(),
        "notes": ready.notes,
        "versions": versions(),
        "git_commit": git_commit(),
    }


def write_results(
    folder: RunFolder, record: dict[str, Any], ready: Ready, outcome: Outcome, illustrate: Illustrate | None = None
) -> dict[str, Any]:
    """Evaluate a trained model and write all of the run folder but metrics.json.

    Test rows are only looked at: the temperature and all choices come from other held-out rows.

    Args:
        folder: of the run.
        record: what run.json holds.
        ready: data, model and settings; the model has its final weights.
        outcome: what learning gave.
        illustrate: draws the pictures and the page, when all else is written.

    Returns:
        What metrics.json is to hold.
    """
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
        **({} if outcome.searched is None else {"search": outcome.searched}),
        "warnings": outcome.warnings,
        "abstain": abstain.describe(outcome.held, outcome.temperature, ready.settings.abstain),
    }
    for name, found in outputs.items():
        metrics[name] = evaluate(found, labels[name], task, outcome.temperature, data.labels)
    metrics["history"] = fitted.history
    shown = headline(metrics)
    with writing(folder.path):
        with atomic_folder(folder.model) as target:
            write_model(target, record, ready, metrics)
        write_table(folder.path / "predictions.parquet", data, outputs, outcome.temperature)
        if illustrate is not None:
            texts = None if shown is None else texts_of(table_of(data, shown))
            illustrate(folder.path, record, metrics, texts)
    return metrics


def table_of(data: TextData, split: str) -> Any:
    """The texts of a split that was measured; those out of fold are the training rows."""
    return data.splits["train" if split == "out_of_fold" else split]


def write_model(target: Path, record: dict[str, Any], ready: Ready, metrics: dict[str, Any]) -> None:
    """Write a folder that `transformers.pipeline` and `mixwell predict` load.

    The temperature goes into the last linear layer, so that whoever loads the folder gets calibrated probabilities; the
    model in memory is left as it was.
    """
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
        "threshold": (metrics["abstain"] or {}).get("threshold"),
        "abstain": metrics["abstain"],
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
        if data.task == REGRESSION:
            columns |= {"label": pa.array(truth), "predicted": pa.array(found[:, 0].astype(float))}
        elif data.task == MULTI:
            for column, rows in (("label", truth), ("predicted", found)):
                named = [[label for label, value in zip(data.labels, row) if value > 0] for row in rows]
                columns[column] = pa.array(named, pa.list_(pa.string()))
        else:
            columns["label"] = pa.array([data.labels[number] for number in truth])
            columns["predicted"] = pa.array([data.labels[number] for number in found.argmax(axis=1)])
        if data.task != REGRESSION:
            probabilities = sigmoid if data.task == MULTI else softmax
            columns["probabilities"] = pa.array(list(probabilities(found)))
            columns["calibrated"] = pa.array(list(probabilities(found / (temperature or 1.0))))
        columns["logits"] = pa.array(list(np.asarray(found, dtype=np.float32)))
        tables.append(pa.table(columns))
    if tables:
        with atomic_path(path) as temporary:
            pq.write_table(pa.concat_tables(tables), str(temporary))


def read_metrics(folder: Path) -> dict[str, Any]:
    """Read metrics.json of a finished run.

    Raises:
        RunError: it is missing, damaged or of another version.
    """
    if not (folder / "metrics.json").is_file():
        raise RunError(f"{folder}: not a finished run (no metrics.json)")
    metrics = read_json(folder / "metrics.json", METRICS_FORMAT, "a finished run")
    kinds = {"task": str, "method": dict, "best_epoch": int, "best_metric": str, "epochs": int, "history": list}
    for name, kind in kinds.items():
        if not isinstance(metrics.get(name), kind):
            raise damage(folder / "metrics.json", f"no {name!r} of the right type")
    temperature, method = metrics.get("temperature", ""), metrics["method"]
    sound = isinstance(method.get("method"), str) and isinstance(method.get("options"), dict)
    for name in MEASURED:
        part = metrics.get(name, {"rows": 0, "before": {}})
        sound = sound and isinstance(part, dict) and isinstance(part.get("rows"), int)
        tables = [part.get("before"), part.get("after", {})] if sound else []
        sound = sound and all(
            isinstance(table, dict) and all(isinstance(value, (int, float)) for value in table.values())
            for table in tables
        )
        sound = sound and all(key in METRICS for table in tables for key in table)
        sound = sound and ("after" not in part or part["before"].keys() <= part["after"].keys())
    if not sound or not isinstance(temperature, (int, float, type(None))):
        raise damage(folder / "metrics.json", "method, temperature or a split's metrics are missing or of a wrong type")
    return metrics


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
        lines.append(f"| {METRICS[name].title} | {value:.4f} |{second}")
    probe = metrics.get("baselines", {}).get("probe", {})
    same = probe.get("test") if shown == "test" else None
    if (same or probe).get("accuracy") is not None:
        where = "the same rows" if same or probe.get("measured_on") == shown else "held-out rows"
        score = (same or probe)["accuracy"]
        lines += ["", f"A logistic regression on the frozen features has an accuracy of {score:.4f} on {where}."]
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
        f"# {_plain(Path(data['source']).name)}: {_plain(model['name'].rstrip('/').split('/')[-1])} with "
        f"{title_of(method['method'])}",
        "",
        f"Trained with mixwell {record['versions']['mixwell']} from "
        f"{_plain(Path(model['name']).name)} ({model['parameters'] / 1e6:.0f} million parameters) by "
        f"{title_of(method['method'])}{f' ({options})' if options else ''}.",
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
    return "\n".join([*lines, *_use(model["class"]), *_limits(record)])


def _plain(text: str) -> str:
    """A name for Markdown: on one line, and without what would be markup or HTML in it."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~&$])", r"\\\1", " ".join(text.split()))


def _use(kind: str) -> list[str]:
    """How to load the folder, with mixwell and without."""
    elsewhere = ["`transformers.pipeline` loads the folder too and gives the same probabilities."]
    if kind == "PooledForSequenceClassification":
        elsewhere = [
            "`transformers.pipeline` gives the same probabilities: after `import mixwell`, or without mixwell by",
            "`pipeline('text-classification', 'this/folder', trust_remote_code=True)`, which runs the code in it. For "
            "long",
            "texts add `truncation=True` to the call.",
        ]
    call = 'mixwell.Classifier.load("this/folder").predict(["a text"])'
    return ["", "## Use", "", "```python", "import mixwell", "", call, "```", "", *elsewhere, ""]


def _limits(record: dict[str, Any]) -> list[str]:
    """What it was trained on, and where it may be wrong."""
    data, rows = record["data"], record["data"]["rows"]
    lines = [
        "## Data and limits",
        "",
        f"- {rows['train']:,} training, {rows['validation']:,} validation and {rows['test']:,} test rows; fingerprint "
        f"`{data['fingerprint'][:16]}`.",
        f"- Texts longer than {record['model']['max_length']} tokens were cut.",
    ]
    if data["labels"]:
        names = ", ".join(map(_plain, data["labels"][:20])) + (" ..." if len(data["labels"]) > 20 else "")
        lines.append(f"- Labels: {names}. The model always chooses among these, also for texts of other kinds.")
    if any(data["leaks"].values()):
        lines.append(f"- Texts also in training: {json.dumps(data['leaks'])}; the numbers may be too good.")
    return [
        *lines,
        "- Probabilities are meant for data like the training rows; elsewhere they may be off.",
        f"- One run with seed {record['settings']['seed']}: another seed gives somewhat other numbers.",
        "",
    ]
