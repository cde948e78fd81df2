"""A residual stream and its norm in one pass over memory, and their derivatives in another.

Axis letters: E model dimension.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.native import library
from regard.backends.native._arguments import CODES
from regard.backends.native._first_derivative import first_derivative

_FORWARD = struct.Struct("5qd8q")  # regard_residual_norm in src/native/abi.h
_BACKWARD = struct.Struct("15q")  # regard_residual_norm_gradients there


class _ResidualNorm(torch.autograd.Function):
    """The sum and its norm; where nothing is added, the norm alone."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        added: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        rms: bool,  # noqa: FBT001 - apply takes no keywords
        dtype: torch.dtype,
    ) -> Tensor | tuple[Tensor, Tensor]:
        x, added = x.contiguous(), None if added is None else added.contiguous()
        total, normed, moments = compute_residual_norm(
            x, added, weight, bias, epsilon=epsilon, rms=rms, dtype=dtype
        )
        ctx.save_for_backward(total, moments, weight)
        ctx.is_added, ctx.has_bias = added is not None, bias is not None
        ctx.rms, ctx.dtype = rms, dtype
        ctx.set_materialize_grads(False)
        return (total, normed) if ctx.is_added else normed

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        total, moments, weight = (tensor.contiguous() for tensor in ctx.saved_tensors)
        total_gradient, normed_gradient = gradients if ctx.is_added else (None, *gradients)
        if normed_gradient is None:  # the norm was not used
            normed_gradient = torch.zeros_like(total, dtype=ctx.dtype)
        found = residual_norm_gradients(
            None if total_gradient is None else total_gradient.contiguous(),
            normed_gradient.contiguous(),
            total,
            moments,
            weight,
            rms=ctx.rms,
            is_added=ctx.is_added,
            has_bias=ctx.has_bias,
        )
        return *found, None, None, None


def compute_residual_norm(
    x: Float[Tensor, "*b E"],
    added: Float[Tensor, "*b E"] | None,
    weight: Float[Tensor, "E"],
    bias: Float[Tensor, "E"] | None,
    *,
    epsilon: float,
    rms: bool,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "*b E"], Float[Tensor, "*b E"], Float[Tensor, "2 N"]]:
    """Compute `residual_norm` of contiguous tensors without a graph.

    Returns:
        The sum, its norm, and of each of the N rows the mean and what it was multiplied by.
    """
    total = x if added is None else torch.empty_like(x)
    normed = torch.empty_like(x, dtype=dtype)
    width = x.shape[-1]
    rows = x.numel() // width
    moments = x.new_empty(2, rows)
    mean = moments.data_ptr()
    library.call(
        "regard_residual_norm_forward",
        _FORWARD.pack(
            *(CODES[dtype], torch.get_num_threads(), rows, width, int(rms), epsilon),
            *_pointers(x, added, weight, bias, total, normed),
            *(mean, mean + rows * moments.element_size()),
        ),
    )
    return total, normed, moments


def residual_norm_gradients(
    total_gradient: Float[Tensor, "*b E"] | None,
    normed_gradient: Float[Tensor, "*b E"],
    total: Float[Tensor, "*b E"],
    moments: Float[Tensor, "2 N"],
    weight: Float[Tensor, "E"],
    *,
    rms: bool,
    is_added: bool,
    has_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Compute the gradients of `x`, of what was added to it, of the weight and of the bias.

    Args:
        total_gradient: of the sum, contiguous; None: it was not used.
        normed_gradient: of the norm, likewise.
        total: as `compute_residual_norm` gave it.
        moments: likewise.
        weight: as it was given to it.
        rms: likewise.
        is_added: whether something was added.
        has_bias: whether there is a bias.
    """
    assert total_gradient is None or total_gradient.dtype == total.dtype, "as it was computed"
    gradient = torch.empty_like(total)
    dtype, rows = normed_gradient.dtype, moments.shape[1]
    rounded = None  # the same in the dtype of what was added
    if is_added and dtype != total.dtype:
        rounded = torch.empty_like(total, dtype=dtype)
    weight_gradient = torch.empty_like(weight)
    bias_gradient = torch.empty_like(weight) if has_bias else None
    mean = moments.data_ptr()
    library.call(
        "regard_residual_norm_backward",
        _BACKWARD.pack(
            *(CODES[dtype], torch.get_num_threads(), rows, total.shape[-1], int(rms)),
            *(total.data_ptr(), mean, mean + rows * moments.element_size()),
            *_pointers(weight, normed_gradient, total_gradient),
            *_pointers(gradient, rounded, weight_gradient, bias_gradient),
        ),
    )
    added_gradient = (gradient if rounded is None else rounded) if is_added else None
    return gradient, added_gradient, weight_gradient, bias_gradient


def residual_norm(
    x: Float[Tensor, "*b E"],
    added: Float[Tensor, "*b E"] | None,
    weight: Float[Tensor, "E"],
    bias: Float[Tensor, "E"] | None,
    *,
    epsilon: float,
    rms: bool,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "*b E"], Float[Tensor, "*b E"]]:
    """Compute ``x + added`` and the layer norm, or RMS norm, of that.

    Args:
        x: float32, on the CPU, at least one row.
        added: in `dtype`; None: nothing, and the sum is x.
        weight: float32 gains, contiguous.
        bias: likewise; None: none.
        epsilon: added to the variance, or to the mean square.
        rms: RMS norm, else layer norm.
        dtype: of the norm, one of the kernels.
    """
    apply: Any = _ResidualNorm.apply  # whose type is unknown
    results = apply(x, added, weight, bias, epsilon, rms, dtype)
    total, normed = (x, results) if added is None else results
    return total, normed


def _pointers(*tensors: Tensor | None) -> tuple[int, ...]:
    return tuple(0 if tensor is None else tensor.data_ptr() for tensor in tensors)
