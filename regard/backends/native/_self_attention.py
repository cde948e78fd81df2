"""Self-attention of the output of a QKV projection, and its gradient.

The kernels read and write with strides, so no head is copied: the output projection reads the
context in place, and the backward pass of the QKV projection the gradient.

Axes: B batch, T tokens, H query heads, G key/value heads, D head dimension, C = H·D,
P = (H + 2G)·D: a row of the projection is H queries, then G keys, then G values.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.native import library
from regard.backends.native._arguments import Arguments, repointed, vectors
from regard.backends.native._structs import GRADIENTS, TENSOR
from regard.inputs import Scoring, check
from regard.masks import Mask

_NO_BIAS_OR_NUMBERS = (0,) * 7
_MAX_LAYOUTS = 256


class _Layout(NamedTuple):
    """The part of a problem that depends only on shapes, dtype and mask."""

    numbers: bytes
    """The packed problem, with placeholders for pointers and threads."""
    key: int
    """Offset in bytes of the keys in a row."""
    value: int
    """Offset in bytes of the values in a row."""
    strides: tuple[tuple[int, ...], ...]
    """Of queries, keys and values as ``(B, heads, T, D)``."""
    context_strides: tuple[int, ...]
    """Strides of a context as ``(B, H, T, D)``."""

    def pack(self, projected: Tensor) -> bytes:
        """Pack the problem."""
        at = projected.data_ptr()
        return repointed(self.numbers, at, at + self.key, at + self.value)

    def parts(self, projected: Tensor) -> tuple[int, ...]:
        """Return queries, keys and values of a ``(B, T, P)``, each as ``regard_tensor``."""
        at = projected.data_ptr()
        query, key, value = self.strides
        return at, *query, at + self.key, *key, at + self.value, *value

    def by_head(self, context: Tensor) -> tuple[int, ...]:
        """Return a context or its gradient as ``regard_tensor``."""
        return context.data_ptr(), *self.context_strides


def self_attention(
    projected: Float[Tensor, "B T P"],
    groups: int,
    mask: Mask,
    context: Float[Tensor, "B T C"],
    logsumexp: Float[Tensor, "B H T"],
) -> None:
    """Compute the context, with concatenated heads, and the log-sum-exp of each row.

    Args:
        projected: contiguous, in one of `DTYPES`, not empty.
        groups: G.
        mask: a mask with affine bounds.
        context: contiguous output buffer in the same dtype.
        logsumexp: contiguous float32 output buffer, natural logarithm.
    """
    assert context.dtype == projected.dtype, "the kernel reads and writes one"
    heads = logsumexp.shape[1]
    layout = _layout(*projected.shape, heads, groups, projected.dtype, mask)
    by_head = TENSOR.pack(*layout.by_head(context))
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
        gradient: the gradient of the context, contiguous.
        context: output of `self_attention`.
        logsumexp: output of `self_attention`.
        projected: as in the forward pass.
        groups: as in the forward pass.
        mask: as in the forward pass.
        result: contiguous output buffer.
    """
    dtypes = {tensor.dtype for tensor in (gradient, context, projected, result)}
    assert len(dtypes) == 1, "as they were computed"
    heads = logsumexp.shape[1]
    layout = _layout(*projected.shape, heads, groups, projected.dtype, mask)
    numbers = GRADIENTS.pack(
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
    """Check a problem of these sizes once."""
    projected = torch.empty(batch, tokens, width, dtype=dtype, device="cpu")
    dim = width // (heads + 2 * groups)
    every = projected.unflatten(-1, (-1, dim)).transpose(1, 2)
    query, key, value = parts = every.split([heads, groups, groups], dim=1)
    problem = check(query, key, value, Scoring(mask=mask))
    context = projected.new_empty(batch, tokens, heads, dim).transpose(1, 2)
    return _Layout(
        Arguments.of(problem).pack().numbers,
        key.data_ptr() - projected.data_ptr(),
        value.data_ptr() - projected.data_ptr(),
        tuple(vectors(part)[1:] for part in parts),
        vectors(context)[1:],
    )
