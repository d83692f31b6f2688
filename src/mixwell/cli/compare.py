"""`mixwell compare`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mixwell.cli._options import option, settings, takes
from mixwell.training.settings import DATA, MODEL, RUN, TRAINING

CLUSTER = "Ray cluster"
_LOADING = ("text", "text_pair", "label", "task", "validation", "test", "split_seed", "drop_leaks")
_TRAINING = (
    "pooling", "max_length", "start", "epochs", "batch_size", "eval_batch_size", "learning_rate", "head_rate",
    "freeze_words", "warmup", "weight_decay", "scheduler", "patience", "best_metric", "class_weights",
    "group_by_length",
)  # fmt: skip


@takes(
    option("methods", str | None,
           "As in manifold,tmix:alpha=0.5. Plain training, label smoothing, a probe and TF-IDF are always added.",
           MODEL),
    option("seeds", int | None, "How many seeds; 3 at least to know anything. Default: 5.", RUN),
    option("output", str | None, "The folder for the records. Default: runs/DATA-compare.", RUN, "--output", "-o"),
    option("grid", str | None, "A TOML file: data, methods, seeds, samples, \\[settings]; lists make a grid.", RUN,
           metavar="FILE"),
    option("fractions", str | None, "Shares of the training rows, as in 0.1,1.0: a comparison each.", DATA),
    option("per_class", str | None, "Training rows per class, as in 8,32: a comparison each.", DATA),
    option("max_train", int | None, "The most training rows.", DATA),
    option("max_test", int | None, "The most test rows, a fixed choice.", DATA),
    option("sample_seed", int | None,
           "Chooses the training rows for all seeds alike. Default: each seed has its own.", DATA),
    *settings(
        _LOADING, optional=True, validation="A file, or a share of train. Default: 0.1.",
        test="A file, or a share of train. Default: 0.2.",
    ),
    *settings(("model", "trust_remote_code"), optional=True),
    option("references", bool | None, "Add a probe on the frozen model and TF-IDF, which train no Transformer.", MODEL),
    *settings(_TRAINING, optional=True),
    option("set_", list[str] | None, "A field of TrainingArguments, as name=value.", TRAINING, "--set",
           metavar="NAME=VALUE"),
    option("engine", str, "Where to train: local, or ray for a cluster.", RUN, default="local"),
    option("workers", int | None,
           "Trainings at a time, each in a process; 0: one, in this process. Default: 1; on a cluster all that fit.",
           RUN, min=0),
    option("threads", int | None,
           "Threads of a worker. Default: the cores, shared out; on a cluster --cpus-per-run.", RUN, min=1),
    option("address", str | None,
           "HOST:PORT of the head. Default: auto, the cluster this machine belongs to.", CLUSTER),
    option("cpus_per_run", int | None, "Cores of a training. Default: 1.", CLUSTER),
    option("gpus_per_run", float | None,
           "1 trains on GPUs; a share such as 0.5 lets two have one. Default: 0.", CLUSTER),
    option("ship_data", bool | None,
           "Send data and weights to all nodes, not only to those that do not see them.", CLUSTER, "--ship-data"),
    option("retry_failed", bool, "Try again what failed before.", RUN, "--retry-failed", default=False),
    option("new_data", bool, "Go on though the data changed; the old records are kept.", RUN, "--new-data",
           default=False),
    option("level", float, "Of the intervals.", RUN, default=0.95),
    *settings(("cache_dir",)),
    option("quiet", bool, "Print only the result.", RUN, "--quiet", "-q", default=False),
)  # fmt: skip
def command(
    context: typer.Context,
    data: Annotated[
        list[str] | None, typer.Argument(help="CSV, TSV, JSON, JSON-lines or Parquet files, folders, or hub ids.")
    ] = None,
    **values: Any,
) -> None:
    """Find out which method is right for your data, and how sure that is.

    Trains each method with several seeds, paired: for one seed all methods share the rows, the initial weights, the
    order and the dropout. Stopped or killed, the same command does only what is missing; several processes can share
    one folder.
    """
    import shlex

    from mixwell.compare import grid as grids
    from mixwell.compare import run
    from mixwell.report.terminal import show_comparison
    from mixwell.utils.signals import telling

    grid = grids.make_grid(grids.read_grid(values["grid"]) if values["grid"] else {}, _read(data, values))
    about = {name: values[name] for name in ("address", "cpus_per_run", "gpus_per_run", "ship_data")}
    about = {name: value for name, value in about.items() if value is not None}
    cluster = run.Cluster(**about) if about else None
    workers, quiet = values["workers"], values["quiet"]
    place = (values["engine"], workers, values["threads"])
    run.check_engine(*place, cluster)  # now: planning may take a while
    with telling("what is finished is kept, and the same command does the rest"):
        done = run.run(
            grid,
            values["output"],
            engine=lambda: run.make_engine(*place, values["cache_dir"], cluster),
            view=run.make_view(max(workers or 1, 1), quiet),
            retry_failed=values["retry_failed"],
            new_data=values["new_data"],
            level=values["level"],
            command=shlex.join(["mixwell", *context.obj]) if context.obj else None,
        )
    show_comparison(done)
    run.check_failures(done)


def _read(data: list[str] | None, values: dict[str, Any]) -> dict[str, Any]:
    """What a command line says of a grid; None where it says nothing."""
    from mixwell.compare import grid as grids
    from mixwell.utils.options import number_or_text, typed_options

    training = {name: values[name] for name in _TRAINING if values[name] is not None}
    if values["set_"]:
        from transformers import TrainingArguments

        training["arguments"] = typed_options(values["set_"], TrainingArguments, "--set")
    plain = ("max_train", "max_test", "sample_seed", "seeds", "model", "trust_remote_code", "references")
    return {
        **{name: values[name] for name in (*_LOADING, *plain)},
        "validation": number_or_text(values["validation"]),
        "test": number_or_text(values["test"]),
        "data": data or None,
        "methods": None if values["methods"] is None else grids.split_methods(values["methods"]),
        "fractions": grids.numbers(values["fractions"], float, "--fractions"),
        "per_class": grids.numbers(values["per_class"], int, "--per-class"),
        "settings": training,
    }
