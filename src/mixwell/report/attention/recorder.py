"""Record the attention of a model's forwards, block by block, while a mixer is attached."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from mixwell.core.mixer import Mixer
from mixwell.core.passes import eager_attention, square_tensors

_RECORDING = "mixwell_recording"


@dataclass
class BlockAttention:
    """What one attention module computed.

    Attributes:
        weights: (B, H, T, T), or None while they are not known.
        query: (B, H, T, d), or None where the model does not show it.
        key: (B, H, T, d) or fewer heads, or None.
        mask: what was added to the scores, or None.
        scale: what q . k was multiplied by.
    """

    weights: Any = None
    query: Any = None
    key: Any = None
    mask: Any = None
    scale: float = 1.0

    def keys_per_head(self) -> Any:
        """Keys for each head, (B, H, T, d): groups of heads may share one (Llama)."""
        return self.key.repeat_interleave(self.query.shape[1] // self.key.shape[1], 1)

    def is_explained(self) -> bool:
        """Whether the weights are the softmax of scaled q . k and the mask, and nothing else."""
        if self.query is None:
            return False
        scores = self.query @ self.keys_per_head().transpose(2, 3) * self.scale
        if self.mask is not None:
            scores = scores + self.mask[..., : scores.shape[-1]]
        return bool(torch.allclose(scores.softmax(-1), self.weights, rtol=0, atol=1e-6))


class Recorder:
    """Collects the attention of one forward, block by block.

    Attributes:
        blocks: what each block computed, in the order of calls.
        words: the token ids that were looked up, or None.
        inputs: the keyword arguments of the forward.
    """

    def __init__(self, mixer: Mixer) -> None:
        self.mixer = mixer
        self.blocks: list[BlockAttention] = []
        self.words: Any = None
        self.inputs: dict[str, Any] = {}
        self._open: BlockAttention | None = None

    def before_forward(self, module: Any, args: Any, kwargs: Any) -> None:
        """Hook before the model: keep its inputs."""
        if not self.mixer.flow.in_plain_call:
            self.inputs = dict(kwargs)

    def before_words(self, module: Any, args: Any) -> None:
        """Hook before the word embeddings: keep the token ids."""
        if self._in_mixed_forward(module) and args:
            self.words = args[0]

    def before_block(self, module: Any, args: Any) -> None:
        """Hook before an attention module."""
        self._open = BlockAttention() if self._in_mixed_forward(module) else None

    def after_block(self, module: Any, args: Any, output: Any) -> None:
        """Hook after an attention module."""
        block, self._open = self._open, None
        if block is None:
            return
        # A model that does not call the attention interface returns its weights on request.
        returned = square_tensors(output)
        if block.weights is None and returned:
            block.weights = returned[-1]
        self.blocks.append(block)

    def on_attention(self, query: Any, key: Any, mask: Any, scale: float | None, weights: Any) -> None:
        """Keep one call of an attention function."""
        if self._open is not None and weights is not None:
            scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
            self._open.query, self._open.key, self._open.mask = query, key, mask
            self._open.scale, self._open.weights = scale, weights

    def _in_mixed_forward(self, module: Any) -> bool:
        """Tell the forward itself from the passes that some methods run before it."""
        return self.mixer.flow.step_at(module)[0] is not None


_active: list[Recorder] = []


def _recorded_attention(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **options: Any
) -> Any:
    """The model's own eager attention, recorded."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    output, weights = eager(module, query, key, value, mask, scaling=scaling, **options)
    if _active:
        # A position bias (T5) is no part of q . k: `BlockAttention.is_explained` notices.
        _active[-1].on_attention(query, key, mask, scaling, weights)
    return output, weights


@contextlib.contextmanager
def recording(mixer: Mixer, *, interface: bool) -> Iterator[Recorder]:
    """Record the attention of forwards inside.

    Args:
        mixer: attached to the model.
        interface: record queries and keys through transformers' attention interface; else the weights that modules
            return under plain eager attention.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    model, points, recorder = mixer.model, mixer.points, Recorder(mixer)
    handles = [model.register_forward_pre_hook(recorder.before_forward, with_kwargs=True)]
    for head in dict.fromkeys(points.heads):
        handles.append(head.register_forward_pre_hook(recorder.before_block))
        handles.append(head.register_forward_hook(recorder.after_block))
    if points.words is not None:
        handles.append(points.words.register_forward_pre_hook(recorder.before_words))
    AttentionInterface.register(_RECORDING, _recorded_attention)
    AttentionMaskInterface.register(_RECORDING, eager_mask)
    try:
        with eager_attention(model):  # puts back what was there
            if interface:
                for module in model.modules():
                    config: Any = getattr(module, "config", None)
                    if getattr(config, "_attn_implementation_internal", None) is not None:
                        config._attn_implementation_internal = _RECORDING
            _active.append(recorder)
            try:
                yield recorder
            finally:
                _active.pop()
    finally:
        for handle in handles:
            handle.remove()
