"""The model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mixwell.metrics.scores import METRICS
from mixwell.training.evaluate import MEASURED, headline, title_of


def _elsewhere(kind: str) -> list[str]:
    """How to load the folder without mixwell."""
    if kind != "PooledForSequenceClassification":
        return ["`transformers.pipeline` loads the folder too and gives the same probabilities."]
    return [
        "`transformers.pipeline` gives the same probabilities: after `import mixwell`, or without mixwell by",
        "`pipeline('text-classification', 'this/folder', trust_remote_code=True)`, which runs the code in it. For long",
        "texts add `truncation=True` to the call.",
    ]


def _numbers(metrics: dict[str, Any], shown: str) -> list[str]:
    """The table of a card."""
    part = metrics[shown]
    after = part.get("after")
    how = {
        "test": "which had no part in training or in any choice",
        "out_of_fold": "by models that were not trained on them; this model was then trained on all of them",
        "validation": "which also chose the epoch, so that the numbers may be a little too good",
    }[shown]
    lines = [f"On {part['rows']:,} {MEASURED[shown]}, {how}:", ""]
    lines += ["| metric | before temperature | after |", "|---|---:|---:|"] if after else ["| metric | |", "|---|---:|"]
    for name, value in part["before"].items():
        second = f" {after[name]:.4f} |" if after else ""
        lines.append(f"| {METRICS[name].title} | {value:.4f} |{second}")
    probe = metrics.get("baselines", {}).get("probe", {})
    same = probe.get("test") if shown == "test" else None
    if (same or probe).get("accuracy") is not None:
        where = "the same rows" if same or probe.get("measured_on") == shown else "held-out rows"
        score = (same or probe)["accuracy"]
        lines += ["", f"A logistic regression on the frozen features has an accuracy of {score:.4f} on {where}."]
    return lines


def card(record: dict[str, Any], metrics: dict[str, Any]) -> str:
    """The model card: method, numbers and limits, as Markdown with the hub's header."""
    data, model, method = record["data"], record["model"], metrics["method"]
    options = ", ".join(f"{key}={value}" for key, value in method["options"].items() if value is not None)
    temperature, shown = metrics["temperature"], headline(metrics)
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-classification",
        "tags: [mixwell, mixup, calibration]",
        "---",
        "",
        f"# {Path(data['source']).name}: {model['name'].rstrip('/').split('/')[-1]} with {title_of(method['method'])}",
        "",
        f"Trained with mixwell {record['versions']['mixwell']} from "
        f"`{Path(model['name']).name}` ({model['parameters'] / 1e6:.0f} million parameters) by "
        f"{title_of(method['method'])}{f' ({options})' if options else ''}.",
        "",
        "## Numbers",
        "",
    ]
    if shown is None:
        lines.append("No rows were held out, so nothing was measured.")
    else:
        lines += _numbers(metrics, shown)
    chosen_on = metrics.get("out_of_fold") or metrics.get("validation")
    if temperature is not None and chosen_on is not None:
        rows = chosen_on["rows"]
        lines += [
            "",
            f"Temperature: {temperature:.4f}, chosen on {rows:,} held-out rows. The last linear layer carries it, so "
            f"that all who load this folder get calibrated probabilities.",
        ]
    return "\n".join([*lines, *_use(model["class"]), *_limits(record)])


def _use(kind: str) -> list[str]:
    """How to load the folder."""
    return [
        "",
        "## Use",
        "",
        "```python",
        "import mixwell",
        "",
        'mixwell.Classifier.load("this/folder").predict(["a text"])',
        "```",
        "",
        *_elsewhere(kind),
        "",
    ]


def _limits(record: dict[str, Any]) -> list[str]:
    """What it was trained on, and where it may be wrong."""
    data, rows = record["data"], record["data"]["rows"]
    lines = [
        "## Data and limits",
        "",
        f"- {rows['train']:,} training, {rows['validation']:,} validation and {rows['test']:,} test rows; fingerprint "
        f"`{data['fingerprint'][:16]}`.",
        f"- Texts longer than {record['model']['max_length']} tokens were cut.",
    ]
    if data["labels"]:
        names = ", ".join(data["labels"][:20]) + (" ..." if len(data["labels"]) > 20 else "")
        lines.append(f"- Labels: {names}. The model always chooses among these, also for texts of other kinds.")
    if any(data["leaks"].values()):
        lines.append(f"- Texts also in training: {json.dumps(data['leaks'])}; the numbers may be too good.")
    return [
        *lines,
        "- Probabilities are meant for data like the training rows; elsewhere they may be off.",
        f"- One run with seed {record['settings']['seed']}: another seed gives somewhat other numbers.",
        "",
    ]
