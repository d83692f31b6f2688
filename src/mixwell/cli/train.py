"""`mixwell train`."""

from __future__ import annotations

from typing import Annotated

import typer

DATA, MODEL, TRAINING, RUN = "Data", "Model and method", "Training", "Run"


def command(
    context: typer.Context,
    data: Annotated[str | None, typer.Argument(help="A CSV, TSV, JSON-lines or Parquet file, a folder, or a hub id.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="The run folder. Default: runs/DATA-METHOD.", rich_help_panel=RUN)] = None,
    resume: Annotated[str | None, typer.Option(help="Continue a stopped run; takes no other options.", metavar="RUN", rich_help_panel=RUN)] = None,
    text: Annotated[str | None, typer.Option(help="The text column.", rich_help_panel=DATA)] = None,
    text_pair: Annotated[str | None, typer.Option(help="The column of the second text.", rich_help_panel=DATA)] = None,
    label: Annotated[str | None, typer.Option(help="The label column.", rich_help_panel=DATA)] = None,
    task: Annotated[str | None, typer.Option(help="single_label, multi_label or regression; told by the labels.", rich_help_panel=DATA)] = None,
    validation: Annotated[str | None, typer.Option(help="A file, or the share of train to cut.", rich_help_panel=DATA)] = None,
    test: Annotated[str | None, typer.Option(help="A file, or the share of train to cut.", rich_help_panel=DATA)] = None,
    split_seed: Annotated[int, typer.Option(help="Decides the cut.", rich_help_panel=DATA)] = 0,
    drop_leaks: Annotated[bool, typer.Option("--drop-leaks", help="Drop training texts that are in validation or test.", rich_help_panel=DATA)] = False,
    fraction: Annotated[float | None, typer.Option(help="Share of the training rows to keep.", rich_help_panel=DATA)] = None,
    per_class: Annotated[int | None, typer.Option(help="Training rows of each class to keep.", rich_help_panel=DATA)] = None,
    max_train: Annotated[int | None, typer.Option(help="The most training rows to keep.", rich_help_panel=DATA)] = None,
    sample_seed: Annotated[int, typer.Option(help="Chooses the rows to keep.", rich_help_panel=DATA)] = 0,
    model: Annotated[str, typer.Option("--model", "-m", help="minilm, a folder or a hub id.", rich_help_panel=MODEL)] = "minilm",
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.", rich_help_panel=MODEL)] = False,
    method: Annotated[str, typer.Option(help="How to mix; `none` for plain training.", rich_help_panel=MODEL)] = "amplify",
    option: Annotated[list[str] | None, typer.Option(help="An option of the method, as name=value.", metavar="NAME=VALUE", rich_help_panel=MODEL)] = None,
    max_length: Annotated[int, typer.Option(help="The most tokens of a row.", rich_help_panel=MODEL)] = 256,
    epochs: Annotated[int, typer.Option(help="The most epochs.", rich_help_panel=TRAINING)] = 15,
    batch_size: Annotated[int, typer.Option(help="Rows a step; they meet partners of the same batch.", rich_help_panel=TRAINING)] = 32,
    eval_batch_size: Annotated[int, typer.Option(help="Rows at once in evaluation.", rich_help_panel=TRAINING)] = 64,
    learning_rate: Annotated[float | None, typer.Option(help="The highest learning rate. Default: by the size of the model.", rich_help_panel=TRAINING)] = None,
    warmup: Annotated[float, typer.Option(help="Share of the steps in which it rises.", rich_help_panel=TRAINING)] = 0.1,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.", rich_help_panel=TRAINING)] = 0.01,
    scheduler: Annotated[str, typer.Option(help="How the learning rate falls.", rich_help_panel=TRAINING)] = "cosine",
    patience: Annotated[int, typer.Option(help="Epochs without a better validation metric before stopping; 0: never.", rich_help_panel=TRAINING)] = 5,
    best_metric: Annotated[str, typer.Option(help="Validation metric that chooses the epoch.", rich_help_panel=TRAINING)] = "loss",
    seed: Annotated[int, typer.Option(help="Of head, order, dropout and mixing.", rich_help_panel=TRAINING)] = 0,
    class_weights: Annotated[str, typer.Option(help="none, or balanced by class frequency.", rich_help_panel=TRAINING)] = "none",
    group_by_length: Annotated[bool, typer.Option("--group-by-length", help="Batches of similar length: faster, but changes which rows meet.", rich_help_panel=TRAINING)] = False,
    label_smoothing: Annotated[float, typer.Option(help="Share of a label spread over all classes.", rich_help_panel=TRAINING)] = 0.0,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A field of TrainingArguments, as name=value.", metavar="NAME=VALUE", rich_help_panel=TRAINING)] = None,
    save_steps: Annotated[int | None, typer.Option(help="A checkpoint every so many steps too.", rich_help_panel=RUN)] = None,
    keep_checkpoints: Annotated[bool, typer.Option("--keep-checkpoints", help="Keep them when finished.", rich_help_panel=RUN)] = False,
    report_to: Annotated[str, typer.Option(help="tensorboard, wandb and so on.", rich_help_panel=RUN)] = "none",
    cache_dir: Annotated[str | None, typer.Option(help="For tokenised texts.", rich_help_panel=RUN)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.", rich_help_panel=RUN)] = False,
) -> None:  # fmt: skip
    """Train a classifier with mixup and calibrate it.

    The run folder has the model, its metrics, its predictions and pictures. A run that was stopped or killed goes on
    with --resume.
    """
    from mixwell.cli import given, number_or_text, show_run, typed_options
    from mixwell.errors import OptionError

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

    known = {f for f in training.TrainSettings.__dataclass_fields__}
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
