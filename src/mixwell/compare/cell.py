"""Train one cell: a function of its specification, whoever calls it and wherever it runs."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

from mixwell.compare.records import CellResult
from mixwell.compare.spec import REFERENCES, CellSpec, chosen_test_rows
from mixwell.errors import DataError, RunError

if TYPE_CHECKING:
    from mixwell.data import TextData
    from mixwell.models import LoadedModel
    from mixwell.training.probe import Probe

T = TypeVar("T")


class Recent(OrderedDict[Hashable, Any]):
    """The values used last, made when they are missing."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def get_or(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made by `make` if it is not there."""
        if key in self:
            self.move_to_end(key)
        else:
            while len(self) >= self.most:  # first make room: two large models may not fit
                self.popitem(last=False)
            self[key] = make()
        found: T = self[key]
        return found


@dataclasses.dataclass
class _Weights:
    """A model with its initial weights: those that all seeds share, and for each seed those of its head."""

    loaded: LoadedModel
    shared: dict[str, Any]
    heads: dict[int, dict[str, Any]]


class Cache:
    """What a worker keeps between cells: texts, tokenised rows and initial weights.

    Args:
        cache_dir: the folder for tokenised texts; None for the usual one.
    """

    def __init__(self, cache_dir: str | None = None) -> None:
        self.cache_dir = cache_dir
        self._texts = Recent(2)
        self._samples = Recent(4)
        self._rows = Recent(12)
        self._models = Recent(1)
        self._probes = Recent(8)

    def data(self, spec: CellSpec) -> TextData:
        """The sampled data of a cell.

        Raises:
            DataError: they are not those that the cell was planned with.
        """
        whole = self._texts.get_or(spec.source, spec.source.load)
        found = self._samples.get_or((spec.source, spec.sample), lambda: spec.sample.of(whole))
        if found.fingerprint != spec.sampled:
            self._texts.clear()
            self._samples.clear()
            raise DataError(f"{spec.source.data}: the data changed while the comparison was running")
        return found

    def rows(self, spec: CellSpec, loaded: LoadedModel) -> dict[str, Any]:
        """The tokenised splits of a cell, with the chosen test rows only."""
        from mixwell import data as texts

        found = self.data(spec)
        length = spec.settings["max_length"]
        made = {}
        for split, table in found.splits.items():
            # Validation and test are the same in all samples of a data set.
            key = (spec.sampled if split == "train" else spec.fingerprint, split, spec.max_test, spec.weights, length)

            def make(table: Any = table, split: str = split) -> Any:
                chosen = chosen_test_rows(table.num_rows, spec.max_test) if split == "test" else None
                part = table if chosen is None else table.take(chosen)
                return texts.tokenise(part, loaded.tokenizer, max_length=length, cache_dir=self.cache_dir)

            made[split] = self._rows.get_or(key, make)
        return made

    def model(self, spec: CellSpec) -> LoadedModel:
        """The model with the initial weights of the cell's seed, bit for bit those of `models.load` with that seed."""
        if spec.settings.get("arguments"):
            return self._load(spec)  # they may change the model itself, such as gradient checkpointing
        labels = self.data(spec).labels
        key = (spec.model, spec.weights, spec.task, labels, spec.settings.get("pooling"))
        kept: _Weights = self._models.get_or(key, lambda: self._first(spec))
        if spec.seed not in kept.heads:
            new = self._load(spec).model.state_dict()
            kept.heads[spec.seed] = {name: value for name, value in new.items() if not value.equal(kept.shared[name])}
        kept.loaded.model.load_state_dict({**kept.shared, **kept.heads[spec.seed]})
        kept.loaded.model.zero_grad(set_to_none=True)
        return kept.loaded

    def probe(self, spec: CellSpec, loaded: LoadedModel, rows: Any) -> Probe:
        """The probe of a cell's training rows; the model must have its first weights."""
        from mixwell.compare.references import probe_of

        keys = self.data(spec).row_keys("train").folded
        key = (spec.sampled, spec.weights, spec.settings.get("pooling"), spec.settings["max_length"])
        size = spec.settings["eval_batch_size"]
        pairs = "text_pair" in self.data(spec).train.column_names
        return self._probes.get_or(
            key, lambda: probe_of(loaded, rows, _labels(rows), keys, spec.task, size, pairs=pairs)
        )

    def _first(self, spec: CellSpec) -> _Weights:
        loaded = self._load(spec)
        shared = {name: value.detach().clone() for name, value in loaded.model.state_dict().items()}
        return _Weights(loaded, shared, {spec.seed: {}})

    def _load(self, spec: CellSpec) -> LoadedModel:
        from mixwell import models
        from mixwell.compare.planning import weights_fingerprint
        from mixwell.training import quiet_libraries

        with quiet_libraries():
            loaded = models.load(
                spec.model, task=spec.task, labels=self.data(spec).labels, seed=spec.seed,
                pooling=spec.settings.get("pooling", "model"), trust_remote_code=spec.trust_remote_code,
            )  # fmt: skip
        if weights_fingerprint(loaded.source, loaded.commit) != spec.weights:
            raise RunError(f"model {spec.model}: its files changed while the comparison was running")
        return loaded


def _reference(spec: CellSpec, cache: Cache, loaded: LoadedModel, rows: dict[str, Any]) -> dict[str, Any]:
    """The outputs of a row of `REFERENCES`."""
    from mixwell.compare import references
    from mixwell.data import texts_of

    size = spec.settings["eval_batch_size"]
    splits = ("validation", "test")
    if spec.method == "probe":
        fitted = cache.probe(spec, loaded, rows["train"])
        pairs = "text_pair" in cache.data(spec).train.column_names
        found = {name: references.probe_outputs(fitted, loaded, rows[name], size, pairs=pairs) for name in splits}
        return {f"{name}_logits": value for name, value in found.items()}
    data = cache.data(spec)
    chosen = chosen_test_rows(data.test.num_rows, spec.max_test)
    tables = {"validation": data.validation, "test": data.test if chosen is None else data.test.take(chosen)}
    found = references.tfidf_outputs(
        texts_of(data.train), _labels(rows["train"]), {name: texts_of(table) for name, table in tables.items()},
        spec.task, loaded.model.config.num_labels, data.row_keys("train").folded,
    )  # fmt: skip
    return {f"{name}_logits": value for name, value in found.items()}


def _labels(rows: Any) -> Any:
    import numpy as np

    return np.asarray(rows.with_format("numpy")["labels"])


def preload() -> None:
    """Import what training needs, so that the first cell does not take longer than the others."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer

    from mixwell import data, mixer, modelcard, models, training

    del AutoModelForSequenceClassification, AutoTokenizer, Trainer, data, mixer, modelcard, models, training


def run_cell(spec: CellSpec, cache: Cache) -> CellResult:
    """Train a cell.

    For one seed all methods get the same sample, initial weights, order of rows and dropout masks, whatever ran
    before in the same process.

    Args:
        spec: the cell.
        cache: of the worker.

    Raises:
        Exception: of any kind; the cell has failed.
    """
    import numpy as np
    import torch

    from mixwell import calibration, runs
    from mixwell.modelcard import temperature_of
    from mixwell.prediction import logits
    from mixwell.training import FitResult, fit, quiet_libraries
    from mixwell.training.probe import put_into

    began = time.monotonic()
    settings = spec.train_settings(cache.cache_dir)
    with quiet_libraries():
        data = cache.data(spec)
        loaded = cache.model(spec)
        rows = cache.rows(spec, loaded)
        outputs: dict[str, Any] = {}
        for split in ("validation", "test"):
            outputs[f"{split}_labels"] = np.asarray(rows[split].with_format("numpy")["labels"])
        if spec.method in REFERENCES:
            fitted = FitResult([], 0, 0, 0, False, 0.0, None, {"method": spec.method, "options": {}})
            outputs |= _reference(spec, cache, loaded, rows)
        else:
            if settings.start == "probe":
                found = cache.probe(spec, loaded, rows["train"])
                put_into(loaded.model.classifier, found, found.start_scale)
            fitted = fit(
                loaded.model, loaded.tokenizer, rows["train"], rows["validation"], settings, task=spec.task,
                test=rows["test"],
            )  # fmt: skip
            for split in ("validation", "test"):
                outputs[f"{split}_logits"] = logits(
                    loaded.model, loaded.tokenizer, rows[split], batch_size=settings.eval_batch_size
                )
    if spec.task == calibration.REGRESSION:
        for split in ("validation", "test"):
            outputs[f"{split}_logits"] = outputs[f"{split}_logits"].reshape(len(rows[split]))
    temperature, note = temperature_of(outputs["validation_logits"], outputs["validation_labels"], spec.task)
    metrics: dict[str, Any] = {}
    for split in ("validation", "test"):
        pair = outputs[f"{split}_logits"], outputs[f"{split}_labels"]
        metrics[split] = {"rows": len(pair[1]), "before": calibration.metrics(*pair, spec.task)}
        if temperature is not None:
            metrics[split]["after"] = calibration.metrics(*pair, spec.task, temperature)
    trained = dataclasses.asdict(fitted)
    result = {
        "task": spec.task,
        "labels": list(data.labels),
        "train_rows": data.train.num_rows,
        "temperature": temperature,
        "notes": [note] if note else [],
        **metrics,
        **{name: value for name, value in trained.items() if name != "seconds_per_step"},
        "timing": {"seconds": time.monotonic() - began, "seconds_per_step": fitted.seconds_per_step},
        "threads": torch.get_num_threads(),
        "versions": runs.versions(),
    }
    return CellResult(result, outputs)
