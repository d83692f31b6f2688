"""`mixwell compare`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mixwell.cli._options import option, settings, takes
from mixwell.training.settings import DATA, MODEL, RUN, TRAINING

CLUSTER = "Ray cluster"
CONDITIONS = "Conditions"
_LOADING = ("text", "text_pair", "label", "task", "validation", "split_seed", "drop_leaks")
_TRAINING = (
    "pooling", "max_length", "start", "epochs", "batch_size", "eval_batch_size", "learning_rate", "head_rate",
    "freeze_words", "warmup", "weight_decay", "scheduler", "patience", "best_metric", "class_weights",
    "group_by_length",
)  # fmt: skip


@takes(
    option("methods", list[str] | None,
           "As in manifold,tmix:alpha=0.5; may be given several times. Plain training, label smoothing, a probe and "
           "TF-IDF are always added. Default: manifold, and amplify with strong mixing whose labels agree.", MODEL,
           metavar="NAMES"),
    option("seeds", int | None, "How many seeds; 3 at least to know anything. Default: 5; in a race at most 18.", RUN),
    option("race", bool, "Add seeds in rounds; a method that is better, worse or practically equal trains no more.",
           RUN, "--race", default=False),
    option("budget", str | None, "Of a race: 30m of training, summed over the runs, or '60 runs'. Default: none.", RUN),
    option("output", str | None, "The folder for the records. Default: runs/DATA-compare.", RUN, "--output", "-o"),
    option("grid", str | None, "A TOML file: data, methods, seeds, samples, \\[settings]; lists make a grid.", RUN,
           metavar="FILE"),
    option("fractions", str | None,
           "Shares of the training rows, as in 0.1,1.0: a comparison each. Default: all.", DATA),
    option("per_class", str | None, "Training rows per class, as in 8,32: a comparison each. Default: all.", DATA),
    option("max_train", int | None, "The most training rows. Default: all.", DATA),
    option("max_test", int | None, "The most test rows, a fixed choice. Default: all.", DATA),
    option("sample_seed", int | None,
           "Chooses the training rows for all seeds alike. Default: each seed has its own.", DATA),
    *settings(
        _LOADING, optional=True, validation="A file, or a share of train. Default: 0.1.",
    ),
    option("test", list[str] | None,
           "A file, or a share of train. Default: 0.2. NAME=FILE: a further test set, such as another domain.", DATA),
    option("label_noise", str | None,
           "Share of training rows with another class, as in 0.3, or 0,0.3: a comparison each.", CONDITIONS),
    option("noise", str | None,
           "Which other class: uniform, or confusion (those that are easily confused). Default: uniform.", CONDITIONS),
    option("typos", str | None, "Share of words with a typing mistake, as in 0.1.", CONDITIONS),
    option("typos_in", str | None, "train, test or both. Default: train.", CONDITIONS),
    option("imbalance", str | None,
           "How many times the rows of the smallest class the largest has, as in 10.", CONDITIONS),
    option("ood", str | None, "A file with texts of another kind: how well the confidence tells them apart.",
           CONDITIONS, metavar="FILE"),
    option("overtrain", bool | None, "Keep the last epoch; the one that validation chooses is tested beside it.",
           CONDITIONS, "--overtrain"),
    *settings(("model", "trust_remote_code"), optional=True),
    option("references", bool | None,
           "Add a probe on the frozen model and TF-IDF, which train no Transformer. Default: yes.", MODEL),
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
    option("equal_within", float,
           "Points of the main metric that count as no difference: the verdict 'practically equal'.", RUN, default=1.0),
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

    from mixwell import api
    from mixwell.compare import grid as grids
    from mixwell.compare import run
    from mixwell.report.terminal import show_comparison, write_comparison
    from mixwell.utils.signals import telling

    budget = run.race_budget(values["race"], values["budget"])
    file = grids.read_grid(values["grid"]) if values["grid"] else {}
    given = _read(data, values)
    run.race_seeds(values["race"], file, given)
    grid = grids.make_grid(file, given)
    about = {name: values[name] for name in ("address", "cpus_per_run", "gpus_per_run", "ship_data")}
    about = {name: value for name, value in about.items() if value is not None}
    cluster = run.Cluster(**about) if about else None
    workers, quiet = values["workers"], values["quiet"]
    place = (values["engine"], workers, values["threads"])
    run.check_engine(*place, cluster)  # now: planning may take a while
    with telling("what is finished is kept, and the same command does the rest"):
        done = api.run_grid(
            grid,
            values["output"],
            engine=lambda: run.make_engine(*place, values["cache_dir"], cluster),
            view=run.make_view(max(workers or 1, 1), quiet),
            retry_failed=values["retry_failed"],
            new_data=values["new_data"],
            level=values["level"],
            equal_within=values["equal_within"],
            budget=budget,
            command=shlex.join(["mixwell", *context.obj]) if context.obj else None,
            shown_only=True,
        )
    show_comparison(done, write_comparison(done))
    run.check_failures(done)


def _read(data: list[str] | None, values: dict[str, Any]) -> dict[str, Any]:
    """What a command line says of a grid; None where it says nothing."""
    from mixwell.compare import grid as grids
    from mixwell.compare.conditions import read_tests
    from mixwell.utils.options import number_or_text, typed_options

    training = {name: values[name] for name in _TRAINING if values[name] is not None}
    if values["set_"]:
        from transformers import TrainingArguments

        training["arguments"] = typed_options(values["set_"], TrainingArguments, "--set")
    test, tests = read_tests(values["test"])
    plain = (
        "noise",
        "typos_in",
        "ood",
        "overtrain",
        "max_train",
        "max_test",
        "sample_seed",
        "seeds",
        "model",
        "trust_remote_code",
        "references",
    )
    return {
        **{name: values[name] for name in (*_LOADING, *plain)},
        "validation": number_or_text(values["validation"]),
        "test": number_or_text(test),
        "tests": tests,
        "label_noise": grids.numbers(values["label_noise"], float, "--label-noise"),
        "typos": grids.numbers(values["typos"], float, "--typos"),
        "imbalance": grids.numbers(values["imbalance"], float, "--imbalance"),
        "data": data or None,
        "methods": grids.split_methods(",".join(values["methods"])) if values["methods"] else None,
        "fractions": grids.numbers(values["fractions"], float, "--fractions"),
        "per_class": grids.numbers(values["per_class"], int, "--per-class"),
        "settings": training,
    }
