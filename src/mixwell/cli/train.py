"""`mixwell train`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer


def _panel(title: str) -> Callable[..., Any]:
    """A maker of options for one part of the help."""
    return lambda help, *names, **more: typer.Option(*names, help=help, rich_help_panel=title, **more)


_data, _model, _training, _run = map(_panel, ("Data", "Model and method", "Training", "Run"))


def command(
    context: typer.Context,
    data: Annotated[
        str | None, typer.Argument(help="A CSV, TSV, JSON-lines or Parquet file, folder, or hub id.")
    ] = None,
    output: Annotated[str | None, _run("The run folder. Default: runs/DATA-METHOD.", "--output", "-o")] = None,
    resume: Annotated[str | None, _run("Continue a stopped run; takes no other options.", metavar="RUN")] = None,
    text: Annotated[str | None, _data("The text column.")] = None,
    text_pair: Annotated[str | None, _data("The column of the second text.")] = None,
    label: Annotated[str | None, _data("The label column.")] = None,
    task: Annotated[str | None, _data("single_label, multi_label or regression; told by the labels.")] = None,
    validation: Annotated[
        str | None,
        _data("A file, the share of train to cut, or none. Default: none below 100 rows, folds below 1000, else 0.1."),
    ] = None,
    test: Annotated[
        str | None,
        _data(
            "A file, the share of train to cut, or none. Default: none where nothing or folds are held out, else 0.2."
        ),
    ] = None,
    folds: Annotated[
        int | None, _data("Hold every row out once, then train on all; 0: never. Default: 4 from 100 to 1000 rows.")
    ] = None,
    rare: Annotated[str, _data("Classes with one row: error, drop, or merge into 'other'.")] = "error",
    split_seed: Annotated[int, _data("Decides the cut.")] = 0,
    drop_leaks: Annotated[bool, _data("Drop training texts that are in validation or test.", "--drop-leaks")] = False,
    fraction: Annotated[float | None, _data("Share of the training rows to keep.")] = None,
    per_class: Annotated[int | None, _data("Training rows of each class to keep.")] = None,
    max_train: Annotated[int | None, _data("The most training rows to keep.")] = None,
    sample_seed: Annotated[int, _data("Chooses the rows to keep.")] = 0,
    model: Annotated[str, _model("minilm, a folder or a hub id.", "--model", "-m")] = "minilm",
    trust_remote_code: Annotated[bool, _model("Run code that comes with the model.", "--trust-remote-code")] = False,
    pooling: Annotated[
        str, _model("auto (as the encoder was trained), model (the architecture's head), mean, cls or last.")
    ] = "auto",
    method: Annotated[
        str,
        _model(
            "auto: by rows and held-out loss; probe: frozen features; contrastive: pairs; none: plain; or how to mix."
        ),
    ] = "auto",
    option: Annotated[list[str] | None, _model("An option of the method, as name=value.", metavar="NAME=VALUE")] = None,
    max_length: Annotated[int, _model("The most tokens of a row.")] = 256,
    start: Annotated[str | None, _training("Where the head starts: probe or random. Default: by the model.")] = None,
    epochs: Annotated[int | None, _training("The most epochs. Default: by the number of rows, at least 6.")] = None,
    batch_size: Annotated[
        int | None, _training("Rows per step; they meet partners of the same batch. Default: 16.")
    ] = None,
    eval_batch_size: Annotated[int, _training("Rows at once in evaluation.")] = 64,
    learning_rate: Annotated[
        float | None, _training("The highest learning rate. Default: by the size of the model.")
    ] = None,
    head_rate: Annotated[
        float | None, _training("How many times the learning rate a new head has. Default: 10.")
    ] = None,
    freeze_words: Annotated[
        bool | None, _training("Keep the word embeddings as they are. Default: below 5000 rows.")
    ] = None,
    warmup: Annotated[float, _training("Share of the steps in which it rises.")] = 0.1,
    weight_decay: Annotated[float, _training("Of AdamW.")] = 0.01,
    scheduler: Annotated[str, _training("How the learning rate falls.")] = "cosine",
    patience: Annotated[int, _training("Epochs without a better validation metric before stopping; 0: never.")] = 5,
    best_metric: Annotated[str, _training("Validation metric that chooses the epoch.")] = "loss",
    seed: Annotated[int, _training("Of head, order, dropout and mixing.")] = 0,
    class_weights: Annotated[str, _training("none, or balanced by class frequency.")] = "none",
    group_by_length: Annotated[
        bool, _training("Batches of similar length: faster, but changes which rows meet.", "--group-by-length")
    ] = False,
    label_smoothing: Annotated[float, _training("Share of a label spread over all classes.")] = 0.0,
    set_: Annotated[
        list[str] | None, _training("A field of TrainingArguments, as name=value.", "--set", metavar="NAME=VALUE")
    ] = None,
    save_steps: Annotated[int | None, _run("A checkpoint every so many steps too.")] = None,
    keep_checkpoints: Annotated[bool, _run("Keep them when finished.", "--keep-checkpoints")] = False,
    report_to: Annotated[str, _run("tensorboard, wandb and so on.")] = "none",
    cache_dir: Annotated[str | None, _run("For tokenised texts.")] = None,
    quiet: Annotated[bool, _run("Print only the result.", "--quiet", "-q")] = False,
) -> None:
    """Train a calibrated classifier, by default the best of what a few hundred rows allow.

    The run folder has the model, its metrics, its predictions and pictures. A run that was stopped or killed goes on
    with --resume.
    """
    from mixwell.cli import given, show_run
    from mixwell.errors import OptionError
    from mixwell.options import number_or_text, typed_options

    if resume is not None:
        extra = given(context) - {"resume", "quiet"}
        if extra:
            raise OptionError(f"--resume takes the settings of the run: leave {sorted(extra)[0]!r} out")
        from mixwell import training

        show_run(training.resume(resume, quiet=quiet))
        return
    if data is None:
        raise OptionError("name the data: a file, a folder or a hub id")
    from transformers import TrainingArguments

    from mixwell import training
    from mixwell.methods import method_class
    from mixwell.training.settings import mixing_of

    known = set(training.TrainSettings.__dataclass_fields__)
    plain = {name: value for name, value in context.params.items() if name in known}
    settings = training.TrainSettings(
        **{
            **plain,
            "validation": number_or_text(validation),
            "test": number_or_text(test),
            "method_options": typed_options(option or [], method_class(mixing_of(method)), f"option of {method}"),
            "arguments": typed_options(set_ or [], TrainingArguments, "--set"),
        }
    )
    show_run(training.train(settings, quiet=quiet))
