"""Which positions of a sequence each rank holds.

The sequence is cut into two chunks a rank, and rank r of R holds chunks r and 2R − 1 − r: an early
and a late one, folded as a zigzag. Under a causal mask every rank then sees about as many keys as
every other, at each step of the ring. Brandon et al. 2023, "Striped Attention", arXiv:2311.09431,
describe the imbalance of whole chunks, and cure it by single positions instead of chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Int


class Chunk(NamedTuple):
    """Contiguous positions that a rank holds."""

    local: slice
    """Where they lie in the rank's shard."""
    positions: slice


@dataclass(frozen=True)
class Layout:
    """How a sequence is laid out over ranks; the shards' lengths differ by 2 at most.

    Args:
        length: number of positions, L.
        ranks: number of ranks, R.

    Example:
        >>> from regard_experiments.distributed import Layout
        >>> [Layout(8, 2).positions(rank).tolist() for rank in range(2)]
        [[0, 1, 6, 7], [2, 3, 4, 5]]
    """

    length: int
    ranks: int

    def chunks(self, rank: int) -> list[Chunk]:
        """List what a rank holds, in the order of positions; none is empty."""
        early, late = self._chunk(rank), self._chunk(2 * self.ranks - 1 - rank)
        neighbours = early.stop == late.start  # as on the last rank
        spans = [slice(early.start, late.stop)] if neighbours else [early, late]
        chunks, first = [], 0
        for positions in spans:
            size = positions.stop - positions.start
            if size > 0:
                chunks.append(Chunk(slice(first, first + size), positions))
            first += size
        return chunks

    def size(self, rank: int) -> int:
        """Count the positions that a rank holds."""
        return sum(chunk.local.stop - chunk.local.start for chunk in self.chunks(rank))

    def positions(self, rank: int) -> Int[Tensor, "n"]:
        """List the positions that a rank holds, in the order in which its shard has them."""
        spans = [chunk.positions for chunk in self.chunks(rank)]
        parts = [torch.arange(span.start, span.stop, device="cpu") for span in spans]
        return torch.cat(parts) if parts else torch.arange(0, device="cpu")

    def _chunk(self, index: int) -> slice:
        chunks = 2 * self.ranks
        return slice(index * self.length // chunks, (index + 1) * self.length // chunks)
