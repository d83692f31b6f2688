"""Nothing in a step copies a device tensor to the host, proved without a GPU.

A make-believe device: tensors that say they lie elsewhere and keep their values in CPU memory. Every operation is
watched: reading a value of such a tensor, copying it to the CPU, an output whose size depends on values, and mixing it
with a tensor on the CPU (which a GPU would refuse) are recorded or raised.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only

import mixwell
import zoo
from mixwell.errors import BatchError
from mixwell.methods import load_all

aten = torch.ops.aten
# Autograd treats meta tensors like tensors on the CPU, so backward needs no backend for the device.
DEVICE = torch.device("meta")
READS_VALUES = {
    aten._local_scalar_dense, aten.is_nonzero, aten.equal, aten.allclose, aten.nonzero, aten.masked_select,
    aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.bincount,
}  # fmt: skip
MIXWELL = str(Path(mixwell.__file__).parent)


class HostCopy(AssertionError):
    """Something of ours looked at a device tensor."""


class There(torch.Tensor):
    """A tensor on the make-believe device."""

    @staticmethod
    def __new__(cls, held: torch.Tensor):
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=DEVICE, requires_grad=False,
        )  # fmt: skip
        made.held = held
        return made

    def __repr__(self):
        return f"There({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {}, None)


def ours() -> bool:
    """Whether mixwell asked for the operation, and not the model it runs."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(MIXWELL):
            return True
        if "transformers" in name:
            return False
        frame = frame.f_back
    return False


def reads_values(func, args, kwargs) -> bool:
    packet = func.overloadpacket
    if packet is aten._to_copy:
        return torch.device(kwargs.get("device") or DEVICE) != DEVICE
    if packet is aten.copy_:
        return not isinstance(args[0], There) and isinstance(args[1], There)
    if packet is aten.repeat_interleave:
        return func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
    if packet in (aten.index, aten.index_put, aten.index_put_, aten._unsafe_index):
        return any(isinstance(index, There) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return packet in READS_VALUES


def run(func, args, kwargs, host):
    """Run an operation on the held values; its results lie where a real device would put them."""
    values = tree_flatten((args, kwargs))[0]
    there = any(isinstance(value, There) for value in values)
    if there and host is not None and reads_values(func, args, kwargs):
        host.seen(func)
    target = kwargs.get("device")
    if target is not None and torch.device(target) == DEVICE:
        there, kwargs = True, {**kwargs, "device": "cpu"}
    elif target is not None and func.overloadpacket is aten._to_copy:
        there = False
    elif there and func.overloadpacket not in (aten.copy_, aten._to_copy):
        stray = [v for v in values if isinstance(v, torch.Tensor) and not isinstance(v, There) and v.dim() > 0]
        assert not stray, f"{func} mixes devices: a CPU tensor of shape {tuple(stray[0].shape)}"
    bare_args, bare_kwargs = tree_map_only(There, lambda t: t.held, (args, kwargs))
    result = func(*bare_args, **bare_kwargs)
    if not there or func.overloadpacket in (aten._local_scalar_dense, aten.is_nonzero):
        return result
    result = tree_map_only(torch.Tensor, There, result)
    return return_and_correct_aliasing(func, args, kwargs, result)


class Host(TorchDispatchMode):
    """Counts what comes back from the device; raises if `strict` and it was ours."""

    def __init__(self, strict: bool = False):
        super().__init__()
        self.strict = strict
        self.ours, self.others = [], []

    def seen(self, func):
        if not ours():
            self.others.append(str(func))
            return
        self.ours.append(str(func))
        if self.strict:
            raise HostCopy(f"{func} reads a device tensor")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {}, self)


def send(model: torch.nn.Module) -> torch.nn.Module:
    """Move a model to the make-believe device."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = torch.nn.Parameter(There(parameter.detach().clone()))
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = There(buffer.clone())
    return model
