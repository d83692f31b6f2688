"""Where AttentionMix and AMPLIFY could mix: probes on mixed features, for every layer and head, and for every block.

    python benchmarks/profiles.py run --data DATA --records profiles.jsonl [--sets trec,sst2] [--seeds 2] [--rows 300]
    python benchmarks/profiles.py table --records profiles.jsonl

DATA is that of `rivals.py`. One line of the records is one method on one draw of rows; it is not run again. These are
the numbers that `--option head=auto` and `--option layers=auto` go by; docs/methods shows them as pictures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from rivals import call, claimed, draw, lines, two_commands, written

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "attentionmix": ("attentionmix", {"block": "auto", "head": "auto"}),
    "amplify": ("amplify", {"layers": "auto"}),
    "amplify, consistent": ("amplify", {"layers": "auto", "consistent": True}),
}


def run(args: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from mixwell.data import load, tokenise
    from mixwell.training import mix_profile, models
    from mixwell.training.folds import fold_of_rows

    torch.set_num_threads(1)
    for seed in range(args.seeds):
        for name in args.sets.split(","):
            for label, (method, options) in OPTIONS.items():
                job = {"method": label, "data": name, "rows": args.rows, "seed": seed}
                if not claimed(Path(args.records), job):
                    continue
                train, _ = draw(Path(args.data), name, str(args.rows), seed)
                with tempfile.TemporaryDirectory() as folder:
                    source = Path(folder) / "rows.jsonl"
                    source.write_text("\n".join(json.dumps({"text": r["text"], "label": r["label"]}) for r in train))
                    data = load(str(source), text="text", label="label", hold_out_from=1e9)
                    loaded = models.load("minilm", task=data.task, labels=data.labels, seed=0, pooling="auto")
                    rows = tokenise(data.train, loaded.tokenizer, max_length=128, cache_dir=folder)
                    y = np.asarray(rows.with_format("numpy")["labels"])
                    folds = fold_of_rows(y, data.row_keys("train").folded, data.task, 0, 3)
                    _, found = mix_profile.find_options(
                        loaded.model, loaded.tokenizer, rows, y, folds, method, options, data.task
                    )
                assert found is not None
                written(Path(args.records), job, dataclasses.asdict(found))
                print(job, found.sentence(), flush=True)


def means(path: Path) -> dict[tuple[str, str], dict[str, tuple[dict[str, Any], float, float]]]:
    """For each method and data set: the options of a place, and over seeds the mean and spread of its difference."""
    found: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines(path):
        record = json.loads(line)
        for place in record["result"]["places"]:
            found[record["job"]["method"], record["job"]["data"]][json.dumps(place["options"])].append(place)
    return {
        key: {
            name: (
                each[0]["options"],
                sum(place["difference"] for place in each) / len(each),
                sum(place["error"] for place in each) / len(each) / len(each) ** 0.5,
            )
            for name, each in places.items()
        }
        for key, places in found.items()
    }


def table(args: argparse.Namespace) -> None:
    """The best and worst places of each profile."""
    for (method, data), places in means(Path(args.records)).items():
        ranked = sorted(places.values(), key=lambda each: each[1])
        print(f"\n{method}, {data}: held-out loss of a probe on mixed features, against plain features")
        for options, mean, error in [*ranked[:5], *ranked[-3:]]:
            print(f"  {', '.join(f'{key} {value}' for key, value in options.items()):30} {mean:+.4f} +- {error:.4f}")


def main() -> None:
    parser, runs, _ = two_commands(__doc__, run, table)
    runs.add_argument("--data", required=True)
    runs.add_argument("--sets", default="trec,sst2")
    runs.add_argument("--rows", type=int, default=300)
    runs.add_argument("--seeds", type=int, default=2)
    call(parser)


if __name__ == "__main__":
    main()
