"""What a GPT computes between its matrix products: norms, residual additions, GELU.

Each costs what reading and writing its tensors costs, so on a CPU each is one pass over memory, the
rounding for the next product included. Under a compiler, which fuses them itself, under tracing and
function transforms, and on other devices they are torch's.

Axis letters: E model dimension.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard._contexts import are_plain, is_transformed, product_dtype
from regard._modules import has_hooks
from regard._shapes import Float
from regard.backends import native


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm`, which under autocast on a CPU gives the dtype of matrix products."""

    def forward(self, input: Float[Tensor, "*b E"]) -> Float[Tensor, "*b E"]:  # noqa: A002 - nn.LayerNorm's name
        """Normalize each row."""
        results = _residual_norm(self, input, None)
        return super().forward(input) if results is None else results[1]


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm`, likewise."""

    def forward(self, x: Float[Tensor, "*b E"]) -> Float[Tensor, "*b E"]:
        """Normalize each row."""
        results = _residual_norm(self, x, None)
        return super().forward(x) if results is None else results[1]


def add_and_normalize(
    norm: nn.Module, x: Float[Tensor, "*b E"], added: Float[Tensor, "*b E"] | None
) -> tuple[Float[Tensor, "*b E"], Float[Tensor, "*b E"]]:
    """``x + added`` and its norm, with the bits of one after the other.

    Args:
        norm: what normalizes; called as a module where hooks are to see it.
        x: the residual stream.
        added: what is added to it; None: nothing.
    """
    if added is not None and type(norm) in {LayerNorm, RMSNorm} and not has_hooks(norm):
        results = _residual_norm(cast("LayerNorm | RMSNorm", norm), x, added)
        if results is not None:
            return results
    x = x if added is None else x + added
    return x, cast("Tensor", norm(x))


def gelu(x: Float[Tensor, "*b E"]) -> Float[Tensor, "*b E"]:
    """GPT-2's GELU, the tanh form: ``x/2·(1 + tanh z)``, where ``z = √(2/π)·(x + 0.044715·x³)``."""
    if torch.compiler.is_compiling():  # one loop, in which a sigmoid costs half as much as a tanh
        return x * torch.sigmoid(sqrt(8 / pi) * (x + 0.044715 * x * x * x))
    if not is_transformed() and supports(x) and native.why_missing() is None:
        return native.gelu(x)
    return F.gelu(x, approximate="tanh")


def _residual_norm(
    norm: LayerNorm | RMSNorm, x: Tensor, added: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Sum and norm by the kernel, or None where it does not take them."""
    if is_transformed() or x.dtype != torch.float32 or not supports(x):
        return None
    dtype = product_dtype(x)
    if not supports_added(added, x, dtype):
        return None
    rms = isinstance(norm, RMSNorm)
    weight, bias = norm.weight, norm.bias if isinstance(norm, LayerNorm) else None
    for parameter in (weight, bias):
        if parameter is not None and parameter.shape != x.shape[-1:]:
            return None  # other shapes torch refuses, or normalizes several axes
    if not supports_parameter(weight) or not (bias is None or supports_parameter(bias)):
        return None
    if dtype not in native.DTYPES or norm.eps is None or native.why_missing() is not None:
        return None
    return native.residual_norm(x, added, weight, bias, epsilon=norm.eps, rms=rms, dtype=dtype)


def supports(x: Tensor) -> bool:
    """Whether the kernels take a tensor."""
    return are_plain(x) and x.dtype in native.DTYPES and x.numel() > 0


def supports_added(added: Tensor | None, x: Tensor, dtype: torch.dtype) -> bool:
    """Whether they take what is added to x: in the dtype of products, or nothing."""
    if added is None:
        return True
    return added.dtype == dtype and added.shape == x.shape and supports(added)


def supports_parameter(x: Tensor) -> bool:
    """Whether they take a parameter: float32 and contiguous."""
    return are_plain(x) and x.dtype == torch.float32 and x.is_contiguous()
