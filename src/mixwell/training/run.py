"""A whole run, from data and a model to a folder with a calibrated classifier: `train`, and `resume` for a stopped one.

prepare     data, model, tokens, recipe; all that can be refused is refused before anything is written
learn       the probe; fine-tuning by folds, with a validation split, or on all rows; which of the two to keep
write       metrics, model folder, predictions, page
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixwell import calibration, runs
from mixwell.errors import DataError, MixwellError, OptionError, RunError
from mixwell.files import atomic_path, write_json
from mixwell.progress import Reporter, make_reporter, training_arguments
from mixwell.runs import RunFolder
from mixwell.training import advice, contrastive, heads, probe, recipe
from mixwell.training.fit import FitResult, fit, method_options, quiet_libraries
from mixwell.training.folds import assign_folds
from mixwell.training.held_out import HeldOut, at_epoch, best_epoch, probe_is_better, validation_parts
from mixwell.training.settings import FROZEN, TrainSettings

if TYPE_CHECKING:
    from mixwell.data import TextData
    from mixwell.models import LoadedModel


@dataclass
class RunResult:
    """A finished run.

    Attributes:
        folder: the run folder.
        metrics: what metrics.json holds; empty in processes other than the first.
        was_finished: whether there was nothing left to do.
    """

    folder: Path
    metrics: dict[str, Any]
    was_finished: bool = False


@dataclass
class Ready:
    """What a run trains with.

    Attributes:
        settings: with the recipe's numbers filled in.
        data: the texts.
        loaded: the model; its weights are the first ones until training is over.
        rows: the tokenised splits that have rows.
        length: the most tokens of a row.
        folds: (N,) the fold of each training row; None without folds.
        notes: what the user should know.
        mixer: of `Mixer.to_dict`; the probe's own where nothing is mixed.
    """

    settings: TrainSettings
    data: TextData
    loaded: LoadedModel
    rows: dict[str, Any]
    length: int
    folds: Any
    notes: list[str]
    mixer: dict[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """Of the data."""
        return self.data.task

    def labels(self, split: str) -> Any:
        """The labels of a split: (N,), or (N, C) for multi-label."""
        return np.asarray(self.rows[split].with_format("numpy")["labels"])


@dataclass
class Outcome:
    """What learning gave; the model has its final weights, before any temperature.

    Attributes:
        method: what the model was trained by: the method, or `probe`.
        fitted: the last training, with the history that the page shows.
        held: the held-out rows of the candidate that was kept; None where nothing was held out.
        temperature: chosen on them; None for regression.
        note: about the temperature.
        baselines: guessing and the probe on the same rows, and the fine-tuned model where the probe was kept.
        sentences: what happened, for the user.
        warnings: what the user should look at.
    """

    method: str
    fitted: FitResult
    held: HeldOut | None
    temperature: float | None
    note: str | None
    baselines: dict[str, Any]
    sentences: list[str]
    warnings: list[str]


def train(settings: TrainSettings, *, quiet: bool = False) -> RunResult:
    """Do a whole run and write its folder.

    Raises:
        MixwellError: of some kind, for all that the user can put right.
    """
    reporter = make_reporter(quiet)
    try:
        return _run(settings, RunFolder(settings.run_folder()), reporter, None)
    finally:
        reporter.end()


def resume(path: str | Path, *, quiet: bool = False) -> RunResult:
    """Continue a run from its newest complete checkpoint; on CPU the weights end up the same, bit for bit.

    Raises:
        RunError: there is no run, its data changed, or another process is at it.
    """
    folder = RunFolder(path)
    record = folder.read_record()
    reporter = make_reporter(quiet)
    try:
        return _run(TrainSettings.from_dict(record["settings"]), folder, reporter, record)
    finally:
        reporter.end()


def _run(settings: TrainSettings, folder: RunFolder, reporter: Reporter, record: dict[str, Any] | None) -> RunResult:
    import torch

    from mixwell.modelcard import make_record, read_metrics, write_results

    settings.check()
    first, new = runs.rank() == 0, record is None
    if record is None and first:
        folder.check_new()
    if record is not None and folder.finished:
        if first and not settings.keep_checkpoints:
            with folder.lock(new=False):
                folder.remove_checkpoints()
        return RunResult(folder.path, read_metrics(folder.path), was_finished=True)
    began = time.monotonic()
    with quiet_libraries():
        ready = prepare(settings, folder, reporter, record)
        with folder.lock(new=record is None) if first else nullcontext(), runs.stoppable(folder.path):
            for note in ready.notes:
                reporter.note(note)
            if record is None:
                record = make_record(ready.settings, ready.data, ready.loaded, ready.mixer, ready.length, ready.notes)
                if first:
                    folder.write_record(record)
            elif record["versions"] != runs.versions():
                reporter.note("versions changed since the run began: the result may differ in the last digits")
            if first:
                ready.data.save_splits(folder.path / "splits.json")
            try:
                outcome = learn(ready, folder, reporter)
            except OptionError:
                if first and new:
                    folder.discard()  # so that the same command works once the option is put right
                raise
            except (torch.OutOfMemoryError, MemoryError) as error:
                raise RunError(
                    f"out of memory with batches of {ready.settings.batch_size} rows of at most {ready.length} tokens; "
                    f"train anew with a lower --batch-size or --max-length, or a smaller --model"
                ) from error
            if not first:
                return RunResult(folder.path, {})
            metrics = write_results(folder, record, ready, outcome, reporter)
            seconds = time.monotonic() - began
            record["timing"] = {"seconds": seconds, "seconds_per_step": outcome.fitted.seconds_per_step}
            folder.write_record({key: value for key, value in record.items() if key != "format"})
            folder.finish(metrics, keep_checkpoints=settings.keep_checkpoints)
    return RunResult(folder.path, metrics)


# --- before training -----------------------------------------------------------------------------------------------


def prepare(settings: TrainSettings, folder: RunFolder, reporter: Reporter, record: dict[str, Any] | None) -> Ready:
    """Load data and model, fill in the recipe, and try whatever can be refused.

    Raises:
        MixwellError: of some kind; nothing was written.
    """
    from mixwell import data as texts
    from mixwell import models

    found = settings.load_data(lambda done: reporter.rows("reading", done))
    if record is not None:
        _check_same(settings, folder, record, found)
    loaded = models.load(
        settings.model, task=found.task, labels=found.labels, seed=settings.seed, pooling=_pooling(settings),
        trust_remote_code=settings.trust_remote_code,
    )  # fmt: skip
    if len(np.unique(found.row_keys("train").folded)) < 2:
        raise DataError(f"{found.source}: all training texts are the same; there is nothing to learn")
    length = min(settings.max_length, loaded.longest)
    notes = [*found.notes, *loaded.notes, *advice.about_data(found)]
    if length < settings.max_length:
        notes.append(f"{settings.model} takes at most {length} tokens: longer texts are cut there")
    folds = _folds(settings, found)
    rows = {}
    for name, table in found.splits.items():
        if table.num_rows:
            tell = functools.partial(reporter.rows, f"tokenising {name}")
            rows[name] = texts.tokenise(
                table, loaded.tokenizer, max_length=length, cache_dir=settings.cache_dir, progress=tell
            )
    reporter.end()
    trained = _fewest_trained(found.train.num_rows, folds)
    chosen = recipe.recipe(
        found.train.num_rows,
        loaded.parameters,
        least_rows=trained,
        pooled=heads.is_pooled(loaded.model),
        new_head=loaded.new_head,
        pairs="text_pair" in found.train.column_names,
        processes=runs.processes(),
    )
    filled = recipe.fill_in(settings, chosen)
    nothing_out = folds is None and not found.validation.num_rows
    if settings.method == "auto" and found.train.num_rows < recipe.FEW_ROWS and nothing_out:
        filled = _for_few_rows(filled, found, loaded, notes)
    ready = Ready(filled, found, loaded, rows, length, folds, notes)
    ready.mixer = _try(ready, folder, trained)
    return ready


def _for_few_rows(settings: TrainSettings, data: TextData, loaded: LoadedModel, notes: list[str]) -> TrainSettings:
    """The method for too few rows to choose or calibrate by."""
    from mixwell.mixer import attach

    pairs, mixing = recipe.FEW_ROWS_METHODS
    if heads.is_pooled(loaded.model) and data.task == calibration.SINGLE and not _pairs(data) and _free(settings):
        method, why = pairs, "learns from all pairs of texts"
    else:
        try:
            attach(loaded.model, mixing, **settings.method_options).detach()
        except MixwellError:
            return settings
        method, why = mixing, "keeps probabilities honest without held-out rows"
    notes.append(
        f"fewer than {recipe.FEW_ROWS} training rows, too few to choose or calibrate by: method auto takes {method}, "
        f"which {why}; --folds 4 measures it"
    )
    return dataclasses.replace(settings, method=method)


def _free(settings: TrainSettings) -> bool:
    """Whether nothing was asked for that a logistic regression does not have."""
    return not (settings.method_options or settings.label_smoothing or settings.class_weights != "none")


def _pairs(data: TextData) -> bool:
    return "text_pair" in data.train.column_names


def _check_same(settings: TrainSettings, folder: RunFolder, record: dict[str, Any], found: TextData) -> None:
    if record["data"]["fingerprint"] != found.fingerprint:
        raise RunError(f"{settings.data}: the data changed since the run {folder.path} began; bring the old data back")
    if record["processes"] != runs.processes():
        raise RunError(
            f"{folder.path} was begun by {record['processes']} processes, not {runs.processes()}; resume it as it was "
            f"begun"
        )


def _pooling(settings: TrainSettings) -> str:
    """The pooling to load with; a probe needs pooled features also where the encoder says nothing."""
    if settings.method not in FROZEN or settings.pooling != "auto":
        return settings.pooling
    from mixwell.models import resolve

    stated = heads.choose_pooling("auto", resolve(settings.model)).kind
    return "mean" if stated == "model" else stated


def _folds(settings: TrainSettings, data: TextData) -> Any:
    """(N,) the fold of each training row, or None where a validation split or nothing is held out."""
    from mixwell.data.splits import strata

    if settings.folds and data.validation.num_rows:
        raise OptionError(
            f"folds={settings.folds}: {data.source} has validation rows of its own; leave folds out, or set them aside "
            f"with --validation none"
        )
    if settings.folds == 0 or settings.validation is not None or data.validation.num_rows:
        return None
    if settings.folds is None and data.train.num_rows < recipe.FEW_ROWS:
        return None
    wanted = settings.folds or recipe.FOLDS
    keys = data.row_keys("train").folded
    different = len(np.unique(keys))
    if different < 4:
        raise OptionError(f"{data.source}: {different} different texts are too few for folds; use --validation none")
    if wanted > different:
        raise OptionError(f"folds={wanted}: {data.source} has {different} different texts only; use fewer folds")
    return assign_folds(keys, strata(data.task, data.train["label"]), wanted, settings.split_seed)


def check_start(settings: TrainSettings, data: TextData, loaded: LoadedModel) -> None:
    """Raise `OptionError` where a head cannot start from a probe."""
    if settings.start != "probe":
        return
    if _pairs(data):
        raise OptionError("start=probe: a probe reads pairs one by one and the model reads them as one; leave it out")
    if not heads.is_pooled(loaded.model):
        raise OptionError(
            f"start=probe: model {settings.model} has its architecture's head; take --pooling mean or --start random"
        )


def _fewest_trained(rows: int, folds: Any) -> int:
    """The fewest rows that a training of the run has."""
    return rows if folds is None else rows - int(np.bincount(folds).max())


def _try(ready: Ready, folder: RunFolder, trained: int) -> dict[str, Any]:
    """Raise for what training would refuse; return what describes the mixer."""
    from mixwell.mixer import attach

    settings = ready.settings
    check_start(settings, ready.data, ready.loaded)
    if settings.method == "contrastive" and (ready.task != calibration.SINGLE or _pairs(ready.data)):
        raise OptionError("method contrastive needs single texts with one class each; use another method")
    if settings.method in FROZEN:
        return {"method": settings.method, "options": {}}
    assert settings.batch_size is not None and settings.learning_rate is not None
    if ready.folds is not None and settings.best_metric != "loss":
        raise OptionError("best_metric needs a validation split (--folds 0): with folds the loss chooses the epoch")
    if "max_steps" in settings.arguments and "validation" not in ready.rows:
        raise OptionError("--set max_steps needs a validation split (--folds 0); use --epochs")
    if settings.batch_size > trained:
        raise OptionError(
            f"batch size {settings.batch_size} is larger than the {trained} training rows; use "
            f"--batch-size {max(2, trained // 4)} or fewer"
        )
    options = method_options(settings, ready.rows["train"], ready.task, ready.loaded.model.config.num_labels)
    with attach(ready.loaded.model, settings.mixing, **options) as mixer:
        about = mixer.to_dict()
    training_arguments(settings, ready.task, settings.learning_rate, str(folder.checkpoints))
    return about


# --- learning ------------------------------------------------------------------------------------------------------


def learn(ready: Ready, folder: RunFolder, reporter: Reporter) -> Outcome:
    """Fit the probe, fine-tune, and keep the better one; the model is left with its final weights."""
    settings = ready.settings
    base = Probing(ready)
    held_probe = base.held_out()
    shown = held_probe or base.out_of_fold()
    baselines = _baselines(ready, shown)
    sentences = [advice.opening(baselines, shown)]
    reporter.say(sentences[0])
    frozen = settings.method in FROZEN
    held: HeldOut | None
    if settings.method == "contrastive":
        fitted, held = _no_training(ready), base.contrastive_held_out(reporter)
    elif frozen:
        fitted, held = _no_training(ready), shown
    elif ready.folds is not None:
        fitted, held = _by_folds(ready, base, folder, reporter)
    else:
        fitted, held = _directly(ready, base, folder, reporter)
    method = settings.method if frozen else settings.mixing
    warnings: list[str] = []
    if held is not None and held_probe is not None and settings.method != "probe":
        free = settings.method == "auto" and base.model is not None and _free(settings)
        take_probe = free and probe_is_better(held, held_probe)
        sentences.append(advice.closing(held, held_probe, taken=take_probe))
        reporter.say(sentences[-1])
        if take_probe:
            baselines["fine_tuned"] = _measured(held)
            held, method, frozen = held_probe, "probe", True
            settings = dataclasses.replace(settings, method="probe")
        elif probe_is_better(held, held_probe):
            warnings.append(advice.NOT_ABOVE_PROBE)
        warnings += advice.about_training(fitted, settings)
    if settings.method == "contrastive":
        base.tune(np.arange(len(base.y)), reporter)
    elif frozen:
        base.deploy()
    elif ready.folds is not None:
        fitted = _final(ready, base, fitted, folder, reporter)
    temperature, note = (None if ready.task == calibration.REGRESSION else 1.0, None)
    if held is not None:
        temperature, note = held.temperature()
        warnings += advice.about_classes(held, ready.data.labels)
    elif temperature is not None:
        note = "no temperature: no rows were held out to fit one on"
    for warning in [*warnings, *([note] if note else [])]:
        reporter.note(warning)
    return Outcome(method, fitted, held, temperature, note, baselines, sentences, warnings)


class Probing:
    """The frozen features of a run's rows, the probes on them, and the model's first weights."""

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        settings, model = ready.settings, ready.loaded.model
        self.first = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.pairs = "text_pair" in ready.data.train.column_names
        self.model = heads.probe_model(model, ready.loaded.tokenizer, pairs=self.pairs)
        self.features = {
            name: probe.features(self.model or model, ready.loaded.tokenizer, rows, ready.settings.eval_batch_size)
            for name, rows in ready.rows.items()
            if name != "test"
        }
        self.classes = model.config.num_labels
        self.y = ready.labels("train")
        folds = ready.folds
        if folds is None:
            stratum = self.y if ready.task == calibration.SINGLE else np.zeros(len(self.y), dtype=np.int64)
            keys = ready.data.row_keys("train").folded
            folds = assign_folds(keys, stratum, max(2, min(recipe.FOLDS, len(np.unique(keys)))), settings.split_seed)
        self.folds = folds
        self.whole = probe.fit_probe(self.features["train"], self.y, ready.task, self.classes, folds)

    def fit(self, rows: Any) -> probe.Probe:
        """The probe of some training rows, by their numbers; its strength is that of all."""
        if len(rows) == len(self.y):
            return self.whole
        x = self.features["train"][rows]
        return probe.fit_probe(x, self.y[rows], self.ready.task, self.classes, strength=self.whole.strength)

    def out_of_fold(self) -> HeldOut:
        """What the probe says about each training row without having seen it."""
        assert self.whole.held_out is not None
        return HeldOut("out_of_fold", self.whole.held_out, self.y, self.ready.task, self.folds)

    def held_out(self) -> HeldOut | None:
        """What the probe says about the held-out rows of the run."""
        ready = self.ready
        if ready.folds is not None:
            return self.out_of_fold()
        if "validation" not in self.features:
            return None
        outputs = self.whole.outputs(self.features["validation"])
        parts = validation_parts(len(outputs))
        return HeldOut("validation", outputs, ready.labels("validation"), ready.task, parts)

    def tune(self, rows: Any, reporter: Reporter) -> None:
        """Tune the encoder by pairs of some training rows, and end with a logistic regression on its features."""
        ready, settings, model = self.ready, self.ready.settings, self.ready.loaded.model
        assert settings.learning_rate is not None and settings.batch_size is not None
        self.restore()
        model.config.normalize = True
        chosen = ready.rows["train"].select(rows)
        reporter.begin(recipe.CONTRASTIVE_UPDATES, 0)
        contrastive.tune(
            model, ready.loaded.tokenizer, chosen, self.y[rows], learning_rate=settings.learning_rate,
            batch_size=settings.batch_size, seed=settings.seed, freeze_words=bool(settings.freeze_words),
            progress=reporter.step,
        )  # fmt: skip
        reporter.end()
        x = probe.features(model, ready.loaded.tokenizer, chosen, settings.eval_batch_size)
        fitted = probe.fit_probe(x, self.y[rows], ready.task, self.classes, strength=contrastive.STRENGTH)
        probe.put_into(model.classifier, fitted)

    def contrastive_held_out(self, reporter: Reporter) -> HeldOut | None:
        """What models tuned by pairs say about held-out rows, where some are held out."""
        from mixwell.prediction import logits

        ready = self.ready
        model, tokenizer, size = ready.loaded.model, ready.loaded.tokenizer, ready.settings.eval_batch_size
        if ready.folds is not None:
            found = np.zeros((len(self.y), self.classes))
            for fold in range(int(ready.folds.max()) + 1):
                out = np.flatnonzero(ready.folds == fold)
                reporter.say(f"fold {fold + 1} of {int(ready.folds.max()) + 1}: {len(out)} rows held out")
                self.tune(np.flatnonzero(ready.folds != fold), reporter)
                found[out] = logits(model, tokenizer, ready.rows["train"].select(out), batch_size=size)
            return HeldOut("out_of_fold", found, self.y, ready.task, ready.folds)
        if "validation" not in ready.rows:
            return None
        self.tune(np.arange(len(self.y)), reporter)
        outputs = logits(model, tokenizer, ready.rows["validation"], batch_size=size).astype(np.float64)
        return HeldOut("validation", outputs, ready.labels("validation"), ready.task, validation_parts(len(outputs)))

    def deploy(self) -> None:
        """Make the probe the model of the run."""
        assert self.model is not None
        self.restore()
        probe.put_into(self.model.classifier, self.whole)
        self.ready.loaded.model = self.model.eval()

    def restore(self) -> None:
        """Give the model its first weights back."""
        model = self.ready.loaded.model
        if heads.is_pooled(model):
            model.config.normalize = False
        model.load_state_dict(self.first)
        model.zero_grad(set_to_none=True)

    def start(self, rows: Any) -> None:
        """Give the model its first weights, and the head the probe of these rows if it is to start there."""
        self.restore()
        if self.ready.settings.start == "probe":
            probe.put_into(self.ready.loaded.model.classifier, self.fit(rows), self.whole.start_scale)


def _by_folds(ready: Ready, base: Probing, folder: RunFolder, reporter: Reporter) -> tuple[FitResult, HeldOut]:
    """Train once per fold, choose the epoch; the history is that of the held-out rows of all folds together."""
    settings, folds = ready.settings, ready.folds
    assert settings.epochs is not None
    count = int(folds.max()) + 1
    reporter.say(advice.plan(settings, len(folds), count))
    fits, logits = [], np.zeros((settings.epochs, len(folds), base.classes))
    for fold in range(count):
        out = np.flatnonzero(folds == fold)
        kept = np.flatnonzero(folds != fold)
        reporter.say(f"fold {fold + 1} of {count}: {len(kept)} rows to train on, {len(out)} held out")
        fitted, logits[:, out] = _one_fold(ready, base, kept, out, folder.folds / f"fold-{fold}", reporter)
        fits.append(fitted)
    held = HeldOut("out_of_fold", logits[-1], base.y, ready.task, folds)
    best = best_epoch(logits, held)
    history = [
        {
            "epoch": at + 1,
            "step": fits[0].history[at]["step"],
            "train_loss": float(np.mean([each.history[at]["train_loss"] for each in fits])),
            "learning_rate": fits[0].history[at]["learning_rate"],
            "validation": _with_loss(calibration.metrics(logits[at], base.y, ready.task)),
        }
        for at in range(settings.epochs)
    ]
    return dataclasses.replace(fits[0], history=history, best_epoch=best), at_epoch(held, logits[best - 1])


def _one_fold(
    ready: Ready, base: Probing, kept: Any, out: Any, place: Path, reporter: Reporter
) -> tuple[FitResult, Any]:
    """Train on some rows; return the training and what it says about the others after each epoch (E, N, C).

    A fold takes a minute or so and writes nothing until it is over: one that was stopped is trained again.
    """
    from safetensors.numpy import load_file, save_file

    numbers, about = place.with_suffix(".safetensors"), place.with_suffix(".json")
    if about.is_file():  # written last
        return FitResult(**json.loads(about.read_text(encoding="utf-8"))), load_file(str(numbers))["logits"]
    base.start(kept)
    rows = ready.rows["train"]
    logits: list[Any] = []
    fitted = fit(
        ready.loaded.model, ready.loaded.tokenizer, rows.select(kept), rows.select(out), ready.settings,
        task=ready.task, reporter=reporter, keep_last=True, epoch_logits=logits,
    )  # fmt: skip
    stacked = np.stack(logits).astype(np.float32)
    if runs.rank() == 0:
        with runs.writing(place.parent):
            with atomic_path(numbers) as path:
                save_file({"logits": stacked}, str(path))
            write_json(about, dataclasses.asdict(fitted))
    return fitted, stacked


def _final(ready: Ready, base: Probing, chosen: FitResult, folder: RunFolder, reporter: Reporter) -> FitResult:
    """Train on all rows with the number of epochs that the folds chose."""
    rows = ready.rows["train"]
    reporter.say(f"final training: all {len(rows)} rows, {chosen.best_epoch} of {ready.settings.epochs} epochs")
    base.start(np.arange(len(rows)))
    done = _fit(ready, rows, None, folder.checkpoints, reporter, stop_after=chosen.best_epoch)
    return dataclasses.replace(done, history=chosen.history, best_epoch=chosen.best_epoch, epochs=chosen.epochs)


def _directly(ready: Ready, base: Probing, folder: RunFolder, reporter: Reporter) -> tuple[FitResult, HeldOut | None]:
    """Train once, with the validation split or without one."""
    from mixwell.prediction import logits

    rows, validation = ready.rows["train"], ready.rows.get("validation")
    base.start(np.arange(len(rows)))
    fitted = _fit(ready, rows, validation, folder.checkpoints, reporter)
    if validation is None:
        return fitted, None
    outputs = logits(
        ready.loaded.model, ready.loaded.tokenizer, validation, batch_size=ready.settings.eval_batch_size
    ).astype(np.float64)
    return fitted, HeldOut(
        "validation", outputs, ready.labels("validation"), ready.task, validation_parts(len(outputs))
    )


def _fit(ready: Ready, rows: Any, held: Any, place: Path, reporter: Reporter, **options: Any) -> FitResult:
    """`fit` from the newest complete checkpoint in a folder."""
    start, faults = runs.newest_checkpoint(place)
    for fault in faults:
        reporter.note(fault)
    if runs.rank() == 0:
        runs.drop_incomplete(place)
    return fit(
        ready.loaded.model, ready.loaded.tokenizer, rows, held, ready.settings, task=ready.task, reporter=reporter,
        checkpoints=place, start=start, **options,
    )  # fmt: skip


def _no_training(ready: Ready) -> FitResult:
    """What stands in for a training where only a probe is fitted."""
    return FitResult([], 0, 0, 0, False, 0.0, None, ready.mixer)


def _baselines(ready: Ready, held: HeldOut) -> dict[str, Any]:
    guess = probe.guess_rate(ready.labels("train"), ready.task)
    made: dict[str, Any] = {} if guess is None else {"guessing": {"accuracy": guess}}
    return {**made, "probe": {**_measured(held), "rows": len(held.logits), "measured_on": held.split}}


def _measured(held: HeldOut) -> dict[str, Any]:
    """Metrics of held-out rows, and the loss after a temperature that other parts chose."""
    metrics: dict[str, Any] = calibration.metrics(held.logits, held.labels, held.task)
    if held.task != calibration.REGRESSION:
        metrics["nll_after_temperature"] = float(held.scaled_losses().mean())
    return metrics


def _with_loss(metrics: dict[str, float]) -> dict[str, float]:
    return {**metrics, "loss": metrics.get("nll", metrics.get("mse", 0.0))}
