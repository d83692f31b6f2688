"""Nothing in a step copies a device tensor to the host, proved without a GPU.

A make-believe device: tensors that say they lie elsewhere and keep their values in CPU memory. Every operation is
watched: reading a value of such a tensor, copying it to the CPU, an output whose size depends on values, and mixing it
with a tensor on the CPU (which a GPU would refuse) are recorded or raised.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only

import mixwell
import parts
import zoo
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
        if "/transformers/" in name or "/torch/autograd/" in name:  # backward of the model's own operations
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
    moved = {}  # tied weights stay tied
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                moved.setdefault(parameter, torch.nn.Parameter(There(parameter.detach().clone())))
                module._parameters[name] = moved[parameter]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = There(buffer.clone())
    return model


@pytest.fixture(autouse=True)
def _device(monkeypatch):
    """Fill in what meta tensors lack: torch.tensor(..., device=) keeps its values, autocast is off."""
    tensor, autocast = torch.tensor, torch.is_autocast_enabled

    def made(data, *, device=None, **how):
        value = tensor(data, **how)
        return There(value) if device is not None and torch.device(device) == DEVICE else value

    monkeypatch.setattr(torch, "tensor", made)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind="cpu": kind != "meta" and autocast(kind))


def train(kind, name, options, *, keep_labels=False, rows=6, items=None, steps=2):
    """Train on the CPU and on the make-believe device, which must agree; return the host copies of the last step."""
    results = []
    for far in (False, True):
        model = zoo.tiny(kind, dropout=0.1).train()
        mixer = mixwell.attach(model, name, **{**zoo.strong(name), **options})
        batch = zoo.batch(kind, rows=rows)
        count = None if items is None else torch.tensor(items)
        if far:
            send(model)
            batch = {key: There(value) for key, value in batch.items()}
            count = None if items is None else There(count)
        torch.manual_seed(0)
        for number in range(steps):
            given = dict(batch)
            with Host(strict=number > 0) as host:
                if keep_labels:
                    labels = given.pop("labels")
                    loss = mixer.loss(model(**given).logits, labels, count)
                else:
                    loss = model(**given, **({} if count is None else {"num_items_in_batch": count})).loss
                loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    cpu, there = results
    assert len(cpu) == len(there)
    assert all(isinstance(value, There) and torch.equal(value.held, want) for want, value in zip(cpu, there))
    assert not host.ours
    return host


@functools.cache
def copies_of_plain_training(kind):
    return len(train(kind, "none", {}).others)


@pytest.mark.parametrize(
    ("kind", "name"),
    parts.some(
        [
            *(("bert", name) for name in sorted(load_all())),
            ("llama", "amplify"),
            ("llama", "manifold"),
            ("llama", "ssmix"),
        ],
        3,
    ),
)
def test_no_step_after_the_first_looks_at_values(kind, name):
    """And the results are those of the CPU, to the bit."""
    host = train(kind, name, zoo.options(kind, name))
    # Transformers looks at the mask in each forward; three methods run a second one.
    twice = name in ("attentionmix", "regmixup", "ssmix")
    assert len(host.others) <= copies_of_plain_training(kind) * (2 if twice else 1)


@pytest.mark.parametrize(
    ("kind", "name"), [("bart", "amplify"), ("vit", "amplify"), ("bart", "manifold"), ("vit", "attentionmix")]
)
def test_other_architectures(kind, name):
    train(kind, name, zoo.options(kind, name))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("amplify", {"pairing": "length"}),
        ("amplify", {"pairing": "label"}),
        ("amplify", {"consistent": True, "padding": "keep"}),
        ("amplify", {"regularise": True}),
        ("cls", {"class_weights": [1.0, 2.0, 0.5], "label_smoothing": 0.1}),
        ("manifold", {"padding": "none"}),
        ("manifold", {"padding": "pad"}),
        ("input", {"padding": "unused", "unused_token_id": 4, "extent": "max"}),
        ("nonlinear", {"point": "embeddings"}),
        ("nonlinear", {"label_policy": "learned"}),
        ("batchmixup", {"loss_form": "dot"}),
        ("batchmixup", {"weights": "sample"}),
        ("ssmix", {"special_ids": [zoo.CLS, zoo.SEP]}),
        ("tmix", {"start": 0.5, "total_steps": 4}),
    ],
    ids=str,
)
def test_options(name, options):
    train("bert", name, options, rows=5, steps=options.get("total_steps", 2))


@pytest.mark.parametrize("keep_labels", [False, True])
def test_losses_outside_the_model_and_item_counts(keep_labels):
    train("bert", "amplify", {}, keep_labels=keep_labels, items=12)


@pytest.mark.parametrize(
    "look",
    [
        lambda plan: float(plan.label_weight[0]),
        lambda plan: bool((plan.permutation == 0).any()),
        lambda plan: plan.permutation.cpu(),
        lambda plan: plan.permutation.tolist(),
        lambda plan: plan.label_weight[plan.label_weight < 1],
        lambda plan: plan.permutation.unique(),
        lambda plan: torch.zeros(6, dtype=torch.long).copy_(plan.permutation),
    ],
)
def test_the_watch_sees_a_look(look):
    look.__code__ = look.__code__.replace(co_filename=MIXWELL + "/spy.py")  # as if it were ours
    model = zoo.tiny("bert").train()
    with mixwell.attach(model, "amplify") as mixer:
        send(model)
        batch = {key: There(value) for key, value in zoo.batch().items()}
        with Host(), mixer.pin(lam=0.5, permutation=[1, 2, 3, 4, 5, 0]):
            model(**batch)
        with Host(strict=True), pytest.raises((HostCopy, RuntimeError)):
            look(mixer.last)


def test_the_watch_sees_mixed_devices():
    with Host(), pytest.raises(AssertionError, match="mixes devices"):
        There(torch.zeros(3)) + torch.zeros(3)
