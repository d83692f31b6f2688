"""`mixwell train`."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from mixwell.cli._options import option, settings, takes
from mixwell.training.settings import MODEL, RUN, TRAINING, TrainSettings

# Fields that Python alone sets, or that have a form of their own on the command line.
_APART = ("data", "keep_together", "method_options", "arguments")
_SETTINGS = [field.name for field in dataclasses.fields(TrainSettings) if field.name not in _APART]


@takes(
    *settings(_SETTINGS),
    option("option", list[str] | None, "An option of the method, as name=value.", MODEL, metavar="NAME=VALUE"),
    option("set_", list[str] | None, "A field of TrainingArguments, as name=value.", TRAINING, "--set",
           metavar="NAME=VALUE"),
    option("resume", str | None, "Continue a stopped run; takes no options that change it.", RUN, metavar="RUN"),
    option("quiet", bool, "Print only the result.", RUN, "--quiet", "-q", default=False),
)  # fmt: skip
def command(
    context: typer.Context,
    data: Annotated[
        str | None, typer.Argument(help="A CSV, TSV, JSON, JSON-lines, Parquet or Excel file, folder, or hub id.")
    ] = None,
    **values: Any,
) -> None:
    """Train a calibrated classifier, by default the best of what a few hundred rows allow.

    The run folder has the model, its metrics, its predictions and pictures. A run that was stopped or killed is
    continued with --resume.
    """
    from mixwell import api
    from mixwell.cli import given
    from mixwell.report.terminal import show_run
    from mixwell.utils.errors import OptionError

    if values["resume"] is not None:
        more = given(context) - {"resume", "quiet", "trust_remote_code"}
        if more:
            raise OptionError(f"--resume takes the settings of the run: leave {sorted(more)[0]!r} out")
        allowed = values["trust_remote_code"]  # typed now: what run.json says does not count
        show_run(api.resume(values["resume"], quiet=values["quiet"], trust_remote_code=allowed))
        return
    if data is None:
        raise OptionError("name the data: a file, a folder or a hub id")
    show_run(api.train(_read(data, values), quiet=values["quiet"]))


def _read(data: str, values: dict[str, Any]) -> TrainSettings:
    """The settings of a command line."""
    from transformers import TrainingArguments

    from mixwell.methods import method_class
    from mixwell.training.settings import mixing_of
    from mixwell.utils.options import number_or_text, typed_options

    method = values["method"]
    return TrainSettings(
        data,
        **{name: values[name] for name in _SETTINGS if name not in ("validation", "test")},
        validation=number_or_text(values["validation"]),
        test=number_or_text(values["test"]),
        method_options=typed_options(values["option"] or [], method_class(mixing_of(method)), f"option of {method}"),
        arguments=typed_options(values["set_"] or [], TrainingArguments, "--set"),
    )
