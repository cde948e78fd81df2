"""Reductions of a pattern, any number of which are taken in one pass over its blocks.

A readout is a small frozen description; `begin`, `add` and `finish` hold its computation in torch.
Those of this module also say, in `order`, how the native kernels are to compute them, which they do
on a CPU in every dtype but float64. Sums over many rows are kept in float64 either way, so that
their error does not grow with the length.

Axes: N heads numbered through, L queries, S keys; a block has n heads, R rows, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from regard.backends.kernel_spec import KernelSpec
from regard.pattern.ordered import add_rows, totals
from regard.pattern.readout import Readout, Sizes
from regard.pattern.stream import Block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

__all__ = [
    "Distance",
    "Entropy",
    "Image",
    "Mass",
    "Max",
    "Offsets",
    "Readout",
    "Received",
    "Sizes",
    "Top",
    "TopK",
]


class Top(NamedTuple):
    """The strongest keys of each query, strongest first."""

    weights: Float[Tensor, "*b L k"]
    positions: Int[Tensor, "*b L k"]
    """Index of each key; −1 (and weight 0) where a query sees fewer than k keys."""


@dataclass(frozen=True)
class TopK(Readout[Top, Top]):
    """The k strongest keys of each query: weights and positions ``(..., L, min(k, S))``.

    Of two keys of equal weight the kernels put the lower index first; torch's own ranking, which
    other devices and float64 go by, has no rule.
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, but is {self.k}")

    def begin(self, sizes: Sizes) -> Top:
        """Start with no keys."""
        k = min(self.k, sizes.keys)
        shape = (sizes.queries, k)
        return Top(
            sizes.zeros(*shape, dtype=sizes.dtype), sizes.zeros(*shape, dtype=torch.int64) - 1
        )

    def add(self, state: Top, block: Block) -> None:
        """Rank each row; by logarithms, which still tell weights apart that are too small to."""
        k = min(self.k, block.weights.shape[-1])
        logs, index = block.log_weights.topk(k, dim=-1)
        seen = Block.seen(logs)
        state.weights[block.heads, block.rows, :k] = torch.where(seen, logs.exp(), 0)
        state.positions[block.heads, block.rows, :k] = torch.where(
            seen, index + block.columns.start, -1
        )

    def finish(self, state: Top, sizes: Sizes) -> Top:
        """Shape the result."""
        return Top(*(sizes.restore(tensor) for tensor in state))

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Rank by scores."""
        k = min(self.k, sizes.keys)
        return KernelSpec(kind="top", shape=(sizes.queries, k), size=k)

    def from_kernel(self, tensors: tuple[Tensor, ...], sizes: Sizes) -> Top:
        """Shape the result."""
        return Top(*(sizes.restore(tensor) for tensor in tensors))


@dataclass(frozen=True)
class Max(Readout["Tensor", "Tensor"]):
    """The largest weight of each row: ``(..., L)``; 0 for a row that sees nothing."""

    def begin(self, sizes: Sizes) -> Tensor:
        """Start from nothing."""
        return sizes.zeros(sizes.queries, dtype=sizes.dtype)

    def add(self, state: Tensor, block: Block) -> None:
        """Take the block's rows."""
        state[block.heads, block.rows] = block.weights.amax(dim=-1)

    def finish(self, state: Tensor, sizes: Sizes) -> Tensor:
        """Shape the result."""
        return sizes.restore(state)

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Find the largest."""
        return KernelSpec(kind="max", shape=(sizes.queries,))


@dataclass(frozen=True)
class Received(Readout["Tensor", "Tensor"]):
    """What each key receives, summed over the queries: ``(..., S)``."""

    def begin(self, sizes: Sizes) -> Tensor:
        """Start from nothing."""
        return sizes.zeros(sizes.keys)

    def add(self, state: Tensor, block: Block) -> None:
        """Sum the block's columns."""
        received = state[block.heads, block.columns]
        received.copy_(add_rows(received, block.weights))

    def finish(self, state: Tensor, sizes: Sizes) -> Tensor:
        """Shape the result."""
        return sizes.restore(state)

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Sum the columns."""
        return KernelSpec(kind="received", shape=(sizes.keys,))


@dataclass(frozen=True)
class Entropy(Readout["Tensor", "Tensor"]):
    """Entropy of each row, −Σ w·ln w over its keys, in nats: ``(..., L)``.

    0 where all weight lies on one key, ln n where it is spread evenly over n. A sink is no key: its
    share is left out of the sum.
    """

    def begin(self, sizes: Sizes) -> Tensor:
        """Start from nothing."""
        return sizes.zeros(sizes.queries)

    def add(self, state: Tensor, block: Block) -> None:
        """Sum the block's rows."""
        state[block.heads, block.rows] = -_row_dot(block.weights, block.log_weights).double()

    def finish(self, state: Tensor, sizes: Sizes) -> Tensor:
        """Shape the result; a row on one key is 0, not −0 or a rounding error below it."""
        return sizes.restore(torch.where(state <= 0, 0, state))

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Sum the rows."""
        return KernelSpec(kind="entropy", shape=(sizes.queries,))


@dataclass(frozen=True)
class Distance(Readout["Tensor", "Tensor"]):
    """Mean distance between a query and what it attends to, in tokens: ``(..., L)``.

    Σ w·|i − j| / Σ w, where i is the query's position among the keys; 0 for a row that sees
    nothing.
    """

    def begin(self, sizes: Sizes) -> Tensor:
        """Start from nothing."""
        return sizes.zeros(sizes.queries)

    def add(self, state: Tensor, block: Block) -> None:
        """Average over the block's rows."""
        key = torch.arange(block.columns.start, block.columns.stop, device=block.positions.device)
        distance = (block.positions[..., None] - key).abs().to(block.weights.dtype)
        moment = _row_dot(block.weights, distance.expand(block.weights.shape)).double()
        share = totals(block.weights).double()
        state[block.heads, block.rows] = torch.where(share == 0, 0, moment / share)

    def finish(self, state: Tensor, sizes: Sizes) -> Tensor:
        """Shape the result."""
        return sizes.restore(state)

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Average over the rows."""
        return KernelSpec(kind="distance", shape=(sizes.queries,))


@dataclass(frozen=True)
class Offsets(Readout[tuple["Tensor", "Tensor"], "Tensor"]):
    """Mean weight by how far back, 0 … n−1 tokens: ``(..., n)``.

    Entry d averages the weight of key i − d over the queries i that see it. A head that looks at
    the previous token has 1 at d = 1. On a text that repeats itself after p tokens, an induction
    head stands out at d = p − 1 (Olsson et al. 2022, arXiv:2209.11895, section "Induction heads").
    """

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n must be at least 1, but is {self.n}")

    def begin(self, sizes: Sizes) -> tuple[Tensor, Tensor]:
        """Start with no weight and no queries."""
        return sizes.zeros(self.n), sizes.zeros(self.n)

    def add(self, state: tuple[Tensor, Tensor], block: Block) -> None:
        """Sum along the block's diagonals."""
        weight, count = state
        back = torch.arange(self.n, device=block.positions.device)
        key = block.positions[..., None] - back - block.columns.start
        width = block.weights.shape[-1]
        inside = ((key >= 0) & (key < width)).expand(len(block.weights), -1, -1)
        key = key.clamp(0, width - 1).expand(inside.shape)
        seen = inside & Block.seen(block.log_weights.gather(-1, key))
        found = torch.where(seen, block.weights.gather(-1, key), 0)
        weight[block.heads] = add_rows(weight[block.heads], found)
        count[block.heads] += seen.sum(dim=1)

    def finish(self, state: tuple[Tensor, Tensor], sizes: Sizes) -> Tensor:
        """Average over the queries counted."""
        weight, count = state
        return sizes.restore(weight / count.clamp_min(1))

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:  # noqa: ARG002 - Readout's signature
        """Sum along the diagonals."""
        return KernelSpec(kind="offsets", shape=(self.n,), size=self.n)


@dataclass(frozen=True, eq=False)
class Mass(Readout[tuple["Tensor", "Tensor"], "Tensor"]):
    """Share of each row that lies on a set of keys: ``(..., L)``.

    Args:
        keys: an index, a slice, indices, or a boolean ``(S,)``.
    """

    keys: int | slice | Sequence[int] | Tensor

    def begin(self, sizes: Sizes) -> tuple[Tensor, Tensor]:
        """Mark the keys."""
        return sizes.zeros(sizes.queries), self._marked(sizes)

    def add(self, state: tuple[Tensor, Tensor], block: Block) -> None:
        """Sum over the marked keys."""
        mass, marked = state
        share = _row_dot(block.weights, marked[block.columns].expand(block.weights.shape))
        mass[block.heads, block.rows] = share.double()

    def finish(self, state: tuple[Tensor, Tensor], sizes: Sizes) -> Tensor:
        """Shape the result."""
        return sizes.restore(state[0])

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Sum over the marked keys."""
        return KernelSpec(kind="mass", shape=(sizes.queries,), given=self._marked(sizes))

    def _marked(self, sizes: Sizes) -> Tensor:
        marked = torch.zeros(sizes.keys, dtype=sizes.dtype, device=sizes.device)
        if isinstance(self.keys, (int, slice)):
            index: int | slice | Tensor = self.keys
        else:
            index = torch.as_tensor(self.keys, device=sizes.device)
            index = index if index.numel() else index.long()
        try:
            marked[index] = 1
        except (IndexError, RuntimeError) as error:
            raise ValueError(f"keys does not index {sizes.keys} keys: {error}") from error
        return marked


@dataclass(frozen=True)
class _ImageState:
    pixels: Tensor
    rows: int
    columns: int
    queries: int
    keys: int


@dataclass(frozen=True)
class Image(Readout[_ImageState, "Tensor"]):
    """The pattern averaged down to a picture: ``(..., min(rows, L), min(columns, S))``.

    Each pixel is the mean weight over its rectangle of the pattern, whose edges need not fall
    between tokens: a token cut by an edge counts for both pixels by its parts.
    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise ValueError(f"an image needs a size, but rows={self.rows}, columns={self.columns}")

    def begin(self, sizes: Sizes) -> _ImageState:
        """Start from nothing."""
        rows, columns = min(self.rows, sizes.queries), min(self.columns, sizes.keys)
        return _ImageState(sizes.zeros(rows, columns), rows, columns, sizes.queries, sizes.keys)

    def add(self, state: _ImageState, block: Block) -> None:
        """Pool the columns of each row, then the rows."""
        device = state.pixels.device
        left, share = _cut_by_edges(block.columns, state.keys, state.columns, device)
        top, part = _cut_by_edges(block.rows, state.queries, state.rows, device)
        first, last = int(left[0]), int(left[-1])
        weights = block.weights.permute(2, 1, 0).double()  # (C, R, n)
        by_column = weights.new_zeros(last + 1 - first, *weights.shape[1:])
        _pool(by_column, left - first, share, weights)
        pixels = state.pixels[block.heads, :, first : last + 1].permute(1, 2, 0)  # rows first
        _pool(pixels, top, part, by_column.transpose(0, 1))

    def finish(self, state: _ImageState, sizes: Sizes) -> Tensor:
        """Turn sums into means: a pixel covers L/rows × S/columns weights."""
        area = (
            (state.queries / state.rows) * (state.keys / state.columns)
            if state.pixels.numel()
            else 1
        )
        return sizes.restore(state.pixels / area)

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Pool columns and rows."""
        rows, columns = min(self.rows, sizes.queries), min(self.columns, sizes.keys)
        return KernelSpec(kind="image", shape=(rows, columns), size=rows, columns=columns)


def _cut_by_edges(
    tokens: slice, length: int, pixels: int, device: torch.device
) -> tuple[Int[Tensor, "s"], Float[Tensor, "s"]]:
    """Find the one or two pixels that each token lies in, in turn, and its share in each.

    In units of 1/(length·pixels) of the whole, token i covers [i·pixels, (i+1)·pixels) and pixel p
    covers [p·length, (p+1)·length): the shares are ratios of integers. No token spans more than two
    pixels, since there are no more pixels than tokens.
    """
    start = torch.arange(tokens.start, tokens.stop, device=device) * pixels
    first = start // length
    last = (start + pixels - 1) // length
    share = (torch.minimum((first + 1) * length, start + pixels) - start).double() / pixels
    return torch.stack((first, last), 1).flatten(), torch.stack((share, 1 - share), 1).flatten()


def _pool(
    sums: Float[Tensor, "p ..."],
    pixels: Int[Tensor, "s"],
    shares: Float[Tensor, "s"],
    tokens: Float[Tensor, "t ..."],
) -> None:
    """Add each token's share to its pixels, one token after the other."""
    twice = tokens.repeat_interleave(2, dim=0)
    sums.index_add_(0, pixels, twice * shares[:, None, None])


def _row_dot(one: Float[Tensor, "n R C"], other: Float[Tensor, "n R C"]) -> Float[Tensor, "n R"]:
    """Sum the products along each row."""
    return totals(one * other)
