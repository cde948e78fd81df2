"""What a GPT computes row by row, each in one pass over memory: norms, GELU, the cross-entropy.

Axis letters: E model dimension, N rows of logits, V vocabulary.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.backends.native import library
from regard.backends.native._arguments import CODES, pointers
from regard.backends.native._once_differentiable import once_differentiable

_FORWARD = struct.Struct("5qd8q")  # regard_residual_norm in src/native/abi.h
_BACKWARD = struct.Struct("15q")  # regard_residual_norm_gradients there
_GELU_CALL = struct.Struct("6q")  # regard_activation there
_CROSS_ENTROPY = struct.Struct("9q")  # regard_cross_entropy there


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
    """Compute `residual_norm` of contiguous tensors without a graph.

    Args:
        x: as for `residual_norm`; below, likewise.
        added: in the dtype of `normed`.
        weight: gains.
        bias: None: none.
        total: where the sum is written; x itself where nothing is added.
        normed: where its norm is written, in the dtype of what is added.
        moments: where the mean of each of the N rows is written, and what it was multiplied by.
        epsilon: as for `residual_norm`; below, likewise.
        rms: RMS norm, else layer norm.
    """
    rows = moments.shape[1]
    mean = moments.data_ptr()
    library.call(
        "regard_residual_norm_forward",
        _FORWARD.pack(
            *(CODES[normed.dtype], torch.get_num_threads(), rows, x.shape[-1], int(rms), epsilon),
            *pointers(x, added, weight, bias, total, normed),
            *(mean, mean + rows * moments.element_size()),
        ),
    )


class NormGradients(NamedTuple):
    """Where the gradients of `residual_norm` are written; all contiguous."""

    x: Float[Tensor, "*b E"]
    """float32."""
    added: Float[Tensor, "*b E"] | None
    """The same in the dtype of what was added; None: not wanted, or that is float32 too."""
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
        total_gradient: of the sum, contiguous; None: it was not used.
        normed_gradient: of the norm, likewise.
        total: as `compute_residual_norm` wrote it.
        moments: likewise.
        weight: as it was given to it.
        results: where they are written.
        rms: as it was given to it.
    """
    assert total_gradient is None or total_gradient.dtype == total.dtype, "as it was computed"
    rows = moments.shape[1]
    mean = moments.data_ptr()
    library.call(
        "regard_residual_norm_backward",
        _BACKWARD.pack(
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
    _call_gelu(x, 0, result)


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
    _call_gelu(x, gradient.data_ptr(), result)


def _call_gelu(x: Tensor, gradient: int, result: Tensor) -> None:
    library.call(
        "regard_gelu",
        _GELU_CALL.pack(
            *(CODES[x.dtype], torch.get_num_threads(), x.numel()),
            *(x.data_ptr(), gradient, result.data_ptr()),
        ),
    )


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
        logits: in a dtype of the kernels, at least one number.
        targets: int64, below V; below 0 where a row has no loss.
        losses: where the losses are written, in nats, float32; 0 where a row has none.
        weights: what each loss counts in the sum whose gradient is computed, float32.
        gradient: where that of the logits is written, in their dtype, which may be `logits` itself;
            None: nowhere.
    """
    assert gradient is None or gradient.dtype == logits.dtype, "the kernel reads and writes one"
    library.call(
        "regard_cross_entropy_and_gradient",
        _CROSS_ENTROPY.pack(
            *(CODES[logits.dtype], torch.get_num_threads(), *logits.shape, logits.data_ptr()),
            *(targets.data_ptr(), weights.data_ptr(), losses.data_ptr()),
            0 if gradient is None else gradient.data_ptr(),
        ),
    )
