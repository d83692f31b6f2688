"""`mixwell compare`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer


def _panel(title: str) -> Callable[..., Any]:
    """Make options of one panel of the help."""
    return partial(typer.Option, rich_help_panel=title)


_data, _model, _training, _run, _cluster = (
    _panel(title) for title in ("Data", "Model and methods", "Training", "Run", "Ray cluster")
)


def command(
    context: typer.Context,
    data: Annotated[
        list[str] | None, typer.Argument(help="CSV, TSV, JSON-lines or Parquet files, folders, or hub ids.")
    ] = None,
    methods: Annotated[
        str | None,
        _model(
            help="As in manifold,tmix:alpha=0.5. Plain training, label smoothing, a probe and TF-IDF are always added."
        ),
    ] = None,
    seeds: Annotated[int | None, _run(help="How many seeds; 3 at least to know anything. Default: 5.")] = None,
    output: Annotated[
        str | None, _run("--output", "-o", help="The folder for the records. Default: runs/DATA-compare.")
    ] = None,
    grid: Annotated[
        str | None,
        _run(help="A TOML file: data, methods, seeds, samples, [settings]; lists make a grid.", metavar="FILE"),
    ] = None,
    fractions: Annotated[
        str | None, _data(help="Shares of the training rows, as in 0.1,1.0: a comparison each.")
    ] = None,
    per_class: Annotated[str | None, _data(help="Training rows of each class, as in 8,32: a comparison each.")] = None,
    max_train: Annotated[int | None, _data(help="The most training rows.")] = None,
    max_test: Annotated[int | None, _data(help="The most test rows, a fixed choice.")] = None,
    sample_seed: Annotated[
        int | None, _data(help="Chooses the training rows for all seeds alike. Default: each seed has its own.")
    ] = None,
    text: Annotated[str | None, _data(help="The text column.")] = None,
    text_pair: Annotated[str | None, _data(help="The column of the second text.")] = None,
    label: Annotated[str | None, _data(help="The label column.")] = None,
    task: Annotated[str | None, _data(help="single_label, multi_label or regression; told by the labels.")] = None,
    validation: Annotated[str | None, _data(help="A file, or a share of train.")] = None,
    test: Annotated[str | None, _data(help="A file, or a share of train.")] = None,
    split_seed: Annotated[int | None, _data(help="Decides the cut, for all seeds alike.")] = None,
    drop_leaks: Annotated[
        bool | None, _data("--drop-leaks", help="Drop training texts that are in validation or test.")
    ] = None,
    model: Annotated[str | None, _model("--model", "-m", help="minilm, a folder or a hub id. Default: minilm.")] = None,
    trust_remote_code: Annotated[
        bool | None, _model("--trust-remote-code", help="Run code that comes with the model.")
    ] = None,
    references: Annotated[
        bool | None, _model(help="Add a probe on the frozen model and TF-IDF, which train no Transformer.")
    ] = None,
    pooling: Annotated[
        str | None, _model(help="auto (as the encoder was trained), model (the architecture's head), mean, cls, last.")
    ] = None,
    max_length: Annotated[int | None, _model(help="The most tokens of a row.")] = None,
    start: Annotated[str | None, _training(help="Where the head starts: probe or random.")] = None,
    epochs: Annotated[int | None, _training(help="The most epochs. Default: by the number of rows.")] = None,
    batch_size: Annotated[
        int | None, _training(help="Rows per step; they meet partners of the same batch. Default: 16.")
    ] = None,
    eval_batch_size: Annotated[int | None, _training(help="Rows at once in evaluation.")] = None,
    learning_rate: Annotated[
        float | None, _training(help="The highest learning rate. Default: by the size of the model.")
    ] = None,
    head_rate: Annotated[
        float | None, _training(help="How many times the learning rate a new head has. Default: 10.")
    ] = None,
    freeze_words: Annotated[
        bool | None, _training(help="Keep the word embeddings as they are. Default: below 5000 rows.")
    ] = None,
    warmup: Annotated[float | None, _training(help="Share of the steps in which it rises.")] = None,
    weight_decay: Annotated[float | None, _training(help="Of AdamW.")] = None,
    scheduler: Annotated[str | None, _training(help="How the learning rate falls.")] = None,
    patience: Annotated[
        int | None, _training(help="Epochs without a better validation metric before stopping; 0: never.")
    ] = None,
    best_metric: Annotated[str | None, _training(help="Validation metric that chooses the epoch.")] = None,
    class_weights: Annotated[str | None, _training(help="none, or balanced by class frequency.")] = None,
    group_by_length: Annotated[
        bool | None,
        _training("--group-by-length", help="Batches of similar length: faster, but changes which rows meet."),
    ] = None,
    set_: Annotated[
        list[str] | None, _training("--set", help="A field of TrainingArguments, as name=value.", metavar="NAME=VALUE")
    ] = None,
    engine: Annotated[str, _run(help="Where to train: local, or ray for a cluster.")] = "local",
    workers: Annotated[
        int | None,
        _run(
            min=0,
            help="Trainings at a time, each in a process; 0: one, in this process. Default: 1; on a cluster all that "
            "fit.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        _run(min=1, help="Threads of a worker. Default: the cores, shared out; on a cluster --cpus-per-run."),
    ] = None,
    address: Annotated[
        str | None, _cluster(help="HOST:PORT of the head. Default: auto, the cluster this machine belongs to.")
    ] = None,
    cpus_per_run: Annotated[int | None, _cluster(help="Cores of a training. Default: 1.")] = None,
    gpus_per_run: Annotated[
        float | None, _cluster(help="1 trains on GPUs; a share such as 0.5 lets two have one. Default: 0.")
    ] = None,
    ship_data: Annotated[
        bool | None,
        _cluster("--ship-data", help="Send data and weights to all nodes, not only to those that do not see them."),
    ] = None,
    retry_failed: Annotated[bool, _run("--retry-failed", help="Try again what failed before.")] = False,
    new_data: Annotated[
        bool, _run("--new-data", help="Go on though the data changed; the old records are kept.")
    ] = False,
    level: Annotated[float, _run(help="Of the intervals.")] = 0.95,
    cache_dir: Annotated[str | None, _run(help="For tokenised texts.")] = None,
    quiet: Annotated[bool, _run("--quiet", "-q", help="Print only the result.")] = False,
) -> None:
    """Find out which method is right for your data, and how sure that is.

    Trains each method with several seeds, paired: for one seed all methods share the rows, the initial weights, the
    order and the dropout. Stopped or killed, the same command does only what is missing; several processes can share
    one folder.
    """
    import shlex
    import shutil
    import sys

    from mixwell.compare import export, run
    from mixwell.compare import grid as grids
    from mixwell.options import number_or_text, typed_options

    given: dict[str, Any] = {
        **{name: context.params[name] for name in (*grids.LOADING, "max_train", "max_test", "sample_seed", "seeds")},
        "validation": number_or_text(validation),
        "test": number_or_text(test),
        "data": data or None,
        "model": model,
        "trust_remote_code": trust_remote_code,
        "references": references,
        "methods": None if methods is None else grids.split_methods(methods),
        "fractions": grids.numbers(fractions, float, "--fractions"),
        "per_class": grids.numbers(per_class, int, "--per-class"),
        "settings": {
            name: context.params[name]
            for name in grids.SETTINGS
            if name != "arguments" and context.params[name] is not None
        },
    }
    if set_:
        from transformers import TrainingArguments

        given["settings"]["arguments"] = typed_options(set_, TrainingArguments, "--set")
    wanted = grids.make_grid(grids.read_grid(grid) if grid else {}, given)
    about = {"address": address, "cpus_per_run": cpus_per_run, "gpus_per_run": gpus_per_run, "ship_data": ship_data}
    about = {name: value for name, value in about.items() if value is not None}
    cluster = run.Cluster(**about) if about else None  # type: ignore[arg-type]
    run.check_engine(engine, workers, threads, cluster)  # now: planning may take a while
    done = run.run(
        wanted,
        output,
        engine=lambda: run.make_engine(engine, workers, threads, cache_dir, cluster),
        view=run.make_view(max(workers or 1, 1), quiet),
        retry_failed=retry_failed,
        new_data=new_data,
        level=level,
        command=shlex.join(["mixwell", *context.obj]) if context.obj else None,
    )
    for group in done.summary.groups:
        if group.comparison is not None:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            print(f"{group.title}: {export.about(group)}\n\n{export.table(group, width)}\n\n{export.footnote(group)}")
        for sentence in group.sentences:
            print(sentence)
        print()
    print(f"records   {done.folder}\nreport    mixwell report {done.folder}")
    run.check_failures(done)
