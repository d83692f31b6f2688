"""The settings of a run of training."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixwell.training import recipe
from mixwell.training.arguments import check_arguments
from mixwell.training.heads import POOLINGS
from mixwell.utils.errors import OptionError, RunError
from mixwell.utils.options import check_choice, check_fields, check_whole

if TYPE_CHECKING:
    from mixwell.data import TextData

STARTS = ("probe", "random")
RARE = ("error", "drop", "merge")
# What settings that were added later were before they could be set: for runs and records from then.
BEFORE = {
    "pooling": "model", "start": "random", "head_rate": 1.0, "freeze_words": False, "folds": 0, "rare": "error",
    "keep_together": False, "pair_loss": 0.0, "average": 0,
}  # fmt: skip
# What only the papers' protocols set, and is no setting of a run any more: `fit` is told of it.
PROTOCOL = ("updates_per_batch", "watch_test")
# Methods that end in a logistic regression: on features that stay as they are, or on those tuned by pairs of texts.
FROZEN = ("probe", "contrastive")
# Settings of fine-tuning, which those methods use in part or not at all.
TUNING = (
    "start", "epochs", "batch_size", "learning_rate", "head_rate", "freeze_words", "pair_loss", "average", "save_steps",
)  # fmt: skip
USED = {"probe": (), "contrastive": ("batch_size", "learning_rate", "freeze_words")}


def mixing_of(method: str) -> str:
    """The name in `mixwell.methods()` of what a method of `train` fine-tunes with; `none` where it is no mixing."""
    return "none" if method in ("auto", *FROZEN) else method


DATA, MODEL, TRAINING, RUN = "Data", "Model and method", "Training", "Run"


def setting(default: Any, help: str, group: str, *flags: str, text: bool = False) -> Any:
    """Declare a setting: its default and its help, for Python, the command line, grid files and the docs alike.

    Args:
        default: its value where none is given; `None` often means that the recipe decides, and the help says so.
        help: one sentence.
        group: the part of the help it stands in.
        *flags: on the command line, if they are not made of the name alone.
        text: read a text on the command line, whatever the type says.
    """
    start: dict[str, Any] = {"default_factory": dict} if isinstance(default, dict) else {"default": default}
    return field(**start, metadata={"help": help, "group": group, "flags": flags, "text": text})


@dataclass
class TrainSettings:
    """All that decides a run; `help` of a field says what it is, `settings_table` lists them."""

    data: str
    output: str | None = setting(None, "The run folder. Default: runs/DATA-METHOD.", RUN, "--output", "-o")
    text: str | None = setting(None, "The text column, or several as in title,body. Default: found by name.", DATA)
    text_pair: str | None = setting(None, "The column of the second text.", DATA)
    label: str | None = setting(None, "The label column. Default: found by name.", DATA)
    task: str | None = setting(None, "single_label, multi_label or regression. Default: by the labels.", DATA)
    validation: str | float | None = setting(
        None,
        "A file, the share of train to cut, or none. Default: none below 10 rows, folds below 1000, else 0.1.",
        DATA,
        text=True,
    )
    test: str | float | None = setting(
        None,
        "A file, the share of train to cut, or none. Default: none where nothing or folds are held out, else 0.2.",
        DATA,
        text=True,
    )
    split_seed: int = setting(0, "Decides which rows are cut off.", DATA)
    drop_leaks: bool = setting(False, "Drop training texts that are in validation or test.", DATA, "--drop-leaks")
    folds: int | None = setting(
        None, "Hold every row out once, then train on all; 0: never. Default: 3 from 10 to 1000 rows.", DATA
    )
    rare: str = setting("error", "Classes with one row: error, drop, or merge into 'other'.", DATA)
    keep_together: bool = setting(True, "Keep rows of equal text on one side of a cut.", DATA)
    fraction: float | None = setting(None, "Share of the training rows to keep.", DATA)
    per_class: int | None = setting(None, "Training rows per class to keep.", DATA)
    max_train: int | None = setting(None, "The most training rows to keep.", DATA)
    sample_seed: int = setting(0, "Chooses the rows to keep.", DATA)
    model: str = setting("minilm", "minilm, a folder or a hub id.", MODEL, "--model", "-m")
    trust_remote_code: bool = setting(False, "Run code that comes with the model.", MODEL, "--trust-remote-code")
    pooling: str = setting(
        "auto", "auto (as the encoder was trained), model (the architecture's head), mean, cls or last.", MODEL
    )
    method: str = setting(
        "auto",
        "auto: by rows and held-out loss; probe: frozen features; contrastive: pairs; none: plain; or how to mix.",
        MODEL,
    )
    budget: float | None = setting(
        None,
        "For method auto: try mixing and label smoothing too, at the cost of at most so many plain trainings.",
        MODEL,
    )
    method_options: dict[str, Any] = setting({}, "Options of the method.", MODEL)
    start: str | None = setting(
        None, "Where the head starts: probe or random. Default: probe, where the head is pooled.", TRAINING
    )
    epochs: int | None = setting(
        None, "The most epochs. Default: by the number of rows, 4 to 10, more for few rows.", TRAINING
    )
    batch_size: int | None = setting(
        None, "Rows per step; they meet partners of the same batch. Default: 16.", TRAINING
    )
    eval_batch_size: int = setting(64, "Rows at once in evaluation.", TRAINING)
    learning_rate: float | None = setting(
        None, "The highest learning rate. Default: by the size of the model.", TRAINING
    )
    head_rate: float | None = setting(
        None, "How many times the learning rate a new head has. Default: 10 for a pooled head.", TRAINING
    )
    freeze_words: bool | None = setting(
        None, "Keep the word embeddings as they are. Default: below 5000 rows.", TRAINING
    )
    pair_loss: float | None = setting(
        None,
        "Weight of a loss that pulls texts of one class together; plain training only. Default: by rows per class.",
        TRAINING,
    )
    average: int | None = setting(
        None, "Keep the mean of the weights over about so many updates; 0: the last weights. Default: 40.", TRAINING
    )
    warmup: float = setting(0.1, "Share of the steps in which the learning rate rises.", TRAINING)
    weight_decay: float = setting(0.01, "Weight decay of AdamW.", TRAINING)
    scheduler: str = setting("cosine", "How the learning rate falls: Trainer's name for it.", TRAINING)
    max_length: int = setting(256, "The most tokens per row.", MODEL)
    patience: int = setting(
        5, "Epochs without a better validation metric before stopping, at most 3 with folds; 0: never.", TRAINING
    )
    best_metric: str = setting("loss", "Validation metric that chooses the epoch.", TRAINING)
    seed: int = setting(0, "Of head, order, dropout and mixing.", TRAINING)
    class_weights: str = setting("none", "none, or balanced by class frequency.", TRAINING)
    group_by_length: bool = setting(
        False,
        "Batches of similar length: faster on texts of many lengths, but changes which rows meet.",
        TRAINING,
        "--group-by-length",
    )
    abstain: float = setting(
        0.95, "Share of right answers that the model folder's threshold is chosen for, on held-out rows.", RUN
    )
    label_smoothing: float = setting(0.0, "Share of each label that is spread over all classes.", TRAINING)
    save_steps: int | None = setting(None, "A checkpoint every so many steps too.", RUN)
    keep_checkpoints: bool = setting(False, "Keep checkpoints when the run is finished.", RUN, "--keep-checkpoints")
    report_to: str = setting("none", "Where Trainer reports to: tensorboard, wandb and so on.", RUN)
    arguments: dict[str, Any] = setting({}, "More fields of TrainingArguments.", TRAINING)
    cache_dir: str | None = setting(None, "For tokenised texts. Default: the user's cache.", RUN)

    def check(self) -> None:
        """Raise `OptionError` for a value that cannot be used."""
        check_fields(self, apart=("data",))  # which may be any source of texts
        for name, least in (("epochs", 1), ("batch_size", 1), ("eval_batch_size", 1), ("max_length", 3),
                            ("patience", 0), ("save_steps", 1), ("average", 0), ("seed", 0), ("split_seed", 0),
                            ("sample_seed", 0)):  # fmt: skip
            if getattr(self, name) is not None:
                check_whole(getattr(self, name), name, least)
        for name, fits, what in (
            ("seed", self.seed < 2**32, "be below 2**32"),
            ("learning_rate", self.learning_rate is None or 0 < self.learning_rate < 1, "lie between 0 and 1"),
            ("head_rate", self.head_rate is None or 0 < self.head_rate <= 1000, "be above 0 and at most 1000"),
            ("pair_loss", 0 <= (self.pair_loss or 0) <= 1000, "be at least 0 and at most 1000"),
            ("weight_decay", 0 <= self.weight_decay < 1, "be at least 0 and below 1"),
            ("warmup", 0 <= self.warmup < 1, "be a share of the steps, at least 0 and below 1"),
            ("abstain", 0 < self.abstain <= 1, "be a share of right answers, above 0 and at most 1"),
        ):
            if not fits:
                raise OptionError(f"{name} must {what}, got {getattr(self, name)}")
        if self.pair_loss and self.mixing != "none":
            raise OptionError(
                f"pair_loss goes with plain training, not with {self.mixing}: mixed rows have no one class"
            )
        if self.class_weights not in ("none", "balanced"):
            raise OptionError(f"class_weights must be none or balanced, got {self.class_weights!r}")
        for name, why in (("total_steps", "training knows it"), ("loss_fn", "only the Python call attach takes it")):
            if name in self.method_options:
                raise OptionError(f"method option {name!r} cannot be given here: {why}")
        for name, known in (("start", STARTS), ("rare", RARE), ("pooling", POOLINGS)):
            if getattr(self, name) is not None:
                check_choice(getattr(self, name), name, known)
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
        if self.budget is not None:
            self._check_budget()
        check_arguments(self.arguments)
        if self.method in FROZEN:
            return self._check_frozen()
        from mixwell.methods import build
        from mixwell.methods.registry import without_auto

        options = without_auto(self.mixing, self.method_options)
        build(self.mixing, {**options, "label_smoothing": self.label_smoothing})
        return None

    def _check_budget(self) -> None:
        assert self.budget is not None
        if not 0 < self.budget < math.inf:
            raise OptionError(f"budget must be a number of plain trainings above 0, got {self.budget}")
        if self.method != "auto":
            raise OptionError(f"budget goes with method auto, which chooses; method {self.method} leaves no choice")
        for name, given in (("label_smoothing", self.label_smoothing), ("option", self.method_options)):
            if given:
                raise OptionError(f"{name} does not go with budget, which tries several ways to train; leave one out")

    def _check_frozen(self) -> None:
        given: dict[str, Any] = {"label_smoothing": self.label_smoothing, "class_weights": self.class_weights != "none"}
        given |= {"option": self.method_options, "pooling model": self.pooling == "model"}
        for name, value in given.items():
            if value:
                raise OptionError(
                    f"{name} does not go with method {self.method}, which trains no encoder; leave it out"
                )

    def uses(self, name: str) -> bool:
        """Whether the method uses a setting of fine-tuning."""
        return name not in TUNING or name in USED.get(self.method, TUNING)

    @property
    def asks_for_fine_tuning(self) -> bool:
        """Whether a setting was given that only fine-tuning of a head uses."""
        given = [name for name in TUNING if getattr(self, name) is not None and name not in USED["contrastive"]]
        plain = not (self.method_options or self.label_smoothing or self.class_weights != "none")
        given += ["budget"] if self.budget is not None else []
        return bool(given or self.arguments or self.best_metric != "loss") or not plain

    def check_used(self) -> None:
        """Raise `OptionError` for a setting that was given and that the method does not use."""
        for name in TUNING:
            if getattr(self, name) is not None and not self.uses(name):
                raise OptionError(f"{name} does not go with method {self.method}, which does not use it; leave it out")

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
        from mixwell import data as texts  # not at the top: the command line reads this file for its help

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
        values = {name: value for name, value in values.items() if name not in PROTOCOL}
        strange = sorted(set(values) - {f.name for f in dataclasses.fields(cls)})
        if strange:
            raise RunError(f"the run has a setting {strange[0]!r} that this version of mixwell does not know")
        return cls(**{**BEFORE, **values})
