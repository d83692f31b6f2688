"""The command line. One module a command, with no logic: adding a command is adding a file.

A command's module has a function `command`, or for commands with parts a Typer app `app`. Only the module of the
command in use is imported, and heavy libraries are imported inside the functions, so that `--help` answers at once.

Exit codes: 0 done; 2 the user's mistake, said in one line; 130 and 143 stopped by Ctrl-C and SIGTERM; 1 a defect of
mixwell, with a traceback.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mixwell._version import __version__
from mixwell.errors import MixwellError, OptionError, nearest
from mixwell.runs import DISK_ERRORS

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def commands() -> list[str]:
    """The names of all commands: the modules of this package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def build_app(words: Sequence[str]) -> typer.Typer:
    """The app for a command line; only the commands it needs are imported.

    Args:
        words: the command line after the program's name.
    """
    app = typer.Typer(
        name="mixwell",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def top(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
        ] = False,
    ) -> None:
        """Mixup in the hidden layers of any Transformer: train, predict, compare."""

    names = commands()
    wanted = next((word for word in words if not word.startswith("-")), "")
    for name in [wanted] if wanted in names else names:
        module = importlib.import_module(f"{__name__}.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(module.command)
    return app


def _version(asked: bool) -> None:
    if asked:
        print(f"mixwell {__version__}")
        raise typer.Exit


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Args:
        words: the command line after the program's name; None for that of the process.
    """
    words = list(sys.argv[1:] if words is None else words) or ["--help"]
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP's advice to turn a check off
    # The base of Typer's own errors; Typer brings its own click or uses the other one, by version.
    usage = [kind for kind in typer.BadParameter.__mro__ if hasattr(kind, "format_message")][-1]
    try:
        code = typer.main.get_command(build_app(words))(args=words, prog_name="mixwell", standalone_mode=False)
        if code == 130:  # how newer versions of Typer report Ctrl-C
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except MixwellError as error:
        _say(str(error))
        return 128 + int(getattr(error, "signal", 0)) if hasattr(error, "signal") else 2
    except usage as error:  # type: ignore[misc]
        _say(f"{error.format_message()} (see mixwell {words[0] if words[0] in commands() else ''} --help)")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        _say(f"{error.filename or 'output'}: {error.strerror}; choose another place or put that right")
        return 2


def _say(message: str) -> None:
    """Print an error as one line, from the first process only."""
    if os.environ.get("RANK", "0") == "0":
        print(f"mixwell: {' '.join(message.split())}", file=sys.stderr, flush=True)


# --- options written as texts ----------------------------------------------------------------------------------------


def typed_options(pairs: list[str], owner: Any, what: str) -> dict[str, Any]:
    """Turn texts `name=value` into values of the types that the fields of a dataclass have.

    Args:
        pairs: the texts.
        owner: the dataclass.
        what: how messages call a field.
    """
    fields = {f.name for f in dataclasses.fields(owner)}
    hints = typing.get_type_hints(owner)
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise OptionError(f"{what} {pair!r} must be written name=value")
        if name not in fields:
            known = f"; known: {', '.join(sorted(fields))}" if len(fields) < 40 else ""
            raise OptionError(f"{what} {name!r} is unknown{nearest(name, fields)}{known}")
        try:
            values[name] = typed_value(text.strip(), hints[name])
        except (ValueError, TypeError) as error:
            raise OptionError(f"{what} {name}: {text.strip()!r} is not {_says(hints[name])}") from error
    return values


def typed_value(text: str, hint: Any) -> Any:
    """Read a text as a value of a type; raise ValueError when it is none."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = sorted(inside, key=lambda kind: _rank(kind))
        if type(None) in kinds and text.lower() in ("none", "null", ""):
            return None
        for kind in (kind for kind in kinds if kind is not type(None)):
            try:
                return typed_value(text, kind)
            except (ValueError, TypeError):
                continue
        raise ValueError(text)
    if hint is bool:
        return _TRUTH[text.lower()] if text.lower() in _TRUTH else _fail(text)
    if hint in (int, float, str):
        return hint(text)
    if hint is dict or origin is dict:
        value = json.loads(text)
        return value if isinstance(value, dict) else _fail(text)
    if origin is not None and isinstance(origin, type) and issubclass(origin, typing.Sequence):
        return [typed_value(part.strip(), inside[0] if inside else str) for part in text.strip("[]").split(",")]
    if isinstance(hint, type) and hasattr(hint, "__members__"):
        return hint(text).value
    return _fail(text)


def _rank(kind: Any) -> int:
    """In which order the types of a union are tried: a text is anything, so it comes last."""
    order: list[Any] = [bool, int, float, list, dict, str]
    plain = typing.get_origin(kind) or kind
    return order.index(plain) if plain in order else 3


def _fail(text: str) -> Any:
    raise ValueError(text)


def _says(hint: Any) -> str:
    plain = str(getattr(hint, "__name__", hint) if not typing.get_args(hint) else hint)
    return "a value of type " + re.sub(r"\b(?:\w+\.)+", "", plain)


def number_or_text(text: str | None) -> str | float | None:
    """A share as a number, a file name as it is."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def given(context: typer.Context) -> set[str]:
    """The names of the parameters that were written on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


# --- tables ----------------------------------------------------------------------------------------------------------


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", title_style="bold")
    for at, column in enumerate(columns):
        table.add_column(column, no_wrap=at == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console().print(table)


def show_run(result: Any) -> None:
    """Print the summary of a `RunResult`."""
    from mixwell.calibration import METRICS

    metrics = result.metrics
    if not metrics:  # a process other than the first
        return
    if result.was_finished:
        print(f"{result.folder}: this run was finished already")
    before, after = metrics["test"]["before"], metrics["test"].get("after")
    columns = ["test metric", "before temperature", "after"] if after else ["test metric", "value"]
    rows = [
        [METRICS[name].title, f"{value:.4f}", *([f"{after[name]:.4f}"] if after else [])]
        for name, value in before.items()
    ]
    scale = "" if metrics["temperature"] is None else f", temperature {metrics['temperature']:.3f}"
    kept = f"epoch {metrics['best_epoch']} of {metrics['epochs']}"
    show_table(f"{metrics['method']['method']}: {metrics['test']['rows']} test rows, {kept}{scale}", columns, rows)
    print(f"run folder   {result.folder}\nmodel        {result.folder / 'model'}")
    print(f'predict      mixwell predict {result.folder} "a text"')
