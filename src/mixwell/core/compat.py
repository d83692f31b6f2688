"""Private calls into torch, and what has to be known of other frameworks, in one place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch


class HookGuards:
    """Lets torch.compile see hooks on modules while any mixer is attached, and leaves its setting as it was.

    By default torch.compile takes the graph of a block without hooks for that of one that has some.
    """

    _holders = 0
    _before = True

    def __init__(self) -> None:
        self._held = False

    def take(self) -> None:
        """Ask for guards."""
        cls = HookGuards
        if not cls._holders:
            cls._before = bool(torch._dynamo.config.skip_nnmodule_hook_guards)
        torch._dynamo.config.skip_nnmodule_hook_guards = False  # also if somebody has changed it meanwhile
        cls._holders += 1
        self._held = True

    def release(self) -> None:
        """Give the setting back with the last mixer."""
        if not self._held:
            return
        self._held = False
        HookGuards._holders -= 1
        if not HookGuards._holders:
            torch._dynamo.config.skip_nnmodule_hook_guards = HookGuards._before


def in_training_step() -> bool:
    """Tell whether we are called from the training_step of a Lightning module."""
    if not any(name in sys.modules for name in ("lightning.pytorch", "pytorch_lightning")):
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "training_step" and "self" in frame.f_locals:
            return any(base.__name__ == "LightningModule" for base in type(frame.f_locals["self"]).__mro__)
        frame = frame.f_back
    return False


def sample_rows_by(trainer: Any, make: Callable[[], Any]) -> None:
    """Let a Trainer draw its training rows by another sampler; transformers asks for a subclass instead."""
    trainer._get_train_sampler = lambda rows=None: make()
