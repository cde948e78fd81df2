"""One pass along the diagonals of a pattern: how much weight lies how far back.

A program goes over a chunk of a head's queries, and over the tiles of keys that hold any of the
wanted offsets, which are few with few offsets. It adds to memory of its own, which `fold` then
adds up in order.

Axes: N heads numbered through, L queries, S keys, D head dimension.
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
def read_diagonals(
    inputs,  # an `_inputs.Inputs`
    logsumexp,
    sums,  # (N, chunks, offset_number), of zeros
    counts,
    offset_number,
    chunks,
    blocks,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    heads_in_all = tl.num_programs(0) // chunks
    number = tl.program_id(0) % heads_in_all
    chunk = chunks - 1 - tl.program_id(0) // heads_in_all
    place = place_of(inputs, number)
    own_sums = (number.to(tl.int64) * chunks + chunk) * offset_number

    for block in range(chunk * blocks // chunks, (chunk + 1) * blocks // chunks):
        row = block * QUERIES + tl.arange(0, QUERIES)
        interval = load_interval(inputs, place, row)
        first, stop, at = interval
        vectors = load_queries(inputs, place, row, WIDTH)
        shift = load_logsumexp(inputs, logsumexp, number, row)

        sees = first < stop
        nearest = tl.min(tl.where(sees, at, 2147483647), 0)
        farthest = tl.max(tl.where(sees, at, -1), 0)
        low = tl.min(tl.where(sees, first, inputs.keys), 0)
        low = tl.maximum(low, nearest - (offset_number - 1)) // KEYS * KEYS
        high = tl.minimum(tl.max(tl.where(sees, stop, 0), 0), farthest + 1)
        for tile in range(low, high, KEYS):
            column = tile + tl.arange(0, KEYS)
            others = load_keys(inputs, place, column, WIDTH)
            logs = log_weights(
                inputs, place, vectors, others, shift, row, column, interval, EDGE=True
            )
            # A hidden key is not a key of weight 0: it is not counted.
            weights = tl.where(logs == -float("inf"), -1.0, tl.exp2(logs))
            since = tl.maximum(nearest - (tile + KEYS - 1), 0)
            until = tl.minimum(farthest - tile, offset_number - 1)
            for some in range(since, until + 1, KEYS):
                back = some + tl.arange(0, KEYS)
                there = at[:, None] - back[None, :] - tile
                inside = (there >= 0) & (there < KEYS)
                picked = tl.gather(weights, tl.minimum(tl.maximum(there, 0), KEYS - 1), 1)
                counted = inside & (picked != -1.0)
                wanted = back <= until
                sum_at, count_at = sums + own_sums + back, counts + own_sums + back
                total = tl.load(sum_at, mask=wanted, other=0.0)
                number_of = tl.load(count_at, mask=wanted, other=0)
                total += tl.sum(tl.where(counted, picked, 0.0), 0)
                number_of += tl.sum(counted.to(tl.int32), 0)
                tl.store(sum_at, total, mask=wanted)
                tl.store(count_at, number_of, mask=wanted)
                tl.debug_barrier()  # what follows adds to the same sums, by other threads perhaps
