"""Where a model can be mixed: the one place that knows how Transformers are built.

Points are found by structure and confirmed by a probe. No list of class names: an attention sub-block is the outermost
module whose class name ends in `Attention`, a block is the nearest `ModuleList` item above it, and the layout is told
from the order of the calls and the numbers that pass.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mixwell.core.model import base_model, is_tuner, last_token, logits_of, modules_outside_tuners, pad_id
from mixwell.core.points import Point, Points
from mixwell.core.probe import Call, probe_inputs, trace_calls

_ATTENTION = re.compile(r"Attention(V?\d)?$")


_CROSS = re.compile(r"cross|encoder_?attn|encdec", re.IGNORECASE)


_NORM = re.compile("Norm")


def find_points(model: nn.Module) -> Points:
    """Find the points of a model, each confirmed by a probe.

    Args:
        model: any transformers model with a head; its weights and random state are left as they were.

    Returns:
        The points found, and for those not found the reason.
    """
    inputs = probe_inputs(model)
    calls, output = trace_calls(model, inputs)
    names = {module: name for name, module in modules_outside_tuners(model)}
    by_name = {name: module for module, name in names.items()}
    counts: dict[nn.Module, int] = {}
    for call in calls:
        counts[call.module] = counts.get(call.module, 0) + 1
    stack = _find_blocks(model, inputs, calls, by_name)
    found, missing = dict(stack.found), dict(stack.missing)
    words = _word_embedding(model)
    if words not in counts:
        words = None
    word_name = None if words is None else names[words]
    embeddings = _embedding_points(word_name, by_name, calls, stack.blocks, stack.stacks)
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
    depth = len(stack.blocks)
    return Points(found, missing, words, stack.heads, stack.layout, depth, task, modality, counts)


@dataclass
class _Blocks:
    """The blocks of a model, and the points in them.

    Attributes:
        blocks: the call of each block, in order.
        heads: for each block the module whose output carries the attention weights.
        stacks: for each block the name of its stack, and whether that is causal.
        layout: how the blocks are built, in words.
        found: kind -> points.
        missing: kind -> why it was not found.
    """

    blocks: list[Call] = field(default_factory=list)
    heads: tuple[nn.Module, ...] = ()
    stacks: list[tuple[str, bool]] = field(default_factory=list)
    layout: str = "unknown"
    found: dict[str, tuple[Point, ...]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def _find_blocks(
    model: nn.Module, inputs: dict[str, Tensor], calls: list[Call], by_name: dict[str, nn.Module]
) -> _Blocks:
    """Find blocks, the stream after their attention and its raw projection."""
    attentions = _attention_calls(calls)
    blocks = _block_calls(calls, attentions, by_name)
    plain_block = _block_without_attention(calls, blocks)
    if not attentions or len(blocks) != len(attentions) or plain_block is not None:
        reason = (
            "no module whose class name ends in 'Attention' was called"
            if not attentions
            else "its attention modules do not lie in the items of a ModuleList, one each"
            if plain_block is None
            else f"block {plain_block!r} beside them has no attention (a hybrid of attention and something else)"
        )
        return _Blocks(missing=dict.fromkeys(("attention", "attention_raw", "block"), reason))
    result = _Blocks(blocks, tuple(call.module for call in attentions), _stacks(model, calls, blocks))
    result.found["block"] = _number("block", blocks, result.stacks)
    raw = [_last_projection(calls, call) for call in attentions]
    if all(raw):
        result.found["attention_raw"] = _number("attention_raw", [call for call in raw if call], result.stacks)
    else:
        result.missing["attention_raw"] = "an attention module without a linear layer"
    stream, result.layout, reason = _stream(calls, attentions, blocks, result.stacks)
    if stream:
        reason = _dropout_between(model, inputs, stream)
    if reason:
        result.missing["attention"] = reason
    else:
        result.found["attention"] = stream
    return result


def _stacks(model: nn.Module, calls: list[Call], blocks: list[Call]) -> list[tuple[str, bool]]:
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
    again = {(call.name, call.enter): call for call in trace_calls(model, other)[0]}
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


def _is_cross(call: Call) -> bool:
    return bool(
        _CROSS.search(type(call.module).__name__)
        or _CROSS.search(call.name.rsplit(".", 1)[-1])
        or getattr(call.module, "is_cross_attention", False)
    )


def _attention_calls(calls: list[Call]) -> list[Call]:
    """Return the calls of outermost self-attention sub-blocks, in order."""
    matched = [call for call in calls if _ATTENTION.search(type(call.module).__name__) and not _is_cross(call)]
    return [
        call for call in matched if not any(other.enter < call.enter and call.leave < other.leave for other in matched)
    ]


def _block_calls(calls: list[Call], attentions: list[Call], by_name: dict[str, nn.Module]) -> list[Call]:
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


def _block_without_attention(calls: list[Call], blocks: list[Call]) -> str | None:
    """Return the name of a called item of the blocks' ModuleLists that is none of them, as in hybrids (Jamba)."""
    names = {block.name for block in blocks}
    lists = {name.rsplit(".", 1)[0] for name in names}
    return next((c.name for c in calls if c.name.rsplit(".", 1)[0] in lists and c.name not in names), None)


def _number(kind: str, calls: list[Call], stacks: list[tuple[str, bool]]) -> tuple[Point, ...]:
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


def _inside(calls: list[Call], outer: Call) -> list[Call]:
    return [call for call in calls if outer.enter < call.enter and call.leave < outer.leave]


def _last_projection(calls: list[Call], attention: Call) -> Call | None:
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
    calls: list[Call], attentions: list[Call], blocks: list[Call], stacks: list[tuple[str, bool]]
) -> tuple[tuple[Point, ...], str, str]:
    """Find the stream after attention in every block: the value the feed-forward part reads.

    Returns:
        The points (empty where a block's layout is not understood), the layout in words, and the reason.
    """
    sites: list[tuple[Call, str, Call]] = []
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


def _adds_residual(calls: list[Call], attention: Call, block: Call) -> bool:
    """Tell whether an attention module returns its projection plus the block's input (T5), not the projection alone."""
    raw = _last_projection(calls, attention)
    if raw is None or raw.output is None or block.input is None:
        return False
    return _close(attention.output, _sum(raw.output, block.input))


def _dropout_between(model: nn.Module, inputs: dict[str, Tensor], stream: tuple[Point, ...]) -> str:
    """Return why residual points cannot be mixed in training mode: dropout between attention and residual."""
    if not any(point.how == "residual" for point in stream):
        return ""
    calls, _ = trace_calls(model, inputs, training=True)
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
    calls: list[Call],
    blocks: list[Call],
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


def _head(calls: list[Call], output: Any, inputs: dict[str, Tensor], pad: int | None) -> tuple[str, Point | None]:
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
    found: tuple[Call, str] | None = None
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
