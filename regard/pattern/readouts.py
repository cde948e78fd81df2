"""Readouts: reductions of a pattern, any number of which are taken in one pass over its blocks.

A readout is a small frozen dataclass. Its class defines the computation in torch (`begin`, `add`,
`finish`), the kernels' (`kernel_spec`), and the merging of tiles (`merge`). Both accumulate sums
over many rows in float64, so that the error does not grow with the length.

Axes: N = B·H flattened heads, L queries, S keys; a block has n heads, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex

import torch
from torch import Tensor

from regard._arguments import check_choice, check_indices, check_integers, tensor_of
from regard._shapes import Float, Int
from regard._tensors import upload
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.masks.rows import Rows
from regard.pattern.blocks import Blocks
from regard.pattern.image import Image
from regard.pattern.lag import Lag, LagWeights
from regard.pattern.ordered import add_rows, totals
from regard.pattern.readout import Readout, Sizes, Tile
from regard.pattern.received import Received
from regard.pattern.spans import Spans
from regard.pattern.stream import WeightBlock

__all__ = [
    "Blocks",
    "Distance",
    "Entropy",
    "Image",
    "Lag",
    "LagWeights",
    "Mass",
    "Max",
    "MaxScore",
    "Offsets",
    "Readout",
    "Received",
    "Sizes",
    "Spans",
    "Tile",
    "Top",
    "TopK",
]

_ENTRIES_AT_ONCE = 2**22  # entries of a mask in memory at a time


class Top(NamedTuple):
    """The keys of largest weight of each query, largest first.

    Example:
        >>> import regard, torch
        >>> top = regard.Pattern(torch.eye(3), torch.eye(3), mask=regard.causal()).topk(2)
        >>> top.positions
        tensor([[ 0, -1],
                [ 1,  0],
                [ 2,  0]])
    """

    weights: Float[Tensor, "*b L k"]
    positions: Int[Tensor, "*b L k"]
    """Index of each key; −1 (and weight 0) where a query sees fewer than k keys."""


@dataclass(frozen=True)
class TopK(Readout[Top, Top]):
    """The k keys of largest weight of each query: weights and positions ``(..., L, min(k, S))``.

    Of keys with equal weights the kernels put the lower index first; `torch.topk`, used in float64
    and on other devices, does not specify the order.

    Args:
        k: number of keys.

    Raises:
        TypeError: if k is not an integer.
        ValueError: if k is below 1.

    Example:
        >>> import regard, torch
        >>> pattern = regard.Pattern(torch.eye(3), torch.eye(3), mask=regard.causal())
        >>> (top,) = pattern.read(regard.readouts.TopK(1))
        >>> top.positions.T
        tensor([[0, 1, 2]])
    """

    axes = ("query", "rank")
    title = "top"

    k: int

    def __post_init__(self) -> None:
        if not isinstance(self.k, SupportsIndex):
            raise TypeError(f"k is a {type(self.k).__name__}; expected an int")
        if self.k < 1:
            raise ValueError(f"k must be at least 1, but is {self.k}")

    def begin(self, sizes: Sizes) -> Top:
        """Start with no keys."""
        shape = (sizes.queries, min(self.k, sizes.keys))
        weights = sizes.zeros(*shape, dtype=sizes.dtype)
        return Top(weights, sizes.zeros(*shape, dtype=torch.int64) - 1)

    def add(self, state: Top, block: WeightBlock) -> None:
        """Rank each row by logarithms, which also order weights that underflow."""
        k = min(self.k, block.weights.shape[-1])
        logs, index = block.log_weights.topk(k, dim=-1)
        seen, sign = WeightBlock.seen(logs), block.weights.gather(-1, index).sign()
        state.weights[block.heads, block.rows, :k] = torch.where(seen, logs.exp() * sign, 0)
        state.positions[block.heads, block.rows, :k] = torch.where(
            seen, index + block.columns.start, -1
        )

    def finish(self, state: Top, sizes: Sizes) -> Top:
        """Restore the leading dimensions of both."""
        return Top(*map(sizes.restore, state))

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Describe the ranking for the kernels."""
        k = min(self.k, sizes.keys)
        return KernelSpec(kind=Kind.TOP, shape=(sizes.queries, k), size=k)

    def from_kernel(self, tensors: tuple[Tensor, ...], sizes: Sizes) -> Top:
        """Restore the leading dimensions of both."""
        return Top(*map(sizes.restore, tensors))

    def merge(self, state: Top, tile: Tile, results: tuple[Any, ...]) -> None:
        """Rank the keys of both; of equal weights the lower index is first."""
        (top,) = results
        before = (tensor[:, tile.local_queries] for tensor in state)
        shifted = torch.where(top.positions < 0, -1, top.positions + tile.keys.start)
        weights, positions = (
            torch.cat(pair, dim=-1) for pair in zip(before, (top.weights, shifted), strict=True)
        )
        place = positions.masked_fill(positions < 0, torch.iinfo(torch.int64).max)  # none is last
        by_place = place.argsort(dim=-1)
        by_weight = weights.gather(-1, by_place).argsort(dim=-1, descending=True, stable=True)
        best = by_place.gather(-1, by_weight)[..., : state.weights.shape[-1]]
        state.weights[:, tile.local_queries] = weights.gather(-1, best)
        state.positions[:, tile.local_queries] = positions.gather(-1, best)


@dataclass(frozen=True)
class Max(Readout["Tensor", "Tensor"]):
    """The largest weight of each row: ``(..., L)``; 0 for a row without visible keys.

    Example:
        >>> import regard, torch
        >>> pattern = regard.Pattern(torch.zeros(3, 1), torch.zeros(3, 1), mask=regard.causal())
        >>> (largest,) = pattern.read(regard.readouts.Max())
        >>> largest
        tensor([1.0000, 0.5000, 0.3333])
    """

    axes = ("query",)
    kind = Kind.MAX

    def add(self, state: Tensor, block: WeightBlock) -> None:
        """Take the maximum of each row."""
        state[block.heads, block.rows] = block.weights.amax(dim=-1).double()

    def merge(self, state: Tensor, tile: Tile, results: tuple[Any, ...]) -> None:
        """Take the maximum."""
        rows = state[:, tile.local_queries]
        rows.copy_(torch.maximum(rows, results[0]))


@dataclass(frozen=True)
class MaxScore(Readout["Tensor", "Tensor"]):
    """The largest scaled score, scale · q·k, over the visible keys: ``(..., L)``, or ``(...)``.

    It is taken before softcap and bias, which would hide its growth; −inf without visible keys. The
    largest of a head is the max logit that QK-clip bounds in training (Kimi Team 2025,
    arXiv:2507.20534).

    Args:
        each: one number per ``"query"``, or per ``"head"``.

    Raises:
        ValueError: for another word.

    Example:
        >>> import regard, torch
        >>> x = 3 * torch.eye(3)
        >>> pattern = regard.Pattern(x, x, mask=regard.causal(offset=-1), scale=1.0)
        >>> pattern.read(regard.readouts.MaxScore(), regard.readouts.MaxScore("head"))
        (tensor([-inf, 0., 0.]), tensor(0.))
    """

    each: Literal["query", "head"] = "query"

    def __post_init__(self) -> None:
        check_choice("each", self.each, ("query", "head"))

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis of queries, or none."""
        return ("query",) if self.each == "query" else ()

    @property
    def reduction(self) -> Literal["sum", "max"]:
        """The maximum over the ranks."""
        return "max"

    def begin(self, sizes: Sizes) -> Tensor:
        """Start from rows without visible keys."""
        return sizes.zeros(*sizes.along(self.axes)).fill_(-torch.inf)

    def add(self, state: Tensor, block: WeightBlock) -> None:
        """Take the maximum of each row, or of the head so far."""
        seen = WeightBlock.seen(block.log_weights)
        largest = torch.where(seen, block.scaled(), -torch.inf).amax(dim=-1).double()
        if self.each == "query":
            state[block.heads, block.rows] = largest
        else:
            of_heads = state[block.heads]
            of_heads.copy_(torch.maximum(of_heads, largest.amax(dim=-1)))

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Describe the maximum of each row for the kernels."""
        return KernelSpec(kind=Kind.MAX_SCORE, shape=(sizes.queries,))

    def from_kernel(self, tensors: tuple[Tensor, ...], sizes: Sizes) -> Tensor:
        """Return the maximum of each row, or of each head."""
        (rows,) = tensors
        return sizes.restore(rows if self.each == "query" else rows.amax(dim=-1))

    def merge(self, state: Tensor, tile: Tile, results: tuple[Any, ...]) -> None:
        """Take the maximum."""
        part = state[:, tile.local_queries] if self.each == "query" else state
        part.copy_(torch.maximum(part, results[0]))


@dataclass(frozen=True)
class Entropy(Readout["Tensor", "Tensor"]):
    """Entropy of each row, −Σ w·ln w over its keys, in nats: ``(..., L)``.

    0 if all weight is on one key, ln n if it is uniform over n keys. A sink is not a key: its share
    is left out of the sum.

    Example:
        >>> import regard, torch
        >>> pattern = regard.Pattern(torch.zeros(3, 1), torch.zeros(3, 1), mask=regard.causal())
        >>> (entropy,) = pattern.read(regard.readouts.Entropy())
        >>> entropy
        tensor([0.0000, 0.6931, 1.0986])
    """

    axes = ("query",)
    kind = Kind.ENTROPY

    def add(self, state: Tensor, block: WeightBlock) -> None:
        """Sum over each row."""
        state[block.heads, block.rows] = -_row_dot(block.weights, block.log_weights).double()

    def finish(self, state: Tensor, sizes: Sizes) -> Tensor:
        """A row on one key is 0, not −0 or a rounding error below it."""
        return sizes.restore(torch.where(state <= 0, 0, state))

    def merge(self, state: Tensor, tile: Tile, results: tuple[Any, ...]) -> None:
        """Add the terms of the tile's keys."""
        state[:, tile.local_queries] += results[0]


@dataclass(frozen=True)
class Distance(Readout[tuple["Tensor", "Tensor"], "Tensor"]):
    """Mean distance between a query and its keys, in tokens: ``(..., L)``.

    Σ w·|i − j| / Σ w over keys j, where i is the query's position among the keys; 0 for a row
    without visible keys.

    Example:
        >>> import regard, torch
        >>> pattern = regard.Pattern(torch.zeros(3, 1), torch.zeros(3, 1), mask=regard.causal())
        >>> (distance,) = pattern.read(regard.readouts.Distance())
        >>> distance
        tensor([0.0000, 0.5000, 1.0000])
    """

    axes = ("query",)
    kind = Kind.DISTANCE

    def begin(self, sizes: Sizes) -> tuple[Tensor, Tensor]:
        """Start from sums of 0."""
        return sizes.zeros(sizes.queries), sizes.zeros(sizes.queries)

    def add(self, state: tuple[Tensor, Tensor], block: WeightBlock) -> None:
        """Sum over each row."""
        moment, share = state
        key = torch.arange(block.columns.start, block.columns.stop, device=block.positions.device)
        distance = (block.positions[..., None] - key).abs().to(block.weights.dtype)
        sums = _row_dot(block.weights, distance.expand(block.weights.shape))
        moment[block.heads, block.rows] = sums.double()
        share[block.heads, block.rows] = totals(block.weights).double()

    def finish(self, state: tuple[Tensor, Tensor], sizes: Sizes) -> Tensor:
        """Divide by the weight of the row."""
        moment, share = state
        return sizes.restore(torch.where(share == 0, 0, moment / share))

    def of_tile(
        self,
        state: tuple[Tensor, Tensor],  # noqa: ARG002 - Readout's signature
        tile: Tile,  # noqa: ARG002 - likewise
    ) -> tuple[Readout[Any, Any], ...]:
        """Read the mean, and the weight of the row on the tile's keys."""
        return self, Mass(slice(None))

    def merge(self, state: tuple[Tensor, Tensor], tile: Tile, results: tuple[Any, ...]) -> None:
        """Add the mean, weighted by the weight on the tile's keys."""
        moment, share = state
        distance, of_keys = (result.double() for result in results)
        moment[:, tile.local_queries] += distance * of_keys
        share[:, tile.local_queries] += of_keys


@dataclass(frozen=True)
class Offsets(Readout[tuple["Tensor", "Tensor"], "Tensor"]):
    """Mean weight at each distance, 0 … n−1 tokens back: ``(..., n)``.

    Entry d averages the weight on key i − d over the queries i that see it. It is 1 at d = 1 for an
    ideal previous-token head. On a text that repeats with period p, an induction head has a peak at
    d = p − 1 (Olsson et al. 2022, arXiv:2209.11895, section "Induction heads").

    Args:
        n: number of distances.

    Raises:
        TypeError: if n is not an integer.
        ValueError: if n is below 1.

    Example:
        >>> import regard, torch
        >>> pattern = regard.Pattern(torch.zeros(3, 1), torch.zeros(3, 1), mask=regard.causal())
        >>> (offsets,) = pattern.read(regard.readouts.Offsets(2))
        >>> offsets
        tensor([0.6111, 0.4167])
    """

    axes = ("offset",)

    n: int

    def __post_init__(self) -> None:
        if not isinstance(self.n, SupportsIndex):
            raise TypeError(f"n is a {type(self.n).__name__}; expected an int")
        if self.n < 1:
            raise ValueError(f"n must be at least 1, but is {self.n}")

    def begin(self, sizes: Sizes) -> tuple[Tensor, Tensor]:
        """Start from weights and counts of 0."""
        return sizes.zeros(self.n), sizes.zeros(self.n)

    def add(self, state: tuple[Tensor, Tensor], block: WeightBlock) -> None:
        """Sum along the block's diagonals."""
        weight, count = state
        back = torch.arange(self.n, device=block.positions.device)
        key = block.positions[..., None] - back - block.columns.start
        width = block.weights.shape[-1]
        inside = ((key >= 0) & (key < width)).expand(len(block.weights), -1, -1)
        key = key.clamp(0, width - 1).expand(inside.shape)
        seen = inside & WeightBlock.seen(block.log_weights.gather(-1, key))
        diagonals = torch.where(seen, block.weights.gather(-1, key), 0)
        weight[block.heads] = add_rows(weight[block.heads], diagonals)
        count[block.heads] += seen.sum(dim=1)

    def finish(self, state: tuple[Tensor, Tensor], sizes: Sizes) -> Tensor:
        """Divide by the number of queries."""
        weight, count = state
        return sizes.restore(weight / count.clamp_min(1))

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:  # noqa: ARG002 - Readout's signature
        """Describe the diagonals for the kernels."""
        return KernelSpec(kind=Kind.OFFSETS, shape=(self.n,), size=self.n)

    def merge(self, state: tuple[Tensor, Tensor], tile: Tile, results: tuple[Any, ...]) -> None:
        """Add the means, weighted by the number of the tile's queries."""
        weight, count = state
        queries = queries_that_see(tile.problem.rows, self.n)
        weight += results[0] * queries
        count += queries


@dataclass(frozen=True, eq=False)
class Mass(Readout[tuple["Tensor", "Tensor"], "Tensor"]):
    """The weight of each row on a set of keys: ``(..., L)``.

    Args:
        keys: an index, a slice, indices, or booleans ``(S,)``.

    Raises:
        TypeError: for another type.
        ValueError: when it is read, for an index out of range.

    Example:
        >>> import regard, torch
        >>> pattern = regard.Pattern(torch.zeros(3, 1), torch.zeros(3, 1), mask=regard.causal())
        >>> (mass,) = pattern.read(regard.readouts.Mass([0]))
        >>> mass
        tensor([1.0000, 0.5000, 0.3333])
    """

    axes = ("query",)

    keys: int | slice | Sequence[int] | Tensor

    def __post_init__(self) -> None:
        if isinstance(self.keys, slice):
            check_indices("keys", self.keys)
        elif (index := self._index()).dtype != torch.bool:
            check_integers(index, "keys")

    @property
    def is_linear(self) -> bool:
        """True: it is a sum of weights."""
        return True

    def begin(self, sizes: Sizes) -> tuple[Tensor, Tensor]:
        """Start from 0, and mark the keys."""
        return sizes.zeros(sizes.queries), self._marked(sizes)

    def add(self, state: tuple[Tensor, Tensor], block: WeightBlock) -> None:
        """Sum over the marked keys."""
        mass, marked = state
        share = _row_dot(block.weights, marked[block.columns].expand(block.weights.shape))
        mass[block.heads, block.rows] = share.double()

    def finish(self, state: tuple[Tensor, Tensor], sizes: Sizes) -> Tensor:
        """Return the sums."""
        return sizes.restore(state[0])

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Describe the marked keys for the kernels."""
        return KernelSpec(kind=Kind.MASS, shape=(sizes.queries,), operand=self._marked(sizes))

    def of_tile(self, state: tuple[Tensor, Tensor], tile: Tile) -> tuple[Readout[Any, Any], ...]:
        """Restrict the marks to the tile's keys."""
        return (Mass(state[1][tile.keys].bool()),)

    def merge(self, state: tuple[Tensor, Tensor], tile: Tile, results: tuple[Any, ...]) -> None:
        """Add the weight on the tile's keys."""
        state[0][:, tile.local_queries] += results[0]

    @property
    def depends_on_length(self) -> bool:
        """True if keys are counted from the end, or given as booleans."""
        if isinstance(self.keys, slice):
            ends = (self.keys.start, self.keys.stop, self.keys.step)
            return any(end is not None and end < 0 for end in ends)
        index = self._index()
        return index.dtype == torch.bool or bool((index < 0).any())

    def within(self, keys: int) -> Mass:
        """Drop the indices of later keys."""
        if isinstance(self.keys, slice) or (index := self._index()).dtype == torch.bool:
            return self
        present = index < keys
        return self if bool(present.all()) else Mass(index[present])

    def _index(self) -> Tensor:
        index = tensor_of(self.keys)
        return index if index.numel() else index.long()

    def _marked(self, sizes: Sizes) -> Tensor:
        marked = torch.zeros(sizes.keys, dtype=sizes.dtype, device=sizes.device)
        if isinstance(self.keys, (int, slice)):
            index: int | slice | Tensor = self.keys
        else:
            index = upload(self._index(), sizes.device)
        try:
            marked[index] = 1
        except (IndexError, RuntimeError) as error:
            raise ValueError(f"keys does not index {sizes.keys} keys: {error}") from error
        return marked


def _row_dot(one: Float[Tensor, "n R C"], other: Float[Tensor, "n R C"]) -> Float[Tensor, "n R"]:
    """Sum the products along each row."""
    return totals(one * other)


def queries_that_see(rows: Rows, n: int) -> Float[Tensor, "N n"]:
    """Count, for each distance 0 … n−1, the queries that see the key so far back."""
    if rows.allowed is None and rows.bias is None:
        return _offsets_of_intervals(rows, n)
    return _offsets_of_entries(rows, n)


def _offsets_of_intervals(rows: Rows, n: int) -> Float[Tensor, "N n"]:
    """Count them from the intervals of an interval mask, each a range of distances."""
    position = rows.spread(rows.positions).flatten(0, 1)
    ranges = [(rows.start, rows.stop, 1.0)]
    if rows.spans is not None:
        ranges += [(*hidden, -1.0) for hidden in zip(*rows.spans.hidden_apart(), strict=True)]
    change = position.new_zeros(len(position), n + 1, dtype=torch.float64)
    for first, last, count in ranges:
        start, stop = (rows.spread(t).flatten(0, 1) for t in (first, last))
        nearest = (position - stop + 1).clamp(min=0)
        furthest = (position - start).clamp(max=n - 1)
        seen = (start < stop) & (nearest <= furthest)
        step = torch.full_like(position, count, dtype=torch.float64)
        change.scatter_add_(1, torch.where(seen, nearest, n), step)
        change.scatter_add_(1, torch.where(seen, furthest + 1, n), -step)
    return change.cumsum(dim=1)[:, :n]


def _offsets_of_entries(rows: Rows, n: int) -> Float[Tensor, "N n"]:
    """Count them from the entries of a dense mask."""
    batch, heads = rows.heads
    counts = rows.positions.new_zeros(batch, heads, n, dtype=torch.float64)
    height = max(1, _ENTRIES_AT_ONCE // max(1, batch * heads * rows.keys))
    for first in range(0, rows.queries if rows.keys else 0, height):
        part = slice(first, min(first + height, rows.queries))
        key = rows.positions[..., part, None] - torch.arange(n, device=counts.device)
        visible = rows.visible(part, slice(0, rows.keys)).expand(batch, heads, -1, -1)
        inside = ((key >= 0) & (key < rows.keys)).expand(batch, heads, -1, -1)
        key = key.clamp(0, rows.keys - 1).expand(batch, heads, -1, -1)
        counts += (inside & visible.gather(-1, key)).sum(dim=-2)
    return counts.flatten(0, 1)
