"""Make transformers' Auto classes know the pooled classifier as soon as both packages are imported, in either order.

transformers takes seconds to import and mixwell must not, so this does not import it: it registers at once if
transformers is there already, and else when the modules of its Auto classes have been imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_CONFIG, _MODEL = "mixwell.training.configuration_pooled", "mixwell.training.modeling_pooled"


def _whole(name: str, wanted: str) -> bool:
    """Whether one of our modules can be imported now: not if its own import is what led here."""
    module = sys.modules.get(name)
    return module is None or hasattr(module, wanted)


def _register_config() -> None:
    if not _whole(_CONFIG, "PooledConfig"):
        return
    from transformers import AutoConfig

    from mixwell.training.configuration_pooled import PooledConfig

    AutoConfig.register(PooledConfig.model_type, PooledConfig, exist_ok=True)
    PooledConfig.register_for_auto_class()


def _register_model() -> None:
    if not _whole(_CONFIG, "PooledConfig") or not _whole(_MODEL, "PooledForSequenceClassification"):
        return
    from transformers import AutoModelForSequenceClassification

    from mixwell.training.modeling_pooled import PooledConfig, PooledForSequenceClassification

    AutoModelForSequenceClassification.register(PooledConfig, PooledForSequenceClassification, exist_ok=True)
    PooledForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")


_AFTER: dict[str, Callable[[], None]] = {
    "transformers.models.auto.configuration_auto": _register_config,
    "transformers.models.auto.modeling_auto": _register_model,
    _CONFIG: _register_config,
    _MODEL: _register_model,
}


# No base class: importlib.abc takes longer to import than all of this package.
class _Finder:
    """Waits for the modules of the Auto classes, and lets their loaders register afterwards."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name not in _AFTER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            _AFTER[name]()

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Register now or when transformers is imported; calling it again changes nothing."""
    for name, call in _AFTER.items():
        if name in sys.modules and name.startswith("transformers."):
            call()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
