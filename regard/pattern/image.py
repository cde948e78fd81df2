"""The pattern down-sampled to an image.

Axes: N = B·H flattened heads, L queries, S keys; a block has n heads, R rows, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.pattern.readout import Readout, Sizes, Tile
from regard.pattern.stream import WeightBlock

__all__ = ["Image"]


class _Picture(NamedTuple):
    """Sums of weights, and the size of the pattern."""

    pixels: Float[Tensor, "N rows columns"]
    queries: int
    keys: int


@dataclass(frozen=True)
class Image(Readout[_Picture, "Tensor"]):
    """The pattern down-sampled to an image: ``(..., min(rows, L), min(columns, S))``.

    Each pixel is the mean weight over its rectangle of the pattern. An edge of a pixel may lie
    within a token, which then contributes its parts to both pixels.

    Args:
        rows: height in pixels.
        columns: width in pixels.

    Raises:
        ValueError: for a size below 1.

    Example:
        >>> import regard, torch
        >>> pattern = regard.Pattern(torch.zeros(4, 1), torch.zeros(4, 1), mask=regard.causal())
        >>> (image,) = pattern.read(regard.readouts.Image(2, 2))
        >>> image
        tensor([[0.5000, 0.0000],
                [0.2917, 0.2083]])
    """

    axes = ("row", "column")

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise ValueError(f"an image needs a size, but rows={self.rows}, columns={self.columns}")

    @property
    def is_linear(self) -> bool:
        """True: a pixel is a mean of weights."""
        return True

    def begin(self, sizes: Sizes) -> _Picture:
        """Start from zeros."""
        return _Picture(sizes.zeros(*self._shape(sizes)), sizes.queries, sizes.keys)

    def add(self, state: _Picture, block: WeightBlock) -> None:
        """Pool the columns of each row, then the rows."""
        rows, columns = state.pixels.shape[1:]
        device = state.pixels.device
        left, share = _cut_by_edges(block.columns, state.keys, columns, device)
        top, part = _cut_by_edges(block.rows, state.queries, rows, device)
        first, last = int(left[0]), int(left[-1])
        weights = block.weights.permute(2, 1, 0).double()  # (C, R, n)
        by_column = weights.new_zeros(last + 1 - first, *weights.shape[1:])
        _pool(by_column, left - first, share, weights)
        pixels = state.pixels[block.heads, :, first : last + 1].permute(1, 2, 0)  # rows first
        _pool(pixels, top, part, by_column.transpose(0, 1))

    def finish(self, state: _Picture, sizes: Sizes) -> Tensor:
        """Turn sums into means: a pixel covers L/rows × S/columns weights."""
        pixels, queries, keys = state
        _, rows, columns = pixels.shape
        area = (queries / rows) * (keys / columns) if pixels.numel() else 1
        return sizes.restore(pixels / area)

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Describe the image for the kernels."""
        rows, columns = self._shape(sizes)
        return image_spec((rows, columns), sizes.queries, sizes.keys)

    def of_tile(self, state: _Picture, tile: Tile) -> tuple[Readout[Any, Any], ...]:
        """Add the tile to the whole image in place: a pixel may extend over several tiles."""
        return (DrawnInto(self, state, tile),)

    def merge(self, state: _Picture, tile: Tile, results: tuple[Any, ...]) -> None:
        """No-op: the tile was added in place."""

    @property
    def depends_on_length(self) -> bool:
        """True: the size of a pixel is a fraction of all queries and keys."""
        return True

    def _shape(self, sizes: Sizes) -> tuple[int, int]:
        return min(self.rows, sizes.queries), min(self.columns, sizes.keys)


@dataclass(frozen=True, eq=False)
class DrawnInto(Readout[Any, None]):
    """Adds a tile to the state of the whole image, in place."""

    image: Readout[Any, Any]
    picture: Any
    """The state of the whole image."""
    tile: Tile

    def begin(self, sizes: Sizes) -> Any:  # noqa: ARG002 - Readout's signature
        """Start from the state of the whole image."""
        return self.picture

    def add(self, state: Any, block: WeightBlock) -> None:
        """Add a block at its position in the whole pattern."""
        rows = _moved(block.rows, self.tile.queries.start)
        columns = _moved(block.columns, self.tile.keys.start)
        self.image.add(state, replace(block, rows=rows, columns=columns))

    def finish(self, state: Any, sizes: Sizes) -> None:
        """No-op: the result is in the state of the whole image."""


def image_spec(pixels: tuple[int, int], height: int, width: int) -> KernelSpec:
    """Describe an image of so many pixels that covers `height` queries and `width` keys."""
    rows, columns = pixels
    return KernelSpec(
        kind=Kind.IMAGE, shape=pixels, size=rows, columns=columns, height=height, width=width
    )


def _moved(span: slice, by: int) -> slice:
    return slice(span.start + by, span.stop + by)


def _cut_by_edges(
    tokens: slice, length: int, pixels: int, device: torch.device
) -> tuple[Int[Tensor, "s"], Float[Tensor, "s"]]:
    """Find the two pixels that each token overlaps, and the fraction of the token in each.

    In units of 1/(length·pixels) of the whole, token i covers [i·pixels, (i+1)·pixels) and pixel p
    covers [p·length, (p+1)·length), so fractions are ratios of integers. A token overlaps at most
    two pixels, since there are no more pixels than tokens; the second fraction may be 0.
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
    """Add the parts of each token to its pixels, in the order of the tokens."""
    twice = tokens.repeat_interleave(2, dim=0)
    sums.index_add_(0, pixels, twice * shares[:, None, None])
