"""Self-attention of the product that makes queries, keys and values, and its gradient.

The kernels read and write with strides, so no head is copied to a place of its own: the context is
what the next product reads, and the gradient what the product before it is differentiated with.

Axes: B batch, T tokens, H query heads, G key/value heads, D head dimension, C = H·D,
P = (H + 2G)·D: a row of a projection is the H queries, then the G keys, then the G values.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.native import library
from regard.backends.native._arguments import PROBLEM, Arguments, vectors
from regard.inputs import Scoring, check
from regard.masks import Mask

# Where the threads and the pointers are among the numbers of `regard_problem` in src/native/abi.h;
# the strides follow each pointer.
_THREADS, _QUERY, _KEY, _VALUE = 1, 13, 17, 21
_NO_BIAS_OR_NUMBERS = (0,) * 7
_MAX_LAYOUTS = 256


class _Layout(NamedTuple):
    """The part of a problem that depends on shapes, dtype and mask alone."""

    numbers: tuple[int | float, ...]
    """Of `regard_problem`."""
    key: int
    """Bytes from the queries of a row to its keys; below, to its values."""
    value: int
    strides: tuple[tuple[int, ...], ...]
    """Of queries, keys and values, by head."""
    context_strides: tuple[int, ...]
    """Of a context by head."""

    def pack(self, projected: Tensor) -> bytes:
        """The problem, as the library takes it."""
        at = projected.data_ptr()
        numbers = list(self.numbers)
        numbers[_THREADS] = torch.get_num_threads()
        numbers[_QUERY], numbers[_KEY], numbers[_VALUE] = at, at + self.key, at + self.value
        return PROBLEM.pack(*numbers)

    def parts(self, projected: Tensor) -> tuple[int, ...]:
        """Queries, keys and values of a tensor like the projection, each as ``regard_tensor``."""
        at = projected.data_ptr()
        query, key, value = self.strides
        return at, *query, at + self.key, *key, at + self.value, *value

    def by_head(self, context: Tensor) -> tuple[int, ...]:
        """A context or its gradient, as ``regard_tensor``."""
        return context.data_ptr(), *self.context_strides


def self_attention(
    projected: Float[Tensor, "B T P"],
    groups: int,
    mask: Mask,
    context: Float[Tensor, "B T C"],
    logsumexp: Float[Tensor, "B H T"],
) -> None:
    """Compute the context, heads side by side, and the log-sum-exp of each row.

    Args:
        projected: contiguous, in a dtype of the kernels, with at least one number.
        groups: G.
        mask: affine.
        context: where it is written, contiguous, in the same dtype.
        logsumexp: where they are written, contiguous, float32.
    """
    assert context.dtype == projected.dtype, "the kernel reads and writes one"
    heads = logsumexp.shape[1]
    layout = _layout(*projected.shape, heads, groups, projected.dtype, mask)
    by_head = layout.by_head(context)
    library.call("regard_forward", layout.pack(projected), by_head, logsumexp.data_ptr())


def self_attention_gradient(
    gradient: Float[Tensor, "B T C"],
    context: Float[Tensor, "B T C"],
    logsumexp: Float[Tensor, "B H T"],
    projected: Float[Tensor, "B T P"],
    groups: int,
    mask: Mask,
    result: Float[Tensor, "B T P"],
) -> None:
    """Compute the gradient of `projected`.

    Args:
        gradient: of the context, contiguous.
        context: of `self_attention`.
        logsumexp: likewise.
        projected: as it was given to it; below, likewise.
        groups: G.
        mask: affine.
        result: where the gradient is written, contiguous.
    """
    dtypes = {tensor.dtype for tensor in (gradient, context, projected, result)}
    assert len(dtypes) == 1, "as they were computed"
    heads = logsumexp.shape[1]
    layout = _layout(*projected.shape, heads, groups, projected.dtype, mask)
    numbers = (
        *layout.by_head(context),
        *layout.by_head(gradient),
        logsumexp.data_ptr(),
        *layout.parts(result),
        *_NO_BIAS_OR_NUMBERS,
        1,  # all keys
    )
    library.call("regard_backward", layout.pack(projected), numbers)


@functools.lru_cache(_MAX_LAYOUTS)
def _layout(
    batch: int, tokens: int, width: int, heads: int, groups: int, dtype: torch.dtype, mask: Mask
) -> _Layout:
    """Check a problem of this kind once."""
    projected = torch.empty(batch, tokens, width, dtype=dtype, device="cpu")
    dim = width // (heads + 2 * groups)
    query, key, value = (
        _heads(part, count)
        for part, count in zip(
            projected.split([count * dim for count in (heads, groups, groups)], dim=-1),
            (heads, groups, groups),
            strict=True,
        )
    )
    problem = check(query, key, value, Scoring(mask=mask))
    numbers = PROBLEM.unpack(Arguments.of(problem).pack().numbers)
    start = projected.data_ptr()
    strides = [vectors(part)[1:] for part in (query, key, value)]
    _, *context_strides = vectors(_heads(projected.new_empty(batch, tokens, heads * dim), heads))
    return _Layout(
        numbers,
        key.data_ptr() - start,
        value.data_ptr() - start,
        tuple(strides),
        tuple(context_strides),
    )


def _heads(rows: Float[Tensor, "B T C"], heads: int) -> Float[Tensor, "B H T D"]:
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)
