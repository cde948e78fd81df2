"""Derivatives of the operators: for autograd, and for the transforms of `torch.func`.

A derivative registered for an operator is used by autograd, compilers and export, but not by
`torch.func`, which needs an `autograd.Function` per operator. Plain calls use a third way, for
speed: for a registered derivative torch parses the operator's schema at each call, and for a
Function with `setup_context` its signature. Unless something has to observe the operators, the
kernels are called directly, since dispatching takes a quarter of a short call.

Axes: B batch, H query heads, L queries, Dv head dimension of value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard._contexts import are_plain, has_tangent, must_dispatch, transforms
from regard._shapes import Float
from regard.backends.native import _backward, _forward
from regard.backends.native._arguments import Arguments
from regard.backends.native._fold import fold_backward, fold_forward
from regard.errors import Error

_FIRST_ONLY = (
    "the native backend gives first derivatives only; for the derivative of a gradient pass "
    "backend='eager' to regard.attention"
)


def attend(*arguments: Any) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and logsumexp, differentiable in the current mode."""
    call: Any = _forward_of
    if _under_transform() or (torch.is_grad_enabled() and not must_dispatch()):
        call = _Attention.apply
    context, logsumexp = call(*arguments)
    return context, logsumexp


def _forward_of(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Compute context and logsumexp, by the operator if something has to observe it."""
    if _are_plain(arguments):
        return _forward.forward(*arguments)
    context, logsumexp = torch.ops.regard.attention(*arguments)
    return context, logsumexp


def gradients(*arguments: Any) -> Sequence[Tensor]:
    """Compute the wanted gradients, likewise; a second derivative raises an `Error`."""
    call: Any = torch.ops.regard.attention_backward
    if _under_transform():
        call = _Gradients.apply
    elif any(map(has_tangent, _tensors_of(arguments))):
        raise Error(_FIRST_ONLY)
    elif not torch.is_grad_enabled() and _are_plain(arguments):
        call = _backward.backward
    results: Sequence[Tensor] = call(*arguments)
    return results


def _are_plain(arguments: tuple[Any, ...]) -> bool:
    """Whether the kernels may be called directly: nothing has to observe the operator."""
    return not must_dispatch() and are_plain(*_tensors_of(arguments))


def _tensors_of(arguments: tuple[Any, ...]) -> list[Tensor]:
    return [x for x in arguments if isinstance(x, torch.Tensor)]


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
    wanted = [
        needed and name in _backward.DIFFERENTIABLE
        for name, needed in zip(Arguments._fields, ctx.needs_input_grad, strict=True)
    ]
    of = iter(gradients(gradient, result, logsumexp, wanted, *inputs))
    return tuple(next(of) if want else None for want in wanted)


def refuse(ctx: Any, *gradients: Tensor) -> None:  # noqa: ARG001 - autograd's signature
    """Raise an `Error` instead of computing a second derivative."""
    raise Error(_FIRST_ONLY)


class _Attention(torch.autograd.Function):
    """The forward operator where it may be differentiated, and under a transform."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return _forward_of(*arguments)

    setup_context = staticmethod(save)
    backward = staticmethod(differentiate)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        return fold_forward(attend, info, in_dims, *arguments)


class _Gradients(torch.autograd.Function):
    """The backward operator under a transform."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return tuple(torch.ops.regard.attention_backward(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass  # nothing to save: there is no second derivative

    backward = staticmethod(refuse)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        results, places = fold_backward(gradients, info, in_dims, *arguments)
        return tuple(results), tuple(places)
