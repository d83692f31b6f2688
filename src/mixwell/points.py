"""Where a model can be mixed: the one place that knows how Transformers are built.

Points are found by structure and proved by a probe, a forward of a few made-up tokens whose module calls are traced.
No list of class names: an attention sub-block is the outermost module whose class name ends in `Attention`, a block is
the nearest `ModuleList` item above it, and the layout is told from the order of the calls and the numbers that pass.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mixwell.errors import AttachError, UnsupportedModelError

KINDS = ("embeddings", "attention", "attention_raw", "block", "sentence")
_ATTENTION = re.compile(r"Attention(V?\d)?$")
_CROSS = re.compile(r"cross|encoder_?attn|encdec", re.IGNORECASE)
_NORM = re.compile(r"Norm\d*$|Norm")


@dataclass(frozen=True)
class Point:
    """One place where a tensor with a batch axis can be mixed.

    Attributes:
        kind: one of `KINDS`.
        index: the number of the block, counted in the order of calls; 0 for embeddings and sentence.
        name: dotted name of the hooked module.
        module: the hooked module.
        how: `output` mixes the module's (first) output, `input` its first input, `residual` the sum of its output and
            the block's input, for blocks that add the residual after the hooked module.
        call: which call of the module, for modules that several blocks share (ALBERT).
        block: the block the point lies in, for `residual`.
        width: size of the last axis of the mixed tensor.
    """

    kind: str
    index: int
    name: str
    module: nn.Module
    how: str = "output"
    call: int = 0
    block: nn.Module | None = None
    width: int = 0


@dataclass(frozen=True)
class Points:
    """All points of one model.

    Attributes:
        found: kind -> points in order of calls.
        missing: kind -> why it was not found.
        words: the word embedding module, whose calls were seen, or None.
        heads: for each block the module whose output carries the attention weights under eager attention.
        layout: how the blocks are built, in words.
        depth: L, the number of block calls.
        calls: module -> how often one forward calls it.
    """

    found: dict[str, tuple[Point, ...]]
    missing: dict[str, str]
    words: nn.Module | None
    heads: tuple[nn.Module, ...]
    layout: str
    depth: int
    calls: dict[nn.Module, int] = field(repr=False, default_factory=dict)

    def get(self, kind: str) -> tuple[Point, ...]:
        """Return the points of one kind, or raise with the reason why there are none."""
        if kind not in self.found:
            raise UnsupportedModelError(
                f"this model has no usable {kind!r} point: {self.missing[kind]}; "
                f"mixwell.inspect(model) lists what it has and which methods fit"
            )
        return self.found[kind]


# --- the probe -----------------------------------------------------------------------------------------------------


@dataclass
class _Call:
    name: str
    module: nn.Module
    input: Tensor | None
    output: Tensor | None = None
    enter: int = 0
    leave: int = 0


def first_tensor(value: Any) -> Tensor | None:
    """Return the first floating tensor of a module's output or arguments."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            if isinstance(item, Tensor) and item.is_floating_point():
                return item
    return None


def is_tuner(module: nn.Module) -> bool:
    """Tell whether a module is an adapter around another layer (PEFT): points never descend into it."""
    return isinstance(getattr(module, "base_layer", None), nn.Module)


def modules_outside_tuners(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) like `named_modules`, but do not look inside adapters; shared modules come once."""
    seen: set[int] = set()

    def walk(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        yield name, module
        if is_tuner(module):
            return
        for key, child in module.named_children():
            yield from walk(child, f"{name}.{key}" if name else key)

    yield from walk(model, prefix)


def base_model(model: nn.Module) -> nn.Module:
    """Return the transformers model: the model itself, or the one that an adapter wraps (PEFT)."""
    getter: Any = getattr(model, "get_base_model", None)
    return model if getter is None else getter()


def base_config(model: nn.Module) -> Any:
    """Return the transformers config of a model or of the model an adapter wraps, or None."""
    return getattr(base_model(model), "config", None)


def probe_inputs(model: nn.Module, rows: int = 2, length: int = 7) -> dict[str, Tensor]:
    """Make up a small valid batch for a text model.

    Args:
        model: the model; its config gives the vocabulary and the special ids.
        rows: B.
        length: T.

    Returns:
        input_ids (B, T) and attention_mask (B, T).
    """
    config = base_config(model)
    if config is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no transformers config, so no probe can be made; attach to the transformers "
            f"model inside it"
        )
    vocabulary = int(getattr(config, "vocab_size", None) or getattr(config.get_text_config(), "vocab_size", None) or 0)
    if vocabulary < 4:
        raise UnsupportedModelError(f"{type(model).__name__} has no vocabulary in its config; only text models so far")
    pad = getattr(config, "pad_token_id", None)
    ids = torch.arange(rows * length).view(rows, length) % (vocabulary - 2) + 1
    if pad is not None:
        ids = torch.where(ids == pad, (pad + 1) % vocabulary, ids)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if device.type == "meta":
        raise AttachError("the model's weights are on the meta device; load them before attach")
    return {"input_ids": ids.to(device), "attention_mask": torch.ones_like(ids, device=device)}


@contextlib.contextmanager
def training_flags(model: nn.Module, training: bool) -> Iterator[None]:
    """Set every module's training flag and put back each one's own afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    for module, _ in flags:
        module.training = training
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def _trace(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[list[_Call], Any]:
    """Run the model once, in training mode with its random state untouched, and record every module's calls."""
    calls: list[_Call] = []
    open_calls: list[_Call] = []
    clock = iter(range(1 << 30))
    handles = []
    for name, module in modules_outside_tuners(model):
        if not name:
            continue

        def enter(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            value = first_tensor(args)
            open_calls.append(_Call(name, module, first_tensor(kwargs) if value is None else value, enter=next(clock)))

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            call = open_calls.pop()
            call.output, call.leave = first_tensor(output), next(clock)
            calls.append(call)

        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, with_kwargs=True))
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices), training_flags(model, True), torch.no_grad():
            output = model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return sorted(calls, key=lambda call: call.enter), output


def logits_of(output: Any) -> Tensor | None:
    """Return the logits of a model's output: the entry of that name, or the first tensor that is no scalar."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict) or hasattr(output, "keys"):
        if "logits" in output:
            return output["logits"]
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        for item in output:
            if isinstance(item, Tensor) and item.is_floating_point() and item.dim() > 0:
                return item
    return None


def find_points(model: nn.Module) -> Points:
    """Find and prove the points of a model.

    Args:
        model: any transformers model with a head; its weights and random state are left as they were.

    Returns:
        The points found, and for those not found the reason.
    """
    try:
        calls, output = _trace(model, probe_inputs(model))
    except (AttachError, UnsupportedModelError):
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"the probe of {type(model).__name__} failed ({type(error).__name__}: {str(error).splitlines()[0]}); "
            f"only models that run on input_ids and attention_mask can be mixed"
        ) from error
    found: dict[str, tuple[Point, ...]] = {}
    missing: dict[str, str] = {}
    names = {module: name for name, module in modules_outside_tuners(model)}
    by_name = {name: module for module, name in names.items()}
    counts: dict[nn.Module, int] = {}
    for call in calls:
        counts[call.module] = counts.get(call.module, 0) + 1

    attentions = _attention_calls(calls)
    blocks = _block_calls(calls, attentions, by_name)
    layout = "unknown"
    heads: tuple[nn.Module, ...] = ()
    if not attentions or len(blocks) != len(attentions):
        reason = (
            "no module whose class name ends in 'Attention' was called"
            if not attentions
            else "its attention modules do not lie in the items of a ModuleList, one each"
        )
        missing.update(dict.fromkeys(("attention", "attention_raw", "block"), reason))
    else:
        heads = tuple(call.module for call in attentions)
        found["block"] = _number("block", blocks)
        raw = [_last_projection(calls, call) for call in attentions]
        if all(raw):
            found["attention_raw"] = _number("attention_raw", [call for call in raw if call])
        else:
            missing["attention_raw"] = "an attention module without a linear layer"
        stream, layout, reason = _stream(calls, attentions, blocks)
        if stream:
            found["attention"] = stream
        else:
            missing["attention"] = reason

    words = _word_embedding(model)
    if words is None or words not in counts:
        missing["embeddings"] = "get_input_embeddings() gives no module that a forward calls"
        words = None
    else:
        found["embeddings"] = (_embedding_point(names[words], by_name, calls, blocks),)
    head = _logits_linear(calls, logits_of(output))
    if head is None:
        missing["sentence"] = "no linear layer's output is the logits"
    else:
        found["sentence"] = (Point("sentence", 0, head.name, head.module, "input", width=_width(head.input)),)
    return Points(found, missing, words, heads, layout, len(blocks), counts)


def _attention_calls(calls: list[_Call]) -> list[_Call]:
    """Return the calls of outermost self-attention sub-blocks, in order."""
    matched = [
        call
        for call in calls
        if _ATTENTION.search(type(call.module).__name__)
        and not _CROSS.search(type(call.module).__name__)
        and not _CROSS.search(call.name.rsplit(".", 1)[-1])
        and not getattr(call.module, "is_cross_attention", False)
    ]
    return [
        call for call in matched if not any(other.enter < call.enter and call.leave < other.leave for other in matched)
    ]


def _block_calls(calls: list[_Call], attentions: list[_Call], by_name: dict[str, nn.Module]) -> list[_Call]:
    """Return for each attention call the call of the nearest ModuleList item strictly around it."""
    blocks = []
    for attention in attentions:
        around = [
            call
            for call in calls
            if call.enter < attention.enter
            and attention.leave < call.leave
            and "." in call.name
            and isinstance(by_name.get(call.name.rsplit(".", 1)[0]), nn.ModuleList)
        ]
        if around:
            blocks.append(max(around, key=lambda call: call.enter))
    return blocks


def _number(kind: str, calls: list[_Call]) -> tuple[Point, ...]:
    """Make points of calls, numbering repeated calls of one module."""
    seen: dict[nn.Module, int] = {}
    points = []
    for index, call in enumerate(calls):
        turn = seen.get(call.module, 0)
        seen[call.module] = turn + 1
        points.append(Point(kind, index, call.name, call.module, "output", turn, width=_width(call.output)))
    return tuple(points)


def _width(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.shape[-1]


def _is_projection(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D" or is_tuner(module)


def _is_norm(module: nn.Module) -> bool:
    return bool(_NORM.search(type(module).__name__)) and not any(module.children())


def _inside(calls: list[_Call], outer: _Call) -> list[_Call]:
    return [call for call in calls if outer.enter < call.enter and call.leave < outer.leave]


def _last_projection(calls: list[_Call], attention: _Call) -> _Call | None:
    linears = [call for call in _inside(calls, attention) if _is_projection(call.module)]
    return max(linears, key=lambda call: call.enter) if linears else None


def _close(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def _stream(calls: list[_Call], attentions: list[_Call], blocks: list[_Call]) -> tuple[tuple[Point, ...], str, str]:
    """Find the stream after attention in every block: the value the feed-forward part reads.

    Returns:
        The points (empty where a block's layout is not understood), the layout in words, and the reason.
    """
    sites: list[tuple[_Call, str, _Call]] = []
    layouts: list[str] = []
    for attention, block in zip(attentions, blocks):
        inside = _inside(calls, attention)
        leaves = [call for call in inside if not any(call.module.children())]
        later = [call for call in _inside(calls, block) if call.enter > attention.leave and _is_norm(call.module)]
        following = min(later, key=lambda call: call.enter, default=None)
        if leaves and _is_norm(max(leaves, key=lambda call: call.enter).module):
            sites.append((attention, "output", block))
            layouts.append("post-norm, residual and norm inside the attention module")
        elif following is None or attention.output is None or block.input is None:
            return (), "unknown", f"block {block.name!r} calls no norm after its attention"
        elif _close(following.input, attention.output):
            sites.append((attention, "output", block))
            layouts.append("residual inside the attention module")
        elif _close(following.input, attention.output + block.input):
            before = [call for call in _inside(calls, block) if call.enter < attention.enter and _is_norm(call.module)]
            if any(_close(call.input, block.input) for call in before):
                sites.append((attention, "residual", block))
                layouts.append("pre-norm")
            else:
                sites.append((following, "output", block))
                layouts.append("post-norm, norm after the attention module")
        else:
            return (
                (),
                "unknown",
                (
                    f"in block {block.name!r} the norm after attention reads neither its output nor that plus the "
                    f"block's input (parallel or sandwich-norm block, or dropout in between)"
                ),
            )
    numbered = _number("attention", [site for site, _, _ in sites])
    points = tuple(
        Point(point.kind, point.index, point.name, point.module, how, point.call, block.module, point.width)
        for point, (_, how, block) in zip(numbered, sites)
    )
    return points, ", ".join(sorted(set(layouts))), ""


def _word_embedding(model: nn.Module) -> nn.Module | None:
    inner: Any = base_model(model)
    try:
        return inner.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None


def _embedding_point(name: str, by_name: dict[str, nn.Module], calls: list[_Call], blocks: list[_Call]) -> Point:
    """Return the outermost module around the word embedding that holds no block; else the first block's input."""
    best = name
    parts = name.split(".")
    for size in range(len(parts) - 1, 0, -1):
        ancestor = ".".join(parts[:size])
        if any(block.name == ancestor or block.name.startswith(ancestor + ".") for block in blocks):
            break
        best = ancestor
    if best == name and blocks:
        # Word embedding, position and dropout lie loose in the model: their sum is what the first block reads.
        return Point("embeddings", 0, blocks[0].name, blocks[0].module, "input", width=_width(blocks[0].input))
    width = next(_width(call.output) for call in calls if call.name == best)
    return Point("embeddings", 0, best, by_name[best], width=width)


def _logits_linear(calls: list[_Call], logits: Tensor | None) -> _Call | None:
    if logits is None:
        return None
    makers = [
        call
        for call in calls
        if _is_projection(call.module)
        and call.output is not None
        and call.output.shape == logits.shape
        and torch.equal(call.output, logits)
    ]
    return max(makers, key=lambda call: call.enter) if makers else None
