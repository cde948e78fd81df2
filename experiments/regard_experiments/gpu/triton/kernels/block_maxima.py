"""The largest weight of each block of a pattern.

A program goes over the keys that a block of queries sees, tile by tile, and keeps what it finds in
memory of its own; programs that share a row of cells are brought together afterwards.

Axes: N heads numbered through, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard_experiments.gpu.triton.kernels.weights import (
    comparable,
    load_block,
    load_keys,
    load_logsumexp,
    log_weights,
    range_of,
)


@triton.jit
def read_block_maxima(
    inputs,  # an `_inputs.Inputs`
    logsumexp,
    maxima,  # (N, blocks, SLOTS, cell_columns), of zeros
    cell_columns,
    height,  # queries of a cell
    width,  # keys of a cell
    blocks,
    SLOTS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    number, block, place, row, interval, vectors, tiles = load_block(
        inputs, blocks, QUERIES, KEYS, WIDTH
    )
    shift = load_logsumexp(inputs, logsumexp, number, row)

    slot = tl.arange(0, SLOTS)
    in_slot = (row // height - block * QUERIES // height)[None, :] == slot[:, None]
    own = maxima + ((number.to(tl.int64) * blocks + block) * SLOTS + slot) * cell_columns
    for phase in tl.static_range(3):
        since, until = range_of(tiles, phase)
        for tile in range(since, until, KEYS):
            column = tile + tl.arange(0, KEYS)
            others = load_keys(inputs, place, column, WIDTH)
            logs = log_weights(
                inputs, place, vectors, others, shift, row, column, interval, EDGE=phase != 1
            )
            weights = comparable(tl.exp2(logs))
            last = (tl.minimum(tile + KEYS, inputs.keys) - 1) // width
            for cell in range(tile // width, last + 1):
                within = (column // width == cell)[None, :]
                of_rows = tl.max(tl.where(within, weights, 0.0), 1)
                largest = tl.max(tl.where(in_slot, of_rows[None, :], 0.0), 1)
                tl.store(own + cell, tl.maximum(tl.load(own + cell), largest))
                tl.debug_barrier()  # the next tile reads it, by other threads perhaps
