"""What the readers of libraries share: the call they return, and masks of packed sequences.

Packed sequences of different lengths lie one after another along one axis.

Axes: n sequences, L queries and S keys of all of them, H query heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.intercept._call import Call
from regard.masks import Mask, causal, documents, intervals, window


@dataclass(frozen=True, eq=False, kw_only=True)
class LibraryCall:
    """A call of a library's attention function, and the layout of its output."""

    call: Call
    """With query, key and value ``(B, H, L, D)``."""
    to_heads: Callable[[Tensor], Tensor]
    """Converts the library's context to ``(B, H, L, Dv)``."""
    from_heads: Callable[[Tensor], Tensor]
    """Converts a context ``(B, H, L, Dv)`` to the library's layout."""
    returns_more: str
    """Names of the options that make it return more than the context."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """Number of keys a query sees on either side of its position; −1 is unlimited."""

    left: int = -1
    right: int = -1

    def mask(self, length: int, *, offset: int | Tensor | None = None) -> Mask:
        """Return the mask for one sequence.

        Args:
            length: at least the number of queries and of keys together.
            offset: position of query 0 among the keys, as for `causal`.
        """
        if self.left < 0 and self.right < 0:
            return Mask(offset=offset)
        if self.left < 0 and self.right == 0:
            return causal(offset=offset)
        left, right = (length if end < 0 else min(end, length) for end in (self.left, self.right))
        return window(left + 1, ahead=right, offset=offset)


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedSequences:
    """Start and stop of the queries and keys of each sequence."""

    query_start: Int[Tensor, "n"]
    query_stop: Int[Tensor, "n"]
    key_start: Int[Tensor, "n"]
    key_stop: Int[Tensor, "n"]

    def mask(self, queries: int, keys: int, band: Band, *, at_end: bool) -> Mask:
        """Return a mask in which each query sees the keys of its sequence, within a band.

        Args:
            queries: L.
            keys: S.
            band: number of keys seen on either side.
            at_end: whether the last query of a sequence is aligned with its last key; otherwise the
                first query is aligned with the first key.
        """
        if self.are_documents(queries, keys):
            ids = self._sequence_of(queries)
            return documents(ids, offset=0) & band.mask(queries + keys, offset=0)
        own = self._sequence_of(queries)
        start, stop = self.key_start[own], self.key_stop[own]
        position = self.positions(queries, at_end=at_end)
        if band.left >= 0:
            start = torch.maximum(start, position - band.left)
        if band.right >= 0:
            stop = torch.minimum(stop, position + band.right + 1)
        outside = torch.arange(queries, device=own.device) >= self.query_stop[own]
        stop = torch.maximum(start, stop.masked_fill(outside, 0))
        return replace(intervals(start, stop), positions=position)

    def are_documents(self, queries: int, keys: int) -> bool:
        """Return whether queries and keys have equal bounds, without gaps."""
        start, stop = self.query_start, self.query_stop
        return (
            queries == keys
            and len(start) > 0
            and torch.equal(start, self.key_start)
            and torch.equal(stop, self.key_stop)
            and torch.equal(start[1:], stop[:-1])
            and (int(start[0]), int(stop[-1])) == (0, queries)
        )

    def positions(self, queries: int, *, at_end: bool) -> Int[Tensor, "L"]:
        """Return the position of each query among all keys."""
        own = self._sequence_of(queries)
        shift = self.key_start - self.query_start
        if at_end:
            shift = self.key_stop - self.query_stop
        return torch.arange(queries, device=own.device) + shift[own]

    def alibi(
        self, slopes: Float[Tensor, "#n H"], queries: int, keys: int
    ) -> Float[Tensor, "H L S"]:
        """Materialize −slope·|distance|, with the last query aligned with the last key."""
        position = self.positions(queries, at_end=True)
        distance = (position[:, None] - torch.arange(keys, device=position.device)).abs()
        each = slopes.expand(len(self.query_start), -1)[self._sequence_of(queries)]  # (L, H)
        return -each.T[..., None] * distance

    def _sequence_of(self, queries: int) -> Int[Tensor, "L"]:
        """Return the sequence of each query: the last one that starts at or before it."""
        places = torch.arange(queries, device=self.query_start.device)
        return torch.searchsorted(self.query_start.contiguous(), places, right=True) - 1
