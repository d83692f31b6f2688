"""What the fuzzer starts from: a tiny model, a run, a comparison and a pack, made once; and ways to spoil them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from test_training import make_model, rows, write_csv

HUGE = int("9" * 30)
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, float("nan"), float("inf"), HUGE, -HUGE, "", " ", "a", "0", "1",
    "-1", "nan", "none", "no", "true", "[]", "\x00", "\ud800", "\u202e", "é" * 40, "../..", "/proc/self/mem", "=1+1",
    [], [None], [1], ["a", "a"], [[]], {}, {"a": 1}, {"name": "amplify"}, "x" * 5000, "minilm", "probe", "amplify",
    "balanced", 0.5,
]  # fmt: skip


class Material:
    """The folders that cases are made from.

    Attributes:
        place: a folder for all of it.
        model: a tiny BERT without a head.
        data: a table of texts.
        run: a finished run.
        comparison: a finished comparison.
        pack: records of a paper's table.
    """

    def __init__(self, place: Path) -> None:
        from mixwell import api
        from mixwell.compare import grid as grids
        from mixwell.compare.run import run
        from mixwell.training import TrainSettings

        os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", MIXWELL_CACHE=str(place / "cache"))
        self.place = place
        self.model = make_model(place / "tiny")
        self.data = write_csv(place / "films.csv", rows(60))
        fast = {"epochs": 1, "batch_size": 8, "learning_rate": 0.003}
        settings = TrainSettings(
            str(self.data), model=str(self.model), output=str(place / "run"), method="none", folds=0, **fast
        )
        self.run = api.train(settings, quiet=True).folder
        grid = grids.make_grid(
            {}, {"data": str(self.data), "model": str(self.model), "seeds": 2, "methods": ["amplify"],
                 "references": False, "settings": {**fast, "patience": 0}},
        )  # fmt: skip
        self.comparison = run(grid, place / "comparison").folder
        results = Path(__file__).parents[2] / "docs" / "results"
        packs = sorted(results.glob("*/cells.jsonl"), key=lambda path: path.stat().st_size)
        self.pack = packs[0].parent if packs else None
        self._turn = 0

    def copy(self, folder: Path) -> Path:
        """A copy to spoil, in the place of the one before."""
        target = self.place / "case" / folder.name
        self.clear()
        return Path(shutil.copytree(folder, target))

    def empty(self) -> Path:
        """An empty folder, in the place of what was there before."""
        self.clear()
        return self.place / "case"

    def clear(self) -> None:
        """Remove what the case before left."""
        shutil.rmtree(self.place / "case", ignore_errors=True)
        (self.place / "case").mkdir()


def spoil_bytes(draw: random.Random, content: bytes) -> bytes:
    """Cut, flip, double or replace some bytes."""
    kind = draw.randrange(7)
    at = draw.randrange(len(content) + 1)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + draw.randbytes(draw.choice([1, 3, 50])) + content[at:]
    if kind == 2 and content:
        changed = bytearray(content)
        for _ in range(draw.choice([1, 5, 40])):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed)
    if kind == 3:
        return content[:at] + content[at + draw.choice([1, 8, 100]) :]
    if kind == 4:
        return draw.choice([b"", b"\x00", b"{}", b"[]", b"null", b"3", b'"a"', b"\xff\xfe", b"[" * 5000, b"PK\x03\x04"])
    return content[:at] + content[at // 2 :] if kind == 5 else content


def spoil_value(draw: random.Random, value: Any) -> Any:
    """Replace, remove or add something somewhere in plain JSON values."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        name = draw.choice(list(value))
        if draw.random() < 0.12:
            return {key: part for key, part in value.items() if key != name}
        return {**value, name: spoil_value(draw, value[name])}
    if isinstance(value, list) and value and draw.random() < 0.6:
        at = draw.randrange(len(value))
        if draw.random() < 0.2:
            return value[:at] + value[at + 1 :]
        return [*value[:at], spoil_value(draw, value[at]), *value[at + 1 :]]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and draw.random() < 0.3:
        return draw.choice([value + 1, -value, value * 7, str(value), float(value)])
    return draw.choice(ODD)


def spoil_file(draw: random.Random, file: Path) -> None:
    """Spoil one file: its values if it is JSON, else its bytes; or remove it, or put a folder in its place."""
    kind = draw.random()
    if kind < 0.06:
        file.unlink()
    elif kind < 0.09:
        file.unlink()
        file.mkdir()
    elif kind < 0.85 and (value := _values(file)) is not None:
        for _ in range(draw.choice([1, 1, 2, 4])):
            value = spoil_value(draw, value)
        file.write_text(json.dumps(value), encoding="utf-8", errors="surrogatepass")
    elif file.suffix == ".safetensors" and kind < 0.7:
        spoil_tensors(draw, file)
    else:
        file.write_bytes(spoil_bytes(draw, file.read_bytes()))


def _values(file: Path) -> Any:
    """What a JSON file holds; None if it is another file, or spoiled already."""
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.suffix == ".json" else None
    except (ValueError, RecursionError):
        return None


def spoil_tensors(draw: random.Random, file: Path) -> None:
    """Change shapes, names, types or values of a file of tensors, which stays one."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save_file

    try:
        arrays = dict(load_file(file))
    except SafetensorError:  # spoiled already
        file.write_bytes(b"")
        return
    name = draw.choice(sorted(arrays))
    array, kind = arrays.pop(name).copy(), draw.randrange(5)
    if kind == 0 and array.size and array.dtype.kind == "f":
        array.flat[draw.randrange(array.size)] = draw.choice([np.nan, np.inf, -np.inf, 1e30])
    elif kind == 1:
        array = array[:-1] if len(array.shape) else array
    elif kind == 2:
        array = array.astype(draw.choice(["float16", "int8", "int64"]), casting="unsafe")
    elif kind == 3:
        array = array[..., None]
    if kind < 4:
        arrays[name] = array
    with np.errstate(all="ignore"):
        save_file(arrays, file, {"format": "pt"})


def seal(cell: Path) -> None:
    """Give the record of a cell the checksums of what it now holds, so that only its values are wrong."""
    from mixwell.compare.records import _checksum

    try:
        content = json.loads((cell / "result.json").read_text(encoding="utf-8"))
        content.pop("checksum", None)
        if (cell / "outputs.safetensors").is_file():
            content["outputs_sha256"] = hashlib.sha256((cell / "outputs.safetensors").read_bytes()).hexdigest()
        (cell / "result.json").write_text(json.dumps({**content, "checksum": _checksum(content)}), encoding="utf-8")
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return  # it is damaged beyond that
