"""Train one cell: a function of its specification, whoever calls it and wherever it runs."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mixwell.compare import references
from mixwell.compare.auto import choose_way
from mixwell.compare.conditions import CHOSEN
from mixwell.compare.records import CellResult
from mixwell.compare.spec import AUTO, REFERENCES, CellSpec, chosen_test_rows
from mixwell.compare.weights import weights_fingerprint
from mixwell.data import texts_of, tokenise
from mixwell.metrics.measure import measure
from mixwell.metrics.scores import sigmoid, softmax
from mixwell.metrics.selective import auroc, false_accept_rate
from mixwell.metrics.tasks import MULTI, REGRESSION
from mixwell.training import models, quiet_libraries
from mixwell.training.evaluate import temperature_of
from mixwell.training.fitting import FitResult, fit
from mixwell.training.mix_profile import with_found_options
from mixwell.training.predict import logits
from mixwell.training.probe import put_into
from mixwell.utils.environment import versions
from mixwell.utils.errors import DataError, RunError

if TYPE_CHECKING:
    from mixwell.data import TextData
    from mixwell.training.models import LoadedModel
    from mixwell.training.probe import Probe

T = TypeVar("T")
_HELD_OUT = ("validation", "test")
FOREIGN = "ood"
CHOSEN_TEST = f"test.{CHOSEN}"


class RecentValues(OrderedDict[Hashable, Any]):
    """The values that were used last.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made by `make` if it is not there."""
        if key in self:
            self.move_to_end(key)
        else:
            while len(self) >= self.most:  # first make room: two large models may not fit
                self.popitem(last=False)
            self[key] = make()
        value: T = self[key]
        return value


@dataclasses.dataclass
class _InitialWeights:
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
        self._texts = RecentValues(2)
        self._samples = RecentValues(4)
        self._rows = RecentValues(16)
        self._extra = RecentValues(2)
        self._models = RecentValues(1)
        self._probes = RecentValues(8)
        self._features = RecentValues(8)

    def data(self, spec: CellSpec) -> TextData:
        """The sampled data of a cell.

        Raises:
            DataError: they are not those that the cell was planned with.
        """
        whole = self._texts.get_or_make(spec.source, spec.source.load)
        key = (spec.source, spec.sample, spec.conditions)
        data = self._samples.get_or_make(key, lambda: spec.conditions.apply(spec.sample.of(whole)))
        if data.fingerprint != spec.sampled:
            self._texts.clear()
            self._samples.clear()
            raise DataError(f"{spec.source.data}: the data changed while the comparison was running")
        return data

    def rows(self, spec: CellSpec, loaded: LoadedModel) -> dict[str, Any]:
        """The tokenised splits of a cell and its further tests, with the chosen test rows only."""
        length = spec.settings["max_length"]
        rows = {}
        for split, table in {**self.data(spec).splits, **self.extra_tables(spec)}.items():
            key = self._row_mark(spec, split)

            def make(table: Any = table, split: str = split) -> Any:
                part = _chosen_rows(table, spec) if split == "test" else table
                return tokenise(part, loaded.tokenizer, max_length=length, cache_dir=self.cache_dir)

            rows[split] = self._rows.get_or_make(key, make)
        return rows

    @staticmethod
    def _row_mark(spec: CellSpec, split: str) -> tuple[Any, ...]:
        """What decides over the tokenised rows of a split: validation and test are the same in all samples."""
        mark = spec.sampled if split == "train" else spec.fingerprint
        more = spec.conditions.test_mark if split == "test" else tuple(spec.conditions.files())
        return (mark, split, spec.max_test, spec.weights, spec.settings["max_length"], more)

    def extra_tables(self, spec: CellSpec) -> dict[str, Any]:
        """The tables of a cell's further tests."""
        if not spec.conditions.files():
            return {}
        key = (spec.source, spec.conditions.tests, spec.conditions.ood)
        return self._extra.get_or_make(key, lambda: spec.conditions.extra_tables(self.data(spec)))

    def model(self, spec: CellSpec) -> LoadedModel:
        """The model with the initial weights of the cell's seed, bit for bit those of `models.load` with that seed."""
        if spec.settings.get("arguments"):
            return self._load(spec)  # they may change the model itself, such as gradient checkpointing
        labels = self.data(spec).labels
        key = (spec.model, spec.weights, spec.task, labels, spec.settings.get("pooling"))
        kept: _InitialWeights = self._models.get_or_make(key, lambda: self._first_weights(spec))
        if spec.seed not in kept.heads:
            new = self._load(spec).model.state_dict()
            kept.heads[spec.seed] = {name: value for name, value in new.items() if not value.equal(kept.shared[name])}
        kept.loaded.model.load_state_dict({**kept.shared, **kept.heads[spec.seed]})
        kept.loaded.model.zero_grad(set_to_none=True)
        return kept.loaded

    def probe(self, spec: CellSpec, loaded: LoadedModel, rows: Any) -> Probe:
        """The probe of a cell's training rows; the model must have its first weights."""
        keys = self.data(spec).row_keys("train").folded
        key = (spec.sampled, spec.weights, spec.settings.get("pooling"), spec.settings["max_length"])
        size = spec.settings["eval_batch_size"]
        pairs = "text_pair" in self.data(spec).train.column_names
        return self._probes.get_or_make(
            key, lambda: references.probe_of(loaded, rows, _labels(rows), keys, spec.task, size, pairs=pairs)
        )

    def features(self, spec: CellSpec, loaded: LoadedModel, split: str, rows: Any) -> Any:
        """The frozen features of held-out rows, which all samples and seeds of a data set share."""
        size, pairs = spec.settings["eval_batch_size"], "text_pair" in self.data(spec).train.column_names
        key = (*self._row_mark(spec, split), spec.settings.get("pooling"), size)
        return self._features.get_or_make(key, lambda: references.frozen_features(loaded, rows, size, pairs=pairs))

    def _first_weights(self, spec: CellSpec) -> _InitialWeights:
        loaded = self._load(spec)
        shared = {name: value.detach().clone() for name, value in loaded.model.state_dict().items()}
        return _InitialWeights(loaded, shared, {spec.seed: {}})

    def _load(self, spec: CellSpec) -> LoadedModel:
        with quiet_libraries():
            loaded = models.load(
                spec.model, task=spec.task, labels=self.data(spec).labels, seed=spec.seed,
                pooling=spec.settings.get("pooling", "model"), trust_remote_code=spec.trust_remote_code,
            )  # fmt: skip
        if weights_fingerprint(loaded.source, loaded.commit) != spec.weights:
            raise RunError(f"model {spec.model}: its files changed while the comparison was running")
        return loaded


def _chosen_rows(table: Any, spec: CellSpec) -> Any:
    """The test rows that a cell uses."""
    chosen = chosen_test_rows(table.num_rows, spec.max_test)
    return table if chosen is None else table.take(chosen)


def _labels(rows: Any) -> Any:
    return np.asarray(rows.with_format("numpy")["labels"])


def preload() -> None:
    """Import what training needs besides this module, so that the first cell takes no longer than the others."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer

    del AutoModelForSequenceClassification, AutoTokenizer, Trainer


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
    import torch

    began = time.monotonic()
    settings, searched = spec.train_settings(cache.cache_dir), None
    with quiet_libraries():
        data = cache.data(spec)
        loaded = cache.model(spec)
        rows = cache.rows(spec, loaded)
        held_out = [split for split in rows if split != "train"]
        outputs = {f"{split}_labels": _labels(rows[split]) for split in held_out if split != FOREIGN}
        if spec.method in REFERENCES:
            fitted = FitResult([], 0, 0, 0, False, 0.0, None, {"method": spec.method, "options": {}})
            outputs |= _reference_outputs(spec, cache, loaded, rows)
        else:
            if spec.method == AUTO:
                settings, searched = choose_way(spec.options["budget"], settings, data, loaded, rows)
            keys = data.row_keys("train").folded
            settings, _ = with_found_options(settings, loaded, rows["train"], keys, data.task)
            fitted, of_last = _train(spec, cache, settings, loaded, rows)
            # After training to the end the last epoch is the model, and the chosen one is tested beside it.
            splits = _HELD_OUT if of_last else held_out
            chosen = _logits_of(loaded.model, loaded.tokenizer, rows, splits, settings.eval_batch_size)
            outputs |= of_last or chosen
            if of_last:
                outputs[f"{CHOSEN_TEST}_logits"] = chosen["test_logits"]
                outputs[f"{CHOSEN_TEST}_labels"] = outputs["test_labels"]
                outputs["chosen_validation_logits"] = chosen["validation_logits"]
    if spec.task == REGRESSION:
        for name in [name for name in outputs if name.endswith("_logits")]:
            outputs[name] = outputs[name].reshape(-1)
    temperature, note = temperature_of(outputs["validation_logits"], outputs["validation_labels"], spec.task)
    trained = dataclasses.asdict(fitted)
    result = {
        "task": spec.task,
        "labels": list(data.labels),
        "train_rows": data.train.num_rows,
        "temperature": temperature,
        "notes": [note] if note else [],
        **{split: _metrics(outputs, split, spec.task, temperature) for split in _HELD_OUT},
        **_more_metrics(outputs, spec.task, temperature),
        **{name: value for name, value in trained.items() if name != "seconds_per_step"},
        "timing": {"seconds": time.monotonic() - began, "seconds_per_step": fitted.seconds_per_step},
        **({} if searched is None else {"search": searched}),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }
    return CellResult(result, outputs)


def _logits_of(model: Any, tokenizer: Any, rows: dict[str, Any], splits: Iterable[str], size: int) -> dict[str, Any]:
    """The logits of some splits by the names that records have."""
    return {f"{split}_logits": logits(model, tokenizer, rows[split], batch_size=size) for split in splits}


def _train(
    spec: CellSpec, cache: Cache, settings: Any, loaded: LoadedModel, rows: dict[str, Any]
) -> tuple[FitResult, dict[str, Any]]:
    """Fine-tune the model; with `overtrain` also the logits of its last epoch."""
    if settings.start == "probe":
        probe = cache.probe(spec, loaded, rows["train"])
        put_into(loaded.model.classifier, probe, probe.start_scale)
    of_last: dict[str, Any] = {}

    def keep_last_epoch(model: Any) -> None:
        splits = [split for split in rows if split != "train"]
        of_last.update(_logits_of(model, loaded.tokenizer, rows, splits, settings.eval_batch_size))

    fitted = fit(
        loaded.model, loaded.tokenizer, rows["train"], rows["validation"], settings, task=spec.task,
        watch=rows["test"] if spec.settings.get("watch_test") else None,
        updates_per_batch=spec.settings.get("updates_per_batch", 1),
        before_choice=keep_last_epoch if spec.conditions.overtrain else None,
    )  # fmt: skip
    return fitted, of_last


def _reference_outputs(spec: CellSpec, cache: Cache, loaded: LoadedModel, rows: dict[str, Any]) -> dict[str, Any]:
    """The logits of a row of `REFERENCES`."""
    data = cache.data(spec)
    if spec.method == "probe":
        probe = cache.probe(spec, loaded, rows["train"])
        values = {
            split: references.probe_outputs(probe, cache.features(spec, loaded, split, part))
            for split, part in rows.items()
            if split != "train"
        }
    else:
        tables = {"validation": data.validation, "test": _chosen_rows(data.test, spec), **cache.extra_tables(spec)}
        values = references.tfidf_outputs(
            texts_of(data.train), _labels(rows["train"]), {split: texts_of(table) for split, table in tables.items()},
            spec.task, loaded.model.config.num_labels, data.row_keys("train").folded,
        )  # fmt: skip
    return {f"{split}_logits": value for split, value in values.items()}


def _metrics(outputs: dict[str, Any], split: str, task: str, temperature: float | None) -> dict[str, Any]:
    """The metrics of a split, before and after the temperature."""
    pair = outputs[f"{split}_logits"], outputs[f"{split}_labels"]
    metrics = {"rows": len(pair[1]), "before": measure(*pair, task)}
    if temperature is not None:
        metrics["after"] = measure(*pair, task, temperature)
    return metrics


def _more_metrics(outputs: dict[str, Any], task: str, temperature: float | None) -> dict[str, Any]:
    """The metrics of further tests under `tests`, and of foreign texts under `ood`; nothing where there are none."""
    more: dict[str, Any] = {}
    names = [name.removesuffix("_logits") for name in outputs if name.startswith("test.") and name.endswith("_logits")]
    for name in names:
        own = temperature
        if name == CHOSEN_TEST:
            own, _ = temperature_of(outputs["chosen_validation_logits"], outputs["validation_labels"], task)
        found = {**_metrics(outputs, name, task, own), "temperature": own}
        more.setdefault("tests", {})[name.removeprefix("test.")] = found
    if f"{FOREIGN}_logits" in outputs:
        own_rows, foreign = (_confidence(outputs[f"{split}_logits"], task) for split in ("test", FOREIGN))
        more["ood"] = {
            "rows": len(foreign),
            "auroc": auroc(own_rows, foreign),
            "false_accept": false_accept_rate(own_rows, foreign),
        }
    return more


def _confidence(z: Any, task: str) -> Any:
    """(N,) how sure a model is of each row."""
    wide = np.asarray(z, dtype=np.float64)
    return sigmoid(np.abs(wide)).min(axis=1) if task == MULTI else softmax(wide).max(axis=1)
