"""The loss of a model: the cross-entropy of its logits, computed in chunks of rows.

With a large vocabulary, logits, their logarithms and gradients take most of an update's memory
traffic: several times ``N · V`` numbers. Here the rows are computed in chunks. A chunk's gradient
overwrites its logits, is accumulated into the other gradients, and its buffer is reused.

Axis letters: N rows, E model dimension, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._contexts import are_plain, is_transformed, product_dtype
from regard._shapes import Float, Int
from regard.backends import native
from regard.gpt._memory_pool import allocate, scratch
from regard.gpt.layers import linear

IGNORED = -100
"""The target of a position without loss; `cross_entropy`'s default `ignore_index`."""

# Size of a chunk's logits: what fits into the caches, or with a large vocabulary enough rows that
# the pass over the gradient of the matrix, which each chunk makes, is cheap in comparison.
_PORTION_BYTES = 2**21
_MIN_PORTION_ROWS = 1024


def linear_cross_entropy(
    x: Float[Tensor, "*b E"],
    weight: Float[Tensor, "V E"],
    targets: Int[Tensor, "*b"],
    weights: Float[Tensor, "*b"],
) -> Float[Tensor, ""]:
    """Return the weighted sum of the cross-entropies of ``x @ weightᵀ``, in nats.

    Args:
        x: the rows to unembed, ``(..., E)``.
        weight: the token embeddings.
        targets: int64, each below V, or `IGNORED`.
        weights: float32; weight of each position.
    """
    dtype = product_dtype(x)
    if not _is_served(x, weight, targets, weights, dtype):
        return cross_entropy(linear(x, weight), targets, weights)
    rows = x.to(dtype).contiguous().view(-1, x.shape[-1])  # (N, E)
    targets, weights = targets.contiguous().view(-1), weights.contiguous().view(-1)  # (N)
    if not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)):
        losses, _, _ = _compute(rows, weight.to(dtype), targets, weights, needs=(False, False))
        return losses.dot(weights)
    apply: Any = _LinearCrossEntropy.apply  # whose type is unknown
    loss: Tensor = apply(rows, weight, targets, weights)
    return loss


def cross_entropy(
    logits: Float[Tensor, "*b V"], targets: Int[Tensor, "*b"], weights: Float[Tensor, "*b"]
) -> Float[Tensor, ""]:
    """Return the weighted sum of the cross-entropies of logits, in nats, at least in float32."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum()


def _is_served(
    x: Tensor, weight: Tensor, targets: Tensor, weights: Tensor, dtype: torch.dtype
) -> bool:
    """Return True if the kernel supports the tensors.

    Float16 is left to torch: without loss scaling, gradients underflow.
    """
    tensors = (x, weight, targets, weights)
    if not x.is_cpu or is_transformed() or not are_plain(*tensors):
        return False
    if dtype not in (torch.float32, torch.bfloat16) or x.dtype not in (torch.float32, dtype):
        return False
    if weight.dtype not in (torch.float32, dtype) or weights.dtype != torch.float32:
        return False
    if not torch.is_autocast_enabled("cpu") and weight.dtype != x.dtype:
        return False  # torch raises an error
    return x.numel() > 0 and not weights.requires_grad and native.why_missing() is None


class _LinearCrossEntropy(torch.autograd.Function):
    """The loss; its gradients are computed in the forward pass, from the same logits."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        losses, *gradients = _compute(
            *(rows, weight.to(rows.dtype), targets, weights), needs=ctx.needs_input_grad[:2]
        )
        loss = losses.dot(weights)
        ctx.save_for_backward(loss, *gradients)
        ctx.dtype = weight.dtype
        return loss

    @staticmethod
    @native.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        _, of_rows, of_weight = ctx.saved_tensors
        factor = gradient.item()  # rounded to the dtype of the rows it would bias all gradients
        if factor != 1:
            of_rows = None if of_rows is None else of_rows * factor
            of_weight = None if of_weight is None else of_weight * factor
        return of_rows, None if of_weight is None else of_weight.to(ctx.dtype), None, None


def _compute(
    rows: Float[Tensor, "N E"],
    matrix: Float[Tensor, "V E"],
    targets: Int[Tensor, "N"],
    weights: Float[Tensor, "N"],
    *,
    needs: tuple[bool, bool],
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N E"] | None, Float[Tensor, "V E"] | None]:
    """Return the losses, and the needed gradients of rows and matrix, the latter in float32."""
    dtype, exact, (count, vocabulary) = rows.dtype, torch.float32, (len(rows), len(matrix))
    portion = min(count, max(_MIN_PORTION_ROWS, _PORTION_BYTES // (vocabulary * dtype.itemsize)))
    (losses,) = allocate(((count,), exact))
    of_rows = allocate((rows.shape, dtype))[0] if needs[0] else None
    of_matrix = allocate((matrix.shape, exact))[0] if needs[1] else None
    with scratch(
        ((portion, vocabulary), dtype), *[(matrix.shape, dtype)] * (needs[1] and dtype != exact)
    ) as (logits, *rounded):
        for start in range(0, count, portion):
            part = slice(start, start + portion)
            own = logits[: len(rows[part])]
            torch.mm(rows[part], matrix.t(), out=own)
            native.compute_cross_entropy(
                own,
                targets[part],
                losses[part],
                weights=weights[part],
                gradient=own if any(needs) else None,
            )
            if of_rows is not None:
                torch.mm(own, matrix, out=of_rows[part])
            if of_matrix is not None:
                _add_product(own, rows[part], of_matrix, rounded, is_first=start == 0)
    return losses, of_rows, of_matrix


def _add_product(
    gradient: Float[Tensor, "N V"],
    rows: Float[Tensor, "N E"],
    total: Float[Tensor, "V E"],
    rounded: list[Tensor],
    *,
    is_first: bool,
) -> None:
    """Accumulate ``gradientᵀ @ rows`` into `total`.

    Args:
        gradient: gradient of some logits.
        rows: the rows that they were computed from.
        total: the accumulator, float32.
        rounded: buffer for a product in another dtype than float32, if it has one.
        is_first: whether `total` is uninitialized.
    """
    if not rounded:
        torch.addmm(total, gradient.t(), rows, beta=0 if is_first else 1, out=total)
        return
    (product,) = rounded
    torch.mm(gradient.t(), rows, out=product)
    if is_first:
        total.copy_(product)
    else:
        total.add_(product)
