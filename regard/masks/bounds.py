"""Where the visible keys of each query start and stop: as tables, or as affine functions.

Axes: B batch, H query heads, L queries, S keys; b and h are B or 1, H or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard._decorators import cached
from regard._shapes import Int


@dataclass(frozen=True, eq=False)
class IndexBounds:
    """Three integers a query, ``0 ≤ start ≤ stop ≤ S``; equal where it is fully masked."""

    positions: Int[Tensor, "#b #h L"]
    """Where each query sits among the keys."""
    start: Int[Tensor, "#b #h L"]
    stop: Int[Tensor, "#b #h L"]

    @property
    def queries(self) -> int:
        """L."""
        return self.start.shape[-1]

    def mapped(self, function: Callable[[Tensor], Tensor]) -> IndexBounds:
        """Apply a function to each tensor."""
        return IndexBounds(function(self.positions), function(self.start), function(self.stop))


@dataclass(frozen=True, eq=False)
class AffineBounds:
    """The same interval for every query, or one that moves by a key from query to query.

    Causal masks and sliding windows are such, alone and together. Kernels read the integers; the
    tables are computed when they are needed.
    """

    queries: int
    keys: int
    device: torch.device
    position: int
    """Where query 0 sits among the keys; query i sits i further."""
    first_start: int | None = None
    """Start of query 0, before it is cut to ``[0, S]``; query i starts i further; None: all 0."""
    first_stop: int | None = None
    """Stop of query 0, likewise. None: all stop at S."""

    @cached
    def positions(self) -> Int[Tensor, "1 1 L"]:
        """Where each query sits among the keys."""
        return self._moving(self.position)

    @cached
    def start(self) -> Int[Tensor, "1 1 L"]:
        """The first key that each query sees."""
        if self.first_start is None:
            return torch.zeros_like(self.positions)
        return self._moving(self.first_start).clamp(0, self.keys)

    @cached
    def stop(self) -> Int[Tensor, "1 1 L"]:
        """One past the last key that each query sees."""
        if self.first_stop is None:
            stop = torch.full_like(self.positions, self.keys)
        else:
            stop = self._moving(self.first_stop).clamp(0, self.keys)
        return torch.maximum(self.start, stop)

    @property
    def last_stop(self) -> int:
        """The largest `stop`, without the table; 0 where there are no queries."""
        if self.queries == 0:
            return 0
        ends = (self.first_start or 0, self.keys if self.first_stop is None else self.first_stop)
        moving = (self.first_start is not None, self.first_stop is not None)
        last = (end + (self.queries - 1) * moves for end, moves in zip(ends, moving, strict=True))
        return max(min(max(end, 0), self.keys) for end in last)

    @property
    def is_empty(self) -> bool:
        """Whether no query sees a key, without the tables.

        Start and stop move alike, so that where both do their distance decides, and else the query
        that reaches furthest: the last one where stops move, the first one where starts do.
        """
        start, stop, last = self.first_start, self.first_stop, self.queries - 1
        if last < 0 or self.keys == 0:
            return True
        if start is not None and stop is not None and stop <= start:
            return True
        return (stop is not None and stop + last <= 0) or (start is not None and start >= self.keys)

    def on(self, device: torch.device) -> AffineBounds:
        """The same bounds, with their tables on another device."""
        return replace(self, device=device)

    def _moving(self, value: int) -> Tensor:
        return (value + torch.arange(self.queries, device=self.device))[None, None]


def intersect_affine(
    ends: list[tuple[int | None, int | None] | None],
) -> tuple[int | None, int | None] | None:
    """Intersect intervals that move by a key from query to query, by start and stop of query 0.

    None stands for an end that hides nothing: 0 on the left, S on the right. An interval of another
    kind is None, and so is its intersection with any.
    """
    latest: int | None = None
    earliest: int | None = None
    for pair in ends:  # no max(...) of a list: torch.compile has none for symbolic lengths
        if pair is None:
            return None
        start, stop = pair
        if start is not None:
            latest = start if latest is None else max(latest, start)
        if stop is not None:
            earliest = stop if earliest is None else min(earliest, stop)
    return latest, earliest
