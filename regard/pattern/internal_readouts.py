"""Readouts for internal use: log-sum-exps, weights of chosen keys, products, log-weights.

Axes: N = B·H flattened heads, L queries, S keys; M rows of the left factor, c chosen keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard._contexts import in_memory
from regard._shapes import Float, Int
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.pattern.readout import Readout, Sizes, Tile
from regard.pattern.stream import WeightBlock


@dataclass(frozen=True)
class LogSumExp(Readout["Tensor", "Tensor"]):
    """Log-sum-exp of each row, −inf for a row without visible keys: ``(N, L)``."""

    axes = ("query",)
    kind = Kind.LOGSUMEXP

    def begin(self, sizes: Sizes) -> Tensor:
        """Start from rows without visible keys."""
        return sizes.zeros(sizes.queries, dtype=sizes.dtype).fill_(-torch.inf)

    def add(self, state: Tensor, block: WeightBlock) -> None:
        """Copy the log-sum-exps of the block."""
        state[block.heads, block.rows] = block.logsumexp

    def finish(self, state: Tensor, sizes: Sizes) -> Tensor:  # noqa: ARG002 - Readout's signature
        """Return them with flattened heads."""
        return state

    def from_kernel(self, tensors: tuple[Tensor, ...], sizes: Sizes) -> Tensor:  # noqa: ARG002 - Readout's signature
        """Return them with flattened heads."""
        return tensors[0]

    def merge(self, state: Tensor, tile: Tile, results: tuple[Any, ...]) -> None:
        """Combine them with the log-sum-exps over the tile's keys."""
        rows = state[:, tile.local_queries]
        rows.copy_(torch.logaddexp(rows, results[0]))


@dataclass(frozen=True, eq=False)
class Weights(Readout["Tensor", "Tensor"]):
    """The weights of chosen keys: ``(..., L, c)``.

    Args:
        keys: indices of the keys.
        into: a contiguous tensor of that size and the pattern's dtype to add the weights to; None
            for a new one.
    """

    keys: Int[Tensor, "c"]
    into: Tensor | None = None

    def begin(self, sizes: Sizes) -> Tensor:
        """Start from zeros, or from the given tensor."""
        shape = sizes.queries, self.keys.numel()
        if self.into is not None:
            return self.into.view(sizes.heads, *shape)
        return sizes.zeros(*shape, dtype=sizes.dtype)

    def add(self, state: Tensor, block: WeightBlock) -> None:
        """Add the columns of the chosen keys."""
        keys = self.keys.to(state.device)
        inside = ((keys >= block.columns.start) & (keys < block.columns.stop)).nonzero()[:, 0]
        columns = keys[inside] - block.columns.start
        state[block.heads, block.rows, inside] += block.weights[..., columns]

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Describe the columns: sorted keys, each with its position among the chosen ones."""
        keys, places = self.keys.long().sort()
        size = keys.numel()
        return KernelSpec(
            kind=Kind.WEIGHTS,
            shape=(sizes.queries, size),
            size=size,
            operand=torch.stack((keys, places)).contiguous(),
            into=None if self.into is None else self.begin(sizes),
        )

    def from_kernel(self, tensors: tuple[Tensor, ...], sizes: Sizes) -> Tensor:
        """Add the weights to the given tensor, unless the kernel did."""
        (weights,) = tensors
        if self.into is not None and weights.data_ptr() != self.into.data_ptr():
            weights = self.begin(sizes).add_(weights)
        return sizes.restore(weights)


@dataclass(frozen=True, eq=False)
class LeftProduct(Readout["Tensor", "Tensor"]):
    """A product from the left, ``rows @ pattern``: ``(..., M, S)``."""

    rows: Float[Tensor, "N M L"]

    def begin(self, sizes: Sizes) -> Tensor:
        """Start from zeros."""
        return sizes.zeros(self.rows.shape[1], sizes.keys)

    def add(self, state: Tensor, block: WeightBlock) -> None:
        """Add the product with the block."""
        product = state[block.heads, :, block.columns]
        coefficients = self.rows[block.heads, :, block.rows].to(block.weights.dtype)
        if not product.is_cpu:
            product += coefficients @ block.weights
            return
        for row, weights in zip(coefficients.unbind(-1), block.weights.unbind(1), strict=True):
            product += row[..., None] * weights[:, None]  # in a fixed order; see `ordered`

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Describe the product for the kernels."""
        size = self.rows.shape[1]
        return KernelSpec(
            kind=Kind.LEFT_PRODUCT,
            shape=(size, sizes.keys),
            size=size,
            operand=in_memory(self.rows.to(sizes.dtype)).contiguous(),
        )


@dataclass(frozen=True)
class LogWeights(Readout["Tensor", "Tensor"]):
    """Natural logarithms of the weights, −∞ for hidden keys: ``(..., L, S)``."""

    def begin(self, sizes: Sizes) -> Tensor:
        """Start from hidden keys."""
        return sizes.zeros(sizes.queries, sizes.keys, dtype=sizes.dtype).fill_(-torch.inf)

    def add(self, state: Tensor, block: WeightBlock) -> None:
        """Copy the log-weights of the block."""
        seen = WeightBlock.seen(block.log_weights)
        logs = torch.where(seen, block.log_weights, -torch.inf)
        state[block.heads, block.rows, block.columns] = logs
