"""The log-sum-exp of each row, for patterns whose kernel has not told it.

Milakov and Gimelshein 2018, "Online normalizer calculation for softmax" (arXiv:1805.02867),
algorithm 3: a row's maximum and the sum below it are kept together, tile by tile.

Axes: N heads numbered through, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.backends.gpu.triton.kernels.weights import (
    LN_2,
    load_interval,
    load_vectors,
    log_weights,
)


@triton.jit
def read_logsumexp(
    query,
    key,
    start,
    stop,
    position,
    allowed,
    bias,
    alibi,
    sink,
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
    logsumexp,  # (N, L): the result
    blocks,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    # Causal heads have most to do in their last blocks, which therefore come first.
    heads_in_all = tl.num_programs(0) // blocks
    number = tl.program_id(0) % heads_in_all
    block = blocks - 1 - tl.program_id(0) // heads_in_all
    batch, head = (number // heads).to(tl.int64), (number % heads).to(tl.int64)
    own_key = key + batch * key_strides[0] + (head // (heads // groups)) * key_strides[1]

    row = block * QUERIES + tl.arange(0, QUERIES)
    first, stop, at = load_interval(
        start, stop, position, interval_strides, batch, head, row, queries
    )
    own_query = query + batch * query_strides[0] + head * query_strides[1]
    vectors = load_vectors(own_query, row, queries, query_strides[2], depth, WIDTH)

    # Tiles from `low`, of which those in [inner, outer) are seen whole by every query.
    sees = first < stop
    low = tl.min(tl.where(sees, first, keys), 0) // KEYS * KEYS
    high = tl.max(tl.where(sees, stop, 0), 0)
    inner = tl.maximum(low, tl.cdiv(tl.max(first, 0), KEYS) * KEYS)
    outer = tl.min(stop, 0) // KEYS * KEYS
    if inner >= outer:
        inner = low
        outer = low

    largest = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    for phase in tl.static_range(3):
        if phase == 0:
            since, until = low, inner
        elif phase == 1:
            since, until = inner, outer
        else:
            since, until = outer, high
        for tile in range(since, until, KEYS):
            column = tile + tl.arange(0, KEYS)
            products = tl.dot(
                vectors,
                tl.trans(load_vectors(own_key, column, keys, key_strides[2], depth, WIDTH)),
                input_precision="ieee",
            )
            logs = log_weights(
                products,
                0.0,
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
                EDGE=phase != 1,
            )
            above = tl.maximum(largest, tl.max(logs, 1))
            # A row that has seen nothing yet has no maximum to subtract.
            shift = tl.where(above == -float("inf"), 0.0, above)
            total = total * tl.exp2(largest - shift) + tl.sum(tl.exp2(logs - shift[:, None]), 1)
            largest = above

    fully_masked = largest == -float("inf")
    found = tl.where(total == total, largest * LN_2 + tl.log(total), total)
    if sink is not None:
        extra = tl.load(sink + number)
        above = tl.maximum(found, extra)
        found = above + tl.log(tl.exp(found - above) + tl.exp(extra - above))
    # NaN is not among the maxima, but in the sum.
    found = tl.where(fully_masked & (total == 0), -float("inf"), found)
    tl.store(logsumexp + number.to(tl.int64) * queries + row, found, mask=row < queries)
