"""Row-wise operations of a GPT, each in one pass over memory: norms, GELU, the cross-entropy.

Axes: E model dimension, N rows, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.backends.native import library
from regard.backends.native._arguments import CODES, pointers
from regard.backends.native._once_differentiable import once_differentiable
from regard.backends.native._structs import (
    ACTIVATION,
    CROSS_ENTROPY,
    RESIDUAL_NORM,
    RESIDUAL_NORM_GRADIENTS,
)


class _ResidualNorm(torch.autograd.Function):
    """The sum and its norm; without `added`, the norm only."""

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
        total = x if added is None else torch.empty_like(x)
        normed = torch.empty_like(x, dtype=dtype)
        moments = x.new_empty(2, x.numel() // x.shape[-1])
        compute_residual_norm(
            x, added, weight, bias, total, normed, moments, epsilon=epsilon, rms=rms
        )
        ctx.save_for_backward(total, moments, weight)
        ctx.is_added, ctx.has_bias = added is not None, bias is not None
        ctx.rms, ctx.dtype = rms, dtype
        ctx.set_materialize_grads(False)
        return (total, normed) if ctx.is_added else normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        total, moments, weight = (tensor.contiguous() for tensor in ctx.saved_tensors)
        total_gradient, normed_gradient = gradients if ctx.is_added else (None, *gradients)
        if normed_gradient is None:  # the norm was not used
            normed_gradient = torch.zeros_like(total, dtype=ctx.dtype)
        gradient = torch.empty_like(total)
        rounded = None
        if ctx.is_added and ctx.dtype != total.dtype:
            rounded = torch.empty_like(total, dtype=ctx.dtype)
        of_weight = torch.empty_like(weight)
        of_bias = torch.empty_like(weight) if ctx.has_bias else None
        residual_norm_gradients(
            None if total_gradient is None else total_gradient.contiguous(),
            normed_gradient.contiguous(),
            total,
            moments,
            weight,
            NormGradients(gradient, rounded, of_weight, of_bias),
            rms=ctx.rms,
        )
        of_added = (gradient if rounded is None else rounded) if ctx.is_added else None
        return gradient, of_added, of_weight, of_bias, None, None, None


def compute_residual_norm(
    x: Float[Tensor, "*b E"],
    added: Float[Tensor, "*b E"] | None,
    weight: Float[Tensor, "E"],
    bias: Float[Tensor, "E"] | None,
    total: Float[Tensor, "*b E"],
    normed: Float[Tensor, "*b E"],
    moments: Float[Tensor, "2 N"],
    *,
    epsilon: float,
    rms: bool,
) -> None:
    """Compute `residual_norm` of contiguous tensors without an autograd graph.

    Args:
        x: as for `residual_norm`.
        added: as for `residual_norm`, in the dtype of `normed`.
        weight: as for `residual_norm`.
        bias: as for `residual_norm`.
        total: output buffer for the sum; x itself if `added` is None.
        normed: output buffer for the norm.
        moments: output buffer for the mean and the reciprocal standard deviation of each row.
        epsilon: as for `residual_norm`.
        rms: as for `residual_norm`.
    """
    rows = moments.shape[1]
    mean = moments.data_ptr()
    library.call(
        "regard_residual_norm_forward",
        RESIDUAL_NORM.pack(
            *(CODES[normed.dtype], torch.get_num_threads(), rows, x.shape[-1], int(rms), epsilon),
            *pointers(x, added, weight, bias, total, normed),
            *(mean, mean + rows * moments.element_size()),
        ),
    )


class NormGradients(NamedTuple):
    """Output buffers for the gradients of `residual_norm`; all contiguous."""

    x: Float[Tensor, "*b E"]
    """float32."""
    added: Float[Tensor, "*b E"] | None
    """The same gradient in the dtype of `added`; None if it is not wanted, or float32 too."""
    weight: Float[Tensor, "E"]
    bias: Float[Tensor, "E"] | None


def residual_norm_gradients(
    total_gradient: Float[Tensor, "*b E"] | None,
    normed_gradient: Float[Tensor, "*b E"],
    total: Float[Tensor, "*b E"],
    moments: Float[Tensor, "2 N"],
    weight: Float[Tensor, "E"],
    results: NormGradients,
    *,
    rms: bool,
) -> None:
    """Compute the gradients of `residual_norm`.

    Args:
        total_gradient: the gradient of the sum, contiguous; None if the sum was not used.
        normed_gradient: the gradient of the norm, contiguous.
        total: output of `compute_residual_norm`.
        moments: output of `compute_residual_norm`.
        weight: as in the forward pass.
        results: output buffers.
        rms: as in the forward pass.
    """
    assert total_gradient is None or total_gradient.dtype == total.dtype, "as it was computed"
    rows = moments.shape[1]
    mean = moments.data_ptr()
    library.call(
        "regard_residual_norm_backward",
        RESIDUAL_NORM_GRADIENTS.pack(
            *(CODES[normed_gradient.dtype], torch.get_num_threads(), rows, total.shape[-1]),
            *(int(rms), total.data_ptr(), mean, mean + rows * moments.element_size()),
            *pointers(weight, normed_gradient, total_gradient, *results),
        ),
    )


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
    """Compute ``x + added`` and its layer norm or RMS norm.

    Args:
        x: float32, on the CPU, at least one row.
        added: in `dtype`; None if the sum is x.
        weight: gains, contiguous float32.
        bias: contiguous float32, or None.
        epsilon: added to the variance, or to the mean square.
        rms: RMS norm, else layer norm.
        dtype: dtype of the norm, one of `DTYPES`.

    Returns:
        The sum in float32, and the norm.
    """
    apply: Any = _ResidualNorm.apply  # untyped
    results = apply(x, added, weight, bias, epsilon, rms, dtype)
    total, normed = (x, results) if added is None else results
    return total, normed


class _GELU(torch.autograd.Function):
    """GELU, whose gradient is computed from its input."""

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

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.

    Args:
        x: on the CPU, in one of `DTYPES`.
    """
    apply: Any = _GELU.apply  # untyped
    result: Tensor = apply(x)
    return result


def compute_gelu(x: Float[Tensor, "*b"], result: Float[Tensor, "*b"]) -> None:
    """Write `gelu` of a contiguous tensor to another."""
    _call_gelu(x, 0, result)


def gelu_gradient(
    x: Float[Tensor, "*b"], gradient: Float[Tensor, "*b"], result: Float[Tensor, "*b"]
) -> None:
    """Compute the gradient of `x` from that of its GELU; all contiguous.

    Args:
        x: as in the forward pass.
        gradient: the gradient of its GELU.
        result: output buffer, which may be `gradient` itself.
    """
    assert x.dtype == gradient.dtype, "as it was computed"
    _call_gelu(x, gradient.data_ptr(), result)


def _call_gelu(x: Tensor, gradient: int, result: Tensor) -> None:
    assert x.dtype == result.dtype, "the kernel reads and writes one"
    sizes = CODES[x.dtype], torch.get_num_threads(), x.numel()
    packed = ACTIVATION.pack(*sizes, x.data_ptr(), gradient, result.data_ptr())
    library.call("regard_gelu", packed)


def compute_cross_entropy(
    logits: Float[Tensor, "N V"],
    targets: Int[Tensor, "N"],
    losses: Float[Tensor, "N"],
    *,
    weights: Float[Tensor, "N"],
    gradient: Float[Tensor, "N V"] | None,
) -> None:
    """Compute ``logsumexp(logits) - logits[target]`` of each row; all tensors contiguous.

    Args:
        logits: in one of `DTYPES`, not empty.
        targets: int64, below V; negative for a row without a loss.
        losses: float32 output buffer for the losses, in nats; 0 for a row without a loss.
        weights: float32 weight of each loss in the sum that is differentiated.
        gradient: output buffer for the gradient of the logits, in their dtype, which may be
            `logits` itself; None to skip it.
    """
    assert gradient is None or gradient.dtype == logits.dtype, "the kernel reads and writes one"
    library.call(
        "regard_cross_entropy_and_gradient",
        CROSS_ENTROPY.pack(
            *(CODES[logits.dtype], torch.get_num_threads(), *logits.shape),
            *pointers(logits, targets, weights, losses, gradient),
        ),
    )
