"""Weights of chosen keys, written down.

Axes: N heads numbered through, L queries, S keys, D head dimension; c keys chosen.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.backends.gpu.triton.kernels.weights import (
    load_interval,
    load_logsumexp,
    load_vectors,
    log_weights,
)


@triton.jit
def read_slices(
    query,
    key,
    logsumexp,
    start,
    stop,
    position,
    allowed,
    bias,
    alibi,
    query_strides,
    key_strides,
    interval_strides,
    allowed_strides,
    bias_strides,
    heads,
    groups,
    queries,
    keys,
    depth,
    scale,
    softcap,
    chosen,  # (2, c): keys, and each one's place among those asked for
    weights,  # (N, L, c)
    chosen_number,
    blocks,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    number = tl.program_id(0) // blocks
    batch, head = (number // heads).to(tl.int64), (number % heads).to(tl.int64)
    own_query = query + batch * query_strides[0] + head * query_strides[1]
    own_key = key + batch * key_strides[0] + (head // (heads // groups)) * key_strides[1]

    row = tl.program_id(0) % blocks * QUERIES + tl.arange(0, QUERIES)
    some = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    asked = some < chosen_number
    column = tl.load(chosen + some, mask=asked, other=keys).to(tl.int32)
    place = tl.load(chosen + chosen_number + some, mask=asked, other=0)

    first, stop, at = load_interval(
        start, stop, position, interval_strides, batch, head, row, queries
    )
    shift = load_logsumexp(logsumexp, number, row, queries)
    products = tl.dot(
        load_vectors(own_query, row, queries, query_strides[2], depth, WIDTH),
        tl.trans(load_vectors(own_key, column, keys, key_strides[2], depth, WIDTH)),
        input_precision="ieee",
    )
    logs = log_weights(
        products,
        shift[:, None],
        row[:, None],
        column[None, :],
        first[:, None],
        stop[:, None],
        at[:, None],
        number,
        batch,
        head,
        queries,
        keys,
        scale,
        softcap,
        alibi,
        bias,
        bias_strides,
        allowed,
        allowed_strides,
        EDGE=True,
    )
    result = (number.to(tl.int64) * queries + row)[:, None] * chosen_number + place[None, :]
    inside = (row < queries)[:, None] & asked[None, :]
    tl.store(weights + result, tl.exp2(logs), mask=inside)
