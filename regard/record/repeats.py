"""Weight on earlier copies of the query's token, and on what followed them.

All are readouts: they take a pattern in blocks and need no matrix of its size.

Axes: N heads numbered through, L = S positions of one text; a block has n heads, R rows, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Bool, Float, Int
from regard.pattern.ordered import totals
from regard.pattern.readouts import Readout, Sizes
from regard.pattern.stream import WeightBlock

__all__ = ["Control", "Controls", "Repeats", "targets", "with_targets"]


@dataclass(frozen=True, eq=False)
class Repeats(Readout["Tensor", "Tensor"]):
    """Share of each row on earlier copies of the query's token, or on what followed them.

    ``(..., L)``. What followed is where the text went on last time, which an induction head
    attends to (Olsson et al. 2022, arXiv:2209.11895). The first position, the previous one and the
    query's own are left out: a head may look there whatever the token is.

    Args:
        ids: the text's token ids, ``(L,)``.
        following: whether to count what followed the copies, instead of the copies.
    """

    axes = ("query",)

    ids: Int[Tensor, " L"]
    following: bool

    @property
    def title(self) -> str:
        """Either name."""
        return "successors" if self.following else "copies"

    def add(self, state: Float[Tensor, "N L"], block: WeightBlock) -> None:
        """Sum over the block's columns."""
        marked = targets(self.ids, block.rows, block.columns, following=self.following)
        state[block.heads, block.rows] += totals(block.weights * marked).double()


class Control(NamedTuple):
    """What earlier copies, and what followed them, get whether or not they are such."""

    copies: Float[Tensor, "*b"]
    successors: Float[Tensor, "*b"]


class _Sums(NamedTuple):
    """Of each key: weight, and number, of the queries that see it."""

    weight: Float[Tensor, "N S"]
    pairs: Float[Tensor, "N S"]

    @classmethod
    def begin(cls, sizes: Sizes) -> _Sums:
        return cls(sizes.zeros(sizes.keys), sizes.zeros(sizes.keys))

    def add(self, block: WeightBlock, chosen: Bool[Tensor, "R C"]) -> None:
        """Take in the pairs of a block that are chosen."""
        place = block.heads, block.columns
        self.weight[place] += block.weights.masked_fill(~chosen, 0).sum(dim=-2).double()
        seen = WeightBlock.seen(block.log_weights[0])  # the heads of a block see the same keys
        self.pairs[place] += (seen & chosen).sum(dim=-2)


@dataclass(frozen=True, eq=False)
class Controls(Readout["tuple[_Sums, _Sums, _Sums]", Control]):
    """What the keys of `Repeats` get from queries that they are no targets of.

    A head that always looks at a certain key looks there from that key's successors, too. So the
    share of a query on its targets is held against this: of each of its targets the mean weight
    from all other queries of the same head, added up; the mean over the queries that have targets.
    Both sides leave out the first key and pairs of a query with itself or the key before it. A
    target that no other query sees counts as what it gets, so that nothing can be made of it.

    Args:
        ids: the text's token ids, ``(L,)``.
    """

    ids: Int[Tensor, " L"]

    def begin(self, sizes: Sizes) -> tuple[_Sums, _Sums, _Sums]:
        """Start from nothing: of copies, of successors, of all pairs that could be such."""
        return _Sums.begin(sizes), _Sums.begin(sizes), _Sums.begin(sizes)

    def add(self, state: tuple[_Sums, _Sums, _Sums], block: WeightBlock) -> None:
        """Sum over the block's queries."""
        copies, successors, both = state
        copies.add(block, targets(self.ids, block.rows, block.columns, following=False))
        successors.add(block, targets(self.ids, block.rows, block.columns, following=True))
        both.add(block, _far(self.ids, block.rows, block.columns))

    def finish(self, state: tuple[_Sums, _Sums, _Sums], sizes: Sizes) -> Control:
        """Compare each key's queries."""
        copies, successors, both = state
        return Control(
            sizes.restore(self._control(copies, both, following=False)),
            sizes.restore(self._control(successors, both, following=True)),
        )

    def _control(self, own: _Sums, both: _Sums, *, following: bool) -> Float[Tensor, " N"]:
        others = both.pairs - own.pairs
        elsewhere = (both.weight - own.weight) / others.clamp_min(1)
        at_home = own.weight / own.pairs.clamp_min(1)
        mean = torch.where(others > 0, elsewhere, at_home)
        queries = with_targets(self.ids, following=following).sum().clamp_min(1)
        return (own.pairs * mean).sum(dim=-1) / queries


def with_targets(ids: Int[Tensor, " T"], *, following: bool) -> Bool[Tensor, " T"]:
    """Which queries have anything that `Repeats` counts."""
    index = torch.arange(len(ids), device=ids.device)
    number = ids.unique(return_inverse=True)[1]
    # Key 0 counts for nothing, but what came before key 1 does.
    earliest = int(not following)
    first = torch.full_like(index, len(ids)).scatter_reduce_(
        0, number[earliest:], index[earliest:], "amin"
    )
    return index - first[number] >= 2 + int(following)


def targets(
    ids: Int[Tensor, " L"], rows: slice, columns: slice, *, following: bool
) -> Bool[Tensor, "R C"]:
    """Which keys are an earlier copy of the query's token, or come right after one.

    Key 0 is never one of them, nor are the query's own position and the one before it.

    >>> ids = torch.tensor([7, 8, 9, 7])
    >>> targets(ids, slice(3, 4), slice(0, 4), following=True).int()
    tensor([[0, 1, 0, 0]], dtype=torch.int32)
    """
    copy = torch.arange(columns.start, columns.stop, device=ids.device) - int(following)
    same = ids[rows][:, None] == ids[copy.clamp_min(0)]
    return same & _far(ids, rows, columns)


def _far(ids: Int[Tensor, " L"], rows: slice, columns: slice) -> Bool[Tensor, "R C"]:
    """Pairs whose weight may come from the tokens, not from where the two stand."""
    query = torch.arange(rows.start, rows.stop, device=ids.device)[:, None]
    key = torch.arange(columns.start, columns.stop, device=ids.device)
    return (key >= 1) & (key <= query - 2)
