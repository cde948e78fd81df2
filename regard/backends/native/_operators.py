"""The native kernels as torch operators: ``torch.ops.regard.attention`` and its backward.

So that autograd, ``torch.compile``, dispatch modes and the profiler see them as they see torch's
own. Importing this module registers them.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from regard.backends.native import _backward
from regard.backends.native._arguments import Arguments, vectors
from regard.backends.native._library import call
from regard.errors import Error

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

# The arguments, as in `Arguments`.
_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? start, Tensor? stop, Tensor? positions, "
    "SymInt[] line, float scale, float softcap, Tensor? allowed, Tensor? bias, Tensor? alibi, "
    "Tensor? sink, float dropout, int seed"
)
_LIBRARY = torch.library.Library("regard", "DEF")
_LIBRARY.define(f"attention({_ARGUMENTS}) -> (Tensor context, Tensor logsumexp)")
_LIBRARY.define(
    "attention_backward(Tensor gradient, Tensor context, Tensor logsumexp, bool[] wanted, "
    f"{_ARGUMENTS}) -> Tensor[]"
)


def _forward(*arguments: Any) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    given = Arguments(*arguments)
    context, logsumexp = _forward_like(*arguments)
    packed = given.pack()
    call("regard_forward", packed.numbers, vectors(context), logsumexp.data_ptr())
    return context, logsumexp


def _forward_like(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Make results of the right shape, yet without values."""
    given = Arguments(*arguments)
    shape = given.query.shape[:-1]
    return (
        given.query.new_empty((*shape, given.value.shape[-1])),
        given.query.new_empty(shape, dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    given = Arguments(*inputs)
    tensors = {name: t for name, t in given._asdict().items() if isinstance(t, torch.Tensor)}
    ctx.names = list(tensors)
    ctx.others = {name: x for name, x in given._asdict().items() if name not in tensors}
    ctx.save_for_backward(*output, *tensors.values())
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    """Give each argument of `_forward` its gradient."""
    result, logsumexp, *tensors = ctx.saved_tensors
    given = Arguments(**ctx.others, **dict(zip(ctx.names, tensors, strict=True)))
    wanted = [
        needed and name in _backward.DIFFERENTIABLE
        for name, needed in zip(Arguments._fields, ctx.needs_input_grad, strict=True)
    ]
    gradients = torch.ops.regard.attention_backward(gradient, result, logsumexp, wanted, *given)
    of = iter(gradients)
    return tuple(next(of) if want else None for want in wanted)


def _no_second_derivative(ctx: Any, *gradients: Tensor) -> None:  # noqa: ARG001 - autograd's signature
    raise Error(
        "the native backend gives first derivatives only; for the derivative of a gradient pass "
        "backend='eager' to regard.attention"
    )


_LIBRARY.impl("attention", _forward, "CPU")
_LIBRARY.impl("attention_backward", _backward.backward, "CPU")
torch.library.register_fake("regard::attention", _forward_like, lib=_LIBRARY)
torch.library.register_fake("regard::attention_backward", _backward.like, lib=_LIBRARY)
torch.library.register_autograd(
    "regard::attention", _differentiate, setup_context=_save, lib=_LIBRARY
)
torch.library.register_autograd("regard::attention_backward", _no_second_derivative, lib=_LIBRARY)
