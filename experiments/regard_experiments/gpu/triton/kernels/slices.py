"""Weights of chosen keys, written down.

Axes: N heads numbered through, L queries, S keys, D head dimension; c keys chosen.
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
def read_slices(
    inputs,  # an `_inputs.Inputs`
    logsumexp,
    chosen,  # (2, c): keys, and each one's place among the wanted ones
    weights,  # (N, L, c)
    chosen_number,
    blocks,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    number = tl.program_id(0) // blocks
    place = place_of(inputs, number)
    queries, keys = inputs.queries, inputs.keys

    row = tl.program_id(0) % blocks * QUERIES + tl.arange(0, QUERIES)
    some = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    wanted = some < chosen_number
    column = tl.load(chosen + some, mask=wanted, other=keys).to(tl.int32)
    order = tl.load(chosen + chosen_number + some, mask=wanted, other=0)

    interval = load_interval(inputs, place, row)
    shift = load_logsumexp(inputs, logsumexp, number, row)
    vectors = load_queries(inputs, place, row, WIDTH)
    others = load_keys(inputs, place, column, WIDTH)
    logs = log_weights(inputs, place, vectors, others, shift, row, column, interval, EDGE=True)
    result = (number.to(tl.int64) * queries + row)[:, None] * chosen_number + order[None, :]
    inside = (row < queries)[:, None] & wanted[None, :]
    tl.store(weights + result, tl.exp2(logs), mask=inside)
