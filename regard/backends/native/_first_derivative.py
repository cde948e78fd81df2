"""Derivatives by kernels, which have none of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Backward = Callable[..., Any]


def first_derivative(backward: Backward) -> Backward:
    """Make a Function's backward one that refuses to be differentiated, and knows no autocast.

    torch's `once_differentiable` refuses where the gradient that comes in needs a gradient; but
    what comes out depends on saved tensors too. And where autocast is on while gradients are
    computed, products would round to another dtype than the kernels next to them take.
    """
    once: Any = once_differentiable(backward)  # which is untyped

    @functools.wraps(backward)
    def wrapped(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # a graph of the gradients is wanted
            gradients = tuple(
                gradient if gradient is None else gradient.detach().requires_grad_()
                for gradient in gradients
            )
        with torch.autocast("cpu", enabled=False):
            return once(ctx, *gradients)

    return wrapped
