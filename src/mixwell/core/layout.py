"""Where a model can be mixed: the one place that knows how Transformers are built.

Points are found by structure and confirmed by a probe. No list of class names: an attention sub-block is the outermost
module whose class name ends in `Attention`, a block is the nearest `ModuleList` item above it, and the layout is told
from the order of the calls and the numbers that pass.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mixwell.core.ends import embedding_points, find_head, is_projection, missing_embeddings, width, word_embedding
from mixwell.core.example import Example, hint, named_calls, named_points
from mixwell.core.model import main_output, modules_outside_tuners, pad_id
from mixwell.core.points import Point, Points
from mixwell.core.probe import Call, Probe

_ATTENTION = re.compile(r"Attention(V?\d)?$")


_CROSS = re.compile(r"cross|encoder_?attn|encdec", re.IGNORECASE)


_NORM = re.compile("Norm")


def find_points(model: nn.Module, example: Any = None, **how: Any) -> Points:
    """Find the points of a model, each confirmed by a probe.

    Args:
        model: any transformers model with a head, or any module with an example; its weights and random state are left
            as they were.
        example: what the module is called with: a tensor, a tuple of positional arguments or a dict of named ones.
        **how: with an example, see `Example`.

    Returns:
        The points found, and for those not found the reason.
    """
    given = None if example is None else Example(**how)
    probe = Probe(model, None if given is None else given.inputs(model, example))
    names = {module: name for name, module in modules_outside_tuners(model)}
    by_name = {name: module for module, name in names.items()}
    counts: dict[nn.Module, int] = {}
    for call in probe.calls:
        counts[call.module] = counts.get(call.module, 0) + 1
    named: Mapping[str, str] = {} if given is None else given.named
    stack = _find_blocks(probe, by_name, named)
    found, missing = dict(stack.found), dict(stack.missing)
    words = word_embedding(model)
    if words not in counts:
        words = None
    embeddings = named_points(probe, "embeddings", named) or embedding_points(
        probe, None if words is None else names[words], by_name, stack.blocks, stack.stacks
    )
    if embeddings:
        found["embeddings"] = embeddings
    else:
        missing["embeddings"] = missing_embeddings(probe, words)
    task, heads = find_head(probe, pad_id(model))
    heads = named_points(probe, "sentence", named) or heads
    if heads:
        found["sentence"] = heads
    else:
        missing["sentence"] = "no linear layer's output is the logits" + hint(probe, "sentence", "the head")
    logits = main_output(probe.output)
    classifies = not isinstance(probe.output, dict) or bool({"logits", "start_logits"} & probe.output.keys())
    return Points(
        found, missing, words, stack.heads, stack.layout, len(stack.blocks), task, probe.modality, counts,
        inputs=probe.inputs, form=probe.form, classes=0 if logits is None or not logits.dim() else logits.shape[-1],
        classifies=classifies or bool(heads),
    )  # fmt: skip


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


def _find_blocks(probe: Probe, by_name: dict[str, nn.Module], named: Mapping[str, str]) -> _Blocks:
    """Find blocks, the stream after their attention and its raw projection."""
    calls = probe.calls
    attentions = named_calls(probe, "attention", named) or _attention_calls(calls)
    blocks = named_calls(probe, "block", named) or _block_calls(calls, attentions, by_name)
    plain_block = _block_without_attention(calls, blocks, by_name)
    if "block" in named and not attentions:
        # Blocks whose attention is no module: their outputs can be mixed all the same.
        result = _Blocks(blocks, (), _stacks(probe, blocks))
        result.found["block"] = _number(probe, "block", blocks, result.stacks)
        reason = "no module in the blocks is attention" + hint(probe, "attention", "their attention modules")
        result.missing |= dict.fromkeys(("attention", "attention_raw"), reason)
        return result
    if not attentions or len(blocks) != len(attentions) or plain_block is not None:
        reason = (
            "no module whose class name ends in 'Attention' was called"
            if not attentions
            else "its attention modules do not lie in the items of a ModuleList, one each"
            if plain_block is None
            else f"block {plain_block!r} beside them has no attention (a hybrid of attention and something else)"
        ) + hint(probe, "block", "the blocks")
        return _Blocks(missing=dict.fromkeys(("attention", "attention_raw", "block"), reason))
    result = _Blocks(blocks, tuple(call.module for call in attentions), _stacks(probe, blocks))
    wrong = next((call.name for call in (*attentions, *blocks) if probe.axis(call) is None), None)
    if wrong is not None:
        reason = f"what {wrong!r} gives has no batch axis that grows with the rows of the example"
        return _Blocks(missing=dict.fromkeys(("attention", "attention_raw", "block"), reason))
    result.found["block"] = _number(probe, "block", blocks, result.stacks)
    raw = [_last_projection(calls, call) for call in attentions]
    if all(raw):
        result.found["attention_raw"] = _number(probe, "attention_raw", [call for call in raw if call], result.stacks)
    else:
        result.missing["attention_raw"] = "an attention module without a linear layer"
    stream, result.layout, reason = _stream(probe, attentions, blocks, result.stacks)
    if stream:
        stream, reason = _past_dropout(probe, stream)
    if reason:
        result.missing["attention"] = reason
    else:
        result.found["attention"] = stream
    return result


def _stacks(probe: Probe, blocks: list[Call]) -> list[tuple[str, bool]]:
    """Tell for each block which stack it belongs to and whether it is causal.

    A decoder's blocks hold cross-attention. Elsewhere a block is causal if its first position does not depend on the
    last word.
    """
    kinds = [
        "decoder"
        if any(_ATTENTION.search(type(c.module).__name__) and _is_cross(c) for c in _inside(probe.calls, block))
        else "encoder"
        for block in blocks
    ]
    again = probe.with_other_end()
    if again is None:
        return [(kind, False) for kind in kinds]
    result = []
    for kind, block in zip(kinds, blocks):
        twin, axis = again.get(block.enter), 1 - (probe.axis(block) or 0)
        free = (
            twin is not None
            and block.output is not None
            and twin.output is not None
            and block.output.dim() > 2
            and torch.equal(block.output.select(axis, 0), twin.output.select(axis, 0))
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
    """Return for each attention call the call of the nearest ModuleList item strictly around it, or of a Sequential."""
    blocks = []
    for attention in attentions:
        around = [
            call
            for call in calls
            if call.enter < attention.enter and attention.leave < call.leave and "." in call.name
        ]  # fmt: skip
        for kind in (nn.ModuleList, nn.Sequential):
            items = [call for call in around if isinstance(by_name.get(call.name.rsplit(".", 1)[0]), kind)]
            if kind is nn.Sequential and not items:  # a Sequential may be the model itself
                items = [call for call in calls if "." not in call.name and isinstance(by_name[""], kind)]
                items = [c for c in items if c.enter < attention.enter and attention.leave < c.leave]
            if items:
                blocks.append(max(items, key=lambda call: call.enter))
                break
    return blocks


def _block_without_attention(calls: list[Call], blocks: list[Call], by_name: dict[str, nn.Module]) -> str | None:
    """Return the name of a called item beside the blocks that is none of them, as in hybrids (Jamba).

    A Sequential may hold more than blocks (embeddings, a head): there only what lies between them counts.
    """
    names = {block.name for block in blocks}
    parents = {name.rpartition(".")[0] for name in names}
    for call in calls:
        parent = call.name.rpartition(".")[0]
        if parent not in parents or call.name in names:
            continue
        within = [block for block in blocks if block.name.rpartition(".")[0] == parent]
        between = within[0].enter < call.enter < within[-1].enter
        if between or isinstance(by_name.get(parent), nn.ModuleList):
            return call.name
    return None


def _number(probe: Probe, kind: str, calls: list[Call], stacks: list[tuple[str, bool]]) -> tuple[Point, ...]:
    """Make points of calls, numbering repeated calls of one module."""
    seen: dict[nn.Module, int] = {}
    points = []
    for index, (call, (stack, causal)) in enumerate(zip(calls, stacks)):
        turn = seen.get(call.module, 0)
        seen[call.module] = turn + 1
        where = (width(call.output), stack, causal, probe.axis(call) or 0, call.key)
        points.append(Point(kind, index, call.name, call.module, "output", turn, None, *where))
    return tuple(points)


def _is_norm(module: nn.Module) -> bool:
    return bool(_NORM.search(type(module).__name__)) and not any(module.children())


def _inside(calls: list[Call], outer: Call) -> list[Call]:
    return [call for call in calls if outer.enter < call.enter and call.leave < outer.leave]


def _last_projection(calls: list[Call], attention: Call) -> Call | None:
    if isinstance(attention.module, nn.MultiheadAttention) or is_projection(attention.module):
        return attention  # torch's gives its projection, and does not call it as a module
    linears = [call for call in _inside(calls, attention) if is_projection(call.module)]
    return max(linears, key=lambda call: call.enter) if linears else None


def _close(a: Tensor | None, b: Tensor | None) -> bool:
    # Some blocks (OPT) fold batch and positions into one axis before a norm.
    if a is None or b is None or a.numel() != b.numel() or a.shape[-1] != b.shape[-1]:
        return False
    return torch.allclose(a.reshape(b.shape), b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return None if a is None or b is None or a.shape != b.shape else a + b


def _stream(
    probe: Probe, attentions: list[Call], blocks: list[Call], stacks: list[tuple[str, bool]]
) -> tuple[tuple[Point, ...], str, str]:
    """Find the stream after attention in every block: the value the feed-forward part reads.

    Returns:
        The points (empty where a block's layout is not understood), the layout in words, and the reason.
    """
    sites: list[tuple[Call, str, Call]] = []
    layouts: list[str] = []
    calls = probe.calls
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
        for point, (_, how, block) in zip(_number(probe, "attention", [site for site, _, _ in sites], stacks), sites)
    )
    return points, ", ".join(sorted(set(layouts))), ""


def _adds_residual(calls: list[Call], attention: Call, block: Call) -> bool:
    """Tell whether an attention module returns its projection plus the block's input (T5), not the projection alone."""
    raw = _last_projection(calls, attention)
    if raw is None or raw.output is None or block.input is None:
        return False
    return _close(attention.output, _sum(raw.output, block.input))


def _past_dropout(probe: Probe, stream: tuple[Point, ...]) -> tuple[tuple[Point, ...], str]:
    """See that residual points give the stream in training mode too, where dropout may follow attention.

    Returns:
        The points, moved behind a dropout that is a module, and why they cannot be mixed if it is none.
    """
    if not any(point.how == "residual" for point in stream):
        return stream, ""
    calls = probe.trained()
    points: list[Point] = []
    for point in stream:
        attention = next((call for call in calls if call.module is point.module), None)
        block = next((call for call in calls if call.module is point.block), None)
        if attention is None or block is None:
            return (), f"block {point.name.rsplit('.', 1)[0]!r} is left out at random in training; set layer drop to 0"
        later = [c for c in _inside(calls, block) if c.enter > attention.leave]
        following = min((c for c in later if _is_norm(c.module)), key=lambda call: call.enter)
        between = [c for c in later if c.leave < following.enter and probe.axis(c) is not None]
        last = next((c for c in (attention, *between) if _close(following.input, _sum(c.output, block.input))), None)
        if last is None:
            return (), (
                f"block {point.name.rsplit('.', 1)[0]!r} puts dropout between attention and residual; set that dropout "
                f"to 0 in the model's config, or use site='attention_raw' or another method"
            )
        points.append(point if last is attention else dataclasses.replace(point, name=last.name, module=last.module))
    return tuple(points), ""
