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
    validation: Annotated[str | None, _data("A file, or the share of train to cut.")] = None,
    test: Annotated[str | None, _data("A file, or the share of train to cut.")] = None,
    split_seed: Annotated[int, _data("Decides the cut.")] = 0,
    drop_leaks: Annotated[bool, _data("Drop training texts that are in validation or test.", "--drop-leaks")] = False,
    fraction: Annotated[float | None, _data("Share of the training rows to keep.")] = None,
    per_class: Annotated[int | None, _data("Training rows of each class to keep.")] = None,
    max_train: Annotated[int | None, _data("The most training rows to keep.")] = None,
    sample_seed: Annotated[int, _data("Chooses the rows to keep.")] = 0,
    model: Annotated[str, _model("minilm, a folder or a hub id.", "--model", "-m")] = "minilm",
    trust_remote_code: Annotated[bool, _model("Run code that comes with the model.", "--trust-remote-code")] = False,
    method: Annotated[str, _model("How to mix; `none` for plain training.")] = "amplify",
    option: Annotated[list[str] | None, _model("An option of the method, as name=value.", metavar="NAME=VALUE")] = None,
    max_length: Annotated[int, _model("The most tokens of a row.")] = 256,
    epochs: Annotated[int, _training("The most epochs.")] = 15,
    batch_size: Annotated[int, _training("Rows a step; they meet partners of the same batch.")] = 32,
    eval_batch_size: Annotated[int, _training("Rows at once in evaluation.")] = 64,
    learning_rate: Annotated[
        float | None, _training("The highest learning rate. Default: by the size of the model.")
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
    """Train a classifier with mixup and calibrate it.

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

    known = set(training.TrainSettings.__dataclass_fields__)
    plain = {name: value for name, value in context.params.items() if name in known}
    settings = training.TrainSettings(
        **{
            **plain,
            "validation": number_or_text(validation),
            "test": number_or_text(test),
            "method_options": typed_options(option or [], method_class(method), f"option of {method}"),
            "arguments": typed_options(set_ or [], TrainingArguments, "--set"),
        }
    )
    show_run(training.train(settings, quiet=quiet))
