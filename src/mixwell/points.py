"""Where a model can be mixed: the one place that knows how Transformers are built.

Points are found by structure and proved by a probe, a forward of a few made-up tokens whose module calls are traced.
No list of class names: an attention sub-block is the outermost module whose class name ends in `Attention`, a block is
the nearest `ModuleList` item above it, and the layout is told from the order of the calls and the numbers that pass.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
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
_NORM = re.compile("Norm")


@dataclass(frozen=True)
class Point:
    """One place where a tensor with a batch axis can be mixed.

    Attributes:
        kind: one of `KINDS`.
        index: the number of the block, counted in the order of calls; 0 for embeddings and sentence.
        name: dotted name of the hooked module.
        module: the hooked module.
        how: `output` mixes the module's (first) output, `input` its first input, `residual` the sum of its output and
            the block's input, for blocks that add the residual after the hooked module, `last` its input at each
            row's last token, for heads that score every token.
        call: which call of the module, for modules that several blocks share (ALBERT).
        block: the block the point lies in, for `residual`.
        width: size of the last axis of the mixed tensor.
        stack: `decoder` for the decoder of an encoder-decoder model, else `encoder`.
        causal: whether tokens see only earlier ones: partners are then lined up at the last token, which is pooled.
    """

    kind: str
    index: int
    name: str
    module: nn.Module
    how: str = "output"
    call: int = 0
    block: nn.Module | None = None
    width: int = 0
    stack: str = "encoder"
    causal: bool = False


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
        task: `sequence` (one label a row), `token` (one a token) or `span` (extractive question answering).
        modality: `text` or `image`.
        calls: module -> how often one forward calls it.
    """

    found: dict[str, tuple[Point, ...]]
    missing: dict[str, str]
    words: nn.Module | None
    heads: tuple[nn.Module, ...]
    layout: str
    depth: int
    task: str = "sequence"
    modality: str = "text"
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
    single: bool = False  # whether the output is one tensor
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


def modules_outside_tuners(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
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

    yield from walk(model, "")


def base_model(model: nn.Module) -> nn.Module:
    """Return the transformers model: the model itself, or the one that an adapter wraps (PEFT)."""
    getter: Any = getattr(model, "get_base_model", None)
    return model if getter is None else getter()


def base_config(model: nn.Module) -> Any:
    """Return the transformers config of a model or of the model an adapter wraps, or None."""
    return getattr(base_model(model), "config", None)


def pad_id(model: nn.Module) -> int | None:
    """Return the id that decoder heads take for padding: that of the text part of a config with several parts."""
    config = base_config(model)
    part = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(part, "pad_token_id", None)


def probe_inputs(model: nn.Module, rows: int = 2, length: int = 8, last: int = 0) -> dict[str, Tensor]:
    """Make up a small valid batch: token ids, or pixels for a model that reads images.

    Args:
        model: the model; its config gives the vocabulary and the special ids.
        rows: B.
        length: T.
        last: added to the last word before the end, to see what depends on it.

    Returns:
        input_ids (B, T) and attention_mask (B, T), or pixel_values (B, C, H, W).
    """
    config = base_config(model)
    if config is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no transformers config, so no probe can be made; attach to the transformers "
            f"model inside it"
        )
    parameter = next(model.parameters())
    if parameter.device.type == "meta":
        raise AttachError("the model's weights are on the meta device; load them before attach")
    if getattr(base_model(model), "main_input_name", "input_ids") == "pixel_values":
        vision = getattr(config, "vision_config", config)
        if not hasattr(vision, "image_size") or not hasattr(vision, "num_channels"):
            raise UnsupportedModelError(
                f"the config of {type(model).__name__} does not say how large its images are, so no probe can be made"
            )
        side = vision.image_size
        height, width = (side, side) if isinstance(side, int) else side
        count = rows * vision.num_channels * height * width
        pixels = torch.linspace(-1, 1, count).view(rows, vision.num_channels, height, width)
        return {"pixel_values": pixels.to(parameter)}
    vocabulary = int(getattr(config, "vocab_size", None) or getattr(config.get_text_config(), "vocab_size", None) or 0)
    if vocabulary < 8:
        raise UnsupportedModelError(f"{type(model).__name__} has no vocabulary in its config, and reads no images")
    special = {getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "decoder_start")}
    words = [word for word in range(vocabulary) if word not in special][: rows * length + 2]
    ids = torch.tensor([[words[(row * length + place) % len(words)] for place in range(length)] for row in range(rows)])
    ids[:, -2] = words[(words.index(int(ids[0, -2])) + last) % len(words)]
    eos = getattr(config, "eos_token_id", None)
    if isinstance(eos, int) and 0 <= eos < vocabulary:
        ids[:, -1] = eos  # encoder-decoder classifiers pool there
    ids = ids.to(parameter.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@contextlib.contextmanager
def training_flags(model: nn.Module, training: bool | None) -> Iterator[None]:
    """Set every module's training flag and put back each one's own afterwards; None changes nothing."""
    flags = [(module, module.training) for module in model.modules()]
    for module, own in flags:
        module.training = own if training is None else training
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def _trace(model: nn.Module, inputs: dict[str, Tensor], training: bool = False) -> tuple[list[_Call], Any]:
    """Run the model once, its random state untouched, and record every module's calls in order."""
    calls: list[_Call] = []
    open_calls: list[_Call] = []
    clock = itertools.count()
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
            call.single = call.output is output
            calls.append(call)

        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, with_kwargs=True))
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()] if training else []
    try:
        # By name, since a task is told by the names of what comes out.
        named = {} if getattr(base_config(model), "return_dict", True) else {"return_dict": True}
        with torch.random.fork_rng(devices=devices), training_flags(model, training), torch.no_grad():
            output = model(**inputs, **named)
    except Exception as error:
        raise UnsupportedModelError(
            f"the probe of {type(model).__name__} failed "
            f"({type(error).__name__}: {(str(error) or '-').splitlines()[0]}); "
            f"only models that run on input_ids and attention_mask, or on pixel_values, can be mixed"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
        for buffer, before in buffers:
            if not torch.equal(buffer, before):  # running statistics
                buffer.copy_(before)
    return sorted(calls, key=lambda call: call.enter), output


def logits_of(output: Any, task: str = "sequence") -> Tensor | None:
    """Return the logits of a model's output: the entry of that name, or the first tensor that is no scalar.

    Start and end logits of question answering are stacked to (B, 2, T).

    Args:
        output: what the model returned.
        task: of the model; needed where the output is a tuple without names.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        if "logits" in output:
            return output["logits"]
        if "start_logits" in output:
            return torch.stack([output["start_logits"], output["end_logits"]], 1)
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        tensors = [item for item in output if isinstance(item, Tensor) and item.is_floating_point() and item.dim() > 0]
        if task == "span" and len(tensors) > 1:
            return torch.stack(tensors[:2], 1)
        return tensors[0] if tensors else None
    return None


def last_token(ids: Tensor, pad: int | None) -> Tensor:
    """Return the place of each row's last token that is not padding, as transformers' decoder heads pool: (B,)."""
    if pad is None:
        return torch.full(ids.shape[:1], ids.shape[1] - 1, device=ids.device)
    return (torch.arange(ids.shape[1], device=ids.device) * (ids != pad)).argmax(1)


def find_points(model: nn.Module) -> Points:
    """Find and prove the points of a model.

    Args:
        model: any transformers model with a head; its weights and random state are left as they were.

    Returns:
        The points found, and for those not found the reason.
    """
    inputs = probe_inputs(model)
    calls, output = _trace(model, inputs)
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
    stacks: list[tuple[str, bool]] = []
    plain_block = _block_without_attention(calls, blocks)
    if not attentions or len(blocks) != len(attentions) or plain_block is not None:
        reason = (
            "no module whose class name ends in 'Attention' was called"
            if not attentions
            else "its attention modules do not lie in the items of a ModuleList, one each"
            if plain_block is None
            else f"block {plain_block!r} beside them has no attention (a hybrid of attention and something else)"
        )
        missing.update(dict.fromkeys(("attention", "attention_raw", "block"), reason))
        blocks = []
    else:
        heads = tuple(call.module for call in attentions)
        stacks = _stacks(model, calls, blocks)
        found["block"] = _number("block", blocks, stacks)
        raw = [_last_projection(calls, call) for call in attentions]
        if all(raw):
            found["attention_raw"] = _number("attention_raw", [call for call in raw if call], stacks)
        else:
            missing["attention_raw"] = "an attention module without a linear layer"
        stream, layout, reason = _stream(calls, attentions, blocks, stacks)
        if stream:
            reason = _dropout_between(model, inputs, stream)
        if reason:
            missing["attention"] = reason
        else:
            found["attention"] = stream

    words = _word_embedding(model)
    if words not in counts:
        words = None
    embeddings = _embedding_points(None if words is None else names[words], by_name, calls, blocks, stacks)
    if embeddings:
        found["embeddings"] = embeddings
    else:
        missing["embeddings"] = (
            "get_input_embeddings() gives no module that a forward calls"
            if words is None
            else "nothing around the word embedding gives all the embedding output as one tensor, and no block is known"
        )
    task, head = _head(calls, output, inputs, pad_id(model))
    if head is None:
        missing["sentence"] = "no linear layer's output is the logits"
    else:
        found["sentence"] = (head,)
    modality = "image" if "pixel_values" in inputs else "text"
    return Points(found, missing, words, heads, layout, len(blocks), task, modality, counts)


def _stacks(model: nn.Module, calls: list[_Call], blocks: list[_Call]) -> list[tuple[str, bool]]:
    """Tell for each block which stack it belongs to and whether it is causal.

    A decoder's blocks hold cross-attention. Elsewhere a block is causal if its first position does not depend on the
    last word.
    """
    kinds = [
        "decoder"
        if any(_ATTENTION.search(type(c.module).__name__) and _is_cross(c) for c in _inside(calls, block))
        else "encoder"
        for block in blocks
    ]
    other = probe_inputs(model, last=1)
    if "input_ids" not in other:
        return [(kind, False) for kind in kinds]
    again = {(call.name, call.enter): call for call in _trace(model, other)[0]}
    result = []
    for kind, block in zip(kinds, blocks):
        twin = again.get((block.name, block.enter))
        free = (
            twin is not None
            and block.output is not None
            and twin.output is not None
            and torch.equal(block.output[:, 0], twin.output[:, 0])
        )
        result.append((kind, kind == "decoder" or free))
    return result


def _is_cross(call: _Call) -> bool:
    return bool(
        _CROSS.search(type(call.module).__name__)
        or _CROSS.search(call.name.rsplit(".", 1)[-1])
        or getattr(call.module, "is_cross_attention", False)
    )


def _attention_calls(calls: list[_Call]) -> list[_Call]:
    """Return the calls of outermost self-attention sub-blocks, in order."""
    matched = [call for call in calls if _ATTENTION.search(type(call.module).__name__) and not _is_cross(call)]
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


def _block_without_attention(calls: list[_Call], blocks: list[_Call]) -> str | None:
    """Return the name of a called item of the blocks' ModuleLists that is none of them, as in hybrids (Jamba)."""
    names = {block.name for block in blocks}
    lists = {name.rsplit(".", 1)[0] for name in names}
    return next((c.name for c in calls if c.name.rsplit(".", 1)[0] in lists and c.name not in names), None)


def _number(kind: str, calls: list[_Call], stacks: list[tuple[str, bool]]) -> tuple[Point, ...]:
    """Make points of calls, numbering repeated calls of one module."""
    seen: dict[nn.Module, int] = {}
    points = []
    for index, (call, (stack, causal)) in enumerate(zip(calls, stacks)):
        turn = seen.get(call.module, 0)
        seen[call.module] = turn + 1
        width = _width(call.output)
        points.append(Point(kind, index, call.name, call.module, "output", turn, None, width, stack, causal))
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
    # Some blocks (OPT) fold batch and positions into one axis before a norm.
    if a is None or b is None or a.numel() != b.numel() or a.shape[-1] != b.shape[-1]:
        return False
    return torch.allclose(a.reshape(b.shape), b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return None if a is None or b is None or a.shape != b.shape else a + b


def _stream(
    calls: list[_Call], attentions: list[_Call], blocks: list[_Call], stacks: list[tuple[str, bool]]
) -> tuple[tuple[Point, ...], str, str]:
    """Find the stream after attention in every block: the value the feed-forward part reads.

    Returns:
        The points (empty where a block's layout is not understood), the layout in words, and the reason.
    """
    sites: list[tuple[_Call, str, _Call]] = []
    layouts: list[str] = []
    for attention, block in zip(attentions, blocks):
        leaves = [call for call in _inside(calls, attention) if not any(call.module.children())]
        norms = [call for call in _inside(calls, block) if _is_norm(call.module)]
        following = min((n for n in norms if n.enter > attention.leave), key=lambda call: call.enter, default=None)
        if leaves and _is_norm(max(leaves, key=lambda call: call.enter).module):
            sites.append((attention, "output", block))
            layouts.append("post-norm, residual and norm inside the attention module")
        elif following is None or attention.output is None or block.input is None:
            return (), "unknown", f"block {block.name!r} calls no norm after its attention"
        elif _close(following.input, attention.output) and _adds_residual(calls, attention, block):
            sites.append((attention, "output", block))
            layouts.append("residual inside the attention module")
        elif _close(following.input, _sum(attention.output, block.input)):
            between = [c for c in _inside(calls, block) if attention.leave < c.enter and c.leave < following.enter]
            if any(next(call.module.parameters(), None) is not None for call in between):
                # The probe may have seen it at its first value, 1.
                return (
                    (),
                    "unknown",
                    f"block {block.name!r} scales what attention gives before it is added (LayerScale)",
                )
            if _close(max(norms, key=lambda call: call.leave).output, block.output):
                sites.append((following, "output", block))
                layouts.append("post-norm, norm after the attention module")
            else:
                sites.append((attention, "residual", block))
                layouts.append("pre-norm")
        else:
            reason = (
                f"in block {block.name!r} the norm after attention reads neither its output nor that plus the block's "
                f"input (a parallel or sandwich-norm block)"
            )
            return (), "unknown", reason
    points = tuple(
        dataclasses.replace(point, how=how, block=block.module)
        for point, (_, how, block) in zip(_number("attention", [site for site, _, _ in sites], stacks), sites)
    )
    return points, ", ".join(sorted(set(layouts))), ""


def _adds_residual(calls: list[_Call], attention: _Call, block: _Call) -> bool:
    """Tell whether an attention module returns its projection plus the block's input (T5), not the projection alone."""
    raw = _last_projection(calls, attention)
    if raw is None or raw.output is None or block.input is None:
        return False
    return _close(attention.output, _sum(raw.output, block.input))


def _dropout_between(model: nn.Module, inputs: dict[str, Tensor], stream: tuple[Point, ...]) -> str:
    """Return why residual points cannot be mixed in training mode: dropout between attention and residual."""
    if not any(point.how == "residual" for point in stream):
        return ""
    calls, _ = _trace(model, inputs, training=True)
    for point in stream:
        attention = next((call for call in calls if call.module is point.module), None)
        block = next((call for call in calls if call.module is point.block), None)
        if attention is None or block is None:
            return f"block {point.name.rsplit('.', 1)[0]!r} is left out at random in training; set layer drop to 0"
        later = [c for c in _inside(calls, block) if _is_norm(c.module) and c.enter > attention.leave]
        following = min(later, key=lambda call: call.enter)
        if not _close(following.input, _sum(attention.output, block.input)):
            return (
                f"block {point.name.rsplit('.', 1)[0]!r} puts dropout between attention and residual; set that dropout "
                f"to 0 in the model's config, or use site='attention_raw' or another method"
            )
    return ""


def _word_embedding(model: nn.Module) -> nn.Module | None:
    inner: Any = base_model(model)
    try:
        return inner.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None


def _embedding_points(
    words: str | None,
    by_name: dict[str, nn.Module],
    calls: list[_Call],
    blocks: list[_Call],
    stacks: list[tuple[str, bool]],
) -> tuple[Point, ...]:
    """Return the embedding output of each stack.

    That is the outermost module around the word embedding that holds no block and gives one tensor. Where there is none
    (word embedding, positions and dropout lie loose in the model) it is what the first block of the stack reads.
    """
    single = len({stack for stack, _ in stacks}) < 2
    if words is not None and single:
        whole = {call.name for call in calls if call.single and call.output is not None and call.output.dim() == 3}
        best, parts = words, words.split(".")
        for size in range(len(parts) - 1, 0, -1):
            ancestor = ".".join(parts[:size])
            if any(block.name == ancestor or block.name.startswith(ancestor + ".") for block in blocks):
                break
            if ancestor in whole:
                best = ancestor
        if best != words:
            width = next((_width(call.output) for call in calls if call.name == best), 0)
            return (Point("embeddings", 0, best, by_name[best], width=width, causal=bool(stacks) and stacks[0][1]),)
    points: dict[str, Point] = {}
    for block, (stack, causal) in zip(blocks, stacks):
        if stack not in points and block.input is not None:
            points[stack] = Point(
                "embeddings", len(points), block.name, block.module, "input",
                width=_width(block.input), stack=stack, causal=causal,
            )  # fmt: skip
    return tuple(points.values())


def _head(calls: list[_Call], output: Any, inputs: dict[str, Tensor], pad: int | None) -> tuple[str, Point | None]:
    """Return the task and the point before the linear layer that makes the logits."""
    logits = logits_of(output)
    if logits is None:
        return "sequence", None
    task = (
        "span"
        if isinstance(output, dict) and "start_logits" in output
        else "token"
        if logits.dim() == 3
        else "sequence"
    )
    wanted = logits.transpose(1, 2) if task == "span" else logits
    found: tuple[_Call, str] | None = None
    for call in calls:
        if not _is_projection(call.module) or call.output is None:
            continue
        if call.output.shape == wanted.shape and torch.equal(call.output, wanted):
            found = call, "input"
        elif "input_ids" in inputs and call.output.dim() == 3 and call.output.shape[::2] == wanted.shape:
            rows = torch.arange(wanted.shape[0], device=wanted.device)
            if torch.equal(call.output[rows, last_token(inputs["input_ids"], pad)], wanted):
                found = call, "last"
    if found is None:
        return task, None
    call, how = found
    return task, Point("sentence", 0, call.name, call.module, how, width=_width(call.input))
