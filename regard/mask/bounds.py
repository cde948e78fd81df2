"""Where the visible keys of each query start and stop: in a table, or as a rule that needs none.

Axes: B batch, H query heads, L queries, S keys; b and h are B or 1, H or 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from regard._cached import cached

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Int
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class IndexBounds:
    """Three integers a query, ``0 ≤ start ≤ stop ≤ S``; equal where it sees nothing."""

    positions: Int[Tensor, "#b #h L"]
    """Where each query sits among the keys."""
    start: Int[Tensor, "#b #h L"]
    stop: Int[Tensor, "#b #h L"]

    @property
    def queries(self) -> int:
        """L."""
        return self.start.shape[-1]

    def mapped(self, function: Callable[[Tensor], Tensor]) -> IndexBounds:
        """Put a function of each tensor in its place."""
        return IndexBounds(function(self.positions), function(self.start), function(self.stop))


@dataclass(frozen=True, eq=False)
class AffineBounds:
    """The same interval for every query, or one that moves on by a key from query to query.

    This is what causal masks and windows are, alone and together. Kernels read the rule; the tables
    are written down only for those who ask.
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

    def on(self, device: torch.device) -> AffineBounds:
        """The same rule, whose tables are written down elsewhere."""
        return replace(self, device=device)

    def _moving(self, value: int) -> Tensor:
        return (value + torch.arange(self.queries, device=self.device))[None, None]


def line_through(
    lines: list[tuple[int | None, int | None] | None],
) -> tuple[int | None, int | None] | None:
    """Intersect intervals that move on by a key from query to query, given as query 0 has them.

    None stands for an end that does not matter: 0 on the left, S on the right; and for an interval
    of another kind, and what comes of it.
    """
    latest: int | None = None
    earliest: int | None = None
    for line in lines:  # written out, since torch.compile knows no max and min of lengths it learns
        if line is None:
            return None
        start, stop = line
        if start is not None:
            latest = start if latest is None else max(latest, start)
        if stop is not None:
            earliest = stop if earliest is None else min(earliest, stop)
    return latest, earliest
