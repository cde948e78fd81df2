"""GELU and its derivative, each in one pass over memory."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.native import library
from regard.backends.native._arguments import CODES
from regard.backends.native._once_differentiable import once_differentiable

_STRUCT = struct.Struct("6q")  # regard_activation in src/native/abi.h


class _GELU(torch.autograd.Function):
    """GELU, whose gradient is computed from its input alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        result = torch.empty_like(x)
        compute_gelu(x, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x = ctx.saved_tensors[0].contiguous()
        result = torch.empty_like(x)
        gelu_gradient(x, gradient.contiguous(), result)
        return result


def gelu(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Compute ``x/2·(1 + tanh z)``, where ``z = √(2/π)·(x + 0.044715·x³)``.

    Args:
        x: of a dtype of the kernels, on the CPU.
    """
    apply: Any = _GELU.apply  # whose type is unknown
    result: Tensor = apply(x)
    return result


def compute_gelu(x: Float[Tensor, "*b"], result: Float[Tensor, "*b"]) -> None:
    """Write `gelu` of a contiguous tensor to another."""
    assert x.dtype == result.dtype, "the kernel reads and writes one"
    _call(x, 0, result)


def gelu_gradient(
    x: Float[Tensor, "*b"], gradient: Float[Tensor, "*b"], result: Float[Tensor, "*b"]
) -> None:
    """Write the gradient of `x` from that of its GELU; all contiguous.

    Args:
        x: as it was given to `compute_gelu`.
        gradient: of its GELU.
        result: where it is written, which may be `gradient` itself.
    """
    assert x.dtype == gradient.dtype == result.dtype, "as it was computed"
    _call(x, gradient.data_ptr(), result)


def _call(x: Tensor, gradient: int, result: Tensor) -> None:
    library.call(
        "regard_gelu",
        _STRUCT.pack(
            *(CODES[x.dtype], torch.get_num_threads(), x.numel()),
            *(x.data_ptr(), gradient, result.data_ptr()),
        ),
    )
