"""What is fuzzed: a function for each surface, from a generator of random numbers to one call with odd input.

Each raises what the call raises. What comes back without an error is checked against the rules: a wrong value that was
accepted without a word raises `Accepted`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from material import ODD, Material, seal, spoil_bytes, spoil_file, spoil_value


class Accepted(AssertionError):
    """Bad input was taken without a word."""


def insist(fine: bool, what: str) -> None:
    if not fine:
        raise Accepted(what)


# --- data -------------------------------------------------------------------------------------------------------------

WORDS = [
    "good",
    "bad",
    "=1+1",
    "",
    " ",
    "\x00",
    "a,b",
    '"',
    "a\nb",
    "\t",
    "é",
    "\ud83d\ude00",
    "nan",
    "None",
    "1",
    "0.5",
]


def _table(draw: random.Random) -> list[dict[str, Any]]:
    names = draw.sample(["text", "label", "text_pair", "sentence", "y", "", "text ", "0"], draw.choice([1, 2, 2, 2, 3]))
    if draw.random() < 0.7:
        names = ["text", "label", *names[2:]]
    odd = draw.choice([0.0, 0.0, 0.02, 0.3])
    words = ["good", "bad", "so", "very"] if odd == 0 else WORDS
    count = draw.choice([0, 1, 5, 12, 30, 60, 60])
    made = []
    for at in range(count):
        row: dict[str, Any] = {name: f"{draw.choice(words)} {at} film" for name in names}
        if "label" in row:
            row["label"] = draw.choice(["pos", "neg"])
        for name in names:
            if draw.random() < odd:
                row[name] = draw.choice(ODD) if draw.random() < 0.5 else draw.choice(WORDS)
        made.append(row)
    return made


def _write_table(draw: random.Random, folder: Path, table: list[dict[str, Any]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    suffix = draw.choice([".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt", ".xls", ""])
    names = list(dict.fromkeys(name for row in table for name in row)) or ["text", "label"]
    if suffix == ".parquet":
        rows = [{name: None if row.get(name) is None else str(row[name]) for name in names} for row in table]
        target = folder / "data.parquet"
        with contextlib.suppress(UnicodeError, pa.ArrowException):
            pq.write_table(pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in names])), target)
        content = target.read_bytes() if target.is_file() else b""
    elif suffix in (".jsonl", ".json"):
        lines = [json.dumps(row) for row in table]
        content = ("\n".join(lines) if draw.random() < 0.6 else "[" + ",\n".join(lines) + "]").encode()
    else:
        mark = draw.choice([",", ",", "\t", ";", "|"])
        quote = draw.random() < 0.5
        cells = [[str(row.get(name, "")) for name in names] for row in table]
        lines = [mark.join(f'"{cell}"' if quote else cell for cell in line) for line in [names, *cells]]
        content = "\n".join(lines).encode(draw.choice(["utf-8", "utf-8", "utf-16", "cp1252"]), "replace")
    if draw.random() < 0.2:
        content = spoil_bytes(draw, content)
    name = f"data{suffix}"
    if draw.random() < 0.1:
        name, content = name + ".gz", gzip.compress(content)
        content = spoil_bytes(draw, content) if draw.random() < 0.3 else content
    (folder / name).write_bytes(content)
    return folder / name


def data(draw: random.Random, material: Material) -> None:
    """A data file, read and split."""
    from mixwell import data as texts

    file = _write_table(draw, material.empty(), _table(draw))
    options: dict[str, Any] = {}
    choices = {
        "text": ["text", "nothing", ""], "label": ["label", "text"], "task": ["single_label", "regression", "x"],
        "validation": [0.1, 0.0, 1.0, "none", "x.csv", -1, math.nan], "test": [0.2, "none", 2],
        "rare": ["drop", "merge"], "drop_leaks": [True], "split_seed": [0, 7], "keep_together": [True],
    }  # fmt: skip
    for name in draw.sample(list(choices), draw.choice([0, 0, 1, 2])):
        options[name] = draw.choice(choices[name])
    found = texts.load(str(file), **options)
    for table in found.splits.values():
        insist(all(isinstance(text, str) and text.strip() for text in table["text"].to_pylist()), "an empty text")
        for label in table["label"].to_pylist():
            number = not isinstance(label, list) and found.task != "regression"
            insist(not number or 0 <= label < len(found.labels), f"label {label} of {len(found.labels)} classes")
            insist(found.task != "regression" or math.isfinite(label), f"label {label}")


# --- options and grids -----------------------------------------------------------------------------------------------


def options(draw: random.Random, material: Material) -> None:
    """Settings of training, from Python."""
    from mixwell.training import TrainSettings

    names = [field.name for field in dataclasses.fields(TrainSettings) if field.name != "data"]
    settings = TrainSettings("x.csv", **{name: draw.choice(ODD) for name in draw.sample(names, draw.choice([1, 1, 2]))})
    settings.check()
    settings.check_used()
    for name in ("trust_remote_code", "drop_leaks", "keep_checkpoints", "group_by_length", "keep_together"):
        insist(isinstance(getattr(settings, name), bool), f"{name}={getattr(settings, name)!r}")
    for name in ("epochs", "batch_size", "seed", "split_seed", "sample_seed", "save_steps", "max_length"):
        value = getattr(settings, name)
        insist(value is None or (type(value) is int and value >= 0), f"{name}={value!r}")
    for name in ("learning_rate", "warmup", "weight_decay", "label_smoothing"):
        value = getattr(settings, name)
        insist(value is None or (type(value) is float and math.isfinite(value)), f"{name}={value!r}")
    insist(settings.text is None or isinstance(settings.text, str), f"text={settings.text!r}")
    json.dumps(settings.to_dict())


def method_options(draw: random.Random, material: Material) -> None:
    """Options of methods, as texts and as values."""
    from mixwell.methods import build, load_all, method_class
    from mixwell.utils.options import typed_options

    name = draw.choice([*load_all(), "amplfy"])
    known = [
        field.name for field in dataclasses.fields(method_class(name)) if field.init
    ]  # a wrong name is refused here
    chosen = [draw.choice([*known, "samples", "alhpa"]) for _ in range(draw.choice([1, 2]))]
    if draw.random() < 0.5:
        texts = [f"{key}{draw.choice(['=', '=', ''])}{draw.choice(ODD)}" for key in chosen]
        made = build(name, typed_options(texts, method_class(name), "option"))
    else:
        made = build(name, {key: draw.choice(ODD) for key in chosen})
    for key, value in made.options().items():
        finite = not isinstance(value, float) or math.isfinite(value)
        insist(finite and (not isinstance(value, int) or abs(value) < 10**9), f"{name}: {key}={value!r}")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=True) if value is not None else '""'


def grid(draw: random.Random, material: Material) -> None:
    """A grid file, and all that is read from it before data are."""
    from mixwell.compare import grid as grids

    base = {"data": "films.csv", "methods": ["amplify", {"name": "tmix", "alpha": [0.1, 1.0]}], "seeds": 2}
    keys = [field.name for field in dataclasses.fields(grids.Grid)] + [*grids.LOADING, "strange"]
    values: dict[str, Any] = {**base}
    for key in draw.sample(keys, draw.choice([1, 2])):
        values[key] = spoil_value(draw, base[key]) if key in base else draw.choice(ODD)
    if draw.random() < 0.4:
        names = [*grids.SETTINGS, "strange"]
        values["settings"] = {name: draw.choice(ODD) for name in draw.sample(names, draw.choice([1, 2]))}
    content = "\n".join(f"{key} = {_toml(value)}" for key, value in values.items()).encode("utf-8", "replace")
    file = material.empty() / "grid.toml"
    file.write_bytes(spoil_bytes(draw, content) if draw.random() < 0.15 else content)
    made = grids.make_grid(grids.read_grid(file), {})
    insist(made.trust_remote_code is False, "a grid file allows code")
    for source in made.sources():
        insist(isinstance(source.drop_leaks, bool) and source.split_seed >= 0, f"{source}")
        insist(source.text is None or isinstance(source.text, str), f"{source}")
    made.seed_list()
    made.samples()
    made.candidates("single_label")
    if math.prod(len(value) for value in made.settings.values() if isinstance(value, list)) < 50:
        made.settings_list()
    insist(made.sample_seed is None or (type(made.sample_seed) is int and made.sample_seed >= 0), "sample_seed")


def command(draw: random.Random, material: Material) -> None:
    """Words on the command line, for a file that does not exist."""
    from mixwell.cli import main

    flags = {
        "train": ["--text", "--epochs", "--learning-rate", "--method", "--option", "--set", "--folds", "--validation",
                  "--seed", "--resume", "--model", "--pooling", "--warmup", "--rare", "--class-weights", "-o",
                  "--wrong"],
        "compare": ["--methods", "--seeds", "--grid", "--fractions", "--per-class", "--max-train", "--set", "--level",
                    "--engine", "--workers", "--threads", "--sample-seed", "-o", "--wrong", "--gpus-per-run"],
        "predict": ["-f", "-o", "--text", "--on-empty", "--batch-size", "--device", "--raw-csv", "--wrong"],
        "report": ["-f", "-o", "--level", "--title", "--raw-csv"],
        "inspect": ["--task", "--wrong"],
        "attention": ["--lam", "--lams", "--methods", "--view", "-o", "--block", "--word"],
        "paper": ["show", "table", "pack", "rerun", "--level", "--cell", "list"],
        "wrong": [],
    }  # fmt: skip
    name = draw.choice(list(flags))
    words = [name, str(material.place / "nowhere" / draw.choice(["x.csv", "x", "x.parquet"]))]
    for _ in range(draw.choice([0, 1, 2, 3])):
        if flags[name]:
            words.append(draw.choice(flags[name]))
        odd = draw.choice(
            [*map(str, ODD), "samples=" + "9" * 30, "accelerator_config=abc", "alpha=nan", "0.1,x", "1,2"]
        )
        words.append(odd.replace("\x00", "").encode("utf-8", "replace").decode())
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(words)
    insist(code in (0, 2), f"exit code {code}")
    insist("Traceback" not in said.getvalue(), said.getvalue())
    insist(code == 0 or len(said.getvalue().strip().splitlines()) == 1, f"not one line: {said.getvalue()!r}")


# --- folders ---------------------------------------------------------------------------------------------------------


def _some_file(draw: random.Random, folder: Path, *names: str) -> Path:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and (not names or path.name in names)]
    return draw.choice(files)


def model(draw: random.Random, material: Material) -> None:
    """A model folder to train from."""
    from mixwell.training import models, quiet_libraries

    folder = material.copy(material.model)
    for _ in range(draw.choice([1, 1, 2])):
        if any(path.is_file() for path in folder.iterdir()):
            spoil_file(draw, _some_file(draw, folder))
    with quiet_libraries():
        loaded = models.load(str(folder), labels=["a", "b"])
    insist(1 <= loaded.longest <= 10**9, f"longest={loaded.longest!r}")
    for name, value in loaded.model.named_parameters():
        insist(bool(value.isfinite().all()), f"{name} is not finite")


def predict(draw: random.Random, material: Material) -> None:
    """A trained model folder, and a prediction."""
    from mixwell.training.predict import Classifier

    folder = material.copy(material.run / "model")
    spoil_file(draw, _some_file(draw, folder, *draw.choice([("mixwell.json",), ("mixwell.json", "config.json"), ()])))
    made = Classifier.load(folder, device="cpu")
    found = made.predict(["a good film", "bad " * 50])
    named = list(made.model.config.id2label.values())
    insist(made.task == "single_label" and found.probabilities is not None, f"task {made.task}")
    insist(set(found.labels) <= set(named) and len(set(made.labels)) == len(named), f"labels {found.labels}")
    chances = found.probabilities
    insist(chances is not None and bool(np.isfinite(chances).all()), "a probability that is not finite")
    insist(np.allclose(chances.sum(1), 1), "probabilities that do not sum to 1")


def run(draw: random.Random, material: Material) -> None:
    """A run folder: its page, and what `--resume` does before it trains."""
    from mixwell import api
    from mixwell.report.run import page
    from mixwell.report.terminal import show_run

    folder = material.copy(material.run)
    spoil_file(draw, _some_file(draw, folder, "run.json", "metrics.json", "predictions.parquet", "splits.json"))
    if draw.random() < 0.6:
        insist("<html" in page(folder, texts=draw.random() < 0.3), "no page")
    elif (folder / "metrics.json").is_file():  # else it would train
        with contextlib.redirect_stdout(io.StringIO()):
            show_run(api.resume(folder, quiet=True))


def comparison(draw: random.Random, material: Material) -> None:
    """The folder of a comparison: its summary and its exports."""
    from mixwell.compare.records import Records
    from mixwell.compare.summary import read_summary
    from mixwell.report import compare as export

    folder = material.copy(material.comparison)
    file = _some_file(draw, folder)
    spoil_file(draw, file)
    if file.parent.parent.name == "cells" and draw.random() < 0.7:
        seal(file.parent)
    summary = read_summary(Records(folder), 0.95)
    format = draw.choice(["md", "csv", "json", "latex", "html"])
    text = export.export(summary, format, texts=False)
    insist(format != "json" or "NaN" not in text, "a number that is none in JSON")


def pack(draw: random.Random, material: Material) -> None:
    """The records of a paper's table."""
    from mixwell.papers import results, tables

    if material.pack is None:
        return
    folder = material.empty() / "pack"
    folder.mkdir()
    for name in ("run.json", "cells.jsonl", "outputs.safetensors"):
        (folder / name).write_bytes((material.pack / name).read_bytes())
    spoil_file(draw, _some_file(draw, folder))
    if draw.random() < 0.15:
        from mixwell.papers import output

        output.write(folder)
    else:
        for found in results.read(folder).runs:
            insist(math.isfinite(found.value("nll")), "a metric that is not finite")
    del tables


# --- attach ----------------------------------------------------------------------------------------------------------


def batch(draw: random.Random, material: Material) -> None:
    """A training step with an odd batch; what the plain model refuses by itself does not count."""
    import torch

    import mixwell
    import zoo
    from mixwell.methods import load_all
    from mixwell.utils.errors import MixwellError

    kind = draw.choice(["bert", "roberta", "distilbert", "gpt2", "pooled"])
    name = draw.choice(list(load_all()))
    rows = draw.choice([1, 2, 3, 6])
    plain = zoo.tiny(kind)
    values = zoo.batch(kind, rows=rows, seed=draw.randrange(99))
    harm = draw.randrange(12)
    if harm == 0:
        values["attention_mask"][:] = 0
    elif harm == 1:
        values["attention_mask"][draw.randrange(rows)] = 0
    elif harm == 2:
        del values["attention_mask"]
    elif harm == 3:
        values = {key: value[:0] for key, value in values.items()}
    elif harm == 4:
        values["labels"][0] = draw.choice([-100, 3, 99, -1])
    elif harm == 5:
        values["labels"] = values["labels"].to(draw.choice([torch.float32, torch.int32, torch.bool]))
    elif harm == 6:
        values["labels"] = values["labels"][:-1]
    elif harm == 7:
        values["input_ids"] = values["input_ids"][:, :1]
        values["attention_mask"] = values["attention_mask"][:, :1]
    elif harm == 8:
        values["attention_mask"] = values["attention_mask"].to(draw.choice([torch.float32, torch.bool, torch.int8]))
    elif harm == 9:
        values["input_ids"][0, 0] = draw.choice([10**6, -1, 59])
    elif harm == 10:
        del values["labels"]
    torch.manual_seed(0)
    plain.train()
    before, refused = None, None
    try:
        before = plain(**{key: value.clone() for key, value in values.items()}).loss
    except Exception as error:
        refused = error
    mixer = mixwell.attach(plain, name, **zoo.options(kind, name))
    try:
        loss = plain(**values).loss
        if loss is not None:
            loss.backward()
    except MixwellError:
        raise
    except Exception:
        if refused is None:
            raise
        return
    finally:
        mixer.detach()
    if before is not None and bool(torch.isfinite(before)) and loss is not None:
        insist(bool(torch.isfinite(loss)), f"{name} on {kind}: the loss is {loss.item()}, plain {before.item()}")
        for key, value in plain.named_parameters():
            insist(value.grad is None or bool(torch.isfinite(value.grad).all()), f"{name}: gradient of {key}")


# Surface -> how often it is chosen: the quick ones more often.
SURFACES: dict[Callable[[random.Random, Material], None], int] = {
    data: 20, options: 14, method_options: 10, grid: 16, command: 10, model: 4, predict: 6, run: 8, comparison: 5,
    pack: 3, batch: 6,
}  # fmt: skip
