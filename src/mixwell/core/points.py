"""Points: the places in a model where a tensor with a batch axis can be mixed."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from mixwell.core.arguments import Form, Inputs
from mixwell.utils.errors import UnsupportedModelError

KINDS = ("embeddings", "attention", "attention_raw", "block", "sentence")


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
        axis: the batch axis of the mixed tensor.
        key: the name of the mixed tensor, in a module that returns a dict.
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
    axis: int = 0
    key: str = ""


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
        task: `sequence` (one label per row), `token` (one per token) or `span` (extractive question answering).
        modality: `text`, `image`, or `features` for other numbers.
        calls: module -> how often one forward calls it.
        inputs: what the probe ran on.
        form: how the module is called, for one that was probed with an example; None for the names of transformers.
        classes: the size of the last axis of the logits.
        classifies: whether the output has logits by name, or comes from a linear layer.
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
    inputs: Inputs = field(repr=False, default_factory=Inputs)
    form: Form | None = field(repr=False, default=None)
    classes: int = 0
    classifies: bool = True

    def get(self, kind: str) -> tuple[Point, ...]:
        """Return the points of one kind, or raise with the reason why there are none."""
        if kind not in self.found:
            raise UnsupportedModelError(
                f"this model has no usable {kind!r} point: {self.missing[kind]}; "
                f"mixwell.inspect(model) lists what it has and which methods fit"
            )
        return self.found[kind]
