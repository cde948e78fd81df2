"""Windows of a pattern, down-sampled to square cells, and a cache of whole patterns.

A cell is the mean of block × block weights, or of those within the window at its edge. Blocks are
powers of two, so that large cells are combined from small ones: a cached whole pattern gives every
window whose cells are at least as large as its own.

Axes: L queries, S keys.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Event, Lock
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from regard.page._bands import AnyPattern
from regard.page._work import require_wanted

Span = tuple[int, int]

_FINEST = 2048
"""Cells along a side of a cached whole pattern: at least so many, and less than twice as many."""
_KEPT = 4  # cached whole patterns, at most 64 MiB each
_JOINED = 4  # cells along a side that are summed at a time: one long sum would round more
_BANDS = 16  # bands of a large window, between which it can be cancelled
_SMALL = 2**22  # weights of a window that is computed in one band


class Window(NamedTuple):
    """A rectangle of a pattern, and the size of its cells."""

    queries: Span
    """Start and stop."""
    keys: Span
    """Start and stop."""
    block: int
    """Side of a cell in tokens, a power of two."""


def average_window(pattern: AnyPattern, window: Window, cancelled: Event) -> Tensor:
    """Compute a window of a pattern, ``(rows, columns)`` cells, in bands of rows."""
    queries, keys, block = window
    band = queries[1] - queries[0]
    if band * (keys[1] - keys[0]) > _SMALL:
        band = -(-band // (_BANDS * block)) * block
    rows = []
    for first in range(queries[0], queries[1], band):
        require_wanted(cancelled)
        for down in _whole_and_rest(first, min(first + band, queries[1]), block):
            parts = [
                pattern.image(_cells(down, block), _cells(across, block), queries=down, keys=across)
                for across in _whole_and_rest(*keys, block)
            ]
            rows.append(torch.cat(parts, dim=-1))
    return torch.cat(rows)


def finest_block(length: int) -> int:
    """Return the block of cached patterns: the largest power of two ≤ length / `_FINEST`."""
    return 1 << max(0, (length // _FINEST).bit_length() - 1)


class Windows:
    """Windows of the patterns of many heads, with a cache of the last few whole patterns."""

    def __init__(self) -> None:
        self._wholes: OrderedDict[Hashable, tuple[int, Tensor]] = OrderedDict()
        self._lock = Lock()

    def hold(self, head: Hashable, length: int, window: Window) -> bool:
        """Whether a window can be computed from a cached whole pattern."""
        with self._lock:
            finest, _ = self._wholes.get(head, (None, None))
        return finest is not None and _covered_by(finest, length, window)

    def read(
        self,
        head: Hashable,
        length: int,
        average: Callable[[Window, Event], Tensor],
        window: Window,
        cancelled: Event,
    ) -> Tensor:
        """Compute a window from the cache if possible, else anew; in float32.

        Args:
            head: cache key of the pattern.
            length: number of its queries and of its keys.
            average: computes a window of it, as `average_window` does.
            window: the window.
            cancelled: set once the window is no longer needed.
        """
        queries, keys, block = window
        with self._lock:
            finest, sums = self._wholes.get(head, (0, None))
        if sums is None and queries == keys == (0, length):
            finest = finest_block(length)
            sums = self.keep(head, length, average(window._replace(block=finest), cancelled))
        if sums is None or not _covered_by(finest, length, window):
            return average(window, cancelled).float()
        rows, columns = (
            slice(first // finest, -(-stop // finest)) for first, stop in (queries, keys)
        )
        total = _join(sums[rows, columns], block // finest)
        down, across = (_counts(span, block, total.device) for span in (queries, keys))
        return (total / across).div_(down[:, None])

    def keep(self, head: Hashable, length: int, cells: Tensor) -> Tensor:
        """Cache a whole pattern of cells of `finest_block`; return the sums of the cells."""
        finest = finest_block(length)
        counts = _counts((0, length), finest, cells.device)
        sums = (cells.float() * counts).mul_(counts[:, None])
        with self._lock:
            self._wholes[head] = finest, sums
            while len(self._wholes) > _KEPT:
                self._wholes.popitem(last=False)
        return sums


def _covered_by(finest: int, length: int, window: Window) -> bool:
    """Whether each cell of a window consists of whole cells of a finer block."""
    ends = (*window.queries, *window.keys)
    return window.block >= finest and not any(end % finest and end != length for end in ends)


def _whole_and_rest(first: int, stop: int, block: int) -> list[Span]:
    """Split a range into a part of whole cells and a smaller last cell, as far as they exist."""
    edge = stop - (stop - first) % block
    return [(a, b) for a, b in ((first, edge), (edge, stop)) if a < b]


def _cells(span: Span, block: int) -> int:
    return -(-(span[1] - span[0]) // block)


def _counts(span: Span, block: int, device: torch.device) -> Tensor:
    """Return the number of tokens that each cell covers, as float32."""
    edges = torch.arange(*span, block, device=device)
    return ((edges + block).clamp(max=span[1]) - edges).float()


def _join(sums: Tensor, many: int) -> Tensor:
    """Sum squares of many × many cells, a power of two; the last ones may be smaller."""
    while many > 1:
        side = min(many, _JOINED)
        sums = avg_pool2d(sums[None], side, ceil_mode=True, divisor_override=1)[0]
        many //= side
    return sums
