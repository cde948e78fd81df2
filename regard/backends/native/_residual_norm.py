"""A residual stream and its norm in one pass over memory, and their derivatives in another.

Axis letters: E model dimension.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard._shapes import Float
from regard.backends.native import library
from regard.backends.native._arguments import CODES

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
        x, width = x.contiguous(), x.shape[-1]
        added = None if added is None else added.contiguous()
        total = x if added is None else torch.empty_like(x)
        normed = torch.empty_like(x, dtype=dtype)
        mean, factor = x.new_empty(2, x.numel() // width).unbind()
        library.call(
            "regard_residual_norm_forward",
            _FORWARD.pack(
                *(CODES[dtype], torch.get_num_threads(), len(mean), width, int(rms), epsilon),
                *_pointers(x, added, weight, bias, total, normed, mean, factor),
            ),
        )
        ctx.save_for_backward(total, mean, factor, weight)
        ctx.is_added, ctx.has_bias = added is not None, bias is not None
        ctx.rms, ctx.dtype = rms, dtype
        ctx.set_materialize_grads(False)
        return (total, normed) if ctx.is_added else normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        total, mean, factor, weight = ctx.saved_tensors
        total_gradient, normed_gradient = gradients if ctx.is_added else (None, *gradients)
        if normed_gradient is None:  # the norm was not used
            normed_gradient = torch.zeros_like(total, dtype=ctx.dtype)
        normed_gradient = normed_gradient.contiguous()
        total_gradient = None if total_gradient is None else total_gradient.contiguous()
        gradient = torch.empty_like(total)
        rounded = None  # the same in the dtype of what was added
        if ctx.is_added and ctx.dtype != total.dtype:
            rounded = torch.empty_like(total, dtype=ctx.dtype)
        weight_gradient = torch.empty_like(weight)
        bias_gradient = torch.empty_like(weight) if ctx.has_bias else None
        library.call(
            "regard_residual_norm_backward",
            _BACKWARD.pack(
                *(CODES[ctx.dtype], torch.get_num_threads()),
                *(len(mean), total.shape[-1], int(ctx.rms)),
                *_pointers(total, mean, factor, weight, normed_gradient, total_gradient),
                *_pointers(gradient, rounded, weight_gradient, bias_gradient),
            ),
        )
        added_gradient = (gradient if rounded is None else rounded) if ctx.is_added else None
        return gradient, added_gradient, weight_gradient, bias_gradient, None, None, None


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
