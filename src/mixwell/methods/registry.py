"""The methods by name: ours, one file each in this folder, and those of other packages.

Other packages add methods through the entry point group `mixwell.methods`: each entry names a module whose import
registers methods with `register`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from mixwell.core.method import Method, is_auto
from mixwell.utils.errors import MixwellError, OptionError, nearest

REGISTRY: dict[str, type[Method]] = {}
M = TypeVar("M", bound="type[Method]")
_loaded = False


def register(method: M) -> M:
    """Class decorator that makes a method known by its `name`; a name can be taken only once."""
    other = REGISTRY.get(method.name)
    if other is not None and (other.__module__, other.__qualname__) != (
        method.__module__,
        method.__qualname__,
    ):
        raise MixwellError(
            f"two methods are named {method.name!r}: {other.__module__}.{other.__qualname__} and "
            f"{method.__module__}.{method.__qualname__}; rename one"
        )
    if not method.name or not method.summary:
        raise MixwellError(f"{method.__module__}.{method.__qualname__} needs a name and a one-line summary")
    REGISTRY[method.name] = method
    return method


def load_all() -> dict[str, type[Method]]:
    """Import every method, ours and other packages', and return them by name; hidden ones are left out."""
    global _loaded
    if not _loaded:
        package = __name__.rpartition(".")[0]
        for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
            importlib.import_module(f"{package}.{module.name}")
        for entry in entry_points(group="mixwell.methods"):
            try:
                entry.load()
            except MixwellError:
                raise
            except Exception as error:
                raise MixwellError(
                    f"the method package behind entry point {entry.name!r} ({entry.value}) cannot be imported: "
                    f"{error}; fix or uninstall it"
                ) from error
        _loaded = True
    return {name: method for name, method in sorted(REGISTRY.items()) if not method.hidden}


def summaries() -> dict[str, str]:
    """Return name -> one line for all methods."""
    return {name: method.summary for name, method in load_all().items()}


def method_class(name: str) -> type[Method]:
    """Return the class of a method by name."""
    known = load_all()
    if name not in REGISTRY:
        raise OptionError(f"method {name!r} is unknown{nearest(name, known)}; known: {', '.join(known)}")
    return REGISTRY[name]


def to_find(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options of a method that are left to be found on training rows."""
    return tuple(option for option in method_class(name).searchable if is_auto(options.get(option)))


def check_searchable(name: str, options: Mapping[str, Any], task: str) -> None:
    """Raise `OptionError` where options cannot be found because the rows have no single classes."""
    left = to_find(name, options)
    if left and task != "single_label":
        raise OptionError(
            f"method {name}: {left[0]}=auto needs data with one class per row, and the task is {task}; give "
            f"{left[0]} a value, or leave it out"
        )


def without_auto(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a method that have a value already."""
    left = to_find(name, options)
    return {option: value for option, value in options.items() if option not in left}


def build(method: str | Method, options: dict[str, Any]) -> Method:
    """Make a method object of a name and options; an unknown option is an error."""
    if isinstance(method, Method):
        if options:
            raise OptionError("options go with a method's name; a method object has its own")
        return method
    if not isinstance(method, str):
        raise OptionError(f"method must be a name or a Method, not {type(method).__name__}")
    chosen = method_class(method)
    options = {chosen.aliases.get(name, name): value for name, value in options.items()}
    for name in options:
        if name not in chosen.option_names():
            raise OptionError(
                f"method {method!r} has no option {name!r}{nearest(name, chosen.option_names())}; "
                f"it has: {', '.join(chosen.option_names())}"
            )
    try:
        return chosen(**options)
    except TypeError as error:
        raise OptionError(f"an option of method {method!r} has the wrong type: {error}") from error
