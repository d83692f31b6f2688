"""The methods, one file each: adding a method is adding a file.

`mixwell.methods()` lists them, and `mixwell.methods.Amplify` is the class of one; other packages write their own with
the names below (see `registry`).
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from mixwell.core.blend import mix
from mixwell.core.method import DrawsLam, Method, option, pick_layers
from mixwell.methods.registry import build, load_all, method_class, register, summaries

if TYPE_CHECKING:
    from mixwell.methods.amplify import Amplify
    from mixwell.methods.attentionmix import AttentionMix
    from mixwell.methods.batchmixup import BatchMixup
    from mixwell.methods.cmixup import CMixup
    from mixwell.methods.eda import EasyDataAugmentation
    from mixwell.methods.embedmix import EmbedMix
    from mixwell.methods.input import InputMixup
    from mixwell.methods.manifold import ManifoldMixup
    from mixwell.methods.mit import MixupInferenceInTraining
    from mixwell.methods.nfm import NoisyFeatureMixup
    from mixwell.methods.none import NoMixing
    from mixwell.methods.nonlinear import NonlinearMixup
    from mixwell.methods.regmixup import RegMixup
    from mixwell.methods.remix import Remix
    from mixwell.methods.sentencemix import ClsMixup, SentenceMix
    from mixwell.methods.ssmix import SSMix
    from mixwell.methods.tmix import TMix

__all__ = [
    "Amplify",
    "AttentionMix",
    "BatchMixup",
    "CMixup",
    "ClsMixup",
    "DrawsLam",
    "EasyDataAugmentation",
    "EmbedMix",
    "InputMixup",
    "ManifoldMixup",
    "Method",
    "MixupInferenceInTraining",
    "NoMixing",
    "NoisyFeatureMixup",
    "NonlinearMixup",
    "RegMixup",
    "Remix",
    "SSMix",
    "SentenceMix",
    "TMix",
    "build",
    "load_all",
    "method_class",
    "mix",
    "option",
    "pick_layers",
    "register",
    "summaries",
]


def _classes() -> dict[str, type[Method]]:
    return {method.__name__: method for method in load_all().values()}


def __getattr__(name: str) -> Any:
    """Find the class of a method, also of one from another package."""
    classes = {} if name.startswith("_") else _classes()
    if name in classes:
        return classes[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_classes()})


class _Package(types.ModuleType):
    """A package that can be called: `mixwell.methods()`."""

    def __call__(self) -> dict[str, str]:
        """Return all methods, ours and those of other packages: name -> one line."""
        return summaries()


sys.modules[__name__].__class__ = _Package
