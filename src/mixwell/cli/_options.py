"""Options of commands, made of the fields of `TrainSettings`: each has its default and its help there, once."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from mixwell.training.settings import TrainSettings


def option(name: str, kind: Any, help: str, group: str, *flags: str, default: Any = None, **more: Any) -> Any:
    """A parameter that is an option, in one panel of the help, which names its default; brackets are plain text."""
    if default is None and "Default" not in help and kind not in (bool, bool | None):
        help = f"{help} Default: none."
    help = help.replace("\\[", "[").replace("[", "\\[")
    annotation = Annotated[kind, typer.Option(*flags, help=help, rich_help_panel=group, **more)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def settings(names: Iterable[str], *, optional: bool = False, **changed: str) -> list[inspect.Parameter]:
    """Parameters for some settings.

    Args:
        names: of fields of `TrainSettings`.
        optional: give None where nothing is written, so that a file can say it; the help names the default.
        **changed: help texts that differ for a command.
    """
    hints = typing.get_type_hints(TrainSettings)
    fields = {field.name: field for field in dataclasses.fields(TrainSettings)}
    options = []
    for name in names:
        default, about = fields[name].default, fields[name].metadata
        kind, help = str | None if about["text"] else hints[name], changed.get(name, about["help"])
        if optional:
            if default is not None and default is not False and name not in changed:
                help = f"{help} Default: {default}."
            default, kind = None, kind | None
        options.append(option(name, kind, help, about["group"], *about["flags"], default=default))
    return options


def takes(*parameters: inspect.Parameter) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command `(context, data, **values)`: Typer sees these parameters in place of the last."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = typing.get_type_hints(function, include_extras=True)
        own = inspect.signature(function).parameters.values()
        first = [one.replace(annotation=hints[one.name]) for one in own if one.kind is not one.VAR_KEYWORD]
        function.__signature__ = inspect.Signature([*first, *parameters])  # type: ignore[attr-defined]
        function.__annotations__ = {one.name: one.annotation for one in (*first, *parameters)}
        return function

    return decorate
