"""The main job in a minute or two: from 240 labelled messages to a calibrated classifier, with real weights."""

from __future__ import annotations

import shutil
from pathlib import Path

PER_CLASS = 20
CLASSES = 12
EXAMPLES = (
    "the parcel says delivered but my porch is empty",
    "you took the money twice",
    "can I still stop the order?",
)


def demo(output: str | Path = "demo-run", *, quiet: bool = False) -> Path:
    """Train on a part of the sample data, show what came out, and classify a few messages.

    Args:
        output: the run folder; a demo that was stopped goes on there, and one that is finished is shown again.
        quiet: print only the result.

    Returns:
        The page.
    """
    from mixwell.api import resume, train
    from mixwell.data import sample_folder
    from mixwell.report.terminal import show_run
    from mixwell.training import TrainSettings
    from mixwell.training.predict import Classifier

    folder = Path(output)
    settings = TrainSettings(
        str(sample_folder() / "train.csv"),
        output=str(folder),
        test=str(sample_folder() / "test.csv"),
        per_class=PER_CLASS,
    )
    if not quiet:
        print(
            f"{PER_CLASS * CLASSES} customer messages, {PER_CLASS} of each of {CLASSES} intents, and MiniLM: first a "
            f"logistic regression on its frozen features, then fine-tuning, each measured on rows it did not see.\n"
        )
    done = resume(folder, quiet=quiet) if (folder / "run.json").is_file() else train(settings, quiet=quiet)
    show_run(done)
    print("\nthree messages that it has never seen:")
    found = Classifier.load(folder).predict(EXAMPLES)
    for at, text in enumerate(EXAMPLES):
        print(f"  {found.labels[at]:<22} {100 * (found.confidence(at) or 0):5.1f} %   {text}")
    width = shutil.get_terminal_size().columns
    print("\n" + "-" * min(width, 80))
    print("your own file, with the columns text and label:")
    print("  mixwell train YOUR.csv                        a classifier to deploy")
    print("  mixwell compare YOUR.csv --workers 2          does mixing help on it, and how sure is that?")
    return folder / "report.html"
