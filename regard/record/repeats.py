"""Weight on earlier copies of the query's token, and on what followed them.

Both are readouts: they take a pattern in blocks and need no matrix of its size.

Axes: N heads numbered through, L = S positions of one text; a block has n heads, R rows, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from regard.readouts import Readout

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from regard._stream import Block
    from regard.readouts import Sizes

__all__ = ["Copies", "Successors", "targets"]


@dataclass(frozen=True, eq=False)
class Copies(Readout["Tensor", "Tensor"]):
    """Share of each row on earlier copies of the query's own token: ``(..., L)``.

    The first position and the previous one are left out: a head may look there whatever the token
    is.

    Args:
        ids: the text's token ids, ``(L,)``.
    """

    ids: Int[Tensor, " L"]

    def begin(self, sizes: Sizes) -> Float[Tensor, "N L"]:
        """Start from nothing."""
        return sizes.zeros(sizes.queries)

    def add(self, state: Float[Tensor, "N L"], block: Block) -> None:
        """Sum over the copies among the block's columns."""
        _add(state, block, targets(self.ids, block.rows, block.columns, after=False))

    def finish(self, state: Float[Tensor, "N L"], sizes: Sizes) -> Float[Tensor, "*b L"]:
        """Shape the result."""
        return sizes.restore(state)


@dataclass(frozen=True, eq=False)
class Successors(Readout["Tensor", "Tensor"]):
    """Share of each row on tokens that follow an earlier copy of the query's token: ``(..., L)``.

    It is what an induction head attends to (Olsson et al. 2022, arXiv:2209.11895): where the text
    went on last time. The previous position and the query's own are left out: a head may look there
    whatever the token is.

    Args:
        ids: the text's token ids, ``(L,)``.
    """

    ids: Int[Tensor, " L"]

    def begin(self, sizes: Sizes) -> Float[Tensor, "N L"]:
        """Start from nothing."""
        return sizes.zeros(sizes.queries)

    def add(self, state: Float[Tensor, "N L"], block: Block) -> None:
        """Sum over the successors among the block's columns."""
        _add(state, block, targets(self.ids, block.rows, block.columns, after=True))

    def finish(self, state: Float[Tensor, "N L"], sizes: Sizes) -> Float[Tensor, "*b L"]:
        """Shape the result."""
        return sizes.restore(state)


def targets(
    ids: Int[Tensor, " L"], rows: slice, columns: slice, *, after: bool
) -> Bool[Tensor, "R C"]:
    """Which keys are an earlier copy of the query's token, or come right after one.

    Key 0 is never one of them, nor are the query's own position and the one before it.

    >>> ids = torch.tensor([7, 8, 9, 7])
    >>> targets(ids, slice(3, 4), slice(0, 4), after=True).int()
    tensor([[0, 1, 0, 0]], dtype=torch.int32)
    """
    query = torch.arange(rows.start, rows.stop, device=ids.device)
    key = torch.arange(columns.start, columns.stop, device=ids.device)
    copy = key - int(after)
    same = ids[query][:, None] == ids[copy.clamp_min(0)]
    return same & (key >= 1) & (key <= query[:, None] - 2)


def _add(state: Tensor, block: Block, marked: Tensor) -> None:
    state[block.heads, block.rows] += (block.weights * marked).sum(dim=-1).double()
