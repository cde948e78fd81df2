"""The rows of a mask for given numbers of queries and keys.

Axes: all leading dimensions are flattened to two, batch B and heads H; b and h are B or 1, H or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Bool, Float, Int, Shaped
from regard.masks.bounds import AffineBounds, IndexBounds
from regard.masks.spans import Spans, runs_of, trimmed

_MAX_RUNS = 16  # of hidden keys that are kept as spans


@dataclass(frozen=True, eq=False)
class Rows:
    """The visible keys of every query: an interval per row, spans within it, and a dense part.

    The first and last key of an interval are never hidden by a span. So a row is fully masked by
    its interval and spans if and only if start = stop.
    """

    heads: tuple[int, int]
    keys: int
    bounds: AffineBounds | IndexBounds
    allowed: Bool[Tensor, "#b #h #L #S"] | None = None
    bias: Float[Tensor, "#b #h #L #S"] | None = None
    spans: Spans | None = None

    @property
    def queries(self) -> int:
        """L."""
        return self.bounds.queries

    @property
    def positions(self) -> Int[Tensor, "#b #h L"]:
        """Position of each query among the keys."""
        return self.bounds.positions

    @property
    def start(self) -> Int[Tensor, "#b #h L"]:
        """The first key that each query sees."""
        return self.bounds.start

    @property
    def stop(self) -> Int[Tensor, "#b #h L"]:
        """One past the last key that each query sees."""
        return self.bounds.stop

    @property
    def is_interval(self) -> bool:
        """True if the mask is one interval per row, without spans or a dense part."""
        return self.allowed is None and self.bias is None and self.spans is None

    @property
    def adds(self) -> bool:
        """True if a number may be added to some score."""
        return self.bias is not None or (self.spans is not None and self.spans.adds)

    @property
    def hides_any(self) -> bool:
        """True if any key is hidden from any query."""
        if not self.is_interval:
            return True
        return bool((self.start > 0).any()) or bool((self.stop < self.keys).any())

    @property
    def is_lower_triangular(self) -> bool:
        """True if L = S and query i sees exactly the keys 0 … i: torch's ``is_causal``."""
        if not self.is_interval or self.queries != self.keys:
            return False
        index = torch.arange(self.keys, device=self.stop.device)
        return not bool(self.start.any()) and bool((self.stop == index + 1).all())

    @property
    def are_shared(self) -> bool:
        """True if all batch entries and heads are known to see the same keys."""
        bounds = (self.positions, self.start, self.stop)
        matrices = (one for one in (self.allowed, self.bias) if one is not None)
        spans = () if self.spans is None else (self.spans.start[0], self.spans.stop[0])
        return all(one.shape[:2] == (1, 1) for one in (*bounds, *matrices, *spans))

    def equals(self, other: Rows) -> bool:
        """Return True if both have the same sizes and the same values."""
        mine, others = self._parts(), other._parts()
        return len(mine) == len(others) and all(starmap(_equal, zip(mine, others, strict=True)))

    def _parts(self) -> tuple[Any, ...]:
        bounds, spans = self.bounds, self.spans
        ends = (
            (bounds.queries, bounds.position, bounds.first_start, bounds.first_stop)
            if isinstance(bounds, AffineBounds)
            else (bounds.positions, bounds.start, bounds.stop)
        )
        of_spans = () if spans is None else (spans.start, spans.stop, spans.added)
        return (self.heads, self.keys, *ends, self.allowed, self.bias, *of_spans)

    def hides_all(self) -> bool:
        """Return True if every query is known to be fully masked by its interval.

        Tables on CUDA are not read, which would synchronize with the device; the result is then
        False.
        """
        bounds = self.bounds
        if isinstance(bounds, AffineBounds):
            return bounds.is_empty
        return not bounds.start.is_cuda and not bool((bounds.start < bounds.stop).any())

    def span(self, rows: slice) -> tuple[int, int]:
        """Find the smallest range that contains all keys that these queries see."""
        start, stop = self.start[..., rows], self.stop[..., rows]
        some = start < stop  # rows that are not fully masked
        if not bool(some.any()):
            return 0, 0
        return int(start[some].min()), int(stop[some].max())

    def common(self, rows: slice) -> tuple[int, int]:
        """Find the range of keys that the intervals of all these queries share."""
        return int(self.start[..., rows].max()), int(self.stop[..., rows].min())

    def visible(self, rows: slice, columns: slice) -> Bool[Tensor, "b h l s"]:
        """Compute a block of the mask: True if the query may see the key."""
        key = torch.arange(columns.start, columns.stop, device=self.start.device)
        start, stop = self.start[..., rows, None], self.stop[..., rows, None]
        matrix = (key >= start) & (key < stop)
        if self.allowed is not None:
            matrix = matrix & _crop(self.allowed, rows, columns)
        if self.bias is not None:
            matrix = matrix & (_crop(self.bias, rows, columns) != -torch.inf)
        if self.spans is not None:
            matrix = matrix & ~self.spans.hidden(rows, columns)
        return matrix

    def bias_block(
        self, rows: slice, columns: slice, dtype: torch.dtype
    ) -> Float[Tensor, "b h l s"] | None:
        """Compute a block of the additive part, with 0 for −inf, which `visible` handles.

        Args:
            rows: the queries of the block.
            columns: its keys.
            dtype: dtype of the numbers that spans add.
        """
        block = None if self.spans is None else self.spans.added_block(rows, columns, dtype)
        if self.bias is None:
            return block
        bias = _crop(self.bias, rows, columns)
        bias = bias.masked_fill(bias == -torch.inf, 0)
        return bias if block is None else bias + block

    def with_bias(self, bias: Float[Tensor, "b h l s"] | None) -> Rows:
        """Add a bias to the additive part."""
        if bias is None:
            return self
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def with_spans(self, spans: Spans) -> Rows:
        """Change the scores of further spans of keys."""
        further = spans if self.spans is None else self.spans.joined(spans)
        bounds, left = trimmed(self.bounds, further)
        return replace(self, bounds=bounds, spans=left)

    def hiding(self, keys: Bool[Tensor, "#b #h S"]) -> Rows:
        """Hide keys from all queries, possibly other keys in each head.

        A few runs of adjacent keys become spans, two integers per row each; more of them a dense
        part that all queries share.
        """
        start, stop = runs_of(keys)
        if len(start) <= _MAX_RUNS:
            shape = (*start.shape, self.queries)
            start, stop = (table[..., None].expand(shape) for table in (start, stop))
            hides = torch.full((len(start),), -torch.inf, dtype=torch.float64, device="cpu")
            return self.with_spans(Spans(start, stop, hides)) if len(start) else self
        allowed = ~keys[..., None, :]
        return replace(self, allowed=allowed if self.allowed is None else self.allowed & allowed)

    def take(self, index: Int[Tensor, "l"]) -> Rows:
        """Keep only the queries of an index."""
        bounds = IndexBounds(*(t[..., index] for t in (self.positions, self.start, self.stop)))
        return replace(
            self,
            bounds=bounds,
            allowed=_take(self.allowed, index),
            bias=_take(self.bias, index),
            spans=self._spans(lambda table: table[..., index]),
        )

    def crop(self, queries: slice, keys: slice) -> Rows:
        """Keep only a range of queries and a range of keys; positions count from its first key."""
        size, shift = keys.stop - keys.start, queries.start - keys.start
        bounds = self.bounds
        if isinstance(bounds, AffineBounds):
            bounds = AffineBounds(
                queries.stop - queries.start,
                size,
                bounds.device,
                bounds.position + shift,
                None if bounds.first_start is None else bounds.first_start + shift,
                None if bounds.first_stop is None else bounds.first_stop + shift,
            )
        else:
            table = (bounds.positions, bounds.start, bounds.stop)
            positions, start, stop = (bound[..., queries] - keys.start for bound in table)
            bounds = IndexBounds(positions, start.clamp(0, size), stop.clamp(0, size))
        spans = self._spans(lambda table: (table[..., queries] - keys.start).clamp(0, size))
        if spans is not None:
            bounds, spans = trimmed(bounds, spans)
        return replace(
            self,
            keys=size,
            bounds=bounds,
            allowed=None if self.allowed is None else _crop(self.allowed, queries, keys),
            bias=None if self.bias is None else _crop(self.bias, queries, keys),
            spans=spans,
        )

    def select(self, batch: Int[Tensor, "n"], head: Int[Tensor, "n"]) -> Rows:
        """Keep only n pairs (batch, head), as n batch entries of one head each."""

        def pick(tensor: Tensor) -> Tensor:
            if tensor.shape[:2] == (1, 1):
                return tensor
            return tensor.expand(*self.heads, *tensor.shape[2:])[batch, head][:, None]

        return self.mapped((batch.numel(), 1), pick)

    def entry(self, index: int) -> Rows:
        """Keep only one entry of the batch."""

        def pick(tensor: Tensor) -> Tensor:
            return tensor if len(tensor) == 1 else tensor[index : index + 1]

        return self.mapped((1, self.heads[1]), pick)

    def mapped(self, heads: tuple[int, int], pick: Callable[[Tensor], Tensor]) -> Rows:
        """Pick batch entries and heads.

        Args:
            heads: numbers of batch entries and heads after picking.
            pick: function that picks them from a tensor ``(b, h, ...)``.
        """
        return replace(
            self,
            heads=heads,
            bounds=self.bounds
            if isinstance(self.bounds, AffineBounds)
            else self.bounds.mapped(pick),
            allowed=None if self.allowed is None else pick(self.allowed),
            bias=None if self.bias is None else pick(self.bias),
            spans=self._spans(pick),
        )

    def to(self, move: Callable[[Tensor], Tensor], device: torch.device) -> Rows:
        """Move all tensors to a device with a function that moves one tensor."""
        bounds = self.bounds
        return replace(
            self,
            bounds=bounds.on(device) if isinstance(bounds, AffineBounds) else bounds.mapped(move),
            allowed=None if self.allowed is None else move(self.allowed),
            bias=None if self.bias is None else move(self.bias),
            spans=self._spans(move),
        )

    def _spans(self, change: Callable[[Tensor], Tensor]) -> Spans | None:
        return None if self.spans is None else self.spans.mapped(change)

    def spread(self, tensor: Shaped[Tensor, "b h L"]) -> Shaped[Tensor, "B H L"]:
        """Expand a tensor that batch entries or heads share."""
        return tensor.expand(*self.heads, -1)


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is other or (type(one) is type(other) and bool(one == other))
    if one.dtype != other.dtype or one.device != other.device or one.shape != other.shape:
        return False
    same_memory = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
    return same_memory or torch.equal(one, other)


def _crop(matrix: Tensor, rows: slice, columns: slice) -> Tensor:
    """Crop a matrix, except along broadcast axes of size 1."""
    if matrix.shape[-2] > 1:
        matrix = matrix[..., rows, :]
    return matrix[..., columns] if matrix.shape[-1] > 1 else matrix


def _take(matrix: Tensor | None, index: Tensor) -> Tensor | None:
    if matrix is None or matrix.shape[-2] == 1:
        return matrix
    return matrix[..., index, :]
