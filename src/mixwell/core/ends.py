"""Where a model begins and ends: its embedding output, and what its last linear layer reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mixwell.core.model import base_model, is_tuner, last_token, main_output
from mixwell.core.outputs import tensors_of
from mixwell.core.points import Point
from mixwell.core.probe import Call, Probe


def width(tensor: Tensor | None) -> int:
    """Return the size of the last axis."""
    return 0 if tensor is None else tensor.shape[-1]


def is_projection(module: nn.Module) -> bool:
    """Tell whether a module is a linear layer, or an adapter around one."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D" or is_tuner(module)


def word_embedding(model: nn.Module) -> nn.Module | None:
    """Return the word embedding of a transformers model."""
    inner: Any = base_model(model)
    try:
        return inner.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None


def embedding_points(
    probe: Probe,
    words: str | None,
    by_name: dict[str, nn.Module],
    blocks: list[Call],
    stacks: list[tuple[str, bool]],
) -> tuple[Point, ...]:
    """Return the embedding output of each stack.

    That is the outermost module around the word embedding that holds no block and gives one tensor. Where there is none
    (word embedding, positions and dropout lie loose in the model) it is what the first block of the stack reads.
    """
    calls = probe.calls
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
            size = next((width(call.output) for call in calls if call.name == best), 0)
            return (Point("embeddings", 0, best, by_name[best], width=size, causal=bool(stacks) and stacks[0][1]),)
    points: dict[str, Point] = {}
    for block, (stack, causal) in zip(blocks, stacks):
        if stack not in points and block.input is not None and probe.axis(block, "input") is not None:
            points[stack] = Point(
                "embeddings", len(points), block.name, block.module, "input",
                width=width(block.input), stack=stack, causal=causal, axis=probe.axis(block, "input") or 0,
            )  # fmt: skip
    return tuple(points.values())


def missing_embeddings(probe: Probe, words: nn.Module | None) -> str:
    """Return why there is no embedding output."""
    if probe.shaped:
        return "no block is known whose input it is; name the module that gives it, where={'embeddings': name}"
    if words is None:
        return "get_input_embeddings() gives no module that a forward calls"
    return "nothing around the word embedding gives all the embedding output as one tensor, and no block is known"


def find_head(probe: Probe, pad: int | None) -> tuple[str, tuple[Point, ...]]:
    """Return the task, and the points before the linear layers that make the logits, one for each head."""
    logits = main_output(probe.output)
    if logits is None:
        return "sequence", ()
    if probe.shaped:
        return _task_of_example(probe, logits), _heads_of_example(probe, logits)
    task = (
        "span"
        if isinstance(probe.output, dict) and "start_logits" in probe.output
        else "token"
        if logits.dim() == 3
        else "sequence"
    )
    wanted = logits.transpose(1, 2) if task == "span" else logits
    head: tuple[Call, str] | None = None
    ids = probe.inputs.get("input_ids")
    for call in probe.calls:
        if not is_projection(call.module) or call.output is None:
            continue
        if call.output.shape == wanted.shape and torch.equal(call.output, wanted):
            head = call, "input"
        elif ids is not None and call.output.dim() == 3 and call.output.shape[::2] == wanted.shape:
            rows = torch.arange(wanted.shape[0], device=wanted.device)
            if torch.equal(call.output[rows, last_token(ids, pad)], wanted):
                head = call, "last"
    if head is None:
        return task, ()
    call, how = head
    return task, (Point("sentence", 0, call.name, call.module, how, width=width(call.input)),)


def _task_of_example(probe: Probe, logits: Tensor) -> str:
    if isinstance(probe.output, dict) and "start_logits" in probe.output:
        return "span"
    return "token" if logits.dim() == 3 and not probe.choices else "sequence"


def _heads_of_example(probe: Probe, logits: Tensor) -> tuple[Point, ...]:
    """Return the inputs of the linear layers that make the outputs; without any, what gives the output itself.

    An output may have been scaled, squashed or reshaped after its linear layer: then it is the last one of its size.
    """
    linears = [call for call in probe.calls if is_projection(call.module) and probe.axis(call, "input") is not None]
    points: dict[str, Point] = {}
    outputs = [t for t in tensors_of(probe.output) if t.is_floating_point() and t.dim() > 0]
    heads = [logits, *(t for t in outputs if t is not logits and t.dim() == logits.dim() == 2)]
    for tensor in heads:
        same: list[Call | None] = [call for call in linears if _same_values(call.output, tensor)]
        if tensor is logits and not same:
            sized = [call for call in linears if call.output is not None and call.output.numel() == tensor.numel()]
            same = [next((call for call in reversed(sized) if probe.makes_output(call)), None)]
        if same and same[-1] is not None:
            call = same[-1]
            points[call.name] = Point(
                "sentence",
                0,
                call.name,
                call.module,
                "input",
                width=width(call.input),
                axis=probe.axis(call, "input") or 0,
            )
    if points:
        return tuple(points.values())
    for call in reversed(probe.calls):  # an encoder without a head
        if _same_values(call.output, logits) and probe.axis(call) is not None and (call.single or call.key):
            axis = probe.axis(call) or 0
            return (Point("sentence", 0, call.name, call.module, width=width(logits), axis=axis, key=call.key),)
    return ()


def _same_values(a: Tensor | None, b: Tensor) -> bool:
    return a is not None and a.numel() == b.numel() and torch.equal(a.flatten(), b.flatten())
