"""GELU and its derivative, each in one pass over memory."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard._shapes import Float
from regard.backends.native import library
from regard.backends.native._arguments import CODES

_STRUCT = struct.Struct("6q")  # regard_activation in src/native/abi.h


class _GELU(torch.autograd.Function):
    """GELU, whose gradient is computed from its input alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        return _compute(x, None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return _compute(x, gradient.contiguous())


def gelu(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Compute ``x/2·(1 + tanh z)``, where ``z = √(2/π)·(x + 0.044715·x³)``.

    Args:
        x: of a dtype of the kernels, on the CPU.
    """
    apply: Any = _GELU.apply  # whose type is unknown
    result: Tensor = apply(x)
    return result


def _compute(x: Tensor, gradient: Tensor | None) -> Tensor:
    result = torch.empty_like(x)
    library.call(
        "regard_gelu",
        _STRUCT.pack(
            CODES[x.dtype],
            torch.get_num_threads(),
            x.numel(),
            x.data_ptr(),
            0 if gradient is None else gradient.data_ptr(),
            result.data_ptr(),
        ),
    )
    return result
