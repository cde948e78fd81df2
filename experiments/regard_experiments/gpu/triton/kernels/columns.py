"""One pass over the columns of a pattern: what its keys receive, and the product from the left.

A program owns a block of keys and goes over the queries that see any of them. Its tile holds keys
in its rows, so that a sum over queries stays within a thread; nobody else adds to its results.

Axes: N heads numbered through, L queries, S keys, D head dimension; M rows multiplied from the
left.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard_experiments.gpu.triton.kernels.weights import (
    load_interval,
    load_keys,
    load_logsumexp,
    load_queries,
    log_weights,
    place_of,
)


@triton.jit
def read_columns(
    inputs,  # an `_inputs.Inputs`
    logsumexp,
    spans,  # (4, b, h, query blocks), see `_load_spans`
    block_strides,
    query_blocks,
    received,  # (N, S), or None
    operand,  # (N, M, L), or None
    product,  # (N, M, S)
    operand_rows,
    blocks,
    OPERANDS: tl.constexpr,
    BLOCKS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    # Causal heads have most to do in their first keys.
    heads_in_all = tl.num_programs(0) // blocks
    number = tl.program_id(0) % heads_in_all
    block = tl.program_id(0) // heads_in_all
    some = tl.program_id(1) * OPERANDS + tl.arange(0, OPERANDS)
    place = place_of(inputs, number)
    queries, keys = inputs.queries, inputs.keys

    column = block * KEYS + tl.arange(0, KEYS)
    vectors = load_keys(inputs, place, column, WIDTH)

    # Query blocks that see any of the keys, and a run of those whose queries all see all of them.
    since, inner, until = query_blocks, query_blocks, 0
    own_block = place[0] * block_strides[0] + place[1] * block_strides[1]
    for many in range(0, query_blocks, BLOCKS):
        low, high, latest, earliest, which = _load_spans(
            spans, own_block, block_strides, many, query_blocks, BLOCKS
        )
        meets = (low < (block + 1) * KEYS) & (high > block * KEYS) & (low < high)
        since = tl.minimum(since, tl.min(tl.where(meets, which, query_blocks), 0))
        until = tl.maximum(until, tl.max(tl.where(meets, which + 1, 0), 0))
        covers = (latest <= block * KEYS) & (earliest >= (block + 1) * KEYS)
        inner = tl.minimum(inner, tl.min(tl.where(covers, which, query_blocks), 0))
    outer = until
    for many in range(0, query_blocks, BLOCKS):
        _, _, latest, earliest, which = _load_spans(
            spans, own_block, block_strides, many, query_blocks, BLOCKS
        )
        cut = (latest > block * KEYS) | (earliest < (block + 1) * KEYS)
        past_inner = cut & (which > inner) & (which < query_blocks)
        outer = tl.minimum(outer, tl.min(tl.where(past_inner, which, query_blocks), 0))
    inner = tl.minimum(inner, until)

    sums = tl.zeros((KEYS,), tl.float64)
    products_sums = tl.zeros((KEYS, OPERANDS), tl.float32)
    for phase in tl.static_range(3):
        if phase == 0:
            low_block, high_block = since, inner
        elif phase == 1:
            low_block, high_block = inner, outer
        else:
            low_block, high_block = tl.maximum(inner, outer), until
        for query_block in range(low_block, high_block):
            row = query_block * QUERIES + tl.arange(0, QUERIES)
            interval = load_interval(inputs, place, row)
            shift = load_logsumexp(inputs, logsumexp, number, row)
            others = load_queries(inputs, place, row, WIDTH)
            logs = log_weights(
                inputs,
                place,
                vectors,
                others,
                shift,
                row,
                column,
                interval,
                EDGE=phase != 1,
                KEYS_FIRST=True,
            )
            weights = tl.exp2(logs)
            if received is not None:
                sums += tl.sum(weights, 1).to(tl.float64)
            if product is not None:
                at = (number.to(tl.int64) * operand_rows + some)[None, :] * queries + row[:, None]
                inside = (row < queries)[:, None] & (some < operand_rows)[None, :]
                rows = tl.load(operand + at, mask=inside, other=0.0)
                products_sums += tl.dot(weights, rows, input_precision="ieee")

    if received is not None:
        at = number.to(tl.int64) * keys + column
        tl.store(received + at, sums.to(tl.float32), mask=column < keys)
    if product is not None:
        at = (number.to(tl.int64) * operand_rows + some)[None, :] * keys + column[:, None]
        inside = (column < keys)[:, None] & (some < operand_rows)[None, :]
        tl.store(product + at, products_sums, mask=inside)


@triton.jit
def _load_spans(spans, own_block, block_strides, many, query_blocks, BLOCKS: tl.constexpr):
    """Load, of some query blocks, the keys that any of its queries sees, and that all of them see.

    Returns:
        The first key that any sees, and the one past the last; the latest start, and the
        earliest stop; the blocks' numbers.
    """
    which = many + tl.arange(0, BLOCKS)
    inside = which < query_blocks
    at = spans + own_block + which
    low = tl.load(at, mask=inside, other=0)
    high = tl.load(at + block_strides[2], mask=inside, other=0)
    latest = tl.load(at + 2 * block_strides[2], mask=inside, other=0)
    earliest = tl.load(at + 3 * block_strides[2], mask=inside, other=0)
    return low, high, latest, earliest, which
