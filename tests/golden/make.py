"""Numbers that must not change when code moves: draws, losses, gradients, a run, records, a page, a paper's table.

    python tests/golden/make.py OUTPUT.json

Works on the installed mixwell through its public names and its command line only, so that it can be run on two
versions. `exact` holds hashes, which agree between versions on one machine; the rest also agrees between machines.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
KINDS = ("bert", "pooled", "distilbert", "modernbert", "t5", "llama", "vit")
VOLATILE = {"timing", "versions", "seconds_per_step", "git_commit", "seconds", "mixwell_version", "host", "when"}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def steps(kind: str, name: str) -> dict[str, Any] | None:
    """Two training steps of a method on a tiny model."""
    import torch

    import mixwell
    import zoo

    torch.set_num_threads(1)
    if not zoo.fits(kind, name):
        return None
    model = zoo.sharpen(zoo.tiny(kind, dropout=0.1)).train()
    made: dict[str, Any] = {}
    torch.manual_seed(11)
    try:
        mixer = mixwell.attach(model, name, **{**zoo.strong(name), **zoo.options(kind, name)})
    except RuntimeError as error:
        return {"refused": type(error).__name__}
    with mixer:
        for step in range(2):
            model.zero_grad()
            loss = model(**zoo.batch(kind, seed=step)).loss
            loss.backward()
            plan = mixer.last
            gradients = [g for _, g in sorted(zoo.gradients(model).items())]
            lam = plan.lam.tolist() if isinstance(plan.lam, torch.Tensor) else plan.lam
            made[str(step)] = {
                "permutation": plan.permutation.tolist(),
                "lam": lam,
                "layer": plan.layer,
                "label_weight": plan.label_weight.double().flatten().tolist(),
                "loss": float(loss.detach()),
                "gradient": float(sum(g.double().abs().sum() for g in gradients)),
                "exact": digest(b"".join(g.numpy().tobytes() for g in gradients) + loss.detach().numpy().tobytes()),
            }
    return made


def command(*words: Any) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mixwell", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr}")
    return done.stdout


def without(value: Any, names: set[str] = VOLATILE) -> Any:
    """A JSON value without what differs from run to run."""
    if isinstance(value, dict):
        return {key: without(item, names) for key, item in value.items() if key not in names}
    return [without(item, names) for item in value] if isinstance(value, list) else value


def numbers(page: str) -> list[str]:
    """The numbers in the text of a page, without its styles, scripts and drawings."""
    text = re.sub(r"<(style|script|svg)\b.*?</\1>", " ", page, flags=re.S)
    text = re.sub(r"<[^>]+>", " ", text)
    return re.findall(r"(?<![\w.])[-+]?\d+\.\d+(?![\w.])", text)


def runs(folder: Path) -> dict[str, Any]:
    """A run and a comparison on made-up rows with a tiny random model."""
    import random

    from make_model import make_model, write_rows

    model = make_model(folder / "model")
    data = write_rows(folder / "films.csv", 160, random.Random(0))
    common = ["--model", model, "--pooling", "mean", "--batch-size", 8, "--learning-rate", 0.002, "--quiet"]
    command("train", data, "-o", folder / "run", "--method", "amplify", "--epochs", 2, "--validation", 0.2, "--test",
            0.2, "--start", "random", "--average", 0, *common)  # fmt: skip
    command("compare", data, "-o", folder / "compare", "--methods", "manifold,amplify:alpha=1.0", "--seeds", 3,
            "--workers", 0, "--epochs", 2, *common)  # fmt: skip
    summary = json.loads(command("report", folder / "compare", "-f", "json"))
    command("report", folder / "compare", "--no-texts")
    page = (folder / "compare" / "report.html").read_text(encoding="utf-8")
    metrics = without(json.loads((folder / "run" / "metrics.json").read_text()))
    return {
        "run": {name: metrics[name] for name in ("method", "temperature", "best_epoch", "steps", "test", "history")},
        "exact": digest((folder / "run" / "model" / "model.safetensors").read_bytes()),
        "summary": without(summary),
        "page": sorted(set(numbers(page))),
    }


def make() -> dict[str, Any]:
    import mixwell

    found: dict[str, Any] = {
        "steps": {f"{kind} {name}": steps(kind, name) for kind in KINDS for name in mixwell.methods()}
    }
    with tempfile.TemporaryDirectory() as folder:
        found["runs"] = runs(Path(folder))
    packs = HERE.parent.parent / "docs" / "results"
    found["papers"] = {
        name: digest(command("paper", "table", packs / name).encode())
        for name in ("amplify-table1-small", "nlu-table5-small")
    }
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(make(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
