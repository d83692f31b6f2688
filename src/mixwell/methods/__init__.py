"""The methods, one file each: adding a method is adding a file.

`mixwell.methods()` lists them; other packages write their own with the names below (see `registry`).
"""

from __future__ import annotations

import sys
import types

from mixwell.core.blend import mix
from mixwell.core.method import DrawsLam, Method, option, pick_layers
from mixwell.methods.registry import build, load_all, method_class, register, summaries

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


class _Package(types.ModuleType):
    """A package that can be called: `mixwell.methods()`."""

    def __call__(self) -> dict[str, str]:
        """Return all methods, ours and those of other packages: name -> one line."""
        return summaries()


sys.modules[__name__].__class__ = _Package
