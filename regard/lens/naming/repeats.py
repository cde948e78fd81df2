"""Weight on earlier copies of the query's token, and on what followed them.

All are readouts: they read a pattern in blocks and form no matrix of its size.

Axes: N heads, flattened over the batch, L = S positions of one text; a block has n heads, R rows,
C columns, P pairs of a query and a target, E ranges of distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Bool, Float, Int, Shaped
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.pattern.ordered import totals
from regard.pattern.readouts import Readout, Sizes
from regard.pattern.stream import WeightBlock

__all__ = ["Controlled", "ControlledRepeats", "Repeats", "targets", "with_targets"]

_OF_ROW, _OF_KEY = 2 * 3, 2 * 4  # kernel results per row and key; see REGARD_REPEATS in abi.h


@dataclass(frozen=True, eq=False)
class Repeats(Readout["Tensor", "Tensor"]):
    """Share of each row on earlier copies of the query's token, or on what followed them.

    ``(..., L)``. An induction head attends to the token after an earlier copy of the query's token
    (Olsson et al. 2022, arXiv:2209.11895). The first position, the previous one and the query's own
    are left out: a head may look there whatever the token is.

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


class Controlled(NamedTuple):
    """The share of each row on its targets, and under two controls."""

    targets: Float[Tensor, "*b L"]
    """Number of visible targets of each query."""
    share: Float[Tensor, "*b L"]
    """Weight on the targets, as `Repeats` reads it."""
    shuffled: Float[Tensor, "*b L"]
    """Expected weight on the targets with the text in shuffled order."""
    others: Float[Tensor, "*b S"]
    """Weight that each key would receive from the queries that it is a target of, if they looked at
    it as much as its other queries do."""


class _Sums(NamedTuple):
    """Sums over the targets, in float64."""

    targets: Float[Tensor, "N L"]
    share: Float[Tensor, "N L"]
    shuffled: Float[Tensor, "N L"]
    pairs_of_key: Float[Tensor, "N S"]
    weight_of_key: Float[Tensor, "N S"]


class _State(NamedTuple):
    copies: _Sums
    successors: _Sums
    pairs_of_key: Float[Tensor, "N S"]
    """As in `_Sums`, over all pairs that could be a query and its target."""
    weight_of_key: Float[Tensor, "N S"]


@dataclass(frozen=True, eq=False)
class ControlledRepeats(Readout[_State, tuple[Controlled, Controlled]]):
    """The shares of `Repeats`, of copies and of successors, with two controls.

    **Other queries.** A head that always looks at a certain key also looks there from queries of
    which it is a target. So the control of a target is its mean weight from the queries of which it
    is not one. If no other query sees it, the control is its own weight, which proves nothing.

    **Shuffled text.** A head that looks at near keys also looks at targets that are near. So the
    keys before a query are shuffled within ranges of distance, 2 to 3 tokens, 4 to 7, 8 to 15 and
    so on, while the weights stay. The mean over all such orders has a closed form, summed over the
    ranges: the weight on the range times the fraction of its keys that are targets.

    Both leave out the positions that `Repeats` leaves out.

    Args:
        ids: the text's token ids, ``(L,)``.
    """

    ids: Int[Tensor, " L"]

    def begin(self, sizes: Sizes) -> _State:
        """Return sums of zero."""

        def sums() -> _Sums:
            return _Sums(
                targets=sizes.zeros(sizes.queries),
                share=sizes.zeros(sizes.queries),
                shuffled=sizes.zeros(sizes.queries),
                pairs_of_key=sizes.zeros(sizes.keys),
                weight_of_key=sizes.zeros(sizes.keys),
            )

        return _State(sums(), sums(), sizes.zeros(sizes.keys), sizes.zeros(sizes.keys))

    def add(self, state: _State, block: WeightBlock) -> None:
        """Sum over the block's pairs."""
        # A block's heads see the same keys.
        seen = _far(self.ids, block.rows, block.columns) & WeightBlock.seen(block.log_weights[0])
        weights = block.weights.masked_fill(~seen, 0)
        place = block.heads, block.columns
        state.pairs_of_key[place] += seen.sum(dim=0)
        state.weight_of_key[place] += weights.sum(dim=-2).double()
        edges = _edges(block)
        # Mean weight of a key in each range: (n, R, E).
        each = _in_ranges(weights.cumsum(-1), edges)
        each = each.double() / _in_ranges(seen.cumsum(-1), edges).clamp_min(1)
        for sums, following in ((state.copies, False), (state.successors, True)):
            chosen = seen & _repeated(self.ids, block.rows, block.columns, following=following)
            _add_targets(sums, block, chosen, each)

    def finish(self, state: _State, sizes: Sizes) -> tuple[Controlled, Controlled]:
        """Compute the controls from the sums."""

        def controlled(sums: _Sums) -> Controlled:
            return _controlled(
                sizes,
                *(sums.targets, sums.share, sums.shuffled, sums.pairs_of_key, sums.weight_of_key),
                state.pairs_of_key - sums.pairs_of_key,
                state.weight_of_key - sums.weight_of_key,
            )

        return controlled(state.copies), controlled(state.successors)

    def kernel_spec(self, sizes: Sizes) -> KernelSpec | None:
        """Return the spec, with each token's copies; None, to stream, if this is no text."""
        length = len(self.ids)
        if not length == sizes.queries == sizes.keys:
            return None
        copies = _first_and_next_copies(self.ids.to(sizes.device))
        return KernelSpec(kind=Kind.REPEATS, shape=((_OF_ROW + _OF_KEY) * length,), operand=copies)

    def from_kernel(
        self, tensors: tuple[Tensor, ...], sizes: Sizes
    ) -> tuple[Controlled, Controlled]:
        """Compute the controls from the kernel's sums."""
        rows, keys = tensors[0].double().split([_OF_ROW * sizes.queries, _OF_KEY * sizes.keys], -1)
        of_rows = rows.unflatten(-1, (sizes.queries, 2, -1)).permute(2, 3, 0, 1)
        of_keys = keys.unflatten(-1, (2, -1, sizes.keys)).permute(1, 2, 0, 3)
        copies, successors = (
            _controlled(sizes, *row, *key) for row, key in zip(of_rows, of_keys, strict=True)
        )
        return copies, successors


def _controlled(
    sizes: Sizes,
    targets: Float[Tensor, "N L"],
    share: Float[Tensor, "N L"],
    shuffled: Float[Tensor, "N L"],
    pairs_of_key: Float[Tensor, "N S"],
    weight_of_key: Float[Tensor, "N S"],
    others: Float[Tensor, "N S"],
    weight_of_others: Float[Tensor, "N S"],
) -> Controlled:
    """Compute the control by other queries: a key's mean weight from those it is no target of."""
    elsewhere = weight_of_others / others.clamp_min(1)
    of_others = torch.where(others > 0, pairs_of_key * elsewhere, weight_of_key)
    return Controlled(
        *(
            # In float64, since half precision would round the counts.
            total.reshape(*sizes.leading, -1)
            for total in (targets, share, shuffled, of_others)
        )
    )


def _add_targets(
    sums: _Sums,
    block: WeightBlock,
    chosen: Bool[Tensor, "R C"],
    each: Float[Tensor, "n R E"],
) -> None:
    row, column = chosen.nonzero(as_tuple=True)
    if row.numel() == 0:
        return
    weight = block.weights[:, row, column].double()  # (n, P)
    query, key = row + block.rows.start, column + block.columns.start
    shuffled = each[:, row, _range_of(query - key)]
    for total, index, values in (
        (sums.targets, query, torch.ones_like(weight)),
        (sums.share, query, weight),
        (sums.shuffled, query, shuffled),
        (sums.pairs_of_key, key, torch.ones_like(weight)),
        (sums.weight_of_key, key, weight),
    ):
        total[block.heads].scatter_add_(1, index.expand_as(values), values)


def _range_of(distance: Int[Tensor, " P"]) -> Int[Tensor, " P"]:
    """Return the index of each range of distance: 0 for 2 and 3, 1 for 4 to 7, and so on."""
    return torch.frexp(distance.double()).exponent.long() - 2


def _edges(block: WeightBlock) -> Int[Tensor, "R e"]:
    """Return the column boundaries of each row's ranges of distance, the nearest first."""
    row = torch.arange(block.rows.start, block.rows.stop, device=block.weights.device)
    count = max(2, int(block.rows.stop).bit_length())
    nearest = 2 ** torch.arange(1, count + 1, device=row.device)
    return (row[:, None] - nearest + 1 - block.columns.start).clamp(
        0, block.columns.stop - block.columns.start
    )


def _in_ranges(
    cumulative: Shaped[Tensor, "*n R C"], edges: Int[Tensor, "R e"]
) -> Shaped[Tensor, "*n R E"]:
    """Sum over each range of distance, given cumulative sums over columns."""
    padded = torch.nn.functional.pad(cumulative, (1, 0))
    up_to = padded.gather(-1, edges.expand(*cumulative.shape[:-1], -1))
    return up_to[..., :-1] - up_to[..., 1:]


def with_targets(ids: Int[Tensor, " T"], *, following: bool) -> Bool[Tensor, " T"]:
    """Return True for queries that have a target of `Repeats`."""
    index = torch.arange(len(ids), device=ids.device)
    number = ids.unique(return_inverse=True)[1]
    # Key 0 is never a target, but the token before key 1 makes key 1 one.
    earliest = int(not following)
    first = torch.full_like(index, len(ids)).scatter_reduce_(
        0, number[earliest:], index[earliest:], "amin"
    )
    return index - first[number] >= 2 + int(following)


def targets(
    ids: Int[Tensor, " L"], rows: slice, columns: slice, *, following: bool
) -> Bool[Tensor, "R C"]:
    """Return True for keys that are an earlier copy of the query's token, or directly follow one.

    False for key 0, the query's own position and the one before it.

    >>> ids = torch.tensor([7, 8, 9, 7])
    >>> targets(ids, slice(3, 4), slice(0, 4), following=True).int()
    tensor([[0, 1, 0, 0]], dtype=torch.int32)
    """
    return _far(ids, rows, columns) & _repeated(ids, rows, columns, following=following)


def _first_and_next_copies(ids: Int[Tensor, " L"]) -> Int[Tensor, "2 L"]:
    """Return the first position with each position's token, and the next one; L for none."""
    number, order = ids.unique(return_inverse=True)[1].sort(stable=True)
    is_last = torch.ones_like(number, dtype=torch.bool)
    is_last[:-1] = number[1:] != number[:-1]
    starts = order[is_last.roll(1)]
    first, following = torch.empty_like(order), torch.empty_like(order)
    first[order] = starts[number]
    following[order] = torch.where(is_last, len(ids), order.roll(-1))
    return torch.stack([first, following])


def _repeated(
    ids: Int[Tensor, " L"], rows: slice, columns: slice, *, following: bool
) -> Bool[Tensor, "R C"]:
    """Return True for keys with the query's token, or directly after one."""
    copy = torch.arange(columns.start, columns.stop, device=ids.device) - int(following)
    return ids[rows][:, None] == ids[copy.clamp_min(0)]


def _far(ids: Int[Tensor, " L"], rows: slice, columns: slice) -> Bool[Tensor, "R C"]:
    """Return True for pairs whose weight may depend on the tokens, not only on their positions."""
    query = torch.arange(rows.start, rows.stop, device=ids.device)[:, None]
    key = torch.arange(columns.start, columns.stop, device=ids.device)
    return (key >= 1) & (key <= query - 2)
