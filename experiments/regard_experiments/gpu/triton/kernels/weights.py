"""What every kernel does first: bring dot products to logarithms of weights, tile by tile.

Logarithms are to the base 2, whose power the hardware knows. `inputs` is an `_inputs.Inputs`,
`place` an entry of the batch and a head, `interval` the first key that each query sees, the one
past the last, and the query's position.

Axes: B batch, H query heads, N = B·H of them numbered through, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
# Log₂ of the least weight. Keys whose score is −∞ are seen, if with a weight of 0; and where it
# meets that 0 in a product, −∞ would make a NaN of it.
LOWEST = tl.constexpr(-1e30)


@triton.jit
def place_of(inputs, number):
    """Split one of the N numbers into an entry of the batch and a head."""
    return (number // inputs.heads).to(tl.int64), (number % inputs.heads).to(tl.int64)


@triton.jit
def load_block(inputs, blocks, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr):
    """Load what a program needs of its block of queries, where each has a block of a head.

    Causal heads have most to do in their last blocks, which therefore come first.

    Returns:
        number, block, place, row, interval, vectors, tiles: the head's number and the block's; the
        head's place; the queries' numbers, intervals and vectors; the tiles that they see.
    """
    heads_in_all = tl.num_programs(0) // blocks
    number = tl.program_id(0) % heads_in_all
    block = blocks - 1 - tl.program_id(0) // heads_in_all
    place = place_of(inputs, number)
    row = block * QUERIES + tl.arange(0, QUERIES)
    interval = load_interval(inputs, place, row)
    vectors = load_queries(inputs, place, row, WIDTH)
    tiles = visible_tiles(interval, inputs.keys, KEYS)
    return number, block, place, row, interval, vectors, tiles


@triton.jit
def load_queries(inputs, place, row, WIDTH: tl.constexpr):
    """Load the queries of some rows, ``(len(row), WIDTH)``; 0 past the last row and dimension."""
    batch, head = place
    strides = inputs.query_strides
    start = inputs.query + batch * strides[0] + head * strides[1]
    return _load_vectors(start, row, inputs.queries, strides[2], inputs.depth, WIDTH)


@triton.jit
def load_keys(inputs, place, column, WIDTH: tl.constexpr):
    """Load some keys, ``(len(column), WIDTH)``; 0 past the last key and dimension."""
    batch, head = place
    strides = inputs.key_strides
    group = head // (inputs.heads // inputs.groups)
    start = inputs.key + batch * strides[0] + group * strides[1]
    return _load_vectors(start, column, inputs.keys, strides[2], inputs.depth, WIDTH)


@triton.jit
def _load_vectors(start, row, rows, stride, depth, WIDTH: tl.constexpr):
    dim = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (dim < depth)[None, :]
    at = row.to(tl.int64)[:, None] * stride + dim[None, :]
    return tl.load(start + at, mask=inside, other=0.0)


@triton.jit
def load_interval(inputs, place, row):
    """Load where the visible keys of some queries start and stop, and the queries' positions."""
    batch, head = place
    strides = inputs.interval_strides
    at = batch * strides[0] + head * strides[1] + row.to(tl.int64) * strides[2]
    inside = row < inputs.queries
    first = tl.load(inputs.start + at, mask=inside, other=0)
    stop = tl.load(inputs.stop + at, mask=inside, other=0)
    return first, stop, tl.load(inputs.position + at, mask=inside, other=0)


@triton.jit
def visible_tiles(interval, keys, KEYS: tl.constexpr):
    """Find the tiles of keys that some queries see, and those that each of them sees whole.

    Returns:
        low, inner, outer, high: tiles start at low, those in [inner, outer) are seen whole.
    """
    first, stop, _ = interval
    sees = first < stop
    low = tl.min(tl.where(sees, first, keys), 0) // KEYS * KEYS
    high = tl.max(tl.where(sees, stop, 0), 0)
    inner = tl.maximum(low, tl.cdiv(tl.max(first, 0), KEYS) * KEYS)
    outer = tl.min(stop, 0) // KEYS * KEYS
    if inner >= outer:
        inner = low
        outer = low
    return low, inner, outer, high


@triton.jit
def range_of(tiles, PHASE: tl.constexpr):
    """Tell a phase's range of keys: before the tiles seen whole (0), those (1), after them (2)."""
    return tiles[PHASE], tiles[PHASE + 1]


@triton.jit
def load_logsumexp(inputs, logsumexp, number, row):
    """Load log-sum-exps, to the base 2; NaN for +∞, 0 for rows that see nothing."""
    at = logsumexp + number.to(tl.int64) * inputs.queries + row
    known = tl.load(at, mask=row < inputs.queries, other=0.0)
    known = tl.where(known == float("inf"), float("nan"), known)
    return tl.where(known == -float("inf"), 0.0, known * LOG2_E)


@triton.jit
def log_weights(
    inputs,
    place,
    vectors,
    others,
    logsumexp,
    row,
    column,
    interval,
    EDGE: tl.constexpr,
    KEYS_FIRST: tl.constexpr = False,  # noqa: FBT002 - Triton's constants are arguments
):
    """Multiply queries and keys, and turn the products into log₂ of weights; −∞ for hidden keys.

    EDGE says that intervals may end within the tile, KEYS_FIRST that a row of the tile is a key:
    `vectors` are its rows, `others` its columns. With a logsumexp of 0 the results are the masked
    scores, times log₂e.
    """
    products = multiply(vectors, others)
    return log_weights_of(
        inputs, place, products, logsumexp, row, column, interval, EDGE=EDGE, KEYS_FIRST=KEYS_FIRST
    )


@triton.jit
def multiply(vectors, others):
    """Compute the dot products of rows of one tile with rows of another."""
    return tl.dot(vectors, tl.trans(others), input_precision="ieee")


@triton.jit
def log_weights_of(
    inputs,
    place,
    products,
    logsumexp,
    row,
    column,
    interval,
    EDGE: tl.constexpr,
    KEYS_FIRST: tl.constexpr = False,  # noqa: FBT002 - Triton's constants are arguments
):
    """Turn dot products into log₂ of weights; see `log_weights`."""
    batch, head = place
    logsumexp, row = _spread(logsumexp, KEYS_FIRST), _spread(row, KEYS_FIRST)
    column = _spread(column, not KEYS_FIRST)
    softcap, alibi, bias, allowed = inputs.softcap, inputs.alibi, inputs.bias, inputs.allowed
    spans = inputs.span_start
    if softcap is None and bias is None and alibi is None and spans is None:
        logs = products * (inputs.scale * LOG2_E) - logsumexp
    else:
        scores = products * inputs.scale
        if softcap is not None:
            scores = softcap * _tanh(scores / softcap)
        if alibi is not None:
            slope = tl.load(alibi + batch * inputs.heads + head)
            position = _spread(interval[2], KEYS_FIRST)
            scores -= slope * tl.abs(position - column).to(tl.float32)
        if bias is not None:
            added = _load_entries(bias, inputs.bias_strides, inputs, place, row, column)
            added = added.to(tl.float32)
            scores += tl.where(added == -float("inf"), 0.0, added)
        if spans is not None:
            shift = _load_spans(inputs, place, row, column)
            scores += tl.where(shift == -float("inf"), 0.0, shift)
        logs = scores * LOG2_E - logsumexp
    logs = tl.maximum(logs, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    if bias is not None:
        logs = tl.where(added == -float("inf"), added, logs)
    if spans is not None:
        logs = tl.where(shift == -float("inf"), shift, logs)
    if EDGE:
        start, stop = _spread(interval[0], KEYS_FIRST), _spread(interval[1], KEYS_FIRST)
        logs = tl.where((column >= start) & (column < stop), logs, -float("inf"))
    if allowed is not None:
        seen = _load_entries(allowed, inputs.allowed_strides, inputs, place, row, column)
        logs = tl.where(seen != 0, logs, -float("inf"))
    return logs


@triton.jit
def comparable(numbers):
    """Put ∞ for NaN, which a maximum passes over: it ranks, and becomes NaN later."""
    return tl.where(numbers == numbers, numbers, float("inf"))


@triton.jit
def _spread(numbers, ACROSS: tl.constexpr):
    """Give numbers, one a row of the tile or, ACROSS, one a column, the tile's second axis."""
    if ACROSS:
        return numbers[None, :]
    else:  # noqa: RET505 - only the branch that is taken compiles
        return numbers[:, None]


@triton.jit
def _load_spans(inputs, place, row, column):
    """Sum what spans of keys add to the scores of a tile; −∞ where one hides a key."""
    batch, head = place
    strides = inputs.span_strides
    at = batch * strides[1] + head * strides[2] + row.to(tl.int64) * strides[3]
    total = tl.zeros_like((row + column).to(tl.float32))
    for span in range(inputs.spans):
        own = at + tl.cast(span, tl.int64) * strides[0]
        start = tl.load(inputs.span_start + own, mask=row < inputs.queries, other=0)
        stop = tl.load(inputs.span_stop + own, mask=row < inputs.queries, other=0)
        added = tl.load(inputs.span_added + span)
        total += tl.where((column >= start) & (column < stop), added, 0.0)
    return total


@triton.jit
def _load_entries(matrix, strides, inputs, place, row, column):
    """Load entries of a matrix of queries and keys; 0 past the last ones."""
    batch, head = place
    at = batch * strides[0] + head * strides[1]
    at += row.to(tl.int64) * strides[2] + column.to(tl.int64) * strides[3]
    inside = (row < inputs.queries) & (column < inputs.keys)
    return tl.load(matrix + at, mask=inside, other=0)


@triton.jit
def _tanh(x):
    """Compute tanh to a few roundings: a polynomial where 1 − 2/(e²ˣ + 1) would cancel."""
    square = x * x
    near = -0.00570498872745 * square + 0.0206390887954
    near = near * square - 0.0537397155531
    near = near * square + 0.133314422036
    near = near * square - 0.333332819422
    near = x + x * square * near
    far = 1 - 2 / (tl.exp2(x * (2 * LOG2_E)) + 1)
    return tl.where(tl.abs(x) < 0.625, near, far)
