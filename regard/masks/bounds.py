"""Start and stop of each query's visible keys, as tables or affine functions.

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
    """Three integers per query, ``0 ≤ start ≤ stop ≤ S``; start = stop if it is fully masked."""

    positions: Int[Tensor, "#b #h L"]
    """Position of each query among the keys."""
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
    """Bounds that are constant, or that move by one key from query to query.

    Causal masks, sliding windows and their intersections are of this kind. Kernels read the
    integers; the tables are computed on first use.
    """

    queries: int
    keys: int
    device: torch.device
    position: int
    """Position of query 0 among the keys; that of query i is i larger."""
    first_start: int | None = None
    """Start of query 0, before clamping to ``[0, S]``; that of query i is i larger; None: all 0."""
    first_stop: int | None = None
    """Stop of query 0, likewise; None: all S."""

    @cached
    def positions(self) -> Int[Tensor, "1 1 L"]:
        """Position of each query among the keys."""
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
        """The largest `stop`, computed without the table; 0 if there are no queries."""
        if self.queries == 0:
            return 0
        last = self.queries - 1
        start = 0 if self.first_start is None else self.first_start + last
        stop = self.keys if self.first_stop is None else self.first_stop + last
        return min(max(start, stop, 0), self.keys)

    @property
    def is_empty(self) -> bool:
        """True if no query sees a key; computed without the tables.

        If start and stop both move, their distance is constant and decides. If only the stops move,
        the last query sees most; if only the starts move, the first one does.
        """
        start, stop, last = self.first_start, self.first_stop, self.queries - 1
        if last < 0 or self.keys == 0:
            return True
        if start is not None and stop is not None and stop <= start:
            return True
        return (stop is not None and stop + last <= 0) or (start is not None and start >= self.keys)

    def on(self, device: torch.device) -> AffineBounds:
        """Return the same bounds with their tables on another device."""
        return replace(self, device=device)

    def _moving(self, value: int) -> Tensor:
        return (value + torch.arange(self.queries, device=self.device))[None, None]


def intersect_affine(
    ends: list[tuple[int | None, int | None] | None],
) -> tuple[int | None, int | None] | None:
    """Intersect affine intervals, each given by start and stop of query 0.

    A start or stop of None hides nothing: 0 and S. An interval that is not affine is given as None,
    and then the result is None.
    """
    latest: int | None = None
    earliest: int | None = None
    for pair in ends:  # torch.compile does not support max(list) for symbolic lengths
        if pair is None:
            return None
        start, stop = pair
        if start is not None:
            latest = start if latest is None else max(latest, start)
        if stop is not None:
            earliest = stop if earliest is None else min(earliest, stop)
    return latest, earliest
