"""The log-sum-exp of each row, for patterns whose kernel gave none, or one too coarse.

Milakov and Gimelshein 2018, "Online normalizer calculation for softmax" (arXiv:1805.02867),
algorithm 3: a row's maximum and the sum below it are kept together, tile by tile.

Axes: N heads numbered through, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard_experiments.gpu.triton.kernels.weights import (
    LN_2,
    load_block,
    load_keys,
    log_weights,
    range_of,
)


@triton.jit
def read_logsumexp(
    inputs,  # an `_inputs.Inputs`
    sink,
    given,  # (N, L): another kernel's, whose coarse numbers alone are replaced; or None
    coarse_above,
    logsumexp,  # (N, L): the result
    blocks,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    number, _, place, row, interval, vectors, tiles = load_block(
        inputs, blocks, QUERIES, KEYS, WIDTH
    )
    queries = inputs.queries

    own = number.to(tl.int64) * queries + row
    if given is not None:
        library = tl.load(given + own, mask=row < queries, other=0.0)
        size = tl.abs(library)
        is_coarse = (size > coarse_above) & (size < float("inf"))
        some = tl.max(is_coarse.to(tl.int32)) > 0

    largest = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    nothing = tl.zeros((QUERIES,), tl.float32)
    for phase in tl.static_range(3):
        since, until = range_of(tiles, phase)
        if given is not None:  # a block without a coarse number is left as it is
            until = tl.where(some, until, since)
        for tile in range(since, until, KEYS):
            column = tile + tl.arange(0, KEYS)
            others = load_keys(inputs, place, column, WIDTH)
            logs = log_weights(
                inputs, place, vectors, others, nothing, row, column, interval, EDGE=phase != 1
            )
            above = tl.maximum(largest, tl.max(logs, 1))
            # A row that has seen nothing yet has no maximum to subtract.
            shift = tl.where(above == -float("inf"), 0.0, above)
            total = total * tl.exp2(largest - shift) + tl.sum(tl.exp2(logs - shift[:, None]), 1)
            largest = above

    fully_masked = largest == -float("inf")
    result = tl.where(total == total, largest * LN_2 + tl.log(total), total)
    if sink is not None:
        extra = tl.load(sink + number)
        above = tl.maximum(result, extra)
        result = above + tl.log(tl.exp(result - above) + tl.exp(extra - above))
    # NaN is not among the maxima, but in the sum.
    result = tl.where(fully_masked & (total == 0), -float("inf"), result)
    if given is not None:
        result = tl.where(is_coarse, result, library)
    tl.store(logsumexp + own, result, mask=row < queries)
