"""Logits of tokenised rows, and calibrated predictions for texts and files of any size."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from mixwell.errors import DataError, OptionError, RunError
from mixwell.files import atomic_path, home
from mixwell.runs import read_json

MODEL_FORMAT = "mixwell model 1"
FORMATS = ("table", "csv", "jsonl", "parquet")
_FILES = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".json", ".parquet", ".txt", ".xlsx", ".xls", ".arrow")
_SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".txt": "table"}


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
    """

    labels: list[Any]
    probabilities: NDArray[np.float64] | None

    def confidence(self, row: int) -> float | None:
        """The probability of what was predicted; for multi label of the whole set, taken as independent."""
        if self.probabilities is None:
            return None
        p = self.probabilities[row]
        return float(np.prod(np.maximum(p, 1 - p))) if isinstance(self.labels[row], list) else float(p.max())


class Classifier:
    """A trained model with its temperature.

    Example:
        >>> Classifier.load("runs/reviews-amplify").predict(["What a film!"]).labels
    """

    def __init__(self, model: Any, tokenizer: Any, record: dict[str, Any]) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.task: str = record["task"]
        self.labels: list[str] = list(record["labels"])
        self.temperature: float | None = record.get("temperature")
        # What is still to be divided by: newer folders have the temperature in their weights.
        self._divisor = 1.0 if record.get("temperature_in_weights") else self.temperature or 1.0
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

        from mixwell.models import check_folder, load_errors, lost_weights
        from mixwell.training import quiet_libraries

        folder = home(path)
        if not folder.is_dir():
            raise RunError(f"{folder}: no such run folder")
        if (folder / "run.json").is_file():
            if not (folder / "model" / "mixwell.json").is_file():
                raise RunError(f"{folder}: the run is not finished; continue it with `mixwell train --resume {folder}`")
            folder = folder / "model"
        record = read_json(folder / "mixwell.json", MODEL_FORMAT, "a run or model folder of mixwell")
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
        if device is None and torch.accelerator.is_available():
            device = str(torch.accelerator.current_accelerator())
        try:
            if torch.device(device or "cpu").type == "meta":
                raise RuntimeError("has no values")
            model.to(device or "cpu")
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise OptionError(f"device {device!r}: {str(error).splitlines()[0]}; use cpu, or leave it out") from error
        return made

    def predict(
        self, texts: str | Iterable[str], text_pairs: str | Iterable[str] | None = None, *, batch_size: int = 64
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
        return self.decide(logits(self.model, self.tokenizer, rows, batch_size=batch_size))

    def decide(self, found: NDArray[np.float32]) -> Predictions:
        """Turn logits (N, C) into labels and calibrated probabilities."""
        from mixwell.calibration import sigmoid, softmax

        if self.task == "regression":
            return Predictions([float(value) for value in found[:, 0]], None)
        scaled = found.astype(np.float64) / self._divisor
        if self.task == "multi_label":
            named = [[self.labels[at] for at in np.flatnonzero(row > 0)] for row in found]
            return Predictions(named, sigmoid(scaled))
        return Predictions([self.labels[at] for at in found.argmax(axis=1)], softmax(scaled))

    def records(
        self,
        source: Any,
        *,
        text: str | None = None,
        text_pair: str | None = None,
        batch_size: int = 64,
        chunk: int = 16,
        on_empty: str = "error",
        keep_columns: bool = True,
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
            progress: called with the rows done.
            note: is told what was found rather than named.

        Yields:
            Lists of records: `row`, `text`, (`text_pair`,) `label`, `probability`, `probabilities` (label -> value),
            and `columns`, the other columns of the source.
        """
        from mixwell.data import iter_rows

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
            for at, row in enumerate(batch):
                record = {"row": row["row"], "text": row["text"]}
                if self.pairs:
                    record["text_pair"] = row["text_pair"]
                record["label"] = found.labels[at]
                if found.probabilities is not None:
                    record["probability"] = found.confidence(at)
                    record["probabilities"] = dict(zip(self.labels, map(float, found.probabilities[at])))
                made.append({**record, "columns": row["others"] if keep_columns else {}})
            done += len(batch)
            if progress is not None:
                progress(done)
            yield made


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


# --- writing -------------------------------------------------------------------------------------------------------


def choose_format(format: str | None, output: str | None) -> str:
    """The format to write: as asked, else by the output's name, else a table."""
    if format is not None:
        if format not in FORMATS:
            raise OptionError(f"format {format!r} is unknown; use one of {', '.join(FORMATS)}")
        chosen = format
    elif not output:
        chosen = "table"
    else:
        suffix = Path(output).suffix.lower()
        if suffix and suffix not in _SUFFIXES:
            raise OptionError(
                f"--output {output}: a file that ends in {suffix} cannot be written; name it .csv, .jsonl or .parquet, "
                f"or choose with --format"
            )
        chosen = _SUFFIXES.get(suffix, "csv")
    if chosen == "parquet" and not output:
        raise OptionError("format parquet needs a file: name it with --output")
    return chosen


def write_predictions(batches: Iterable[list[dict[str, Any]]], format: str, output: str | None, stream: TextIO) -> int:
    """Write predictions as they come; a file appears when it is whole.

    Args:
        batches: from `Classifier.records`.
        format: one of `FORMATS`.
        output: the file, or None for `stream`.
        stream: where to write without a file.

    Returns:
        The number of rows.
    """
    writer = {"csv": _write_csv, "jsonl": _write_jsonl, "table": _write_table}.get(format)
    if output is None:
        assert writer is not None
        return writer(batches, stream)
    with atomic_path(output) as path:
        if writer is None:
            return _write_parquet(batches, path)
        with open(path, "w", encoding="utf-8", newline="") as file:
            return writer(batches, file)


def _whole(record: dict[str, Any]) -> dict[str, Any]:
    """A record in one level: the source's other columns first; what they are named ours gets `predicted_` in front."""
    others = record["columns"]
    own = {name: value for name, value in record.items() if name not in ("row", "columns")}
    if not {"text", "text_pair"}.isdisjoint(others):  # the texts are among them, under their own names
        own = {name: value for name, value in own.items() if name not in ("text", "text_pair")}
    renamed = {f"predicted_{name}" if name in others else name: value for name, value in own.items()}
    return {"row": record["row"], **{name: value for name, value in others.items() if name != "row"}, **renamed}


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """A record with one column per class; several labels joined by `|`."""
    label, chances = record["label"], record.get("probabilities", {})
    plain = {name: value for name, value in record.items() if name != "probabilities"}
    plain["label"] = "|".join(label) if isinstance(label, list) else label
    return _whole({**plain, **{f"p_{name}": value for name, value in chances.items()}})


def _write_csv(batches: Iterable[list[dict[str, Any]]], stream: TextIO) -> int:
    writer, count = None, 0
    for batch in batches:
        for record in map(_flat, batch):
            if writer is None:
                # A later row of JSON lines may have other columns than the first.
                writer = csv.DictWriter(stream, list(record), lineterminator="\n", extrasaction="ignore")
                writer.writeheader()
            writer.writerow(record)
        count += len(batch)
    return count


def _write_jsonl(batches: Iterable[list[dict[str, Any]]], stream: TextIO) -> int:
    count = 0
    for batch in batches:
        for record in batch:
            stream.write(json.dumps(_whole(record), ensure_ascii=False, default=str) + "\n")
        count += len(batch)
    return count


def _write_table(batches: Iterable[list[dict[str, Any]]], stream: TextIO) -> int:
    """Columns of fixed width, so that lines can be written as they come."""
    count = 0
    for batch in batches:
        for record in batch:
            label = record["label"]
            shown = "|".join(label) if isinstance(label, list) else label if isinstance(label, str) else f"{label:.4f}"
            if not count:
                stream.write(f"{'row':>6}  {'label':<24}  {'prob.':>6}  text\n")
            chance = record.get("probability")
            text = " ".join(record["text"].split())
            text = text if len(text) <= 60 else text[:59] + "…"
            stream.write(f"{record['row']:>6}  {shown:<24}  {'' if chance is None else f'{chance:.4f}':>6}  {text}\n")
            count += 1
    return count


def _write_parquet(batches: Iterable[list[dict[str, Any]]], path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    writer: Any = None
    try:
        for batch in filter(None, batches):
            rows = [_flat(record) for record in batch]
            try:
                if writer is None:
                    schema = pa.Table.from_pylist(rows).schema
                    # What is empty in all of the first rows may be anything later: texts hold everything.
                    kinds = [pa.string() if pa.types.is_null(field.type) else field.type for field in schema]
                    writer = pq.ParquetWriter(str(path), pa.schema(list(zip(schema.names, kinds))))
                writer.write_table(pa.Table.from_pylist(rows, writer.schema))
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise DataError(
                    f"a column of the file has values of several types ({' '.join(str(error).split())}); write csv or "
                    f"jsonl, or leave the other columns out with --only-predictions"
                ) from error
            count += len(batch)
    finally:
        if writer is not None:
            writer.close()
    return count


def open_source(given: Sequence[str]) -> Any:
    """What `mixwell predict` was given: a file, `-` for stdin, or texts.

    One word that ends as data files do is a file, so that a wrong name is an error and not a text to classify.
    """
    import sys

    if len(given) > 1:
        opened = [open_source([each]) for each in given]
        for each, what in zip(opened, given):
            if not isinstance(each, list):
                raise OptionError(f"{what!r} is a file or stdin; give one file, or several texts, but not both")
        return [text for each in opened for text in each]
    what = given[0]

    if what == "-":
        return sys.stdin
    if not what.strip():
        raise OptionError("the text is empty; give a text, a file, or - for lines of stdin")
    path = home(what)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # a text too long for a file name
        exists = False
    one_word = len(what.split()) == 1
    if exists or (one_word and path.name.casefold().removesuffix(".gz").endswith(_FILES)):
        return path
    return [what]
