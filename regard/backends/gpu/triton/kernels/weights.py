"""What every kernel does first: bring dot products to logarithms of weights, tile by tile.

Logarithms are to the base 2, whose power the hardware knows. Row and key numbers come in two
dimensions that broadcast to the tile: a tile may hold queries in its rows or in its columns.

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
def load_vectors(head_start, row, rows, stride, depth, WIDTH: tl.constexpr):
    """Load vectors of one head, ``(len(row), WIDTH)``; 0 behind the last row and dimension."""
    dim = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (dim < depth)[None, :]
    at = row.to(tl.int64)[:, None] * stride + dim[None, :]
    return tl.load(head_start + at, mask=inside, other=0.0)


@triton.jit
def load_interval(start, stop, position, strides, batch, head, row, queries):
    """Load where the visible keys of some queries start and stop, and where the queries sit."""
    at = batch * strides[0] + head * strides[1] + row.to(tl.int64) * strides[2]
    inside = row < queries
    first = tl.load(start + at, mask=inside, other=0)
    stop = tl.load(stop + at, mask=inside, other=0)
    return first, stop, tl.load(position + at, mask=inside, other=0)


@triton.jit
def load_logsumexp(logsumexp, number, row, queries):
    """Load log-sum-exps, to the base 2; NaN for +∞, 0 for rows that see nothing."""
    known = tl.load(logsumexp + number.to(tl.int64) * queries + row, mask=row < queries, other=0.0)
    known = tl.where(known == float("inf"), float("nan"), known)
    return tl.where(known == -float("inf"), 0.0, known * LOG2_E)


@triton.jit
def log_weights(
    products,
    logsumexp,
    row,
    column,
    start,
    stop,
    position,
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
    EDGE: tl.constexpr,
):
    """Turn dot products into log₂ of weights; −∞ where a key is hidden.

    EDGE says that intervals may end within the tile. With a logsumexp of 0 the results are the
    masked scores, times log₂e.
    """
    if softcap is None and bias is None and alibi is None:
        logs = products * (scale * LOG2_E) - logsumexp
    else:
        scores = products * scale
        if softcap is not None:
            scores = softcap * _tanh(scores / softcap)
        if alibi is not None:
            scores -= tl.load(alibi + number) * tl.abs(position - column).to(tl.float32)
        if bias is not None:
            at = batch * bias_strides[0] + head * bias_strides[1]
            at += row.to(tl.int64) * bias_strides[2] + column.to(tl.int64) * bias_strides[3]
            inside = (row < queries) & (column < keys)
            added = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
            scores += tl.where(added == -float("inf"), 0.0, added)
        logs = scores * LOG2_E - logsumexp
    logs = tl.maximum(logs, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    if bias is not None:
        logs = tl.where(added == -float("inf"), added, logs)
    if EDGE:
        logs = tl.where((column >= start) & (column < stop), logs, -float("inf"))
    if allowed is not None:
        at = batch * allowed_strides[0] + head * allowed_strides[1]
        at += row.to(tl.int64) * allowed_strides[2] + column.to(tl.int64) * allowed_strides[3]
        inside = (row < queries) & (column < keys)
        logs = tl.where(tl.load(allowed + at, mask=inside, other=0) != 0, logs, -float("inf"))
    return logs


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
