"""What a run leaves: its record, the model folder, metrics, predictions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixwell.data import texts_of
from mixwell.metrics.scores import sigmoid, softmax
from mixwell.metrics.tasks import MULTI, REGRESSION
from mixwell.training import abstain
from mixwell.training.card import card
from mixwell.training.evaluate import evaluate, headline
from mixwell.training.heads import scale_logits
from mixwell.training.predict import MODEL_FORMAT, logits
from mixwell.training.run_folder import RunFolder
from mixwell.utils.environment import git_commit, processes, versions
from mixwell.utils.errors import RunError
from mixwell.utils.files import atomic_folder, atomic_path, home, write_json, write_text
from mixwell.utils.records import read_json, writing

if TYPE_CHECKING:
    from mixwell.data import TextData
    from mixwell.training.learn import Outcome
    from mixwell.training.models import LoadedModel
    from mixwell.training.prepare import Ready
    from mixwell.training.settings import TrainSettings


METRICS_FORMAT = "mixwell metrics 1"
# Draws what a person looks at: (run folder, its record, its metrics, the texts behind the numbers).
Illustrate = Callable[[Path, dict[str, Any], dict[str, Any], "list[str] | None"], None]


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
        "processes": processes(),
        "notes": notes,
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
        else:
            if data.task == MULTI:
                columns["label"] = pa.array([_named(row, data.labels) for row in truth], pa.list_(pa.string()))
                columns["predicted"] = pa.array([_named(row, data.labels) for row in found], pa.list_(pa.string()))
                chance = sigmoid
            else:
                columns["label"] = pa.array([data.labels[at] for at in truth])
                columns["predicted"] = pa.array([data.labels[at] for at in found.argmax(axis=1)])
                chance = softmax
            columns["probabilities"] = pa.array(list(chance(found)))
            columns["calibrated"] = pa.array(list(chance(found / (temperature or 1.0))))
        columns["logits"] = pa.array(list(np.asarray(found, dtype=np.float32)))
        tables.append(pa.table(columns))
    if tables:
        with atomic_path(path) as temporary:
            pq.write_table(pa.concat_tables(tables), str(temporary))


def _named(row: Any, names: tuple[str, ...]) -> list[str]:
    return [name for name, value in zip(names, row) if value > 0]


def read_metrics(folder: Path) -> dict[str, Any]:
    """Read metrics.json of a finished run.

    Raises:
        RunError: it is missing, damaged or of another version.
    """
    if not (folder / "metrics.json").is_file():
        raise RunError(f"{folder}: not a finished run (no metrics.json)")
    return read_json(folder / "metrics.json", METRICS_FORMAT, "a finished run")
