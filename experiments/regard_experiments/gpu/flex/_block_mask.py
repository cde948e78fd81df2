"""The block mask of row intervals: which blocks of keys each block of queries has to look at.

It is computed from the two integers a row: O(L) for the smallest start and largest stop of each
block of queries, and O(blocks²) for the table of blocks. No L×S tensor is made, and nothing is
read back from the device.

Axes: b batch or 1, h query heads or 1, L queries, S keys, m blocks of queries, n blocks of keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from regard._shapes import Bool, Int
from regard.masks.rows import Rows
from regard.masks.spans import Spans
from regard_experiments.gpu.flex._mods import MaskMod

_BLOCK = 128  # queries and keys of a block, which the kernel's own tiles divide
_TABLE = 2**22  # entries of the table of blocks, of which there are four, 4 bytes each


def block_mask(rows: Rows, mask_mod: MaskMod) -> BlockMask:
    """Build FlexAttention's block mask.

    Args:
        rows: the mask, resolved.
        mask_mod: whether a query sees a key, for blocks that are partly visible.
    """
    size = _block_size(rows)
    touched, full = block_tables(rows, size)
    partial = touched & ~full
    keys, full_keys = _listed(partial), _listed(full)
    queries, full_queries = _listed(partial.mT), _listed(full.mT)  # which the backward pass takes
    return BlockMask(
        (rows.queries, rows.keys),
        *(*keys, *full_keys, *queries, *full_queries),
        BLOCK_SIZE=(size, size),
        mask_mod=mask_mod,
    )


def block_tables(rows: Rows, size: int) -> tuple[Bool[Tensor, "b h m n"], Bool[Tensor, "b h m n"]]:
    """Compute which blocks some row may see a key of, and of which every row sees all keys.

    A block between the first start and the last stop of its rows counts as touched, also where it
    lies in a gap between their intervals: that costs time, and changes nothing.
    """
    start, stop = rows.start, rows.stop
    fully_masked = start >= stop
    low = _per_block(start.masked_fill(fully_masked, rows.keys), size, rows.keys).amin(-1)
    high = _per_block(stop.masked_fill(fully_masked, 0), size, 0).amax(-1)
    # Rows after the last one see nothing, so that a block that they fill up is never full.
    latest = _per_block(start, size, rows.keys).amax(-1)
    earliest = _per_block(stop, size, 0).amin(-1)

    first = torch.arange(0, rows.keys, size, device=start.device)  # (n,)
    touched = (low[..., None] < first + size) & (high[..., None] > first)
    full = (latest[..., None] <= first) & (earliest[..., None] >= first + size)
    if rows.spans is not None:
        some, every = _hidden(rows.spans, first, size, rows.keys)
        touched, full = touched & ~every, full & ~some
    if rows.allowed is not None or rows.bias is not None:  # what is dense may hide any key
        full = torch.zeros_like(full)
    return touched, full


def _hidden(
    spans: Spans, first: Int[Tensor, "n"], size: int, keys: int
) -> tuple[Bool[Tensor, "b h m n"], Bool[Tensor, "b h m n"]]:
    """Tell in which blocks of keys a span hides some from a row, and in which all from each row."""
    start, stop = spans.hidden_apart()
    empty = start >= stop
    low = _per_block(start.masked_fill(empty, keys), size, keys).amin(-1)
    high = _per_block(stop.masked_fill(empty, 0), size, 0).amax(-1)
    latest, earliest = _per_block(start, size, 0).amax(-1), _per_block(stop, size, keys).amin(-1)
    last = (first + size).clamp(max=keys)
    some = (low[..., None] < last) & (high[..., None] > first)
    return some.any(0), ((latest[..., None] <= first) & (earliest[..., None] >= last)).any(0)


def _block_size(rows: Rows) -> int:
    """Choose blocks so large that their table stays small, by the sizes alone."""
    size = _BLOCK
    tables = _shared(rows).numel()
    while tables * -(-rows.queries // size) * -(-rows.keys // size) > _TABLE:
        size *= 2
    return size


def _shared(rows: Rows) -> torch.Size:
    """The batch entries and heads that rows differ in."""
    tables = [rows.start, *([] if rows.spans is None else rows.spans.start)]
    return torch.broadcast_shapes(*(table.shape[:2] for table in tables))


def _per_block(
    bound: Int[Tensor, "*n b h L"], size: int, beyond: int
) -> Int[Tensor, "*n b h m size"]:
    """Cut the rows into blocks, the last one filled up."""
    missing = -bound.shape[-1] % size
    return F.pad(bound, (0, missing), value=beyond).unflatten(-1, (-1, size))


def _listed(
    blocks: Bool[Tensor, "b h m n"],
) -> tuple[Int[Tensor, "b h m"], Int[Tensor, "b h m n"]]:
    """List the blocks that are marked, before those that are not, in order, and count them."""
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.to(torch.int32)
