"""Block reduction of a pattern: the mean, sum or maximum of each block of weights.

Axes: N = B·H flattened heads, L queries, S keys; a `WeightBlock` has n heads, R rows, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard._arguments import check_choice, is_whole
from regard._shapes import Float
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.pattern.image import DrawnInto, image_spec
from regard.pattern.readout import Readout, Sizes, Tile
from regard.pattern.stream import WeightBlock

__all__ = ["Blocks"]


class _Grid(NamedTuple):
    """Reduced blocks, and the size of the pattern."""

    cells: Float[Tensor, "N rows columns"]
    queries: int
    keys: int


@dataclass(frozen=True)
class Blocks(Readout[_Grid, "Tensor"]):
    """The mean, sum or maximum of each block of the pattern: ``(..., ⌈L/rows⌉, ⌈S/columns⌉)``.

    It tells which blocks a sparse attention may skip: the sum is the weight that a block carries,
    the maximum is what the gate of SeerAttention is trained to predict (Gao et al. 2024,
    arXiv:2410.13276). Blocks start at query 0 and key 0; the last ones may be smaller. `Image`
    takes a number of pixels instead, whose edges may lie within a token.

    Args:
        rows: queries per block.
        columns: keys per block.
        reduce: ``"mean"`` over all weights of a block, hidden ones as 0; ``"sum"``; or ``"max"``.

    Raises:
        ValueError: for a block without rows or columns, or another `reduce`.

    Example:
        >>> import regard, torch
        >>> pattern = regard.Pattern(torch.zeros(3, 1), torch.zeros(3, 1), mask=regard.causal())
        >>> pattern.blocks(2, 2, "sum")
        tensor([[2.0000, 0.0000],
                [0.6667, 0.3333]])
    """

    axes = ("row", "column")

    rows: int
    columns: int
    reduce: Literal["mean", "sum", "max"] = "mean"

    def __post_init__(self) -> None:
        if not all(is_whole(side) and side >= 1 for side in (self.rows, self.columns)):
            raise ValueError(
                f"a block needs at least one row and column, but rows={self.rows}, "
                f"columns={self.columns}"
            )
        check_choice("reduce", self.reduce, ("mean", "sum", "max"))

    @property
    def reduction(self) -> Literal["sum", "max"]:
        """The maximum for ``"max"``, else the sum."""
        return "max" if self.reduce == "max" else "sum"

    @property
    def is_linear(self) -> bool:
        """True for sums and means."""
        return self.reduce != "max"

    def begin(self, sizes: Sizes) -> _Grid:
        """Start from zeros."""
        shape = -(-sizes.queries // self.rows), -(-sizes.keys // self.columns)
        return _Grid(sizes.zeros(*shape), sizes.queries, sizes.keys)

    def add(self, state: _Grid, block: WeightBlock) -> None:
        """Reduce the columns of each row, then the rows."""
        across = slice(block.columns.start // self.columns, -(-block.columns.stop // self.columns))
        if self.reduce == "max":
            down = slice(block.rows.start // self.rows, -(-block.rows.stop // self.rows))
            cells = state.cells[block.heads, down, across]
            sides = self._sides(state.queries, state.keys)
            cells.copy_(torch.maximum(cells, _largest(block, *sides)))
            return
        device = state.cells.device
        column = torch.arange(block.columns.start, block.columns.stop, device=device)
        row = torch.arange(block.rows.start, block.rows.stop, device=device)
        weights = block.weights.permute(2, 1, 0).double()  # (C, R, n)
        by_column = weights.new_zeros(across.stop - across.start, *weights.shape[1:])
        by_column.index_add_(0, column // self.columns - across.start, weights)
        cells = state.cells[block.heads, :, across].permute(1, 2, 0)  # rows first
        cells.index_add_(0, row // self.rows, by_column.transpose(0, 1))

    def finish(self, state: _Grid, sizes: Sizes) -> Tensor:
        """For a mean, divide by the size of each block."""
        cells, queries, keys = state
        if self.reduce != "mean":
            return sizes.restore(cells)
        height, width = (
            (torch.arange(0, length, side, device=cells.device) - length).neg().clamp(max=side)
            for length, side in ((queries, self.rows), (keys, self.columns))
        )
        return sizes.restore(cells / (height[:, None] * width))

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Blocks are the pixels of an image whose last ones stick out over the pattern."""
        height, width = self._sides(sizes.queries, sizes.keys)
        rows, columns = -(-sizes.queries // height), -(-sizes.keys // width)
        spec = image_spec((rows, columns), rows * height, columns * width)
        return replace(spec, kind=Kind.MAX_BLOCKS) if self.reduce == "max" else spec

    def from_kernel(self, tensors: tuple[Tensor, ...], sizes: Sizes) -> Tensor:
        """Turn means over whole blocks into sums, or into means over what is there of each."""
        (cells,) = tensors
        height, width = self._sides(sizes.queries, sizes.keys)
        if self.reduce == "sum":
            return sizes.restore(cells.double() * (height * width))
        if self.reduce == "mean":
            for axis, length, side in ((-2, sizes.queries, height), (-1, sizes.keys, width)):
                if length % side:  # the last blocks are smaller
                    cells.select(axis, -1).mul_(side / (length % side))
        return sizes.restore(cells)

    def of_tile(self, state: _Grid, tile: Tile) -> tuple[Readout[Any, Any], ...]:
        """Add the tile to the whole grid in place: a block may extend over several tiles."""
        return (DrawnInto(self, state, tile),)

    def merge(self, state: _Grid, tile: Tile, results: tuple[Any, ...]) -> None:
        """No-op: the tile was added in place."""

    @property
    def depends_on_length(self) -> bool:
        """True: the size of the grid depends on that of the pattern."""
        return True

    def _sides(self, queries: int, keys: int) -> tuple[int, int]:
        """Rows and columns of a complete block, at most those of the pattern."""
        return min(self.rows, max(1, queries)), min(self.columns, max(1, keys))


def _largest(block: WeightBlock, rows: int, columns: int) -> Float[Tensor, "n rows columns"]:
    ends = []
    for span, side in ((block.columns, columns), (block.rows, rows)):
        ends += [span.start % side, -span.stop % side]
    whole = pad(block.weights, ends)  # weights are not below 0
    return whole.unflatten(2, (-1, columns)).unflatten(1, (-1, rows)).amax((2, 4))
