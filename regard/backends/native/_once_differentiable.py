"""First derivatives computed by kernels: a second derivative raises an error."""

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
    "the kernels of norms, GELU and losses give first derivatives only; for the "
    "derivative of a gradient convert the model to float64, with model.double()"
)


def once_differentiable(backward: Backward) -> Backward:
    """Decorate the backward of a Function so that differentiating its results raises an error.

    The results depend on the incoming gradients and on the saved tensors. torch's decorator of this
    name considers the former only, and gives zeros if a caller names the tensors to differentiate
    by. A Function must therefore save, with `save_for_backward`, each input that its gradients
    depend on, or an output. Gradients that are not plain tensors, such as a batch of them under
    `vmap`, raise an error too, since the kernels read their memory only. Autocast is disabled
    inside, since it would change the dtypes between a product and a kernel.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *gradients: Tensor | None) -> Any:
        gradients = tuple(map(_checked, gradients))
        with torch.autocast("cpu", enabled=False):
            if not torch.is_grad_enabled():
                return backward(ctx, *gradients)
            with torch.no_grad():
                results = backward(ctx, *gradients)
        apply: Any = _FirstOnly.apply  # untyped
        origins = [t for t in (*gradients, *ctx.saved_tensors) if t is not None and t.requires_grad]
        if isinstance(results, Tensor):
            return apply(results, *origins)
        return tuple(None if t is None else apply(t, *origins) for t in results)

    return wrapped


def _checked(gradient: Tensor | None) -> Tensor | None:
    """Return a gradient as a plain tensor; raise an `Error` if it can't be one."""
    if has_tangent(gradient):
        raise Error(_FIRST_ONLY)
    if gradient is None or are_plain(gradient):
        return gradient
    numbers = in_memory(gradient)
    if type(numbers) is not Tensor:
        numbers = numbers.as_subclass(Tensor)
    if not are_plain(numbers):
        raise Error(
            "the kernels of norms, GELU and losses take plain tensors as gradients, and "
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
