"""The second step of sums over rows: partial sums, and adding them up in order.

Axes: N heads numbered through, L queries.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float, Shaped
from regard_experiments.gpu.triton._inputs import power_of_two
from regard_experiments.gpu.triton.kernels.fold import fold

# Into how many chunks the queries of a head fall where sums over queries are kept: enough to fill
# a GPU with a few heads. It goes by nothing but L, lest sums depend on what else is in the batch.
CHUNKS = 64
# Sums of which a program of the second step adds up the parts.
_FOLDED = 256


class Parts(NamedTuple):
    """Which partial sums make up which rows of a result."""

    since: tuple[int, ...]
    """Of each row, the first part that holds something of it."""
    until: tuple[int, ...]
    """One past the last part."""
    base: tuple[int, ...]
    """Of each part, the row that its first slot holds."""
    slots: int
    """Rows that a part has room for."""

    @classmethod
    def of_sum(cls, parts: int) -> Parts:
        """Every part holds the one row that there is."""
        return cls((0,), (parts,), (0,) * parts, 1)

    @classmethod
    def of_image(cls, queries: int, height: int, rows: int, block: int) -> Parts:
        """A part is a block of queries; a row of pixels covers the queries of one or more.

        Args:
            queries: L.
            height: how many queries the rows of pixels cover, L or more.
            rows: of pixels.
            block: queries of a block.
        """
        tops = range(0, queries, block)
        base = tuple(top * rows // height for top in tops)
        last = [(min(top + block, queries) * rows - 1) // height for top in tops]
        slots = max(b - a + 1 for a, b in zip(base, last, strict=True))
        since = tuple(row * height // rows // block for row in range(rows))
        until = ((-(-(row + 1) * height // rows) - 1) // block + 1 for row in range(rows))
        return cls(since, tuple(min(u, len(tops)) for u in until), base, power_of_two(slots))


def folded(partial: Shaped[Tensor, "N parts *slots n"], parts: Parts) -> Float[Tensor, "N rows n"]:
    """Add partial sums up, in float64."""
    heads, number, length = len(partial), partial.shape[1], partial.shape[-1]
    rows = len(parts.since)
    result = partial.new_empty((heads, rows, length), dtype=torch.float64)
    since, until, base = _tables(parts, partial.device)
    fold[(heads * rows, -(-length // _FOLDED))](
        parts=partial,
        result=result,
        since=since,
        until=until,
        base=base,
        part_number=number,
        slots=parts.slots,
        rows=rows,
        length=length,
        LENGTH=_FOLDED,
    )
    return result


@lru_cache(maxsize=8)
def _tables(parts: Parts, device: torch.device) -> tuple[Tensor, ...]:
    """Copy parts to a device; the next read of the same sizes takes them from there."""
    numbers = (parts.since, parts.until, parts.base)
    return tuple(torch.tensor(table, dtype=torch.int32, device=device) for table in numbers)
