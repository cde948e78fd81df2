"""Derivatives by kernels, which have none of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.errors import Error

Backward = Callable[..., tuple[Tensor | None, ...] | Tensor]


def first_derivative(backward: Backward) -> Backward:
    """Make a Function's backward one whose results refuse to be differentiated.

    What has to be refused depends on the gradients that come in and on the saved tensors. torch's
    `once_differentiable` knows of the former alone, and where a caller names the tensors to
    differentiate by, leaves out its refusal and gives zeros. So a Function has to save, by
    `save_for_backward`, each input that its gradients depend on, or an output. Where autocast is on
    while gradients are computed, it is off inside: products would round to another dtype than the
    kernels next to them take.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *gradients: Tensor | None) -> Any:
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


class _FirstOnly(torch.autograd.Function):
    """A gradient as it is, whose own gradient is refused."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *origins: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:  # noqa: ARG004 - likewise
        raise Error(
            "the kernels of norms, GELU, blocks and losses give first derivatives only; for the "
            "derivative of a gradient convert the model to float64, with model.double()"
        )
