"""`mixwell export`: a trained model as an ONNX file that has been compared with PyTorch."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixwell import data as texts
from mixwell.metrics.tasks import MULTI, REGRESSION, SINGLE
from mixwell.training.onnx import ONNX_FORMAT, OnnxClassifier, open_session
from mixwell.training.predict import Classifier
from mixwell.training.settings import TrainSettings
from mixwell.training.trainer_errors import quiet_libraries
from mixwell.utils.errors import MixwellError, OptionError, RunError
from mixwell.utils.files import home, make_folder, write_json
from mixwell.utils.records import read_json

NEEDED = ("onnx", "onnxscript", "onnxruntime")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCE = 1e-5
# Rows enough to tell what 8-bit weights cost.
MOST_ROWS = 2000
_LARGEST = 1_900_000_000  # bytes: what one protobuf file holds, nearly


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        file: the ONNX file; the tokenizer and mixwell.json stand beside it.
        difference: the largest difference of logits between PyTorch and onnxruntime, in float32.
        int8: what 8-bit weights changed (`split`, `rows`, `accuracy`, `accuracy_int8`, `agreement`,
            `probability_change`); None without them.
    """

    file: Path
    difference: float
    int8: dict[str, Any] | None = None


def export_onnx(
    run: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    int8: bool = False,
    data: Any = None,
    trust_remote_code: bool = False,
) -> Exported:
    """Write a trained model as ONNX: token ids in, `logits` and calibrated `probabilities` out, any batch and length.

    Args:
        run: a run folder or a model folder.
        target: the file, such as `served/model.onnx`; the tokenizer and mixwell.json are written beside it.
        int8: store the weights of matrix products in 8 bits, and measure what that changes.
        data: labelled rows for that; None for the test, else the validation, else the training rows of the run.
        trust_remote_code: run code that comes with the model.

    Raises:
        OptionError: a package is missing, the file cannot go there, or there are no rows to measure on.
        RunError: the model cannot be exported, or the export differs from PyTorch; nothing is written then.
    """
    file = home(target)
    _check(file)
    with quiet_libraries():
        classifier = Classifier.load(run, device="cpu", trust_remote_code=trust_remote_code)
    if int8 and classifier.task == REGRESSION:
        raise OptionError("--int8 is measured by classes, and this model predicts numbers; leave it out")
    rows = _rows(run, data, classifier) if int8 else None
    make_folder(file.parent)
    work = Path(tempfile.mkdtemp(prefix=f".{file.stem}.tmp-", dir=file.parent))
    try:
        plain = work / file.name
        _write(classifier, plain)
        record = {**classifier.record, "format": ONNX_FORMAT, "temperature_in_weights": True}
        tokenizer = classifier.tokenizer
        record["onnx"] = {
            "file": file.name, "inputs": _names(classifier), "outputs": ["logits", "probabilities"],
            "padding": {"id": tokenizer.pad_token_id, "token": tokenizer.pad_token, "side": tokenizer.padding_side},
        }  # fmt: skip
        exported = OnnxClassifier(open_session(plain), classifier.tokenizer, record)
        difference = _compare(classifier, exported)
        changed = None
        if rows is not None:
            _quantise(plain)
            small = OnnxClassifier(open_session(plain), classifier.tokenizer, record)
            changed = _measure(classifier, small, *rows)
        record["onnx"] |= {"difference": difference, "int8": changed}
        classifier.tokenizer.save_pretrained(str(work))
        write_json(work / "mixwell.json", record)
        # The record last: what it names is there then.
        for path in sorted(work.iterdir(), key=lambda each: each.name == "mixwell.json"):
            os.replace(path, file.parent / path.name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Exported(file, difference, changed)


def _check(file: Path) -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(f"export needs {', '.join(missing)}: run `pip install mixwell[onnx]`")
    if file.suffix != ".onnx":
        raise OptionError(f"--onnx {file}: name a file that ends in .onnx")
    if file.is_dir():
        raise OptionError(f"--onnx {file}: this is a folder; name a file in it")
    others = [name for name in ("mixwell.json", "tokenizer.json", "config.json") if (file.parent / name).exists()]
    if others:
        try:
            read_json(file.parent / "mixwell.json", ONNX_FORMAT, "a folder of mixwell export")
        except RunError as error:
            raise OptionError(
                f"--onnx {file}: {others[0]} is there already, and the tokenizer goes beside the file; name a file in "
                f"another folder"
            ) from error


def _names(classifier: Classifier) -> list[str]:
    """The inputs of the graph."""
    return [name for name in INPUTS if name in classifier.tokenizer.model_input_names]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """The exporters warn of their own insides."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), quiet_libraries():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _write(classifier: Classifier, file: Path) -> None:
    import torch

    model, task, divisor = classifier.model, classifier.task, classifier.divisor

    class Graph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            extra = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            output = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **extra)
            logits = output.logits.float() / divisor
            if task == REGRESSION:
                return logits, logits
            return logits, logits.sigmoid() if task == MULTI else logits.softmax(-1)

    names = _names(classifier)
    rows = classifier.tokenizer(_samples(classifier)[:3], padding=True, return_tensors="pt")
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=max(classifier.max_length, 3))}
    size = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    try:
        with _silent():
            torch.onnx.export(
                Graph().eval(), kwargs={name: rows[name] for name in names}, f=str(file), dynamo=True, verbose=False,
                input_names=names, output_names=["logits", "probabilities"],
                dynamic_shapes=dict.fromkeys(names, sizes), external_data=size > _LARGEST,
            )  # fmt: skip
    except (torch.onnx.errors.OnnxExporterError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise RunError(f"this model ({type(model).__name__}) cannot be exported to ONNX: {reason}") from error


def _samples(classifier: Classifier) -> list[Any]:
    """Texts (or pairs) of random words of the vocabulary, from short ones to one that is cut."""
    draw = np.random.default_rng(0)
    words = [word for word in classifier.tokenizer.get_vocab() if word.isalpha()] or ["text"]

    def text(length: int) -> str:
        return " ".join(draw.choice(sorted(words), length).tolist())

    lengths = (4, 6, 1, 17, 40, classifier.max_length + 5)
    return [(text(each), text(each)) for each in lengths] if classifier.pairs else [text(each) for each in lengths]


def _compare(classifier: Classifier, exported: OnnxClassifier) -> float:
    """The largest difference of the logits, one by one and padded together; raise if it is above the tolerance."""
    if any(isinstance(size, int) for each in exported.session.get_inputs() for size in each.shape):
        raise RunError(
            f"this model ({type(classifier.model).__name__}) cannot be exported to ONNX: the graph would take batches "
            f"of one size only"
        )
    samples = _samples(classifier)
    columns = tuple(map(list, zip(*samples))) if classifier.pairs else (samples,)
    worst = largest = 0.0
    for size in (1, len(samples)):
        wanted = classifier.predict(*columns, batch_size=size).logits
        found = exported.predict(*columns, batch_size=size).logits
        assert wanted is not None and found is not None
        worst, largest = max(worst, float(np.abs(wanted - found).max())), max(largest, float(np.abs(wanted).max()))
    # Float32 has seven digits: large logits cannot agree in more.
    if not worst <= TOLERANCE * max(1.0, largest):
        raise RunError(
            f"the exported model differs from PyTorch by {worst:.2g} (allowed: {TOLERANCE:g}, relative to the largest "
            f"logit); this architecture cannot be exported faithfully"
        )
    return worst


def _quantise(file: Path) -> None:
    """Replace the weights of matrix products by 8-bit ones, one scale per output; embeddings and head stay."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(file))
    model.graph.ClearField("value_info")  # shapes of the exporter that quantisation would contradict
    with _silent():
        quantize_dynamic(
            model, str(file), weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul"]
        )


def _rows(run: Any, data: Any, classifier: Classifier) -> tuple[str, list[Any], Any]:
    """Rows to measure on: what they are called, texts (and pairs), and the labels by the model's numbers."""
    if data is None:
        folder = home(run)
        if not (folder / "run.json").is_file():
            raise OptionError("--int8 is measured on labelled rows: name a file with --data")
        record = read_json(folder / "run.json", "mixwell run 1", "a run folder")
        try:
            found = TrainSettings.from_dict(record["settings"]).load_data()
        except MixwellError as error:
            raise OptionError(f"--int8 is measured on labelled rows; name a file with --data ({error})") from error
        split = next(name for name in ("test", "validation", "train") if found.splits[name].num_rows)
    else:
        text, pair, label = (classifier.columns.get(name) for name in ("text", "text_pair", "label"))
        found = texts.load(
            data, text=text, text_pair=pair, label=label, task=classifier.task, validation="none", test="none"
        )
        split = "train"
    table = found.splits[split]
    if table.num_rows > MOST_ROWS:
        table = table.take(np.random.default_rng(0).permutation(table.num_rows)[:MOST_ROWS])
    names = {"test": "test rows", "validation": "validation rows", "train": "rows it was trained on"}
    labels = _renumbered(np.array(table["label"].to_pylist()), found.labels, classifier)
    columns = [table[name].to_pylist() for name in ("text", "text_pair") if name in table.column_names]
    return "given rows" if data is not None else names[split], columns, labels


def _renumbered(labels: Any, names: tuple[str, ...], classifier: Classifier) -> Any:
    """Labels by the numbers of the model; a name it does not know can never be right."""
    places = [classifier.labels.index(name) if name in classifier.labels else -1 for name in names]
    if classifier.task == SINGLE:
        return np.array(places)[labels]
    hot = np.zeros((len(labels), len(classifier.labels)))
    for column, place in enumerate(places):
        if place >= 0:
            hot[:, place] = labels[:, column]
    return hot


def _measure(classifier: Classifier, small: OnnxClassifier, split: str, columns: list[Any], labels: Any) -> Any:
    """What 8-bit weights changed on some rows."""
    both = [each.predict(*columns) for each in (classifier, small)]
    logits, chances = (np.array([getattr(found, name) for found in both]) for name in ("logits", "probabilities"))
    # (2, N): the class of each row, or whether each label was given (2, N, C).
    decided = logits > 0 if classifier.task == MULTI else logits.argmax(axis=2)
    right, same = decided == labels, decided[0] == decided[1]
    if classifier.task == MULTI:
        right, same = right.all(axis=2), same.all(axis=1)
    return {
        "split": split,
        "rows": len(labels),
        "accuracy": float(right[0].mean()),
        "accuracy_int8": float(right[1].mean()),
        "agreement": float(same.mean()),
        "probability_change": float(np.abs(chances[0] - chances[1]).mean()),
    }
