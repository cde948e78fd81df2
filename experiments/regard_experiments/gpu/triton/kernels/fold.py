"""The second step of sums over rows: partial sums are added up, always in the same order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fold(
    parts,  # (N, PARTS, SLOTS, n)
    result,  # (N, rows, n)
    since,  # (rows,): the first of the parts that hold something of a row
    until,  # (rows,): one past the last part
    base,  # (parts,): the row that stands in a part's slot 0
    part_number,
    slots,
    rows,
    length,
    LENGTH: tl.constexpr,
):
    """Add up, for each row, its slots of the parts in turn; in float64, as sums of a column are."""
    number, row = (tl.program_id(0) // rows).to(tl.int64), tl.program_id(0) % rows
    at = tl.program_id(1) * LENGTH + tl.arange(0, LENGTH)
    inside = at < length
    total = tl.zeros((LENGTH,), tl.float64)
    for part in range(tl.load(since + row), tl.load(until + row)):
        slot = (number * part_number + part) * slots + row - tl.load(base + part)
        total += tl.load(parts + slot * length + at, mask=inside, other=0).to(tl.float64)
    tl.store(result + (number * rows + row) * length + at, total, mask=inside)
