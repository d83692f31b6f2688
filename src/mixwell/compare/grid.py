"""What to compare: data sets, samples, models, methods, settings and seeds, from a command line or a TOML file.

A grid file has the options of `mixwell compare` under their names, with lists where several are wanted:

    data = ["reviews.csv", "news/"]       # or one text; as arguments of the command they replace these
    methods = [
        "amplify",
        "tmix:alpha=0.5",                 # as on the command line
        { name = "manifold", alpha = [0.2, 1.0] },   # a list of values: one candidate each, all combinations
    ]
    seeds = 5                             # 0 to 4; or a list such as [3, 14, 15]
    fractions = [0.1, 1.0]                # shares of train: one comparison each
    per_class = [16]                      # further samples, by rows per class
    max_train = 2000                      # caps all samples
    max_test = 1000                       # a fixed choice of test rows
    model = "minilm"                      # or a list
    label_noise = [0.0, 0.3]              # conditions: a list makes a comparison each
    noise = "confusion"                   # or "uniform"
    typos = 0.1
    typos_in = "both"                     # or "train", "test"
    imbalance = 10
    overtrain = true
    tests = { news = "news.csv" }         # further test sets, by name
    ood = "other.csv"                     # texts of another kind
    # and as in `mixwell train`: text, text_pair, label, task, validation, test, split_seed, drop_leaks, sample_seed

    [settings]                            # of training; a list of values: one comparison each, all combinations
    epochs = 5
    learning_rate = [1e-4, 2e-4]

    [settings.arguments]                  # fields of TrainingArguments, one value each
    max_grad_norm = 0.5

Options on the command line win over the file, and code that comes with a model runs by --trust-remote-code alone.
`none`, `none` with label smoothing, and what needs no fine-tuning (a probe on the frozen model, TF-IDF) are always
among the methods; `references = false` leaves the last two out.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixwell.compare.conditions import Conditions, TestFile
from mixwell.compare.spec import (
    BASELINE,
    REFERENCES,
    SMOOTHING,
    Candidate,
    DataSource,
    Sample,
    candidate,
    options_class,
)
from mixwell.training.settings import TrainSettings
from mixwell.utils.errors import OptionError, nearest
from mixwell.utils.options import check_whole, of_type, typed_options

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - older Pythons
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

SETTINGS = (
    "epochs", "batch_size", "eval_batch_size", "learning_rate", "warmup", "weight_decay", "scheduler", "max_length",
    "patience", "best_metric", "class_weights", "group_by_length", "pooling", "start",
    "head_rate", "freeze_words", "arguments",
)  # fmt: skip
LOADING = tuple(
    f.name for f in dataclasses.fields(DataSource) if f.name not in ("data", "splits_file", "keep_together")
)
MOST_SEEDS = 10_000
LISTS = ("data", "methods", "fractions", "per_class", "model", "label_noise", "typos", "imbalance")


@dataclass
class Grid:
    """A comparison as it was requested.

    Attributes:
        data: files, folders or hub ids.
        methods: texts such as `tmix:alpha=0.5`, or tables with `name` and options.
        seeds: how many, from 0 on, or which.
        fractions: shares of train.
        per_class: rows per class.
        max_train: the most rows of train.
        max_test: the most test rows.
        sample_seed: chooses the rows of a sample for all seeds alike; None draws them anew for each seed.
        model: names or folders.
        trust_remote_code: run code that comes with a model.
        references: add the rows of `REFERENCES`, which train no model.
        loading: further fields of `DataSource`.
        settings: of training; a list of values is a grid, `arguments` apart.
        label_noise, noise, typos, typos_in, imbalance, overtrain: see `Conditions`; lists are a grid.
        tests: further test sets, name -> file.
        ood: a file with texts of another kind.
    """

    data: list[str] = field(default_factory=list)
    methods: list[str | dict[str, Any]] = field(
        default_factory=lambda: ["amplify:consistent=true:draw=folded:alpha=1", "manifold"]
    )
    seeds: int | list[int] = 5
    fractions: list[float] = field(default_factory=list)
    per_class: list[int] = field(default_factory=list)
    max_train: int | None = None
    max_test: int | None = None
    sample_seed: int | None = None
    model: list[str] = field(default_factory=lambda: ["minilm"])
    trust_remote_code: bool = False
    references: bool = True
    loading: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    label_noise: list[float] = field(default_factory=lambda: [0.0])
    noise: str = "uniform"
    typos: list[float] = field(default_factory=lambda: [0.0])
    typos_in: str = "train"
    imbalance: list[float] = field(default_factory=lambda: [1.0])
    overtrain: bool = False
    tests: dict[str, str] = field(default_factory=dict)
    ood: str | None = None

    def conditions(self) -> list[Conditions]:
        """The conditions, each checked, without their seeds and the fingerprints of files."""
        if not isinstance(self.tests, dict) or not all(isinstance(path, str) and path for path in self.tests.values()):
            raise OptionError(
                f"tests must be a table of names and files, such as {{news = 'news.csv'}}, got {self.tests!r}"
            )
        if self.ood is not None and not isinstance(self.ood, str):
            raise OptionError(f"ood must be a file, got {self.ood!r}")
        for name in ("label_noise", "typos", "imbalance"):
            if not getattr(self, name):
                raise OptionError(f"the grid is empty: {name} has no values")
        common: dict[str, Any] = {
            "noise": self.noise,
            "typos_in": self.typos_in,
            "overtrain": self.overtrain,
            "tests": tuple(TestFile(name, path) for name, path in self.tests.items()),
            "ood": None if self.ood is None else TestFile("ood", self.ood),
        }
        made = []
        for imbalance, noise, typos in itertools.product(self.imbalance, self.label_noise, self.typos):
            one = Conditions(label_noise=noise, typos=typos, imbalance=imbalance, **common)
            one.check()
            # What has no effect makes no other comparison.
            kind, where = one.noise if noise else "uniform", one.typos_in if typos else "train"
            made.append(dataclasses.replace(one, noise=kind, typos_in=where))
        return list(dict.fromkeys(made))

    def sources(self) -> list[DataSource]:
        """The data sets."""
        if not self.data:
            raise OptionError("the grid is empty: name at least one data set (a file, a folder or a hub id)")
        return [DataSource(source, **{"keep_together": True, **self.loading}) for source in self.data]

    def seed_list(self) -> list[int]:
        """The seeds."""
        if isinstance(self.seeds, int) and not isinstance(self.seeds, bool):
            if self.seeds < 1:
                raise OptionError(f"seeds must be at least 1, got {self.seeds}; 5 are a good number")
            if self.seeds > MOST_SEEDS:
                raise OptionError(f"seeds must be at most {MOST_SEEDS:,}; 5 are a good number")
            return list(range(self.seeds))
        if not isinstance(self.seeds, list) or not self.seeds:
            raise OptionError(f"seeds must be a number of at least 1 or a list of seeds, got {self.seeds!r}")
        for seed in self.seeds:
            if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
                raise OptionError(f"a seed must be a whole number of at least 0 and below 2**32, got {seed!r}")
        if len(set(self.seeds)) < len(self.seeds):
            raise OptionError(f"seeds {self.seeds} name one twice")
        return list(self.seeds)

    def samples(self) -> list[Sample]:
        """The samples, without their seeds."""
        for name, value in (("max_train", self.max_train), ("max_test", self.max_test)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}")
        for share in self.fractions:
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
                raise OptionError(f"fractions must lie above 0 and at most at 1, got {share!r}")
        for rows in self.per_class:
            if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
                raise OptionError(f"per_class must be whole numbers of at least 1, got {rows!r}")
        cap = self.max_train
        samples = [Sample(None if share == 1 else float(share), None, cap) for share in self.fractions]
        samples += [Sample(None, rows, cap) for rows in self.per_class]
        return list(dict.fromkeys(samples or [Sample(None, None, cap)]))

    def candidates(self, task: str) -> list[Candidate]:
        """The methods: plain training first, then with label smoothing, then what needs no training of the model."""
        if not self.methods:
            raise OptionError("the grid is empty: name at least one method")
        wanted: list[tuple[str, dict[str, Any]]] = [(BASELINE, {})]
        if task != "regression":
            wanted.append((BASELINE, {"label_smoothing": SMOOTHING}))
        if self.references:
            wanted += [(name, {}) for name in REFERENCES]
        for entry in self.methods:
            wanted += _expanded(entry)
        candidates = [candidate(name, options) for name, options in wanted]
        return list({one.label: one for one in candidates}.values())

    def settings_list(self) -> list[dict[str, Any]]:
        """All combinations of the settings, each checked."""
        for name in self.settings:
            if name not in SETTINGS:
                raise OptionError(f"setting {name!r} is unknown{nearest(name, SETTINGS)}; known: {', '.join(SETTINGS)}")
        defaults = {f.name: f.default for f in dataclasses.fields(TrainSettings)}
        values = {name: self.settings.get(name, {} if name == "arguments" else defaults[name]) for name in SETTINGS}
        hints = typing.get_type_hints(TrainSettings)
        choices = [
            [of_type(one, hints[name], f"setting {name}") for one in (value if isinstance(value, list) else [value])]
            for name, value in values.items()
        ]
        if not all(choices):
            empty = next(name for name, choice in zip(values, choices) if not choice)
            raise OptionError(f"the grid is empty: setting {empty!r} has no values")
        combinations = [dict(zip(values, chosen)) for chosen in itertools.product(*choices)]
        for settings in combinations:
            TrainSettings(data="", method=BASELINE, **settings).check()
        return combinations


# --- methods as texts and tables --------------------------------------------------------------------------------------


def split_methods(text: str) -> list[str]:
    """Cut `none,tmix:alpha=0.5,amplify:layers=[0,1]` at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for index, sign in enumerate(text):
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _expanded(entry: str | Mapping[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """The method of a text, or the methods of a table whose options have lists of values."""
    if isinstance(entry, str):
        name, *options = (part.strip() for part in entry.split(":"))
        if name in REFERENCES:
            return [(name, dict.fromkeys(options))]
        return [(name, typed_options(options, options_class(name), f"method {name}: option"))]
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise OptionError(f"a method must be a text, or a table with a name, got {entry!r}")
    name = entry["name"]
    hints = typing.get_type_hints(options_class(name))
    options = [key for key in entry if key != "name"]
    choices = [_choices(entry[key], hints.get(key)) for key in options]
    if not all(choices):
        raise OptionError(f"the grid is empty: method {name} has an option without values")
    return [(name, dict(zip(options, chosen))) for chosen in itertools.product(*choices)]


def _choices(value: Any, hint: Any) -> list[Any]:
    """The values of an option; for one that is a list itself, several are a list of lists."""
    if not isinstance(value, list):
        return [value]
    listed = any(typing.get_origin(kind) is not None for kind in (hint, *typing.get_args(hint)) if kind is not None)
    listed = listed and "Sequence" in str(hint)
    return [value] if listed and not any(isinstance(item, list) for item in value) else value


# --- files -----------------------------------------------------------------------------------------------------------


def read_grid(path: str | Path) -> dict[str, Any]:
    """Read a grid file; the schema is at the top of this module.

    Raises:
        OptionError: the file is missing, no TOML, or has an unknown name.
    """
    try:
        with open(path, "rb") as stream:
            values = tomllib.load(stream)
    except OSError as error:
        raise OptionError(f"grid {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"grid {path}: not a TOML file ({error})") from error
    known = [f.name for f in dataclasses.fields(Grid) if f.name != "loading"]
    for name in values:
        if name not in (*known, *LOADING):
            raise OptionError(f"grid {path}: {name!r} is unknown{nearest(name, [*known, *LOADING])}")
    if not values:
        raise OptionError(f"grid {path}: the grid is empty; it needs at least data and methods")
    if not isinstance(values.get("settings", {}), dict):
        raise OptionError(f"grid {path}: settings must be a table ([settings])")
    if values.pop("trust_remote_code", False) is not False:
        raise OptionError(
            f"grid {path}: trust_remote_code cannot be allowed by a file; if you trust the code that comes with the "
            f"model, add --trust-remote-code to the command"
        )
    return values


def make_grid(file: Mapping[str, Any], given: Mapping[str, Any]) -> Grid:
    """The grid of a file's values and those given in addition, which win.

    Args:
        file: from `read_grid`, or empty.
        given: fields of `Grid` and `DataSource`; None counts as not given. `settings` are joined name by name.
    """
    given = {name: value for name, value in given.items() if value is not None}
    values = {**file, **given, "settings": {**file.get("settings", {}), **given.get("settings", {})}}
    for name in LISTS:
        if name in values and not isinstance(values[name], list):
            values[name] = [values[name]]
    for name in ("data", "model"):
        if not all(isinstance(text, str) and text for text in values.get(name, [])):
            raise OptionError(f"{name} must be texts, got {values[name]!r}")
    if "model" in values and not values["model"]:
        raise OptionError("the grid is empty: it names no model")
    _check_types(values)
    loading = {name: values.pop(name) for name in LOADING if name in values}
    return Grid(**values, loading=loading)


def _check_types(values: Mapping[str, Any]) -> None:
    """Raise `OptionError` for a value of a wrong type: by the field of `TrainSettings`, or of `Grid` if it has one."""
    hints = {**typing.get_type_hints(TrainSettings), **typing.get_type_hints(Grid)}
    for name, value in values.items():
        if name not in (*LISTS, "seeds", "settings"):  # those have checks of their own
            of_type(value, hints[name], name)
        if name in ("sample_seed", "split_seed") and value is not None:
            check_whole(value, name, 0)


def numbers(text: str | None, kind: type, what: str) -> list[Any] | None:
    """Read `0.1,1.0` as a list of numbers."""
    if text is None:
        return None
    try:
        values = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise OptionError(f"{what}: {text!r} is not a list of numbers such as 1,2") from error
    if not values:
        raise OptionError(f"{what}: the list is empty")
    return values
