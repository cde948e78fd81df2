"""The weight that each key receives from the queries: sum, mean or maximum.

Axes: N = B·H flattened heads, G key/value heads, L queries, S keys; a block has n heads, R rows,
C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard._arguments import check_choice, check_indices, chosen, has_negative
from regard._shapes import Int
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.pattern.ordered import add_rows
from regard.pattern.readout import Readout, Sizes, Tile
from regard.pattern.stream import WeightBlock

__all__ = ["Received"]


@dataclass(frozen=True)
class Received(Readout["Tensor", "Tensor"]):
    """The weight that each key receives from the queries: ``(..., S)``.

    Methods of KV-cache eviction score keys by it: H2O by the sum (Zhang et al. 2023,
    arXiv:2306.14048), SnapKV by the sum over the last w queries (Li et al. 2024, arXiv:2404.14469),
    KVzip by the maximum (Kim et al. 2025, arXiv:2505.23416).

    Args:
        reduce: ``"sum"`` over the queries; ``"mean"`` over those that see the key; or ``"max"``.
            0 for a key that no query sees.
        queries: an index, a slice or indices; None for all.
        grouped: reduce over the query heads that share a key head as well: ``(..., G, S)``.

    Raises:
        ValueError: for another `reduce`; when it is read, if `grouped` and heads were selected.
        TypeError: for queries of another type.

    Example:
        >>> import regard, torch
        >>> x = torch.zeros(3, 1)
        >>> pattern = regard.Pattern(x, x, mask=regard.causal())
        >>> pattern.received()
        tensor([1.8333, 0.8333, 0.3333])
        >>> pattern.received("mean")
        tensor([0.6111, 0.4167, 0.3333])
        >>> pattern.received("max", queries=slice(-2, None))
        tensor([0.5000, 0.5000, 0.3333])
    """

    axes = ("key",)

    reduce: Literal["sum", "mean", "max"] = "sum"
    queries: int | slice | Sequence[int] | None = None
    grouped: bool = False

    def __post_init__(self) -> None:
        check_choice("reduce", self.reduce, ("sum", "mean", "max"))
        object.__setattr__(self, "queries", check_indices("queries", self.queries))

    @property
    def reduction(self) -> Literal["sum", "max"]:
        """The maximum for ``"max"``, else the sum."""
        return "max" if self.reduce == "max" else "sum"

    @property
    def is_linear(self) -> bool:
        """True for sums; the counts of a mean may differ between heads."""
        return self.reduce == "sum" and not self.grouped

    def begin(self, sizes: Sizes) -> Tensor:
        """Start from zeros: sums, or sums and counts for a mean, or maxima."""
        self._result_sizes(sizes)
        return sizes.zeros(*(2,) * (self.reduce == "mean"), sizes.keys)

    def add(self, state: Tensor, block: WeightBlock) -> None:
        """Reduce the block's columns."""
        received = state[block.heads, ..., block.columns]
        if self.reduce == "max":
            received.copy_(torch.maximum(received, block.weights.amax(dim=1)))
            return
        sums = received[:, 0] if self.reduce == "mean" else received
        sums.copy_(add_rows(sums, block.weights))
        if self.reduce == "mean":
            received[:, 1] += WeightBlock.seen(block.log_weights).sum(dim=1)

    def finish(self, state: Tensor, sizes: Sizes) -> Tensor:
        """Reduce over the heads of a group, and divide a mean by its count."""
        result = self._result_sizes(sizes)
        if self.grouped:
            state = state.unflatten(0, (result.heads, -1))
            state = state.amax(dim=1) if self.reduce == "max" else state.sum(dim=1)
        if self.reduce == "mean":
            state = state[:, 0] / state[:, 1].clamp_min(1)
        return result.restore(state)

    def restricted(self, queries: int) -> tuple[Received, Int[Tensor, "l"]] | None:
        """Read the chosen queries only."""
        if self.queries is None:
            return None
        return replace(self, queries=None), self._index(queries)

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Describe the reduction for the kernels."""
        kinds = {"sum": Kind.RECEIVED, "mean": Kind.MEAN_RECEIVED, "max": Kind.MAX_RECEIVED}
        shape = (2, sizes.keys) if self.reduce == "mean" else (sizes.keys,)
        return KernelSpec(kind=kinds[self.reduce], shape=shape)

    def from_kernel(self, tensors: tuple[Tensor, ...], sizes: Sizes) -> Tensor:
        """Finish as for a streamed result."""
        (received,) = tensors
        return self.finish(received.double() if self.grouped else received, sizes)

    def of_tile(self, state: Tensor, tile: Tile) -> tuple[Readout[Any, Any], ...]:  # noqa: ARG002 - Readout's signature
        """Read the tile's chosen queries; for a mean, their counts as well."""
        queries: tuple[int, ...] | None = None
        if self.queries is not None:
            length = tile.queries.stop if tile.length is None else tile.length
            places = self._index(length) - tile.queries.start
            inside = (places >= 0) & (places < tile.problem.queries)
            queries = tuple(places[inside].tolist())
        if self.reduce == "mean":
            return Received(queries=queries), _Seen(queries)
        return (Received(self.reduce, queries),)

    def merge(self, state: Tensor, tile: Tile, results: tuple[Any, ...]) -> None:
        """Add the results of the tile's queries, or take the maximum."""
        received = state[..., tile.local_keys]
        if self.reduce == "max":
            received.copy_(torch.maximum(received, results[0]))
        elif self.reduce == "mean":
            received += torch.stack(results, dim=1)
        else:
            received += results[0]

    @property
    def depends_on_length(self) -> bool:
        """True if queries are given as indices, or as a slice counted from the end."""
        index = check_indices("queries", self.queries)
        return not isinstance(index, slice | None) or has_negative(index)

    def _index(self, queries: int) -> Int[Tensor, "l"]:
        index = check_indices("queries", self.queries)
        numbers = sorted({*chosen(index, queries, "queries")})
        return torch.tensor(numbers, dtype=torch.int64, device="cpu")

    def _result_sizes(self, sizes: Sizes) -> Sizes:
        return sizes.grouped() if self.grouped else sizes


@dataclass(frozen=True)
class _Seen(Readout["Tensor", "Tensor"]):
    """The number of queries that see each key: ``(..., S)``."""

    axes = ("key",)

    queries: tuple[int, ...] | None

    def add(self, state: Tensor, block: WeightBlock) -> None:
        state[block.heads, block.columns] += WeightBlock.seen(block.log_weights).sum(dim=1)

    def restricted(self, queries: int) -> tuple[_Seen, Int[Tensor, "l"]] | None:  # noqa: ARG002 - Readout's signature
        if self.queries is None:
            return None
        return _Seen(None), torch.tensor(self.queries, dtype=torch.int64, device="cpu")
