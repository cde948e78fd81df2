"""Products of a matrix with a few vectors, at the speed at which the matrix is read from memory.

Axis letters: V vectors, I inputs, O outputs.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.backends.native import library
from regard.backends.native._arguments import CODES

MAX_VECTORS = {torch.float32: 32, torch.bfloat16: 32, torch.float16: 64}
"""Of more, products are bound by arithmetic, which matrix libraries do better.

torch's of float16 does not where the processor has no arithmetic in it; there this takes a sixth of
the time."""
_STRUCT = struct.Struct("10q")  # regard_matvec in src/native/abi.h


def supports_matvec(
    x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None = None
) -> bool:
    """Whether `matvec` takes these tensors, which are in the CPU's memory."""
    if weight.ndim != 2 or x.shape[-1:] != weight.shape[1:]:
        return False  # which torch refuses
    if any(t is not None and t.shape != weight.shape[:1] for t in (bias, scale)):
        return False  # or it broadcasts
    if x.dtype not in CODES or weight.dtype != (x.dtype if scale is None else torch.int8):
        return False
    if scale is not None and not (scale.dtype == torch.float32 and scale.is_contiguous()):
        return False
    if not 0 < x.numel() <= MAX_VECTORS[x.dtype] * x.shape[-1]:
        return False
    if not (x.is_contiguous() and weight.is_contiguous()):
        return False
    if bias is not None and not (bias.dtype == x.dtype and bias.is_contiguous()):
        return False
    return library.why_missing() is None


def matvec(
    x: Float[Tensor, "*v I"],
    weight: Float[Tensor, "O I"] | Int[Tensor, "O I"],
    bias: Float[Tensor, "O"] | None,
    scale: Float[Tensor, "O"] | None = None,
) -> Float[Tensor, "*v O"]:
    """Compute ``x @ weightᵀ + bias``, added up in float32; no gradient.

    With a scale the weight is int8, and each of its rows is multiplied by its scale. A vector's
    result depends, to the last bit, on nothing but the vector, the matrix and the instruction set:
    not on what is computed beside it.
    """
    outputs, inputs = weight.shape
    result = x.new_empty((*x.shape[:-1], outputs))
    library.call(
        "regard_multiply",
        _STRUCT.pack(
            CODES[x.dtype],
            torch.get_num_threads(),
            x.numel() // inputs,
            inputs,
            outputs,
            x.data_ptr(),
            weight.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            0 if scale is None else scale.data_ptr(),
            result.data_ptr(),
        ),
    )
    return result
