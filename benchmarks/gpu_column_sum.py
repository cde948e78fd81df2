"""A peer: what each key receives, by a Triton kernel as it is written by hand beside flash.

A program sums a block of keys over all queries that see them: exp(score − log-sum-exp), causal and
nothing else. Axes: B batch, H heads, L queries and keys, D head dimension.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


def column_sum(query: torch.Tensor, key: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
    """Sum weights over queries: of ``(B, H, L, D)`` and logsumexp ``(B, H, L)``, ``(B, H, L)``."""
    batch, heads, length, dim = query.shape
    received = torch.empty(batch, heads, length, device=query.device)
    keys = 64
    query, key, logsumexp = (t.contiguous() for t in (query, key, logsumexp.float()))
    _column_sum[(triton.cdiv(length, keys), batch * heads)](
        query,
        key,
        logsumexp,
        received,
        dim**-0.5 * _LOG2_E.value,
        length,
        KEYS=keys,
        QUERIES=64,
        DIM=dim,
        num_warps=4,
    )
    return received


@triton.jit
def _column_sum(
    query,
    key,
    logsumexp,
    received,
    scale,
    length,
    KEYS: tl.constexpr,
    QUERIES: tl.constexpr,
    DIM: tl.constexpr,
):
    first = tl.program_id(0) * KEYS
    head = tl.program_id(1).to(tl.int64) * length
    keys, channels = first + tl.arange(0, KEYS), tl.arange(0, DIM)
    places = (head + keys)[:, None] * DIM + channels
    tile = tl.load(key + places, mask=(keys < length)[:, None], other=0.0)
    total = tl.zeros([KEYS], tl.float32)
    for top in range(first // QUERIES * QUERIES, length, QUERIES):
        rows = top + tl.arange(0, QUERIES)
        inside = rows < length
        places = (head + rows)[:, None] * DIM + channels
        part = tl.load(query + places, mask=inside[:, None], other=0.0)
        known = tl.load(logsumexp + head + rows, mask=inside, other=float("inf")) * _LOG2_E
        scores = tl.dot(part, tl.trans(tile)) * scale - known[:, None]
        seen = (rows[:, None] >= keys) & inside[:, None]
        total += tl.sum(tl.where(seen, tl.exp2(scores), 0.0), 0)
    tl.store(received + head + keys, total, mask=keys < length)
