"""How far the rows of two patterns are apart.

A program has a block of queries of a head, and goes over the keys that they see in either pattern,
tile by tile.

Axes: N heads numbered through, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard_experiments.gpu.triton.kernels.weights import (
    LN_2,
    LOG2_E,
    load_block,
    load_interval,
    load_keys,
    load_logsumexp,
    load_queries,
    log_weights,
    visible_tiles,
)


@triton.jit
def read_divergence(
    inputs,  # an `_inputs.Inputs`
    others,  # that of the other pattern
    logsumexp,
    others_logsumexp,
    sink,  # (N,), or None
    others_sink,
    result,  # (N, L), float64
    blocks,
    KIND: tl.constexpr,  # "kl", "js" or "tv"
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    OTHERS_WIDTH: tl.constexpr,
):
    number, _, place, row, interval, vectors, tiles = load_block(
        inputs, blocks, QUERIES, KEYS, WIDTH
    )
    shift = load_logsumexp(inputs, logsumexp, number, row)
    of_others = load_interval(others, place, row)
    seconds = load_queries(others, place, row, OTHERS_WIDTH)
    seen = visible_tiles(of_others, others.keys, KEYS)
    second_shift = load_logsumexp(others, others_logsumexp, number, row)

    total = tl.zeros((QUERIES,), tl.float64)
    low, high = tl.minimum(tiles[0], seen[0]), tl.maximum(tiles[3], seen[3])
    for tile in range(low, high, KEYS):
        column = tile + tl.arange(0, KEYS)
        p = _logs(inputs, place, vectors, shift, row, column, interval, WIDTH)
        q = _logs(others, place, seconds, second_shift, row, column, of_others, OTHERS_WIDTH)
        total += tl.sum(_terms(p, q, KIND), 1).to(tl.float64)
    if sink is not None or others_sink is not None:
        p = _log_sink(inputs, sink, logsumexp, number, row)
        q = _log_sink(others, others_sink, others_logsumexp, number, row)
        total += _terms(p, q, KIND).to(tl.float64)
    if KIND == "kl":
        total *= LN_2
    elif KIND == "js":
        total *= LN_2 / 2
    else:
        total *= 0.5
    total = tl.where(total < 0, 0.0, total)  # equal rows differ by rounding
    tl.store(result + number.to(tl.int64) * inputs.queries + row, total, mask=row < inputs.queries)


@triton.jit
def _logs(inputs, place, vectors, shift, row, column, interval, WIDTH: tl.constexpr):
    """Compute log₂ of one pattern's weights in a tile."""
    keys = load_keys(inputs, place, column, WIDTH)
    return log_weights(inputs, place, vectors, keys, shift, row, column, interval, EDGE=True)


@triton.jit
def _log_sink(inputs, sink, logsumexp, number, row):
    """Compute log₂ of the sink's share of each row; −∞ where there is none."""
    share = tl.full(row.shape, -float("inf"), tl.float32)
    if sink is not None:
        at = logsumexp + number.to(tl.int64) * inputs.queries + row
        known = tl.load(at, mask=row < inputs.queries, other=-float("inf"))
        above = (tl.load(sink + number) - known) * LOG2_E
        share = tl.where(known == -float("inf"), known, above)
    return share


@triton.jit
def _terms(p, q, KIND: tl.constexpr):
    """Compute what each key adds, of log₂ of its two weights, in bits or as a difference."""
    if KIND == "tv":
        terms = tl.abs(tl.exp2(p) - tl.exp2(q))
    elif KIND == "kl":
        terms = _relative_entropy(p, q)
    else:
        high = tl.maximum(p, q, propagate_nan=tl.PropagateNan.ALL)
        middle = high + tl.log2((tl.exp2(tl.minimum(p, q) - high) + 1) / 2)
        terms = _relative_entropy(p, middle) + _relative_entropy(q, middle)
    return terms


@triton.jit
def _relative_entropy(p, q):
    weights = tl.exp2(p)
    return tl.where(weights == 0, 0.0, weights * (p - q))
