"""A classifier that was exported to ONNX, run by onnxruntime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixwell.training.models import load_errors
from mixwell.training.predict import Classifier
from mixwell.training.trainer_errors import quiet_libraries
from mixwell.utils.errors import OptionError, RunError
from mixwell.utils.files import home
from mixwell.utils.records import parse_json, read_json

ONNX_FORMAT = "mixwell onnx 1"


class OnnxClassifier(Classifier):
    """What `mixwell export` wrote; predicts as `Classifier` does, without PyTorch."""

    def __init__(self, session: Any, tokenizer: Any, record: dict[str, Any]) -> None:
        super().__init__(None, tokenizer, record)
        self.session = session
        self.inputs: list[str] = [each.name for each in session.get_inputs()]

    @classmethod
    def load(  # type: ignore[override]
        cls, path: str | os.PathLike[str], *, threads: int | None = None
    ) -> OnnxClassifier:
        """Load from the folder of an export.

        Args:
            path: the folder, or the ONNX file in it.
            threads: of onnxruntime; None for all cores.

        Raises:
            RunError: there is no export, or it cannot be read.
        """
        from transformers import AutoTokenizer

        folder = home(path)
        folder = folder.parent if folder.suffix == ".onnx" else folder
        record = read_json(folder / "mixwell.json", ONNX_FORMAT, "a folder of mixwell export")
        file = folder / record["onnx"]["file"]
        if not file.is_file():
            raise RunError(f"{folder}: {file.name} is missing; export the model again")
        try:
            with quiet_libraries():
                tokenizer = AutoTokenizer.from_pretrained(str(folder))
        except load_errors() as error:
            raise RunError(f"{folder}: the tokenizer cannot be loaded ({' '.join(str(error).split())})") from error
        return cls(open_session(file, threads), tokenizer, record)

    def save(self, path: str | os.PathLike[str], **files: Any) -> Path:
        """An export is not saved again."""
        raise OptionError("an exported model is a folder already: copy it")

    def outputs(self, rows: list[dict[str, Any]], batch_size: int) -> NDArray[np.float32]:
        """The logits (N, C) of tokenised texts, in their order; texts of similar length share a batch."""
        lengths = np.array([len(row["input_ids"]) for row in rows])
        order = np.argsort(-lengths, kind="stable")
        result: NDArray[np.float32] | None = None
        for start in range(0, len(rows), batch_size):
            places = order[start : start + batch_size]
            batch = self._padded([rows[at] for at in places], int(lengths[places].max()))
            (found,) = self.session.run(["logits"], batch)
            if result is None:
                result = np.empty((len(rows), found.shape[1]), dtype=np.float32)
            result[places] = found
        assert result is not None
        return result

    def _padded(self, rows: list[dict[str, Any]], width: int) -> dict[str, NDArray[np.int64]]:
        fill = {"input_ids": self.tokenizer.pad_token_id or 0, "token_type_ids": self.tokenizer.pad_token_type_id}
        left = self.tokenizer.padding_side == "left"
        batch = {name: np.full((len(rows), width), fill.get(name, 0), dtype=np.int64) for name in self.inputs}
        for at, row in enumerate(rows):
            count = len(row["input_ids"])
            for name, values in batch.items():
                values[at, width - count if left else 0 : width if left else count] = row[name]
        return batch


def open_session(file: Path, threads: int | None = None) -> Any:
    """An onnxruntime session on the CPU.

    Raises:
        OptionError: onnxruntime is not installed.
        RunError: the file cannot be read.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise OptionError("ONNX models need onnxruntime: run `pip install mixwell[onnx]`") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen kinds of its own
        raise RunError(f"{file}: not readable as ONNX ({' '.join(str(error).split())}); export it again") from error


def open_classifier(
    path: str | os.PathLike[str], *, device: str | None = None, trust_remote_code: bool = False
) -> Classifier:
    """The classifier of a run folder, a model folder or an export; see `Classifier.load`."""
    place = home(path)
    if place.suffix == ".onnx" or _is_export(place):
        if device not in (None, "cpu"):
            raise OptionError(f"device {device!r}: an exported model runs on the CPU here; leave it out")
        return OnnxClassifier.load(place)
    return Classifier.load(path, device=device, trust_remote_code=trust_remote_code)


def _is_export(folder: Path) -> bool:

    try:
        return bool(parse_json((folder / "mixwell.json").read_text(encoding="utf-8"))["format"] == ONNX_FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False
