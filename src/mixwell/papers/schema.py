"""What a protocol file holds: the papers' experiments as data, one TOML file of this folder per paper.

The tables and keys (a star marks what must be there):

    [paper]                 key*, title*, authors*, reference*, text* (what of the paper was available), arxiv, notes
    [models.KEY]            title*, source* (hub id), blocks*, heads*
    [datasets.KEY]          title*; folder (local name), hub (id), label and hub_label (columns), classes, metric,
                            splits (train, validation, test = "SPLIT", "SPLIT:ROWS" or "SPLIT:25%" of the source),
                            published (the sizes the paper gives), training and options (what differs for this data
                            set), difference (of what is measured here), local (how our local copy differs),
                            available (what a user has to bring), kin (the same word for data sets with texts in
                            common); derived (a column of the table that is computed from others: such a data set has
                            nothing else)
    [scales.small|smoke]    defaults for every experiment of the file, see below
    [experiments.NAME]
      kind*                 "table" or "figure"
      title*, shows*        a title, and what it shows in our words
      number*               where it stands in the paper, such as "Table 2"
      model                 key of a model
      datasets              keys of data sets
      rows                  label* and either derived, or method* with options; blocks (1-based, of the paper's model;
                            they become `layers` at the same relative depth; a method may be probe, tfidf or auto
                            too), draws (updates per mini-batch, each
                            with draws of its own), fault ("label_permutation": the labels get a second permutation),
                            ours (not in the paper), expand (option -> values: one row for each combination, the label
                            is a format string), notes
      sizes                 "full", "25%" (a fraction of train), "32" (so many rows) or "8 per class"
      recipe                whatever `training` leaves open is that of `mixwell train` (pooling, head, epochs, rates); a
                            paper's protocol has the head of the architecture and AMPLIFY's numbers there
      conditions            label_noise, imbalance, typos, overtrain and so on, as in `mixwell compare`; the seed draws
      seeds                 how many
      metrics               measured besides each data set's own
      training              see `TRAINING`; best_metric "main" is the data set's own metric
      unstated              those keys of `training` which the paper does not state: the values are ours
      departs               those which the paper states otherwise; the notes say why
      curve                 a figure's quantity over training: "train_loss" or "test_loss"
      parameters            of figures that are not trained by the compare engine
      published             blocks of numbers as printed ("81.20 ± 0.442"): either metric + columns (data sets), or
                            dataset + metrics; size; [..values] row label -> one text per column
      spread_kind           what stands behind the ±
      factor                published value = measured value * factor
      claims                says* (our words), metric, of ("value" or "spread"), datasets, sizes, above, below (rows:
                            each of `above` is better than each of `below`), difference or ratio (the published size)
      skip                  rows, datasets, sizes whose combinations are not run
      not_run               what*, why*; local (does not apply to data from the hub)
      notes                 what somebody who repeats it must know
      scales.small|smoke    model, datasets, rows, sizes, beside (size here -> published size it stands next to), seeds,
                            test_rows, validation_rows, training, skip, parameters, notes

`full` is the paper's protocol; `small` is for two CPU cores; `smoke` runs on the sample data with a tiny random model.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mixwell.utils.errors import OptionError

SCALES = ("full", "small", "smoke")
SPLITS = ("train", "validation", "test")
OURS = "Our question: "  # how claims begin that are no paper's
FAULTS = ("label_permutation",)
CURVES = ("train_loss", "test_loss")
# Metrics -> whether higher is better. The first six are names of `mixwell.metrics.scores.METRICS`; `_after` is after
# the temperature, and `nll_last` the validation loss of the last epoch; no paper has them.
METRICS = {
    "accuracy": True,
    "mcc": True,
    "macro_f1": True,
    "aurc": False,
    "nll": False,
    "ece": False,
    "nll_after": False,
    "ece_after": False,
    "nll_last": False,
    "minutes_per_epoch": False,
    "seconds_saved": False,
    "train_loss": False,
    "time_ratio": False,
}
# Training settings. The first ones are fields of `TrainSettings`; then fields of TrainingArguments; dropout is stated
# for the record: it is the models' own default.
SETTINGS = {
    "learning_rate", "batch_size", "epochs", "max_length", "warmup", "scheduler", "weight_decay", "patience",
    "best_metric",
}  # fmt: skip
ARGUMENTS = {"adam_epsilon", "max_steps"}
TRAINING = SETTINGS | ARGUMENTS | {"dropout"}


@dataclass(frozen=True)
class Paper:
    """Where a protocol comes from; `text` says what of the paper was available."""

    key: str
    title: str
    authors: str
    reference: str
    text: str
    arxiv: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PaperModel:
    """A model: `source` is what `mixwell.training.models` loads; `tiny` is the runner's random model."""

    key: str
    title: str
    source: str
    blocks: int
    heads: int


@dataclass(frozen=True)
class SplitPart:
    """Where a split comes from: a split of the source, and how many or which share of its rows (None: what is left)."""

    source: str
    rows: int | None = None
    share: float | None = None

    @property
    def text(self) -> str:
        """As it is written."""
        more = f":{self.rows}" if self.rows is not None else f":{100 * self.share:g}%" if self.share is not None else ""
        return f"{self.source}{more}"


@dataclass(frozen=True)
class DataSet:
    """A data set of a paper and where a user can have it; see the module's text for the fields."""

    key: str
    title: str
    folder: str | None = None
    hub: str | None = None
    label: str = "label"
    hub_label: str | None = None
    classes: int | None = None
    metric: str = "accuracy"
    splits: dict[str, SplitPart] = field(default_factory=dict)
    published: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    difference: str | None = None
    local: str | None = None
    available: str | None = None
    derived: str | None = None
    kin: str | None = None

    @property
    def texts(self) -> str:
        """The same for data sets that have texts in common."""
        return self.kin or self.folder or self.key


@dataclass(frozen=True)
class TableRow:
    """A row of a table: a method with its options, or `derived` from other rows."""

    label: str
    method: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    blocks: tuple[int, ...] = ()
    draws: int = 1
    fault: str | None = None
    ours: bool = False
    derived: str | None = None
    notes: str | None = None

    def options_at(self, depth: int | None, published_depth: int) -> dict[str, Any]:
        """Return the method's options for a model of `depth` blocks.

        Blocks, 1-based in a model of `published_depth`, become `layers`, 0-based at the same relative depth.
        """
        if not self.blocks:
            return dict(self.options)
        if depth is None:
            raise OptionError(f"row {self.label!r} names blocks: say how many blocks the model has (depth=)")
        return {**self.options, "layers": sorted({-(-block * depth // published_depth) - 1 for block in self.blocks})}


@dataclass(frozen=True)
class Size:
    """How much of train a label stands for: one of the three, or all of it."""

    fraction: float | None = None
    per_class: int | None = None
    max_train: int | None = None


def parse_size(label: str) -> Size:
    """What "full", "25%", "32" or "8 per class" stands for."""
    if label == "full" or label == "100%":
        return Size()
    if re.fullmatch(r"\d+(\.\d+)?%", label) and 0 < float(label[:-1]) < 100:
        return Size(fraction=float(label[:-1]) / 100)
    if match := re.fullmatch(r"([1-9]\d*)( per class)?", label):
        return Size(per_class=int(match[1])) if match[2] else Size(max_train=int(match[1]))
    raise ValueError(
        f"size {label!r} is not 'full', a percentage such as '25%', a number of rows such as '32' or '8 per class'"
    )


@dataclass(frozen=True)
class PublishedNumber:
    """One published number; `printed` is how the paper prints it."""

    row: str
    dataset: str
    size: str
    metric: str
    value: float
    spread: float | None
    printed: str


@dataclass(frozen=True)
class ClaimVerdict:
    """One pair of a claim: by how much `above` is better than `below`; None if one of them is not known."""

    above: str
    below: str
    dataset: str
    size: str
    difference: float | None
    holds: bool | None


@dataclass(frozen=True)
class Claim:
    """What a paper says of its numbers, in our words."""

    says: str
    metric: str = "accuracy"
    of: str = "value"
    datasets: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    difference: float | None = None
    ratio: float | None = None

    def judge(self, values: Mapping[tuple[str, str, str], float]) -> list[ClaimVerdict]:
        """Hold the claim against numbers, published or measured; a tie does not bear it out.

        Args:
            values: (row, data set, size) -> value of the claim's metric.
        """
        sign = 1 if METRICS[self.metric] and self.of == "value" else -1
        verdicts = []
        for dataset, size in itertools.product(self.datasets, self.sizes):
            for above, below in itertools.product(self.above, self.below):
                pair = values.get((above, dataset, size)), values.get((below, dataset, size))
                if pair[0] is None or pair[1] is None:
                    verdicts.append(ClaimVerdict(above, below, dataset, size, None, None))
                else:
                    better = round(sign * (pair[0] - pair[1]), 9)
                    verdicts.append(ClaimVerdict(above, below, dataset, size, better, better > 0))
        return verdicts


@dataclass(frozen=True)
class NotRun:
    """What cannot run without more than the project has, and why."""

    what: str
    why: str
    local: bool = False


@dataclass(frozen=True)
class Skip:
    """Combinations that are not run; an empty list stands for all."""

    rows: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()

    def covers(self, row: str, dataset: str, size: str) -> bool:
        """Whether a combination is left out."""
        wanted = ((self.rows, row), (self.datasets, dataset), (self.sizes, size))
        return all(not known or value in known for known, value in wanted)


@dataclass(frozen=True)
class Scale:
    """What differs from the paper's protocol; None and empty mean: as in the paper."""

    name: str
    model: str | None = None
    datasets: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    beside: dict[str, Any] = field(default_factory=dict)
    seeds: int | None = None
    test_rows: int | None = None
    validation_rows: int | None = None
    training: dict[str, Any] = field(default_factory=dict)
    skip: tuple[Skip, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


MODELS = {
    "minilm": PaperModel("minilm", "all-MiniLM-L6-v2", "minilm", blocks=6, heads=12),
    "tiny": PaperModel("tiny", "a tiny random BERT", "tiny", blocks=3, heads=2),
}
SAMPLE = DataSet("sample", "the bundled sample data", classes=12, published={})
