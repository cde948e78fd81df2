"""The weight of each row on many spans of keys.

A program has a block of queries and some of the spans: it multiplies tiles of weights by which key
belongs to which of them.

Axes: N heads numbered through, L queries, S keys, D head dimension; n spans.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard_experiments.gpu.triton.kernels.weights import (
    load_block,
    load_keys,
    load_logsumexp,
    log_weights,
    range_of,
)


@triton.jit
def read_span_sums(
    inputs,  # an `_inputs.Inputs`
    logsumexp,
    labels,  # (S,): the span of each key, negative for none
    sums,  # (N, L, n)
    span_number,
    blocks,
    SPANS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    number, _, place, row, interval, vectors, tiles = load_block(
        inputs, blocks, QUERIES, KEYS, WIDTH
    )
    shift = load_logsumexp(inputs, logsumexp, number, row)
    span = tl.program_id(1) * SPANS + tl.arange(0, SPANS)

    totals = tl.zeros((QUERIES, SPANS), tl.float32)
    for phase in tl.static_range(3):
        since, until = range_of(tiles, phase)
        for tile in range(since, until, KEYS):
            column = tile + tl.arange(0, KEYS)
            label = tl.load(labels + column, mask=column < inputs.keys, other=-1)
            others = load_keys(inputs, place, column, WIDTH)
            logs = log_weights(
                inputs, place, vectors, others, shift, row, column, interval, EDGE=phase != 1
            )
            weights = tl.exp2(logs)
            # NaN times 0 would be NaN: a row of them gives its NaN to the spans that it sees.
            is_nan = weights != weights
            belongs = (label[:, None] == span[None, :]).to(tl.float32)
            numbers = tl.where(is_nan, 0.0, weights)
            totals += tl.dot(numbers, belongs, input_precision="ieee")
            spoilt = tl.dot(is_nan.to(tl.float32), belongs, input_precision="ieee")
            totals = tl.where(spoilt > 0, float("nan"), totals)

    at = (number.to(tl.int64) * inputs.queries + row)[:, None] * span_number + span[None, :]
    tl.store(
        sums + at, totals, mask=(row < inputs.queries)[:, None] & (span < span_number)[None, :]
    )
