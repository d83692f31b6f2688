"""Batches of similar length in random order, for `group_by_length`.

transformers' own sampler goes from long to short texts within 50 batches. With a few hundred rows that is the whole
epoch: it ends with the same short texts each time, and the model with what these have in common (on 300 TREC questions
86 % instead of 93 %). Here rows are sorted within a few batches only, and then the batches are shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

# Rows are sorted among so many batches at a time.
NEAR = 4


class LengthBatches(Sampler[int]):
    """The order of the rows in each epoch; it is drawn from torch's global generator.

    Args:
        lengths: (N,) tokens of each row.
        batch_size: rows per batch.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int) -> None:
        self.lengths = torch.as_tensor(lengths)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        batches = []
        for near in torch.randperm(len(self.lengths)).split(NEAR * self.batch_size):
            batches += near[self.lengths[near].argsort(stable=True)].split(self.batch_size)
        last = [] if len(batches[-1]) == self.batch_size else [batches.pop()]  # else all after it would be cut anew
        for batch in [*(batches[at] for at in torch.randperm(len(batches)).tolist()), *last]:
            yield from batch.tolist()
