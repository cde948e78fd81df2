"""Derivatives of the operators: for autograd, and for the transforms of `torch.func`.

A derivative that is registered for an operator serves autograd, compilers and export. `torch.func`
does not ask for it, but for an `autograd.Function`: so there is one for each operator. A plain call
has a shorter one: for a registered derivative torch reads the operator's schema anew at each call,
argument by argument, and for a Function that `torch.func` may ask its signature. Within it, where
nothing has to see the operators, the kernels are called without them: dispatching takes a quarter
of a short call.

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
    """Compute context and logsumexp by the operator, in the way that it can be differentiated."""
    call: Any = _forward_of
    if _under_transform() or (torch.is_grad_enabled() and not must_dispatch()):
        call = _Attention.apply
    context, logsumexp = call(*arguments)
    return context, logsumexp


def _forward_of(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Compute context and logsumexp, by the operator where something has to see it."""
    if _are_plain(arguments):
        return _forward.forward(*arguments)
    context, logsumexp = torch.ops.regard.attention(*arguments)
    return context, logsumexp


def gradients(*arguments: Any) -> Sequence[Tensor]:
    """Compute the gradients that are wanted by the operator, likewise.

    Where their own derivative may be wanted the operator refuses it.
    """
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
    """Whether nothing has to see an operator that is called with these."""
    return not must_dispatch() and are_plain(*_tensors_of(arguments))


def _tensors_of(arguments: tuple[Any, ...]) -> list[Tensor]:
    return [x for x in arguments if isinstance(x, torch.Tensor)]


def _under_transform() -> bool:
    """Whether to go by a Function; torch.compile, which can't, asks the operator for its vmap."""
    return bool(transforms()) and not torch.compiler.is_dynamo_compiling()


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keep what the backward pass needs."""
    arguments = Arguments(*inputs)
    tensors = {name: t for name, t in arguments._asdict().items() if isinstance(t, torch.Tensor)}
    ctx.names = list(tensors)
    ctx.others = {name: x for name, x in arguments._asdict().items() if name not in tensors}
    saved = *output, *tensors.values()
    ctx.save_for_backward(*saved)
    ctx.dtypes = [tensor.dtype for tensor in saved]
    ctx.mark_non_differentiable(output[1])


def differentiate(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    """Give each argument of the forward operator its gradient."""
    # Hooks of saved tensors may give them back in another dtype.
    result, logsumexp, *tensors = map(Tensor.to, ctx.saved_tensors, ctx.dtypes)
    inputs = Arguments(**ctx.others, **dict(zip(ctx.names, tensors, strict=True)))
    wanted = [
        needed and name in _backward.DIFFERENTIABLE
        for name, needed in zip(Arguments._fields, ctx.needs_input_grad, strict=True)
    ]
    of = iter(gradients(gradient, result, logsumexp, wanted, *inputs))
    return tuple(next(of) if want else None for want in wanted)


def refuse(ctx: Any, *gradients: Tensor) -> None:  # noqa: ARG001 - autograd's signature
    """Stand for the derivative of the gradients."""
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
        pass  # without derivatives, nothing is kept

    backward = staticmethod(refuse)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        results, places = fold_backward(gradients, info, in_dims, *arguments)
        return tuple(results), tuple(places)
