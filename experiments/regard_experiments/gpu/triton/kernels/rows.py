"""One pass over the rows of a pattern, from which any number of readouts is taken.

A program goes over a chunk of a head's queries, a block of them at a time, and over the keys that
the block sees, a tile at a time: those where intervals start, those that all of its queries see,
those where intervals end. What is summed along a row stays in registers. What is summed over rows
is added to memory of the chunk's own, or of the block's own, which `fold` then adds up in order:
no result depends on which program is done first.

Axes: N heads numbered through, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard_experiments.gpu.triton.kernels.weights import (
    LN_2,
    LOWEST,
    comparable,
    load_interval,
    load_keys,
    load_logsumexp,
    load_queries,
    log_weights_of,
    multiply,
    place_of,
    range_of,
    visible_tiles,
)


@triton.jit
def read_rows(
    inputs,  # an `_inputs.Inputs`
    logsumexp,
    # The results: pointers, None for those not wanted.
    entropy,  # (N, L)
    distance,  # (N, L)
    largest,  # (N, L)
    max_score,  # (N, L)
    lag_keys,  # (LAGS, N, L), the key of each query; −1 for none
    lag,  # (LAGS, N, L, 2), weight and logarithm
    marks,  # (MARKS, S), what is not 0 is marked
    mass,  # (MARKS, N, L)
    top,  # (N, L, top_size)
    top_positions,
    received,  # (N, chunks, S), of zeros
    max_received,  # (N, chunks, S), of zeros
    seen_by,  # (N, chunks, S), of zeros: how many queries see each key
    image,  # (N, blocks, SLOTS, image_columns), of zeros
    top_size,
    image_rows,
    image_columns,
    image_height,
    image_width,
    chunks,
    blocks,
    LAGS: tl.constexpr,
    MARKS: tl.constexpr,
    TOP: tl.constexpr,
    SLOTS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    # Causal heads have most to do in their last chunks, which therefore come first.
    heads_in_all = tl.num_programs(0) // chunks
    number = tl.program_id(0) % heads_in_all
    chunk = chunks - 1 - tl.program_id(0) // heads_in_all
    place = place_of(inputs, number)
    queries, keys = inputs.queries, inputs.keys
    by_chunk = number.to(tl.int64) * chunks + chunk

    for block in range(chunk * blocks // chunks, (chunk + 1) * blocks // chunks):
        row = block * QUERIES + tl.arange(0, QUERIES)
        interval = load_interval(inputs, place, row)
        vectors = load_queries(inputs, place, row, WIDTH)
        shift = load_logsumexp(inputs, logsumexp, number, row)
        tiles = visible_tiles(interval, keys, KEYS)

        logs_moment = tl.zeros((QUERIES,), tl.float32)
        moment = tl.zeros((QUERIES,), tl.float32)
        share = tl.zeros((QUERIES,), tl.float32)
        peak = tl.full((QUERIES,), -float("inf"), tl.float32)
        score = tl.full((QUERIES,), -float("inf"), tl.float32)
        score_is_nan = tl.zeros((QUERIES,), tl.int32)
        lag_logs = tl.full((QUERIES, LAGS), -float("inf"), tl.float32)
        masses = tl.zeros((QUERIES, MARKS), tl.float32)
        best = tl.full((QUERIES, TOP), -float("inf"), tl.float32)
        best_at = tl.full((QUERIES, TOP), -1, tl.int32)
        # Slots beyond the wanted number never become free.
        if top is not None:
            best = tl.where(tl.arange(0, TOP)[None, :] < top_size, best, float("inf"))
        pixel = tl.zeros((QUERIES,), tl.float32)
        if image is not None:
            own_image = image + (number.to(tl.int64) * blocks + block) * SLOTS * image_columns
            band = _band(row, block * QUERIES, queries, image_height, image_rows, SLOTS)

        for phase in tl.static_range(3):
            since, until = range_of(tiles, phase)
            for tile in range(since, until, KEYS):
                column = tile + tl.arange(0, KEYS)
                key_at = by_chunk * keys + column
                if received is not None:  # loaded early, used late
                    before = tl.load(received + key_at, mask=column < keys, other=0.0)
                others = load_keys(inputs, place, column, WIDTH)
                products = multiply(vectors, others)
                logs = log_weights_of(
                    inputs, place, products, shift, row, column, interval, EDGE=phase != 1
                )
                weights = tl.exp2(logs)

                if entropy is not None:
                    logs_moment += tl.sum(weights * tl.maximum(logs, LOWEST), 1)
                if distance is not None:
                    far = tl.abs(interval[2][:, None] - column[None, :]).to(tl.float32)
                    moment += tl.sum(weights * far, 1)
                    share += tl.sum(weights, 1)
                if largest is not None:
                    peak = tl.maximum(peak, tl.max(comparable(logs), 1))
                if max_score is not None:
                    scaled = tl.where(logs == -float("inf"), logs, products * inputs.scale)
                    is_nan = scaled != scaled
                    score_is_nan = tl.maximum(score_is_nan, tl.max(is_nan.to(tl.int32), 1))
                    score = tl.maximum(score, tl.max(tl.where(is_nan, -float("inf"), scaled), 1))
                if lag is not None:
                    for which in tl.static_range(LAGS):
                        at = tl.full((), which, tl.int64) * heads_in_all + number
                        wanted = tl.load(
                            lag_keys + at * queries + row, mask=row < queries, other=-1
                        )
                        picked = tl.where(
                            column[None, :] == wanted[:, None], comparable(logs), -float("inf")
                        )
                        picked = tl.where(
                            tl.arange(0, LAGS)[None, :] == which,
                            tl.max(picked, 1)[:, None],
                            -float("inf"),
                        )
                        lag_logs = tl.maximum(lag_logs, picked)
                if mass is not None:
                    for mark in tl.static_range(MARKS):
                        at = tl.full((), mark, tl.int64) * keys + column
                        marked = tl.load(marks + at, mask=column < keys, other=0)
                        some = tl.sum(tl.where(marked[None, :] != 0, weights, 0.0), 1)
                        masses += tl.where(tl.arange(0, MARKS)[None, :] == mark, some[:, None], 0)
                if top is not None:
                    best, best_at = _ranked(logs, column, best, best_at, TOP)
                if received is not None:
                    total = before + tl.sum(weights, 0)
                    tl.store(received + key_at, total, mask=column < keys)
                if max_received is not None:
                    most = tl.load(max_received + key_at, mask=column < keys, other=0.0)
                    most = tl.maximum(most, tl.max(comparable(weights), 0))
                    tl.store(max_received + key_at, most, mask=column < keys)
                if seen_by is not None:
                    many = tl.load(seen_by + key_at, mask=column < keys, other=0)
                    many += tl.sum((logs != -float("inf")).to(tl.int32), 0)
                    tl.store(seen_by + key_at, many, mask=column < keys)
                if image is not None:
                    pixel = _add_pixels(
                        weights,
                        pixel,
                        band,
                        own_image,
                        tile,
                        tiles[3],
                        image_width,
                        image_columns,
                        SLOTS,
                        KEYS,
                    )
        if received is not None or max_received is not None or seen_by is not None:
            tl.debug_barrier()  # the next block adds to the same numbers, by other threads perhaps

        result = number.to(tl.int64) * queries + row
        inside = row < queries
        has_nan = shift != shift
        if entropy is not None:
            nats = -LN_2 * logs_moment
            tl.store(entropy + result, tl.where(nats <= 0, 0.0, nats), mask=inside)
        if distance is not None:
            mean = tl.where(share == 0, 0.0, moment / tl.where(share == 0, 1.0, share))
            tl.store(distance + result, mean, mask=inside)
        if largest is not None:
            peak = tl.where(peak == float("inf"), float("nan"), tl.exp2(peak))
            tl.store(largest + result, peak, mask=inside)
        if max_score is not None:
            score = tl.where(score_is_nan > 0, float("nan"), score)
            tl.store(max_score + result, score, mask=inside)
        if lag is not None:
            which = tl.arange(0, LAGS).to(tl.int64)[None, :]
            at = 2 * (which * heads_in_all * queries + result[:, None])
            lag_logs = tl.where(lag_logs == float("inf"), float("nan"), lag_logs)
            tl.store(lag + at, tl.exp2(lag_logs), mask=inside[:, None])
            tl.store(lag + at + 1, lag_logs * LN_2, mask=inside[:, None])
        if mass is not None:
            mark = tl.arange(0, MARKS)
            at = mark.to(tl.int64) * heads_in_all * queries
            at = at[None, :] + result[:, None]
            tl.store(mass + at, masses, mask=inside[:, None])
        if top is not None:
            _store_ranked(best, best_at, has_nan, top, top_positions, result, inside, top_size, TOP)


@triton.jit
def _ranked(logs, column, best, best_at, TOP: tl.constexpr):
    """Let the keys of a tile take the places of weaker ones, the strongest and lowest first.

    Most tiles hold nothing that ranks, and cost a comparison each.
    """
    logs = comparable(logs)
    weakest = tl.min(best, 1)
    strongest = tl.max(logs, 1)
    if tl.max((strongest > weakest).to(tl.int32), 0) > 0:
        while tl.max((strongest > weakest).to(tl.int32), 0) > 0:
            found = tl.where(logs == strongest[:, None], column[None, :], 2147483647)
            where = tl.min(found, 1)
            # Of equally weak ones the last to have come goes: its key is the highest.
            rival = tl.where(best == weakest[:, None], best_at, -2)
            goes = (rival == tl.max(rival, 1)[:, None]) & (best == weakest[:, None])
            slot = tl.arange(0, TOP)[None, :]
            goes_at = tl.min(tl.where(goes, slot, TOP), 1)
            replaced = (slot == goes_at[:, None]) & (strongest > weakest)[:, None]
            best = tl.where(replaced, strongest[:, None], best)
            best_at = tl.where(replaced, where[:, None], best_at)
            logs = tl.where(column[None, :] == where[:, None], -float("inf"), logs)
            weakest = tl.min(best, 1)
            strongest = tl.max(logs, 1)
    return best, best_at


@triton.jit
def _store_ranked(
    best,
    best_at,
    has_nan,
    top,
    top_positions,
    result,
    inside,
    top_size,
    TOP: tl.constexpr,
):
    """Write the strongest keys in order; of equal ones the lowest first."""
    slot = tl.arange(0, TOP)[None, :]
    best = tl.where(slot < top_size, best, -float("inf"))
    for rank in range(top_size):
        strongest = tl.max(best, 1)
        there = (best == strongest[:, None]) & (best_at >= 0)
        where = tl.min(tl.where(there, best_at, 2147483647), 1)
        found = strongest > -float("inf")
        weight = tl.where(has_nan, float("nan"), tl.exp2(strongest))
        at = result * top_size + rank
        tl.store(top + at, tl.where(found, weight, 0.0), mask=inside)
        tl.store(top_positions + at, tl.where(found, where, -1).to(tl.int64), mask=inside)
        best = tl.where(best_at == where[:, None], -float("inf"), best)


@triton.jit
def _band(row, top_row, queries, height, image_rows, SLOTS: tl.constexpr):
    """Compute the share of each query in each row of pixels, from the first that the block meets.

    In units of 1/rows of a query, query i covers [i·rows, (i+1)·rows) and pixel r covers
    [r·height, (r+1)·height), the height being that of the whole image: shares are ratios of
    integers.
    """
    line = row.to(tl.int64)[None, :] * image_rows
    first = tl.cast(top_row, tl.int64) * image_rows // height
    slot = (first + tl.arange(0, SLOTS)[:, None]) * height
    share = _overlap(line, image_rows, slot, height)
    return tl.where(row[None, :] < queries, share, 0.0)


@triton.jit
def _add_pixels(
    weights,
    pixel,
    band,
    image,
    tile,
    high,
    width,
    image_columns,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Add a tile to the columns of pixels that it lies in; write those that end in it.

    Keys are cut by columns as queries are by rows, see `_band`. `pixel` holds, of every row, what
    has been summed of the column that goes on in the next tile.
    """
    until = tl.cast(tl.minimum(tile + KEYS, high), tl.int64) * image_columns
    left = tl.cast(tile, tl.int64) * image_columns // width
    right = (until - 1) // width
    if left <= right:
        line = (tile + tl.arange(0, KEYS)).to(tl.int64) * image_columns
        for c in range(left, right + 1):
            share = _overlap(line, image_columns, c * width, width)[None, :]
            pixel += tl.sum(tl.where(share > 0, weights * share, 0.0), 1)
            if ((c + 1) * width <= until) | (tile + KEYS >= high):
                summed = tl.sum(tl.where(band > 0, band * pixel[None, :], 0.0), 1)
                tl.store(image + tl.arange(0, SLOTS) * image_columns + c, summed)
                pixel = tl.zeros_like(pixel)
    return pixel


@triton.jit
def _overlap(one, one_length, other, other_length):
    """How much of [one, one + one_length) lies in [other, other + other_length), in the former."""
    low = tl.maximum(one, other)
    high = tl.minimum(one + one_length, other + other_length)
    return tl.maximum(high - low, 0).to(tl.float32) / one_length
