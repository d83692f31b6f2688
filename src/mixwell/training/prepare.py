"""Before training: data, model, tokens and recipe; all that can be refused is refused here."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mixwell import data as texts
from mixwell.data.splits import strata
from mixwell.methods.attach import attach
from mixwell.methods.registry import check_searchable
from mixwell.metrics.tasks import SINGLE
from mixwell.training import advice, budget, heads, models, recipe
from mixwell.training.arguments import training_arguments
from mixwell.training.fitting import method_options
from mixwell.training.folds import assign_folds
from mixwell.training.mix_profile import with_found_options
from mixwell.training.models import resolve
from mixwell.training.run_folder import RunFolder
from mixwell.training.settings import FROZEN, TrainSettings
from mixwell.utils.console import Reporter
from mixwell.utils.environment import processes
from mixwell.utils.errors import DataError, MixwellError, OptionError, RunError

if TYPE_CHECKING:
    from mixwell.data import TextData
    from mixwell.training.models import LoadedModel


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
        auto: whether the method was left to us.
        mixer: of `Mixer.to_dict`; the probe's own where nothing is mixed.
    """

    settings: TrainSettings
    data: TextData
    loaded: LoadedModel
    rows: dict[str, Any]
    length: int
    folds: Any
    notes: list[str]
    auto: bool = False
    mixer: dict[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """Of the data."""
        return self.data.task

    def labels(self, split: str) -> Any:
        """The labels of a split: (N,), or (N, C) for multi-label."""
        return np.asarray(self.rows[split].with_format("numpy")["labels"])


def prepare(settings: TrainSettings, folder: RunFolder, reporter: Reporter, record: dict[str, Any] | None) -> Ready:
    """Load data and model, fill in the recipe, and try whatever can be refused.

    Raises:
        MixwellError: of some kind; nothing was written.
    """
    found = settings.load_data(lambda done: reporter.rows("reading", done))
    if record is not None:
        _check_same(settings, folder, record, found)
    check_searchable(settings.mixing, settings.method_options, found.task)
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
    auto = settings.method == "auto" or bool((record or {}).get("auto"))
    if settings.method == "auto" and found.train.num_rows < recipe.FEW_ROWS and not settings.asks_for_fine_tuning:
        settings = _for_few_rows(settings, found, loaded, notes)
    keys = found.row_keys("train").folded
    settings, profile = with_found_options(settings, loaded, rows["train"], keys, found.task, folds, reporter.say)
    notes += [profile.sentence()] if profile is not None else []
    chosen = recipe.recipe(
        found.train.num_rows,
        loaded.parameters,
        least_rows=trained,
        pooled=heads.is_pooled(loaded.model),
        new_head=loaded.new_head,
        pairs=has_pairs(found),
        classes=len(found.labels) if found.task == SINGLE and settings.mixing == "none" else None,
        processes=processes(),
    )
    chosen = dataclasses.replace(chosen, average=recipe.AVERAGE)
    if settings.method == "contrastive":
        rate = recipe.CONTRASTIVE_RATE * chosen.learning_rate
        chosen = dataclasses.replace(chosen, learning_rate=rate, batch_size=recipe.CONTRASTIVE_BATCH)
    filled = recipe.fill_in(settings, chosen)
    ready = Ready(filled, found, loaded, rows, length, folds, notes, auto)
    ready.mixer = _try(ready, folder, trained)
    return ready


def _for_few_rows(settings: TrainSettings, data: TextData, loaded: LoadedModel, notes: list[str]) -> TrainSettings:
    """The method for too few rows to choose or calibrate by."""
    by_pairs, mixing = recipe.FEW_ROWS_METHODS
    if heads.is_pooled(loaded.model) and data.task == SINGLE:
        if has_pairs(data):
            method, why = "probe", "has the least to learn"
        else:
            method, why = by_pairs, "learns from pairs of rows"
    else:
        try:
            attach(loaded.model, mixing, **settings.method_options).detach()
        except MixwellError:
            return settings
        method, why = mixing, "keeps a head on few rows from being too sure"
    notes.append(f"fewer than {recipe.FEW_ROWS} training rows: method auto takes {method}, which {why}")
    return dataclasses.replace(settings, method=method)


def uses_plain_loss(settings: TrainSettings) -> bool:
    """Whether nothing was asked for that a logistic regression does not have."""
    return not (settings.method_options or settings.label_smoothing or settings.class_weights != "none")


def has_pairs(data: TextData) -> bool:
    """Whether the texts come in pairs."""
    return "text_pair" in data.train.column_names


def _check_same(settings: TrainSettings, folder: RunFolder, record: dict[str, Any], found: TextData) -> None:
    if record["data"].get("fingerprint") != found.fingerprint:
        raise RunError(f"{settings.data}: the data changed since the run {folder.path} began; bring the old data back")
    if record["processes"] != processes():
        raise RunError(
            f"{folder.path} was begun by {record['processes']} processes, not {processes()}; resume it as it was begun"
        )


def _pooling(settings: TrainSettings) -> str:
    """The pooling to load with; a probe needs pooled features also where the encoder says nothing."""
    if settings.method not in FROZEN or settings.pooling != "auto":
        return settings.pooling
    stated = heads.choose_pooling("auto", resolve(settings.model)).kind
    return "mean" if stated == "model" else stated


def _folds(settings: TrainSettings, data: TextData) -> Any:
    """(N,) the fold of each training row, or None where a validation split or nothing is held out."""
    if settings.folds and data.validation.num_rows:
        raise OptionError(
            f"folds={settings.folds}: {data.source} has validation rows of its own; leave folds out, or set them aside "
            f"with --validation none"
        )
    if settings.folds == 0 or settings.validation is not None or data.validation.num_rows:
        return None
    if settings.folds is None and data.train.num_rows < recipe.LEAST_FOLDED:
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
    if has_pairs(data):
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
    settings = ready.settings
    check_start(settings, ready.data, ready.loaded)
    if settings.method == "contrastive" and (ready.task != SINGLE or has_pairs(ready.data)):
        raise OptionError("method contrastive needs single texts with one class each; use another method")
    if settings.pair_loss and not (heads.is_pooled(ready.loaded.model) and ready.task == SINGLE):
        raise OptionError("pair_loss needs a pooled head (--pooling mean) and one class per row; leave it out")
    if settings.method in FROZEN:
        return {"method": settings.method, "options": {}}
    assert settings.batch_size is not None and settings.learning_rate is not None
    if settings.budget is not None:
        if ready.folds is None:
            raise OptionError(
                "budget needs folds, which hold every row out once: leave --validation out, or add --folds 3"
            )
        budget.plan(settings.budget, int(ready.folds.max()) + 1)
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
