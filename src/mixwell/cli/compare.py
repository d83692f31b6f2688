"""`mixwell compare`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mixwell.cli._options import extra, option, settings, takes
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
    extra("methods", str | None, None, option(
        "As in manifold,tmix:alpha=0.5. Plain training, label smoothing, a probe and TF-IDF are always added.", MODEL)),
    extra("seeds", int | None, None, option(
        "How many seeds; 3 at least to know anything. Default: 5; in a race at most 18.", RUN)),
    extra("race", bool, False, option(
        "Add seeds in rounds; a method that is better, worse or practically equal trains no more.", RUN, "--race")),
    extra("budget", str | None, None, option(
        "Of a race: 30m of training, summed over the runs, or '60 runs'. Default: none.", RUN)),
    extra("output", str | None, None, option(
        "The folder for the records. Default: runs/DATA-compare.", RUN, "--output", "-o")),
    extra("grid", str | None, None, option(
        "A TOML file: data, methods, seeds, samples, \\[settings]; lists make a grid.", RUN, metavar="FILE")),
    extra("fractions", str | None, None, option(
        "Shares of the training rows, as in 0.1,1.0: a comparison each.", DATA)),
    extra("per_class", str | None, None, option("Training rows per class, as in 8,32: a comparison each.", DATA)),
    extra("max_train", int | None, None, option("The most training rows.", DATA)),
    extra("max_test", int | None, None, option("The most test rows, a fixed choice.", DATA)),
    extra("sample_seed", int | None, None, option(
        "Chooses the training rows for all seeds alike. Default: each seed has its own.", DATA)),
    *settings(
        _LOADING, optional=True, validation="A file, or a share of train. Default: 0.1.",
    ),
    extra("test", list[str] | None, None, option(
        "A file, or a share of train. Default: 0.2. NAME=FILE: a further test set, such as another domain.", DATA)),
    extra("label_noise", str | None, None, option(
        "Share of training rows with another class, as in 0.3, or 0,0.3: a comparison each.", CONDITIONS)),
    extra("noise", str | None, None, option(
        "Which other class: uniform, or confusion (those that are easily confused). Default: uniform.", CONDITIONS)),
    extra("typos", str | None, None, option("Share of words with a typing mistake, as in 0.1.", CONDITIONS)),
    extra("typos_in", str | None, None, option("train, test or both. Default: train.", CONDITIONS)),
    extra("imbalance", str | None, None, option(
        "How many times the rows of the smallest class the largest has, as in 10.", CONDITIONS)),
    extra("ood", str | None, None, option(
        "A file with texts of another kind: how well the confidence tells them apart.", CONDITIONS, metavar="FILE")),
    extra("overtrain", bool | None, None, option(
        "Keep the last epoch; the one that validation chooses is tested beside it.", CONDITIONS, "--overtrain")),
    *settings(("model", "trust_remote_code"), optional=True),
    extra("references", bool | None, None, option(
        "Add a probe on the frozen model and TF-IDF, which train no Transformer.", MODEL)),
    *settings(_TRAINING, optional=True),
    extra("set_", list[str] | None, None, option(
        "A field of TrainingArguments, as name=value.", TRAINING, "--set", metavar="NAME=VALUE")),
    extra("engine", str, "local", option("Where to train: local, or ray for a cluster.", RUN)),
    extra("workers", int | None, None, option(
        "Trainings at a time, each in a process; 0: one, in this process. Default: 1; on a cluster all that fit.", RUN,
        min=0)),
    extra("threads", int | None, None, option(
        "Threads of a worker. Default: the cores, shared out; on a cluster --cpus-per-run.", RUN, min=1)),
    extra("address", str | None, None, option(
        "HOST:PORT of the head. Default: auto, the cluster this machine belongs to.", CLUSTER)),
    extra("cpus_per_run", int | None, None, option("Cores of a training. Default: 1.", CLUSTER)),
    extra("gpus_per_run", float | None, None, option(
        "1 trains on GPUs; a share such as 0.5 lets two have one. Default: 0.", CLUSTER)),
    extra("ship_data", bool | None, None, option(
        "Send data and weights to all nodes, not only to those that do not see them.", CLUSTER, "--ship-data")),
    extra("retry_failed", bool, False, option("Try again what failed before.", RUN, "--retry-failed")),
    extra("new_data", bool, False, option(
        "Go on though the data changed; the old records are kept.", RUN, "--new-data")),
    extra("level", float, 0.95, option("Of the intervals.", RUN)),
    extra("equal_within", float, 1.0, option(
        "Points of the main metric that count as no difference: the verdict 'practically equal'.", RUN)),
    *settings(("cache_dir",)),
    extra("quiet", bool, False, option("Print only the result.", RUN, "--quiet", "-q")),
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
    from mixwell.utils.errors import OptionError

    if values["budget"] is not None and not values["race"]:
        raise OptionError("--budget goes with --race, which adds seeds until the budget ends; add --race")
    budget = run.Budget.read(values["budget"]) if values["race"] else None
    file = grids.read_grid(values["grid"]) if values["grid"] else {}
    given = _read(data, values)
    if values["race"] and "seeds" not in file and given["seeds"] is None:
        given["seeds"] = run.RACE_SEEDS
    grid = grids.make_grid(file, given)
    about = {name: values[name] for name in ("address", "cpus_per_run", "gpus_per_run", "ship_data")}
    about = {name: value for name, value in about.items() if value is not None}
    cluster = run.Cluster(**about) if about else None
    workers, quiet = values["workers"], values["quiet"]
    place = (values["engine"], workers, values["threads"])
    run.check_engine(*place, cluster)  # now: planning may take a while
    done = run.run(
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
    )
    show_comparison(done)
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
        "methods": None if values["methods"] is None else grids.split_methods(values["methods"]),
        "fractions": grids.numbers(values["fractions"], float, "--fractions"),
        "per_class": grids.numbers(values["per_class"], int, "--per-class"),
        "settings": training,
    }
