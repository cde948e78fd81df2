"""The operators in every mode, and their derivatives, also for the transforms of `torch.func`.

A derivative that is registered for an operator is used by autograd, compilers and export, but not
by `torch.func`, which needs an `autograd.Function`. Plain calls go without such a Function, though
torch parses an operator's schema at each differentiable call: that takes 60 µs, which are 2 % of
forward and backward with 8 heads of 64 and 512 tokens on one thread. Unless something has to
observe an operator or to differentiate it, its kernel is called directly, since dispatching takes a
quarter of a short call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._contexts import are_plain, has_tangent, must_dispatch, transforms
from regard.backends.native import _backward, _forward
from regard.backends.native._arguments import Arguments
from regard.backends.native._fold import fold
from regard.errors import Error

_FIRST_ONLY = (
    "the native backend gives first derivatives only; for the derivative of a gradient pass "
    "backend='eager' to regard.attention"
)


def compute(name: str, *arguments: Any) -> Sequence[Tensor]:
    """Compute the results of an operator in the current mode; `_operators` must be imported.

    Raises:
        Error: for a second derivative.
    """
    call: Any = getattr(torch.ops.regard, name)
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    if _under_transform():
        call = partial(_Transformed.apply, name)
    elif _are_plain(tensors):
        call = RULES[name].kernel
    elif any(map(has_tangent, tensors)):
        raise Error(_FIRST_ONLY)
    results: Sequence[Tensor] = call(*arguments)
    return results


def _are_plain(tensors: list[Tensor]) -> bool:
    """Whether a kernel may be called directly: nothing observes or differentiates it."""
    if must_dispatch() or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return False
    return are_plain(*tensors)


def _under_transform() -> bool:
    """Whether to use a Function; torch.compile, which can't, uses the operator's vmap rule."""
    return bool(transforms()) and not torch.compiler.is_dynamo_compiling()


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save what the backward pass needs."""
    arguments = Arguments(*inputs)
    tensors = {name: t for name, t in arguments._asdict().items() if isinstance(t, torch.Tensor)}
    ctx.names = list(tensors)
    ctx.others = {name: x for name, x in arguments._asdict().items() if name not in tensors}
    saved = *output, *tensors.values()
    ctx.save_for_backward(*saved)
    ctx.dtypes = [tensor.dtype for tensor in saved]
    ctx.mark_non_differentiable(output[1])


def differentiate(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    """Compute the gradient of each argument of the forward operator."""
    # Saved-tensor hooks may return tensors in another dtype.
    result, logsumexp, *tensors = map(Tensor.to, ctx.saved_tensors, ctx.dtypes)
    inputs = Arguments(**ctx.others, **dict(zip(ctx.names, tensors, strict=True)))
    needed = ctx.needs_input_grad[-len(inputs) :]  # under a transform the name comes first
    wanted = [
        need and name in _backward.DIFFERENTIABLE
        for name, need in zip(Arguments._fields, needed, strict=True)
    ]
    of = iter(compute("attention_backward", gradient, result, logsumexp, wanted, *inputs))
    return tuple(next(of) if want else None for want in wanted)


def refuse(ctx: Any, *gradients: Tensor) -> None:  # noqa: ARG001 - autograd's signature
    """Raise an `Error` instead of computing a second derivative."""
    raise Error(_FIRST_ONLY)


class _Rules(NamedTuple):
    """An operator's kernel, and what torch's modes need to know of it."""

    kernel: Callable[..., Sequence[Tensor]]
    like: Callable[..., Sequence[Tensor]]
    """Allocates the results."""
    save: Callable[..., None] | None
    differentiate: Callable[..., Any]


RULES = {
    "attention": _Rules(_forward.forward, _forward.like, save, differentiate),
    "attention_backward": _Rules(_backward.backward, _backward.like, None, refuse),
}
"""By the names of the operators."""


class _Transformed(torch.autograd.Function):
    """An operator under a transform: its name, then its arguments."""

    @staticmethod
    def forward(name: str, *arguments: Any) -> tuple[Tensor, ...]:
        return tuple(getattr(torch.ops.regard, name)(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.rules = RULES[inputs[0]]
        if ctx.rules.save is not None:
            ctx.rules.save(ctx, inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, *ctx.rules.differentiate(ctx, *gradients)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], name: str, *arguments: Any) -> Any:
        return fold(partial(compute, name), info, in_dims[1:], *arguments)
