"""`TextClassifier`: training and prediction as a scikit-learn estimator, by the same code as `mixwell train`."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from mixwell.data import iter_rows
from mixwell.training.hub import push_folder
from mixwell.training.predict import Classifier
from mixwell.training.run import train
from mixwell.training.settings import TrainSettings
from mixwell.training.targets import Target, label_column, read_target
from mixwell.utils.errors import MixwellError, OptionError
from mixwell.utils.files import home
from mixwell.utils.records import read_json
from mixwell.utils.signals import Interrupted

ESTIMATOR_FORMAT = "mixwell estimator 1"
# Parameters that are settings of a run under the same name.
SHARED = (
    "model", "method", "epochs", "batch_size", "eval_batch_size", "learning_rate", "head_rate", "start", "freeze_words",
    "pair_loss", "average", "warmup", "weight_decay", "scheduler", "max_length", "pooling", "class_weights",
    "label_smoothing", "validation", "folds", "patience", "best_metric", "abstain", "trust_remote_code",
)  # fmt: skip


class TextClassifier(ClassifierMixin, BaseEstimator):
    """A text classifier on a Transformer, trained as `mixwell train` does, with scikit-learn's interface.

    Texts may be a list, a NumPy array, a column of pandas, Polars or the datasets library, or a whole frame or data
    set, whose text columns `text` names. Labels may be texts, whole numbers or booleans, an indicator matrix (N, C) for
    several labels per text, or the name of a column of the frame. Nothing is written but in a temporary folder, which
    is removed again, unless `output` names a run folder.

    Args:
        model: `minilm`, a folder or a hub id.
        method: `auto`, `probe`, `contrastive`, `none`, or a name of `mixwell.methods()`.
        method_options: of the method.
        text: the text column of frames, or several to be joined, as `title,body` or a list; None to find it by name.
        text_pair: the column of the second text.
        epochs: and all up to `trust_remote_code`: see `mixwell.TrainSettings`. None leaves it to the recipe.
        arguments: more fields of transformers' TrainingArguments.
        device: where to predict, such as `cpu`; None for an accelerator where there is one.
        output: keep the run folder here, with model and metrics.
        random_state: seed of head, order, dropout and mixing; None draws one.
        verbose: show what happens.

    Attributes:
        classes_: (C,) the labels; for an indicator matrix the numbers of its columns.
        classifier_: the trained `mixwell.Classifier`.
        metrics_: what metrics.json of the run holds: held-out metrics, baselines, temperature, thresholds.

    Example:
        >>> TextClassifier().fit(["good", "bad", ...], ["pos", "neg", ...]).predict_proba(["not bad"])
    """

    def __init__(
        self,
        model: str = "minilm",
        method: str = "auto",
        *,
        method_options: dict[str, Any] | None = None,
        text: str | list[str] | None = None,
        text_pair: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        eval_batch_size: int = 64,
        learning_rate: float | None = None,
        head_rate: float | None = None,
        start: str | None = None,
        freeze_words: bool | None = None,
        pair_loss: float | None = None,
        average: int | None = None,
        warmup: float = 0.1,
        weight_decay: float = 0.01,
        scheduler: str = "cosine",
        max_length: int = 256,
        pooling: str = "auto",
        class_weights: str = "none",
        label_smoothing: float = 0.0,
        validation: str | float | None = None,
        folds: int | None = None,
        patience: int = 5,
        best_metric: str = "loss",
        abstain: float = 0.95,
        trust_remote_code: bool = False,
        arguments: dict[str, Any] | None = None,
        device: str | None = None,
        output: str | os.PathLike[str] | None = None,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.model, self.method, self.method_options, self.text = model, method, method_options, text
        self.text_pair, self.epochs, self.batch_size = text_pair, epochs, batch_size
        self.eval_batch_size, self.learning_rate, self.head_rate = eval_batch_size, learning_rate, head_rate
        self.start, self.freeze_words, self.pair_loss = start, freeze_words, pair_loss
        self.average, self.warmup = average, warmup
        self.weight_decay, self.scheduler, self.max_length = weight_decay, scheduler, max_length
        self.pooling, self.class_weights, self.label_smoothing = pooling, class_weights, label_smoothing
        self.validation, self.folds, self.patience, self.best_metric = validation, folds, patience, best_metric
        self.abstain, self.trust_remote_code, self.arguments = abstain, trust_remote_code, arguments
        self.device, self.output, self.random_state, self.verbose = device, output, random_state, verbose

    def fit(self, X: Any, y: Any = None) -> TextClassifier:
        """Train on texts and their labels.

        Args:
            X: the texts.
            y: the labels, or the name of their column in `X`.

        Raises:
            MixwellError: of some kind, which is a ValueError or RuntimeError too.
        """
        target = read_target(label_column(X, y, type(self).__name__))
        texts, pairs = self._texts(X)
        if len(texts) != len(target):
            raise OptionError(f"{len(texts)} texts and {len(target)} labels: give one for each")
        with tempfile.TemporaryDirectory(prefix="mixwell-") as folder, _own_generators():
            path = _write_rows(Path(folder) / "data.parquet", texts, pairs, target)
            settings = self._settings(path, Path(folder), target)
            try:
                done = train(settings, quiet=not self.verbose)
            except Interrupted:
                if self.output is not None:
                    raise
                raise KeyboardInterrupt from None
            except MixwellError as error:  # the user never named that file
                message = str(error).replace(str(path), "the training data")
                raise type(error)(message).with_traceback(error.__traceback__) from None
            self.classifier_ = Classifier.load(
                done.folder, device=self.device, trust_remote_code=self.trust_remote_code
            )
        self.metrics_ = done.metrics
        self._take(target)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The label of each text (N,); for several labels per text an indicator matrix (N, C)."""
        found = self.predict_proba(X)
        return (found > 0.5).astype(np.int64) if self.multi_label_ else self.classes_[found.argmax(axis=1)]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Calibrated probabilities (N, C), in the order of `classes_`."""
        check_is_fitted(self, "classifier_")
        texts, pairs = self._texts(X)
        found = self.classifier_.predict(texts, pairs, batch_size=self.eval_batch_size).probabilities
        assert found is not None
        result = np.zeros((len(texts), len(self.classes_)))
        for column, name in enumerate(self.names_):
            if name in self.classifier_.labels:  # a label that no training row had is not among them
                result[:, column] = found[:, self.classifier_.labels.index(name)]
        return result

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy; with several labels per text, the share of texts with all labels right."""
        return float(super().score(X, label_column(X, y, type(self).__name__), sample_weight))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a model folder, which `load`, `mixwell predict`, `mixwell export` and `transformers.pipeline` read."""
        check_is_fitted(self, "classifier_")
        return self.classifier_.save(path, estimator=self._about())

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, device: str | None = None, trust_remote_code: bool = False
    ) -> TextClassifier:
        """Load what `save` wrote, or the model of any run of `mixwell train` that predicts classes.

        Args:
            path: the folder.
            device: where to predict.
            trust_remote_code: run code that comes with the model.
        """
        classifier = Classifier.load(path, device=device, trust_remote_code=trust_remote_code)
        if classifier.task == "regression":
            raise OptionError(f"{path}: this model predicts numbers; use mixwell.Classifier.load")
        file = home(path) / "estimator.json"
        if file.is_file():
            about = read_json(file, ESTIMATOR_FORMAT, "a folder of TextClassifier.save")
            target = Target.from_dict(about["target"])
            made = cls(**{**about["params"], "device": device, "trust_remote_code": trust_remote_code})
        else:
            target = Target.of_names(classifier.labels, multi=classifier.task == "multi_label")
            made = cls(device=device, trust_remote_code=trust_remote_code)
        made.classifier_ = classifier
        made.metrics_ = {}
        made._take(target)
        return made

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        commit_message: str = "Upload a classifier trained with mixwell",
    ) -> str:
        """Upload the model folder to the Hugging Face hub; the repository is made where it is missing.

        Args:
            repo_id: `owner/name`.
            private: of a new repository.
            token: None for the one of `hf auth login`.
            commit_message: of the upload.

        Returns:
            The address of the repository.

        Raises:
            RunError: the hub cannot be reached, or refuses.
        """
        check_is_fitted(self, "classifier_")
        with tempfile.TemporaryDirectory(prefix="mixwell-") as folder:
            return push_folder(
                self.save(Path(folder) / "model"), repo_id, private=private, token=token, commit_message=commit_message
            )

    def _settings(self, path: Path, folder: Path, target: Target) -> TrainSettings:
        # Drawn here and not in __init__: every fit of a RandomState gets another one.
        seed = self.random_state
        if not isinstance(seed, int) or isinstance(seed, bool):
            seed = int(check_random_state(seed).randint(2**31))
        return TrainSettings(
            str(path),
            **{name: getattr(self, name) for name in SHARED},
            output=str(folder / "run") if self.output is None else os.fspath(self.output),
            text="text", label="label", text_pair=None if self.text_pair is None else "text_pair",
            task="multi_label" if target.multi else "single_label", test="none", seed=seed,
            method_options=dict(self.method_options or {}), arguments=dict(self.arguments or {}),
            cache_dir=str(folder / "cache"),
        )  # fmt: skip

    def _texts(self, X: Any) -> tuple[list[str], list[str] | None]:
        """The texts, and the second ones of pairs."""
        if isinstance(X, (str, bytes)) or not hasattr(X, "__iter__"):
            raise OptionError(f"X must be texts: a list, an array, a column or a frame, not {type(X).__name__}")
        if isinstance(X, np.ndarray) and X.ndim == 2 and X.shape[1] == 1:
            X = X[:, 0]
        text = self.text if self.text is None or isinstance(self.text, str) else ",".join(self.text)
        records = isinstance(X, (list, tuple)) and len(X) > 0 and isinstance(X[0], dict)
        framed = records or isinstance(X, dict) or hasattr(X, "columns") or hasattr(X, "column_names")
        named = text if framed else None  # plain texts have no columns
        pair = self.text_pair
        rows = [row for batch in iter_rows(X, text=named, text_pair=pair, pairs=pair is not None) for row in batch]
        return [row["text"] for row in rows], None if pair is None else [row["text_pair"] for row in rows]

    def _take(self, target: Target) -> None:
        self.classes_ = target.classes
        self.names_ = list(target.names)
        self.multi_label_ = target.multi

    def _about(self) -> dict[str, Any]:
        params = self.get_params(deep=False)
        params["output"] = None
        if not isinstance(params["random_state"], int):
            params["random_state"] = None
        return {"format": ESTIMATOR_FORMAT, "params": params, "target": self._target().to_dict()}

    def _target(self) -> Target:
        return Target(self.classes_, tuple(self.names_), self.multi_label_, ())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.classifier_tags.multi_label = True
        return tags


@contextlib.contextmanager
def _own_generators() -> Iterator[None]:
    """Leave the global random generators as they were: training seeds them."""
    import torch

    before = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def _write_rows(path: Path, texts: list[str], pairs: list[str] | None, target: Target) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"text": texts, **({} if pairs is None else {"text_pair": pairs}), "label": target.labels()}
    pq.write_table(pa.table(columns), str(path))
    return path
