"""The weight of each query on the key exactly d tokens before it.

Axes: N = B·H flattened heads, L queries, S keys; a block has n heads, R rows, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._arguments import check_integers, check_whole
from regard._shapes import Float, Int
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.pattern.readout import Readout, Sizes, Tile
from regard.pattern.stream import WeightBlock

__all__ = ["Lag", "LagWeights"]


class LagWeights(NamedTuple):
    """The weight of each query on one key.

    Example:
        >>> import regard, torch
        >>> pattern = regard.Pattern(torch.zeros(3, 1), torch.zeros(3, 1), mask=regard.causal())
        >>> (before,) = pattern.read(regard.readouts.Lag(1))
        >>> before.weights
        tensor([0.0000, 0.5000, 0.3333])
    """

    weights: Float[Tensor, "*b L"]
    log_weights: Float[Tensor, "*b L"]
    """Natural logarithms; −∞ if there is no such key, or it is hidden."""


class _State(NamedTuple):
    result: LagWeights
    keys: Int[Tensor, "N S"] | None
    queries: Int[Tensor, "N L"] | None


@dataclass(frozen=True, eq=False)
class Lag(Readout[_State, LagWeights]):
    """Weight of each query on the key exactly d tokens before it, and its logarithm: ``(..., L)``.

    `Offsets` averages these over the queries. At d = 1 it is the score of a previous-token head at
    each token (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). Weights
    that underflow in float32 still have different logarithms.

    Args:
        d: the distance in tokens; 0 is the query's own position, and negative distances are ahead.
        key_positions: position of each key in the text, ``(S,)`` or ``(B, H, S)``, without
            duplicates, if keys were evicted from a cache; None is 0 … S−1.
        query_positions: position of each query, ``(L,)`` or ``(B, H, L)``; required with
            `key_positions`.

    Raises:
        TypeError: for anything but integers.
        ValueError: for positions of keys without those of queries or the reverse, or for a shape
            that does not fit.

    Example:
        >>> import regard, torch
        >>> pattern = regard.Pattern(torch.zeros(3, 2), torch.zeros(3, 2), mask=regard.causal())
        >>> pattern.lag(1).weights
        tensor([0.0000, 0.5000, 0.3333])
    """

    axes = ("query",)

    d: int
    key_positions: Int[Tensor, "*b S"] | None = None
    query_positions: Int[Tensor, "*b L"] | None = None

    def __post_init__(self) -> None:
        check_whole(self.d, "d")
        names = "key_positions", "query_positions"
        pair = self.key_positions, self.query_positions
        for name, positions in zip(names, pair, strict=True):
            if positions is not None:
                check_integers(positions, name)
        if sum(positions is None for positions in pair) == 1:
            raise ValueError(f"{' and '.join(names)} go together: give both or neither")

    def begin(self, sizes: Sizes) -> _State:
        """Start from weight 0."""
        result = LagWeights(
            sizes.zeros(sizes.queries, dtype=sizes.dtype),
            sizes.zeros(sizes.queries, dtype=sizes.dtype).fill_(-torch.inf),
        )
        keys = _of_heads(self.key_positions, "key_positions", sizes, sizes.keys)
        # With several ranks they cover the queries of all of them; `of_tile` takes the tile's.
        length = 0 if self.query_positions is None else self.query_positions.shape[-1]
        queries = _of_heads(self.query_positions, "query_positions", sizes, length)
        return _State(result, keys, queries)

    def add(self, state: _State, block: WeightBlock) -> None:
        """Gather the key of each row."""
        device = block.weights.device
        columns = torch.arange(block.columns.start, block.columns.stop, device=device)
        keys, queries = columns, block.positions
        if state.keys is not None and state.queries is not None:
            _check_length(state.queries, state.result.weights.shape[-1])
            keys = state.keys[block.heads, None, block.columns]
            queries = state.queries[block.heads, block.rows]
        there = (keys == queries[..., None] - self.d) & WeightBlock.seen(block.log_weights)
        weights, logs = state.result
        own = block.heads, block.rows
        weights[own] = torch.where(there, block.weights, 0).sum(dim=-1)
        logs[own] = torch.where(there, block.log_weights, -torch.inf).amax(dim=-1)

    def finish(self, state: _State, sizes: Sizes) -> LagWeights:
        """Restore the leading dimensions of both."""
        return LagWeights(*map(sizes.restore, state.result))

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Describe the distance, or with positions the index of each query's key, −1 for none."""
        shape = sizes.queries, 2
        _, keys, queries = self.begin(sizes)
        if keys is None or queries is None:
            return KernelSpec(kind=Kind.LAG, shape=shape, size=self.d)
        _check_length(queries, sizes.queries)
        rising, order = keys.sort(dim=-1)
        wanted = queries - self.d
        place = torch.searchsorted(rising, wanted).clamp(max=sizes.keys - 1)
        there = rising.gather(-1, place) == wanted
        picked = torch.where(there, order.gather(-1, place), -1)
        return KernelSpec(kind=Kind.LAG, shape=shape, operand=picked.contiguous())

    def from_kernel(self, tensors: tuple[Tensor, ...], sizes: Sizes) -> LagWeights:
        """Separate weights and logarithms, and restore the leading dimensions."""
        return LagWeights(*map(sizes.restore, tensors[0].unbind(dim=-1)))

    def of_tile(self, state: _State, tile: Tile) -> tuple[Readout[Any, Any], ...]:
        """Restrict the positions to the tile's keys and queries."""
        if state.keys is None or state.queries is None:
            return (self,)
        return (Lag(self.d, state.keys[:, tile.keys], state.queries[:, tile.queries]),)

    def merge(self, state: _State, tile: Tile, results: tuple[Any, ...]) -> None:
        """Add the weights: only one tile has the key."""
        weights, logs = (part[:, tile.local_queries] for part in state.result)
        weights += results[0].weights
        logs.copy_(torch.maximum(logs, results[0].log_weights))

    @property
    def depends_on_length(self) -> bool:
        """True if positions are given, which are those of all queries and keys."""
        return self.key_positions is not None


def _check_length(query_positions: Tensor, queries: int) -> None:
    if query_positions.shape[-1] != queries:
        raise ValueError(
            f"query_positions are {query_positions.shape[-1]} for {queries} queries; give one each"
        )


def _of_heads(
    positions: Tensor | None, name: str, sizes: Sizes, length: int
) -> Int[Tensor, "N l"] | None:
    """Broadcast positions over batch entries and heads."""
    if positions is None:
        return None
    shape = (*sizes.leading, length)
    try:
        return positions.long().to(sizes.device).expand(shape).reshape(sizes.heads, -1)
    except RuntimeError as error:
        raise ValueError(
            f"{name} has shape {tuple(positions.shape)}, which does not fit {shape}: one position "
            "each"
        ) from error
