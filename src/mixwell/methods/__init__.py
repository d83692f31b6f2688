"""The methods, one file each. Every module in this folder is loaded, so adding a method is adding a file.

Other packages add methods through the entry point group `mixwell.methods`: each entry names a module whose import
registers methods with `mixwell.methods.register`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import types
from importlib.metadata import entry_points
from typing import Any

from mixwell.errors import MixwellError, OptionError, nearest
from mixwell.methods.base import REGISTRY, DrawsLam, Method, mix, option, pick_layers, register

__all__ = [
    "DrawsLam",
    "Method",
    "build",
    "load_all",
    "method_class",
    "mix",
    "option",
    "pick_layers",
    "register",
    "summaries",
]

_loaded = False


def load_all() -> dict[str, type[Method]]:
    """Import every method, ours and other packages', and return them by name; hidden ones are left out."""
    global _loaded
    if not _loaded:
        for module in pkgutil.iter_modules(__path__):
            importlib.import_module(f"{__name__}.{module.name}")
        importlib.import_module("mixwell.papers.audit")  # hidden: papers' mistakes, to measure what they cost
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


class _Package(types.ModuleType):
    """Lets `mixwell.methods()` be called after this package has taken the place of the function of that name."""

    def __call__(self) -> dict[str, str]:
        return summaries()


sys.modules[__name__].__class__ = _Package


def method_class(name: str) -> type[Method]:
    """Return the class of a method by name."""
    known = load_all()
    if name not in REGISTRY:
        raise OptionError(f"method {name!r} is unknown{nearest(name, known)}; known: {', '.join(known)}")
    return REGISTRY[name]


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
