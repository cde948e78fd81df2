"""How many queries see the key so and so far before them: what means over offsets are divided by.

Axes: B batch, H query heads, N = B·H of them numbered through, L queries, S keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Float
from regard.masks.rows import Rows

# Entries of a mask that are written out at a time.
_AT_ONCE = 2**22


def queries_that_see(rows: Rows, n: int) -> Float[Tensor, "N n"]:
    """Count the queries that see the key 0 … n−1 positions before them."""
    if rows.allowed is None and rows.bias is None:
        return _of_intervals(rows, n)
    return _of_entries(rows, n)


def _of_intervals(rows: Rows, n: int) -> Float[Tensor, "N n"]:
    """Count by intervals, each of which is one of offsets, from the nearest to the furthest."""
    position = rows.spread(rows.positions).flatten(0, 1)
    ranges = [(rows.start, rows.stop, 1.0)]
    if rows.spans is not None:
        ranges += [(*hidden, -1.0) for hidden in zip(*rows.spans.hidden_apart(), strict=True)]
    change = position.new_zeros(len(position), n + 1, dtype=torch.float64)
    for first, last, count in ranges:
        start, stop = (rows.spread(t).flatten(0, 1) for t in (first, last))
        nearest = (position - stop + 1).clamp(min=0)
        furthest = (position - start).clamp(max=n - 1)
        seen = (start < stop) & (nearest <= furthest)
        step = torch.full_like(position, count, dtype=torch.float64)
        change.scatter_add_(1, torch.where(seen, nearest, n), step)
        change.scatter_add_(1, torch.where(seen, furthest + 1, n), -step)
    return change.cumsum(dim=1)[:, :n]


def _of_entries(rows: Rows, n: int) -> Float[Tensor, "N n"]:
    """Count entry by entry, where a dense mask may hide any of them."""
    batch, heads = rows.heads
    counts = rows.positions.new_zeros(batch, heads, n, dtype=torch.float64)
    height = max(1, _AT_ONCE // max(1, batch * heads * rows.keys))
    for first in range(0, rows.queries if rows.keys else 0, height):
        part = slice(first, min(first + height, rows.queries))
        key = rows.positions[..., part, None] - torch.arange(n, device=counts.device)
        visible = rows.visible(part, slice(0, rows.keys)).expand(batch, heads, -1, -1)
        inside = ((key >= 0) & (key < rows.keys)).expand(batch, heads, -1, -1)
        key = key.clamp(0, rows.keys - 1).expand(batch, heads, -1, -1)
        counts += (inside & visible.gather(-1, key)).sum(dim=-2)
    return counts.flatten(0, 1)
