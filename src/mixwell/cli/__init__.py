"""The command line. One module a command, with no logic: adding a command is adding a file.

A command's module has a function `command`, or for commands with parts a Typer app `app`. Only the module of the
command in use is imported, and heavy libraries are imported inside the functions, so that `--help` answers at once.

Exit codes: 0 done; 2 the user's mistake, said in one line; 130 and 143 stopped by Ctrl-C and SIGTERM; 1 a defect of
mixwell, with a traceback.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from mixwell._version import __version__
from mixwell.utils.errors import DISK_ERRORS, MixwellError


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
            app.command(name, help=_paragraphs(module.command.__doc__ or ""))(module.command)
    return app


def _paragraphs(doc: str) -> str:
    """A docstring with each paragraph in one line: the help wraps it to the width of the terminal."""
    return "\n\n".join(" ".join(part.split()) for part in doc.split("\n\n"))


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
        app = typer.main.get_command(build_app(words))
        code = app(args=words, prog_name="mixwell", standalone_mode=False, obj=words)
        if code == 130:  # how newer versions of Typer report Ctrl-C
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except MixwellError as error:
        if os.environ.get("MIXWELL_TRACEBACK"):
            traceback.print_exception(error)
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
    """Print an error as one line, from the first process of each machine only."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        rank = os.environ.get("RANK", "0")
        where = "" if rank == "0" else f" (process {rank})"
        print(f"mixwell{where}: {' '.join(message.split())}", file=sys.stderr, flush=True)


def given(context: typer.Context) -> set[str]:
    """The names of the parameters that were written on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
