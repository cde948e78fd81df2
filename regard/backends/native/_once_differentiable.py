"""Derivatives by kernels, which have none of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard._contexts import are_plain, has_tangent, in_memory
from regard.errors import Error

Backward = Callable[..., tuple[Tensor | None, ...] | Tensor]

_FIRST_ONLY = (
    "the kernels of norms, GELU, blocks and losses give first derivatives only; for the "
    "derivative of a gradient convert the model to float64, with model.double()"
)


def once_differentiable(backward: Backward) -> Backward:
    """Make a Function's backward one whose results refuse to be differentiated.

    What has to be refused depends on the gradients that come in and on the saved tensors. torch's
    decorator of this name knows of the former alone, and where a caller names the tensors to
    differentiate by, leaves out its refusal and gives zeros. So a Function has to save, by
    `save_for_backward`, each input that its gradients depend on, or an output. Gradients that are
    more than numbers in memory, such as a batch of them, are refused too, since the kernels would
    read the memory alone. Where autocast is on while gradients are computed, it is off inside:
    products would round to another dtype than the kernels next to them take.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *gradients: Tensor | None) -> Any:
        gradients = tuple(map(_checked, gradients))
        with torch.autocast("cpu", enabled=False):
            if not torch.is_grad_enabled():
                return backward(ctx, *gradients)
            with torch.no_grad():
                results = backward(ctx, *gradients)
        apply: Any = _FirstOnly.apply  # whose type is unknown
        origins = [t for t in (*gradients, *ctx.saved_tensors) if t is not None and t.requires_grad]
        if isinstance(results, Tensor):
            return apply(results, *origins)
        return tuple(None if t is None else apply(t, *origins) for t in results)

    return wrapped


def _checked(gradient: Tensor | None) -> Tensor | None:
    """A gradient as numbers in memory; raises an `Error` where it is more than that."""
    if has_tangent(gradient):
        raise Error(_FIRST_ONLY)
    if gradient is None or are_plain(gradient):
        return gradient
    numbers = in_memory(gradient)
    if type(numbers) is not Tensor:
        numbers = numbers.as_subclass(Tensor)
    if not are_plain(numbers):
        raise Error(
            "the kernels of norms, GELU, blocks and losses take plain tensors as gradients, and "
            f"one is a {type(gradient).__name__} that is more, as with is_grads_batched=True; "
            "compute them one after another, take derivatives by torch.func, or convert the model "
            "to float64, with model.double()"
        )
    return numbers


class _FirstOnly(torch.autograd.Function):
    """Identity whose backward raises: there is no second derivative."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *origins: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:  # noqa: ARG004 - likewise
        raise Error(_FIRST_ONLY)
