"""Options of commands, made of the fields of `TrainSettings`: each has its default and its help there, once."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from mixwell.training.settings import TrainSettings


def option(help: str, group: str, *flags: str, **more: Any) -> Any:
    """An option of one panel of the help."""
    return typer.Option(*flags, help=help, rich_help_panel=group, **more)


def extra(name: str, kind: Any, default: Any, info: Any) -> inspect.Parameter:
    """A parameter that is no setting."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def settings(names: Iterable[str], *, optional: bool = False, **changed: str) -> list[inspect.Parameter]:
    """Parameters for some settings.

    Args:
        names: of fields of `TrainSettings`.
        optional: give None where nothing is written, so that a file can say it; the help names the default.
        **changed: help texts that differ for a command.
    """
    hints = typing.get_type_hints(TrainSettings)
    fields = {each.name: each for each in dataclasses.fields(TrainSettings)}
    made = []
    for name in names:
        each, kind = fields[name], hints[name]
        about = each.metadata
        if about["text"]:
            kind = str | None
        default, help = each.default, changed.get(name, about["help"])
        if optional:
            if default is not None and default is not False and name not in changed:
                help = f"{help} Default: {default}."
            default, kind = None, kind if _allows_none(kind) else kind | None
        made.append(extra(name, kind, default, option(help, about["group"], *about["flags"])))
    return made


def _allows_none(kind: Any) -> bool:
    return isinstance(kind, types.UnionType) and type(None) in typing.get_args(kind)


def takes(*parameters: inspect.Parameter) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command `(context, data, **values)`: Typer sees these parameters in place of the last."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = typing.get_type_hints(function, include_extras=True)
        own = inspect.signature(function).parameters.values()
        first = [each.replace(annotation=hints[each.name]) for each in own if each.kind is not each.VAR_KEYWORD]
        function.__signature__ = inspect.Signature([*first, *parameters])  # type: ignore[attr-defined]
        function.__annotations__ = {each.name: each.annotation for each in (*first, *parameters)}
        return function

    return decorate
