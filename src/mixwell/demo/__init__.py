"""The main job in three minutes, with real weights: a calibrated classifier, and what mixing does to wrong labels."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

PER_CLASS = 20
CLASSES = 12
EPOCHS = 6  # the recipe's 10 would make it four minutes
EXAMPLES = (
    "the parcel says delivered but my porch is empty",
    "you took the money twice",
    "can I still stop the order?",
)
CURVES = "overtraining.json"
FORMAT = "mixwell demo 1"


def demo(output: str | Path = "demo-run", *, quiet: bool = False) -> Path:
    """Train on a part of the sample data, race a plain model against a mixed one, and classify a few messages.

    Args:
        output: the run folder; a demo that was stopped goes on there, and one that is finished is shown again.
        quiet: print only the results.

    Returns:
        The page.
    """
    from mixwell.api import resume, train
    from mixwell.data import sample_folder
    from mixwell.report.terminal import show_run
    from mixwell.training import TrainSettings
    from mixwell.training.predict import Classifier
    from mixwell.utils.console import write_wrapped

    folder = Path(output)
    settings = TrainSettings(
        str(sample_folder() / "train.csv"),
        output=str(folder),
        test=str(sample_folder() / "test.csv"),
        per_class=PER_CLASS,
        epochs=EPOCHS,
    )
    if not quiet:
        write_wrapped(
            f"1. A classifier from {PER_CLASS * CLASSES} customer messages, {PER_CLASS} of each of {CLASSES} intents: "
            f"first a logistic regression on the frozen features of MiniLM, then fine-tuning, each measured on rows it "
            f"did not see."
        )
        print()
    done = resume(folder, quiet=quiet) if (folder / "run.json").is_file() else train(settings, quiet=quiet)
    show_run(done)
    _race(folder, quiet)
    print("\n3. Messages that the classifier has never seen")
    classifier = Classifier.load(folder)
    _classify(classifier, EXAMPLES)
    if sys.stdin.isatty() and sys.stdout.isatty():
        while text := input("your own (Enter to end): ").strip():
            _classify(classifier, [text])
    print("\n" + "-" * min(shutil.get_terminal_size().columns, 80))
    print(f"the page of this classifier: {folder / 'report.html'}")
    print("your own file, with the columns text and label:")
    print("  mixwell train YOUR.csv                        a classifier to deploy")
    print("  mixwell compare YOUR.csv --workers 2          does mixing help on it, and how sure is that?")
    return folder / "report.html"


def _classify(classifier: Any, texts: Any) -> None:
    found = classifier.predict(texts)
    for at, text in enumerate(texts):
        print(f"  {found.labels[at]:<28} {100 * (found.confidence(at) or 0):5.1f} %   {text}")


def _race(folder: Path, quiet: bool) -> None:
    """Train a plain and a mixed model on wrong labels, or show what they did in this folder."""
    from mixwell.demo import overtraining
    from mixwell.utils.console import write_wrapped
    from mixwell.utils.files import write_json
    from mixwell.utils.records import read_json

    print()
    count = overtraining.CLASSES * overtraining.PER_CLASS
    write_wrapped(
        f"2. What mixing does when labels cannot be trusted: {count} messages of {overtraining.CLASSES} intents, "
        f"{overtraining.WRONG:.0%} of them labelled wrongly at random, "
        f"{overtraining.EPOCHS} epochs, nothing held out for choosing. Loss on messages with true labels:"
    )
    if (folder / CURVES).is_file():
        stored = read_json(folder / CURVES, FORMAT, "the curves of a demo")["curves"]
        curves = {name: overtraining.Curve(**values) for name, values in stored.items()}
        print("\n".join(overtraining.chart(curves)))
    else:
        curves = _drawn(quiet)
        kept = {name: asdict(curve) for name, curve in curves.items()}
        write_json(folder / CURVES, {"format": FORMAT, "curves": kept})
    for name, curve in curves.items():
        print(
            f"  {name:<6} loss {curve.losses[-1]:.2f} at the end (lowest {min(curve.losses):.2f}), accuracy "
            f"{curve.accuracy:.1%}; {curve.scaled:.2f} with a temperature"
        )
    write_wrapped(
        "That is one run on one set of messages. The temperature was fitted on true labels, which a user with wrong "
        "ones does not have. `mixwell compare` tells what holds on your data, with several runs."
    )


def _drawn(quiet: bool) -> Any:
    """Run the race; on a terminal its chart grows."""
    from mixwell.demo import overtraining

    if quiet or not sys.stdout.isatty():
        curves = overtraining.race(lambda curves: None)
        print("\n".join(overtraining.chart(curves)))
        return curves
    from rich.live import Live
    from rich.text import Text

    with Live(Text("both models start ..."), refresh_per_second=4) as live:
        return overtraining.race(lambda curves: live.update(Text("\n".join(overtraining.chart(curves)))))
