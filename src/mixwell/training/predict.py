"""Logits of tokenised rows, and calibrated predictions for texts and files of any size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.data import iter_rows
from mixwell.metrics.scores import sigmoid, softmax
from mixwell.metrics.tasks import MULTI, SINGLE
from mixwell.metrics.thresholds import Point, confidences, energy
from mixwell.training.abstain import threshold_for
from mixwell.training.model_record import check_logits, check_model, check_model_record
from mixwell.training.models import check_folder, load_errors, lost_weights
from mixwell.training.trainer_errors import quiet_libraries
from mixwell.utils.errors import OptionError, RunError
from mixwell.utils.files import atomic_folder, home, write_json, write_text
from mixwell.utils.records import read_json, reading

MODEL_FORMAT = "mixwell model 1"


def logits(model: Any, tokenizer: Any, rows: Any, *, batch_size: int = 64) -> NDArray[np.float32]:
    """The outputs of a model for tokenised rows, in their order, in eval mode: (N, C). See `outputs`."""

    def call(batch: Any) -> Any:
        output = model(**batch)
        return output.logits if hasattr(output, "logits") else output[0]

    return outputs(model, tokenizer, rows, call, batch_size=batch_size)


def outputs(
    model: Any, tokenizer: Any, rows: Any, call: Callable[[Any], Any], *, batch_size: int = 64
) -> NDArray[np.float32]:
    """What a call gives for tokenised rows, in their order, with the model in eval mode.

    Args:
        model: a transformers model on any device.
        tokenizer: pads the batches.
        rows: a tokenised data set, or a list of encoded rows.
        call: from a batch to a tensor (B, ...).
        batch_size: rows at once.

    Returns:
        (N, ...).
    """
    import torch
    from transformers import DataCollatorWithPadding

    collate = DataCollatorWithPadding(tokenizer)
    device = next(model.parameters()).device
    count = len(rows)
    ids = rows["input_ids"] if hasattr(rows, "column_names") else [row["input_ids"] for row in rows]
    order = np.argsort([-len(row) for row in ids], kind="stable")
    parts = []
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for start in range(0, count, batch_size):
                batch = collate(_pick(rows, order[start : start + batch_size].tolist())).to(device)
                parts.append(call(batch).float().cpu().numpy())
    finally:
        model.train(was_training)
    joined = np.concatenate(parts)
    result = np.empty_like(joined)
    result[order] = joined
    return result


def _pick(rows: Any, places: list[int]) -> list[dict[str, Any]]:
    """Some rows without their labels."""
    if not hasattr(rows, "column_names"):
        return [{name: value for name, value in rows[at].items() if name != "labels"} for at in places]
    columns = rows[places]
    names = [name for name in columns if name != "labels"]
    return [{name: columns[name][at] for name in names} for at in range(len(places))]


@dataclass
class Predictions:
    """Predictions of a batch.

    Attributes:
        labels: the class a row; for multi label a list of classes; for regression the value.
        probabilities: (N, C) calibrated; None for regression.
        logits: (N, C) the logits of those probabilities; (N, 1) the values for regression.
    """

    labels: list[Any]
    probabilities: NDArray[np.float64] | None
    logits: NDArray[np.float64] | None = None

    def confidence(self, row: int) -> float | None:
        """The probability of what was predicted; for multi label of the whole set, taken as independent."""
        if self.probabilities is None:
            return None
        task = MULTI if isinstance(self.labels[row], list) else SINGLE
        return float(confidences(self.probabilities[row : row + 1], task)[0])


def model_folder(path: str | os.PathLike[str]) -> Path:
    """The model folder of a run folder, or the folder itself.

    Raises:
        RunError: there is no such folder, or the run in it is not finished.
    """
    folder = home(path)
    if not folder.is_dir():
        raise RunError(f"{folder}: no such run folder")
    if not (folder / "run.json").is_file():
        return folder
    if not (folder / "model" / "mixwell.json").is_file():
        raise RunError(f"{folder}: the run is not finished; continue it with `mixwell train --resume {folder}`")
    return folder / "model"


class Classifier:
    """A trained model with its temperature.

    Attributes:
        model: a transformers model, in eval mode.
        tokenizer: its tokenizer.
        record: what mixwell.json of the model folder says.
        card: the model card.
        task: `single_label`, `multi_label` or `regression`.
        labels: the class names.
        temperature: chosen on held-out rows.
        divisor: what logits are still to be divided by; 1 where the weights carry the temperature.
        max_length: the most tokens of a text; longer ones are cut.
        pairs: whether it was trained on pairs of texts.
        columns: of the training data.

    Example:
        >>> Classifier.load("runs/reviews-amplify").predict(["What a film!"]).labels
    """

    def __init__(self, model: Any, tokenizer: Any, record: dict[str, Any]) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.record = record
        self.card = ""
        self.task: str = record["task"]
        self.labels: list[str] = list(record["labels"])
        self.temperature: float | None = record.get("temperature")
        # Newer folders have the temperature in their weights.
        self.divisor = 1.0 if record.get("temperature_in_weights") else self.temperature or 1.0
        self.max_length: int = record["max_length"]
        self.pairs: bool = record.get("pairs", False)
        self.columns: dict[str, str] = record.get("columns", {})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, device: str | None = None, trust_remote_code: bool = False
    ) -> Classifier:
        """Load from a run folder, or from the model folder inside it.

        Args:
            path: the folder.
            device: such as `cpu` or `cuda:1`; None for an accelerator where there is one.
            trust_remote_code: run code that comes with the model.

        Raises:
            RunError: there is no trained model of mixwell.
            OptionError: there is no such device.
        """
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        folder = model_folder(path)
        record = read_json(folder / "mixwell.json", MODEL_FORMAT, "a run or model folder of mixwell")
        check_model_record(folder, record)
        check_folder(folder)
        if record.get("trust_remote_code") and not trust_remote_code:
            raise OptionError(
                f"{folder}: the model was trained with code that came with it; if you trust it, add --trust-remote-code"
            )
        try:
            with quiet_libraries():
                tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
                model, loading = AutoModelForSequenceClassification.from_pretrained(
                    str(folder), use_safetensors=True, trust_remote_code=trust_remote_code, output_loading_info=True
                )
            made = cls(model.eval(), tokenizer, record)
        except load_errors() as error:
            raise RunError(f"{folder}: the model cannot be loaded ({' '.join(str(error).split())})") from error
        if lost := lost_weights(model, loading, head=True):
            raise RunError(
                f"{folder}: the model's weights lack {lost[0]}; bring the folder back as it was, or train anew"
            )
        check_model(folder, record, model, tokenizer)
        if device is None and torch.accelerator.is_available():
            device = str(torch.accelerator.current_accelerator())
        try:
            if torch.device(device or "cpu").type == "meta":
                raise RuntimeError("has no values")
            model.to(device or "cpu")
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise OptionError(f"device {device!r}: {str(error).splitlines()[0]}; use cpu, or leave it out") from error
        if (folder / "README.md").is_file():
            made.card = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
        with reading(folder, "bring the folder back as it was, or train anew"):
            made.predict("a", "a" if made.pairs else None)  # shows that tokenizer, model and record go together
        return made

    def save(self, path: str | os.PathLike[str], **files: Any) -> Path:
        """Write a model folder that `load`, `mixwell predict` and `transformers.pipeline` read.

        Args:
            path: the folder; it must be new or empty, or hold a model of mixwell, which is replaced.
            **files: further JSON files, by their names without the suffix.

        Raises:
            RunError: the folder holds something else.
        """
        folder = home(path)
        if folder.exists() and not (folder / "mixwell.json").is_file() and (folder.is_file() or any(folder.iterdir())):
            raise RunError(f"{folder}: it holds something else than a model of mixwell; name another folder")
        with atomic_folder(folder) as target:
            self.model.save_pretrained(str(target))
            self.tokenizer.save_pretrained(str(target))
            write_json(target / "mixwell.json", self.record)
            if self.card:
                write_text(target / "README.md", self.card)
            for name, value in files.items():
                write_json(target / f"{name}.json", value)
        return folder

    def threshold(self, wanted: float) -> Point:
        """From which probability on so large a share of the answers is right, on the rows held out in training.

        Raises:
            OptionError: nothing was held out, or so large a share is out of reach.
        """
        return threshold_for(self.record.get("abstain"), wanted)

    def predict(
        self, texts: str | Iterable[str], text_pairs: str | Iterable[str] | None = None, *, batch_size: int = 32
    ) -> Predictions:
        """Predict texts.

        Args:
            texts: one text or several: a list, an array, a pandas Series.
            text_pairs: the second texts, for models trained on pairs.
            batch_size: rows at once.
        """
        texts = as_texts(texts, "texts")
        text_pairs = None if text_pairs is None else as_texts(text_pairs, "text_pairs")
        if self.pairs != (text_pairs is not None):
            has = "pairs of texts: name the second column with --text-pair" if self.pairs else "single texts"
            raise OptionError(f"this model was trained on {has}")
        if not texts:
            return Predictions([], None if self.task == "regression" else np.zeros((0, len(self.labels))))
        if text_pairs is not None and len(text_pairs) != len(texts):
            raise OptionError(f"{len(texts)} texts and {len(text_pairs)} text_pairs: give one for each")
        both = (texts,) if text_pairs is None else (texts, text_pairs)
        encoded = self.tokenizer(*both, truncation=True, max_length=self.max_length, padding=False)
        rows = [{name: encoded[name][at] for name in encoded} for at in range(len(texts))]
        return self.decide(self.outputs(rows, batch_size))

    def outputs(self, rows: list[dict[str, Any]], batch_size: int) -> NDArray[np.float32]:
        """The logits (N, C) of tokenised texts, in their order."""
        return logits(self.model, self.tokenizer, rows, batch_size=batch_size)

    def decide(self, found: NDArray[np.float32]) -> Predictions:
        """Turn logits (N, C) into labels and calibrated probabilities; raises `RunError` if one is not finite."""
        check_logits(found, 1 if self.task == "regression" else len(self.labels))
        if self.task == "regression":
            return Predictions([float(value) for value in found[:, 0]], None, found.astype(np.float64))
        scaled = found.astype(np.float64) / self.divisor
        if self.task == "multi_label":
            named = [[self.labels[at] for at in np.flatnonzero(row > 0)] for row in found]
            return Predictions(named, sigmoid(scaled), scaled)
        return Predictions([self.labels[at] for at in found.argmax(axis=1)], softmax(scaled), scaled)

    def records(
        self,
        source: Any,
        *,
        text: str | None = None,
        text_pair: str | None = None,
        batch_size: int = 32,
        chunk: int = 32,
        on_empty: str = "error",
        keep_columns: bool = True,
        threshold: float | None = None,
        ood: bool = False,
        progress: Callable[[int], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Iterator[list[dict[str, Any]]]:
        """Predict a file or an iterable of texts, piece by piece; memory does not grow with the file.

        Args:
            source: see `mixwell.data.iter_rows`.
            text: the text column; None for the one of training, if the file has it, else found.
            text_pair: the column of the second text, likewise.
            batch_size: rows the model sees at once.
            chunk: batches read at once, and sorted by length together.
            on_empty: `error` for a row without text, or `skip`.
            keep_columns: give back the other columns of the source too, first.
            threshold: a row whose probability is lower gets no label; `abstained` says so.
            ood: add `ood_probability` (1 - the largest probability) and `ood_energy`, both higher for texts unlike
                those of training.
            progress: called with the rows done.
            note: is told what was found rather than named.

        Yields:
            Lists of records: `row`, `text`, (`text_pair`,) `label`, `probability`, `probabilities` (label -> value),
            and `columns`, the other columns of the source.
        """
        if self.task == "regression" and (threshold is not None or ood):
            raise OptionError("this model predicts numbers, which have no probabilities: leave --abstain and --ood out")
        if text_pair is not None and not self.pairs:
            raise OptionError("this model was trained on single texts: leave --text-pair out")
        known = {part: self.columns.get(part) for part in ("text", "text_pair")}
        rows = iter_rows(
            source, text=text, text_pair=text_pair, known=known, pairs=self.pairs, batch_size=batch_size * chunk,
            on_empty=on_empty, note=note,
        )  # fmt: skip
        done = 0
        for batch in rows:
            texts = [row["text"] for row in batch]
            found = self.predict(
                texts, [row["text_pair"] for row in batch] if self.pairs else None, batch_size=batch_size
            )
            made = []
            for row, about in zip(batch, self._described(found, threshold, ood)):
                record = {"row": row["row"], "text": row["text"]}
                if self.pairs:
                    record["text_pair"] = row["text_pair"]
                made.append({**record, **about, "columns": row["others"] if keep_columns else {}})
            done += len(batch)
            if progress is not None:
                progress(done)
            yield made

    def _described(self, found: Predictions, threshold: float | None, ood: bool) -> Iterator[dict[str, Any]]:
        """What a record says of each prediction."""
        if found.probabilities is None:
            yield from ({"label": label} for label in found.labels)
            return
        sure = confidences(found.probabilities, self.task)
        energies = energy(found.logits if found.logits is not None else [], self.task) if ood else sure
        for at, label in enumerate(found.labels):
            record = {"label": label, "probability": float(sure[at])}
            if threshold is not None:
                abstained = bool(sure[at] < threshold)
                record |= {"label": None if abstained else label, "abstained": abstained}
            if ood:
                record |= {"ood_probability": 1 - float(sure[at]), "ood_energy": float(energies[at])}
            yield {**record, "probabilities": dict(zip(self.labels, map(float, found.probabilities[at])))}


def as_texts(values: str | Iterable[str], name: str) -> list[str]:
    """A list of texts, from one text or any number of them.

    Raises:
        OptionError: something in it is no text.
    """
    if hasattr(values, "columns") or not isinstance(values, Iterable):
        raise OptionError(f"{name} must be texts: a text, a list, an array or one column, not {type(values).__name__}")
    listed = [values] if isinstance(values, str) else list(values)
    for at, value in enumerate(listed):
        if not isinstance(value, str):
            raise OptionError(f"{name}[{at}] is a {type(value).__name__}, expected a text")
    return listed
