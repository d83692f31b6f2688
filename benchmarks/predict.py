"""How fast are `mixwell predict`, ONNX and 8-bit ONNX against `transformers.pipeline`?

    python benchmarks/predict.py                       # 10,000 short texts, MiniLM
    python benchmarks/predict.py --texts 400           # a smoke run
    python benchmarks/predict.py --json speed.json

All four classify the same texts with the same trained model, in one process. Clocks of shared machines are noisy, so
the texts are cut into chunks and each chunk goes through all of them, in random order; a ratio is pipeline's time over
the other's, summed over the chunks, with a bootstrap interval over chunks. `mixwell predict` is what the command does:
rows to records to JSON lines, written nowhere. Pipeline gets a batch size of 32 and all scores. Labels are compared on
the way. To reach: predict 1, ONNX 1.5, int8 2.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

TARGETS = {"predict": 1.0, "onnx": 1.5, "int8": 2.0}


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Short messages: those of the sample data, and pieces of two of them."""
    from mixwell import data

    found = data.load(data.sample_folder())
    texts = [text for table in found.splits.values() for text in table["text"].to_pylist()]
    draw = random.Random(seed)
    made = []
    while len(made) < count:
        words = draw.choice(texts).split()
        cut = draw.randint(2, max(2, len(words)))
        other = draw.choice(texts).split() if draw.random() < 0.3 else []
        made.append(" ".join([*words[:cut], *other[: draw.randint(1, 8)]]))
    return made


def make_rivals(place: Path, batch_size: int) -> dict[str, Callable[[list[str]], list[str]]]:
    """By name a function from texts to labels."""
    from transformers import pipeline

    import mixwell
    from mixwell import data
    from mixwell.training.export import export_onnx
    from mixwell.training.onnx import OnnxClassifier
    from mixwell.training.prediction_files import write_predictions

    run = mixwell.train(
        str(data.sample_folder()), method="probe", output=str(place / "run"), cache_dir=str(place), quiet=True
    )
    plain = export_onnx(run.folder, place / "onnx" / "model.onnx")
    small = export_onnx(run.folder, place / "int8" / "model.onnx", int8=True)
    print(f"onnx: logits differ by {plain.difference:.1e}; int8: {json.dumps(small.int8)}")
    pipe = pipeline("text-classification", str(run.folder / "model"), device="cpu", top_k=None)

    def by_pipeline(texts: list[str]) -> list[str]:
        return [max(row, key=lambda each: each["score"])["label"] for row in pipe(texts, batch_size=batch_size)]

    def by_mixwell(classifier: Any) -> Callable[[list[str]], list[str]]:
        def predict(texts: list[str]) -> list[str]:
            labels: list[str] = []

            def watched() -> Any:
                for batch in classifier.records(texts):
                    labels.extend(record["label"] for record in batch)
                    yield batch

            write_predictions(watched(), "jsonl", None, io.StringIO())
            return labels

        return predict

    return {
        "pipeline": by_pipeline,
        "predict": by_mixwell(mixwell.Classifier.load(run.folder, device="cpu")),
        "onnx": by_mixwell(OnnxClassifier.load(plain.file)),
        "int8": by_mixwell(OnnxClassifier.load(small.file)),
    }


def measure(rivals: dict[str, Any], texts: list[str], chunk: int, seed: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Seconds of each chunk, and the share of labels that are pipeline's, by name."""
    draw = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in rivals}
    same = dict.fromkeys(rivals, 0)
    for name in rivals:
        rivals[name](texts[:64])  # warm
    for start in range(0, len(texts), chunk):
        part = texts[start : start + chunk]
        labels = {}
        for name in draw.sample(list(rivals), len(rivals)):
            began = time.perf_counter()
            labels[name] = rivals[name](part)
            times[name].append(time.perf_counter() - began)
        for name in rivals:
            same[name] += sum(one == two for one, two in zip(labels[name], labels["pipeline"]))
    return times, {name: count / len(texts) for name, count in same.items()}


def ratio(plain: list[float], other: list[float], seed: int = 0) -> tuple[float, float, float]:
    """Pipeline's time over the other's, and its 95 % interval over chunks."""
    draw = random.Random(seed)
    pairs = list(zip(plain, other))
    found = []
    for _ in range(2000):
        chosen = draw.choices(pairs, k=len(pairs))
        found.append(sum(a for a, _ in chosen) / sum(b for _, b in chosen))
    found.sort()
    return sum(plain) / sum(other), found[50], found[-51]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--chunk", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=32, help="of pipeline")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    texts = make_texts(options.texts, options.seed)
    with tempfile.TemporaryDirectory() as place:
        rivals = make_rivals(Path(place), options.batch_size)
        times, same = measure(rivals, texts, min(options.chunk, max(options.texts // 4, 1)), options.seed)
    words = sum(len(text.split()) for text in texts) / len(texts)
    print(f"{len(texts)} texts of {words:.1f} words on average, {len(times['pipeline'])} chunks")
    results = {}
    for name, spent in times.items():
        speed, low, high = ratio(times["pipeline"], spent)
        results[name] = {"texts_per_second": len(texts) / sum(spent), "ratio": speed, "interval": [low, high]}
        goal = f"  (to reach: {TARGETS[name]})" if name in TARGETS else ""
        print(
            f"{name:<9} {results[name]['texts_per_second']:8.0f} texts/s   {speed:5.2f} times pipeline "
            f"[{low:.2f}, {high:.2f}]   {same[name]:.1%} the same labels{goal}"
        )
    if options.json:
        options.json.write_text(json.dumps({"texts": len(texts), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
