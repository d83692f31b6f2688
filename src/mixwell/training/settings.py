"""The settings of a run of training."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell.errors import OptionError, RunError, nearest
from mixwell.progress import check_arguments
from mixwell.training import recipe
from mixwell.training.heads import POOLINGS

if TYPE_CHECKING:
    from mixwell.data import TextData

STARTS = ("probe", "random")
RARE = ("error", "drop", "merge")
# What settings that were added later were before they could be set: for runs and records from then.
BEFORE = {
    "pooling": "model", "start": "random", "head_rate": 1.0, "freeze_words": False, "folds": 0, "rare": "error",
    "keep_together": False,
}  # fmt: skip
# Methods that end in a logistic regression: on features that stay as they are, or on those tuned by pairs of texts.
FROZEN = ("probe", "contrastive")


def mixing_of(method: str) -> str:
    """The name in `mixwell.methods()` of what a method of `train` fine-tunes with; `none` where it is no mixing."""
    return "none" if method in ("auto", *FROZEN) else method


@dataclass
class TrainSettings:
    """All that decides a run.

    Attributes:
        data: a file, folder or hub id; see `mixwell.data.load`, also for `text`, `text_pair`, `label`, `task`,
            `split_seed` and `drop_leaks`.
        output: the run folder; None for `runs/<data>-<method>`.
        validation: a file, a share of train, `none` to hold nothing out, or None: folds for few rows, a tenth of train
            for many. `test` likewise; with folds, no test rows are cut unless asked for.
        folds: K: cross-fitting, in which every row is held out once and the final model is trained on all rows; 0 for
            none, None to decide by the number of rows: below 100 nothing is held out, below 1000 there are 4.
        rare: what to do with classes of one row: `error`, `drop` or `merge` (into one class, `other`).
        keep_together: keep rows of equal text on one side of a cut.
        fraction: share of train to keep; with `per_class`, `max_train` and `sample_seed` see `TextData.sample`.
        model: `minilm`, a folder or a hub id.
        trust_remote_code: run code that comes with the model.
        pooling: how tokens become one vector: `auto`, `model`, `mean`, `cls` or `last`; see `mixwell.training.heads`.
        method: a name of `mixwell.methods()`, with `method_options`; `probe` for a logistic regression on frozen
            features; `contrastive` for one on features tuned by pairs of texts; `auto` for plain fine-tuning or the
            probe, whichever does better on held-out rows, or `contrastive` where rows are too few to hold any out.
        start: where the head starts, `probe` or `random`; with `epochs`, `batch_size`, `learning_rate`, `head_rate`
            and `freeze_words` None for the recipe's (`mixwell.training.recipe`).
        epochs: the most epochs.
        batch_size: rows per step on each device; rows meet partners of the same batch.
        eval_batch_size: rows of a batch in evaluation.
        learning_rate: the highest.
        head_rate: how many times that the head has.
        freeze_words: whether the word embeddings stay as they are.
        warmup: share of the steps in which the learning rate rises.
        weight_decay: of AdamW.
        scheduler: Trainer's name for how the learning rate falls.
        max_length: the most tokens of a row; fewer where the model takes fewer.
        patience: stop after so many epochs without a better validation metric; 0 never stops early.
        best_metric: which epoch's weights are kept. `loss`, the default, is the validation loss: for classification
            the negative log-likelihood, a proper score that rewards right and honest probabilities alike. Or a
            metric of `mixwell.calibration.METRICS`.
        seed: of the new head, the order of the rows, dropout and mixing.
        class_weights: `none`, or `balanced`: classes weigh in inversely to their share of train.
        group_by_length: batches of similar length, which is faster but changes which rows meet.
        label_smoothing: share of each label that is spread over all classes.
        updates_per_batch: updates with each mini-batch, one after the other, each with draws of its own.
        watch_test: measure the test rows too after every epoch, for a curve; they choose nothing.
        save_steps: a checkpoint every so many steps, besides the one at each epoch's end.
        keep_checkpoints: keep them when the run is finished.
        report_to: where Trainer reports to (`tensorboard`, `wandb` and so on).
        arguments: more fields of `TrainingArguments`.
        cache_dir: for tokenised texts.
    """

    data: str
    output: str | None = None
    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    task: str | None = None
    validation: str | float | None = None
    test: str | float | None = None
    split_seed: int = 0
    drop_leaks: bool = False
    folds: int | None = None
    rare: str = "error"
    keep_together: bool = True
    fraction: float | None = None
    per_class: int | None = None
    max_train: int | None = None
    sample_seed: int = 0
    model: str = "minilm"
    trust_remote_code: bool = False
    pooling: str = "auto"
    method: str = "auto"
    method_options: dict[str, Any] = field(default_factory=dict)
    start: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    eval_batch_size: int = 64
    learning_rate: float | None = None
    head_rate: float | None = None
    freeze_words: bool | None = None
    warmup: float = 0.1
    weight_decay: float = 0.01
    scheduler: str = "cosine"
    max_length: int = 256
    patience: int = 5
    best_metric: str = "loss"
    seed: int = 0
    class_weights: str = "none"
    group_by_length: bool = False
    label_smoothing: float = 0.0
    updates_per_batch: int = 1
    watch_test: bool = False
    save_steps: int | None = None
    keep_checkpoints: bool = False
    report_to: str = "none"
    arguments: dict[str, Any] = field(default_factory=dict)
    cache_dir: str | None = None

    def check(self) -> None:
        """Raise `OptionError` for a value that cannot be used."""
        for name, least in (("epochs", 1), ("batch_size", 1), ("eval_batch_size", 1), ("max_length", 3),
                            ("patience", 0), ("save_steps", 1), ("seed", 0), ("updates_per_batch", 1)):  # fmt: skip
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise OptionError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.seed >= 2**32:
            raise OptionError(f"seed must be below 2**32, got {self.seed}")
        if self.learning_rate is not None and not 0 < self.learning_rate < 1:
            raise OptionError(f"learning_rate must lie between 0 and 1, got {self.learning_rate}")
        if self.head_rate is not None and not 0 < self.head_rate <= 1000:
            raise OptionError(f"head_rate must be above 0 and at most 1000, got {self.head_rate}")
        if not 0 <= self.weight_decay < 1:
            raise OptionError(f"weight_decay must be at least 0 and below 1, got {self.weight_decay}")
        if not 0 <= self.warmup < 1:
            raise OptionError(f"warmup must be a share of the steps, at least 0 and below 1, got {self.warmup}")
        if self.class_weights not in ("none", "balanced"):
            raise OptionError(f"class_weights must be none or balanced, got {self.class_weights!r}")
        for name, why in (("total_steps", "training knows it"), ("loss_fn", "only the Python call attach takes it")):
            if name in self.method_options:
                raise OptionError(f"method option {name!r} cannot be given here: {why}")
        for name, known in (("start", STARTS), ("rare", RARE), ("pooling", POOLINGS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise OptionError(
                    f"{name} must be one of {', '.join(known)}, got {value!r}{nearest(str(value), known)}"
                )
        if self.folds is not None:
            whole = isinstance(self.folds, int) and not isinstance(self.folds, bool)
            if not whole or self.folds < 0 or self.folds == 1 or self.folds > 100:
                raise OptionError(f"folds must be 0 (none) or a whole number from 2 to 100, got {self.folds!r}")
            if self.folds and self.validation is not None:
                raise OptionError(
                    f"folds={self.folds} holds every row out once, so validation={self.validation} does not go with "
                    f"it; leave one of them out"
                )
        if self.start == "probe" and self.pooling == "model":
            raise OptionError("start=probe needs a pooled head; use pooling mean, cls, last or auto, or start=random")
        check_arguments(self.arguments)
        if self.method in FROZEN:
            return self._check_frozen()
        from mixwell.methods import build

        build(self.mixing, {**self.method_options, "label_smoothing": self.label_smoothing})
        return None

    def _check_frozen(self) -> None:
        given: dict[str, Any] = {"label_smoothing": self.label_smoothing, "class_weights": self.class_weights != "none"}
        given |= {"option": self.method_options, "pooling model": self.pooling == "model"}
        for name, value in given.items():
            if value:
                raise OptionError(
                    f"{name} does not go with method {self.method}, which trains no encoder; leave it out"
                )

    @property
    def mixing(self) -> str:
        """The method of the fine-tuning: a name of `mixwell.methods()`."""
        return mixing_of(self.method)

    def run_folder(self) -> str:
        """The output folder, named or made up."""
        name = re.sub(r"[^\w.-]+", "-", Path(self.data).name.split(".")[0]).strip("-") or "data"
        return self.output or str(Path("runs") / f"{name}-{self.method}")

    @property
    def hold_out_from(self) -> float:
        """From how many training rows on rows are held out without being asked for."""
        return recipe.FOLDS_BELOW if self.folds is None else math.inf if self.folds else 0

    def load_data(self, progress: Callable[[int], None] | None = None) -> TextData:
        """Read, split and sample the texts; `progress` is told of the rows read."""
        from mixwell import data as texts

        found = texts.load(
            self.data, text=self.text, text_pair=self.text_pair, label=self.label, task=self.task,
            split_seed=self.split_seed, validation=self.validation, test=self.test, drop_leaks=self.drop_leaks,
            hold_out_from=self.hold_out_from, keep_together=self.keep_together, rare=self.rare, progress=progress,
        )  # fmt: skip
        return found.sample(self.fraction, self.per_class, self.max_train, self.sample_seed)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainSettings:
        """The settings of `to_dict`; raise `RunError` for names this version does not know."""
        strange = sorted(set(values) - {f.name for f in dataclasses.fields(cls)})
        if strange:
            raise RunError(f"the run has a setting {strange[0]!r} that this version of mixwell does not know")
        return cls(**{**BEFORE, **values})
