"""The backward pass: gradients of everything that attention depends on continuously.

Axes: B batch, H query heads, L queries, S keys, Dv head dimension of value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from regard.backends.native._arguments import Arguments, vectors
from regard.backends.native.library import call

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

DIFFERENTIABLE = ("query", "key", "value", "bias", "alibi", "sink")


def backward(
    gradient: Float[Tensor, "B H L Dv"],
    context: Float[Tensor, "B H L Dv"],
    logsumexp: Float[Tensor, "B H L"],
    wanted: list[bool],
    *arguments: Any,
) -> list[Tensor]:
    """Compute the gradients that are wanted, in the order of the arguments.

    Args:
        gradient: of the context.
        context: as the forward pass gave it.
        logsumexp: likewise.
        wanted: for each argument, whether its gradient is.
        arguments: those of the forward pass; see `Arguments`.
    """
    given = Arguments(*arguments)
    asked = [name for name, want in zip(Arguments._fields, wanted, strict=True) if want]
    batch, heads, queries, _ = given.query.shape
    found: dict[str, Tensor] = {
        name: torch.empty_like(getattr(given, name), memory_format=torch.contiguous_format)
        for name in asked
        if name in {"query", "key", "value"}
    }
    if "bias" in asked:  # of each entry for itself: what they share is summed up below
        found["bias"] = gradient.new_zeros(
            batch, heads, queries, given.key.shape[-2], dtype=torch.float32
        )
    found |= {
        name: gradient.new_zeros(batch, heads, dtype=torch.float32)
        for name in asked
        if name in {"alibi", "sink"}
    }
    _fill(given, gradient, context, logsumexp, found)
    return [_shared(found[name], getattr(given, name)) for name in asked]


def like(
    gradient: Tensor,  # noqa: ARG001 - the signature of `backward`
    context: Tensor,  # noqa: ARG001
    logsumexp: Tensor,  # noqa: ARG001
    wanted: list[bool],
    *arguments: Any,
) -> list[Tensor]:
    """Make gradients of the right shape, yet without values."""
    asked = (given for given, want in zip(arguments, wanted, strict=True) if want)
    return [given.new_empty(given.shape) for given in asked]


def _fill(
    given: Arguments,
    gradient: Tensor,
    context: Tensor,
    logsumexp: Tensor,
    found: dict[str, Tensor],
) -> None:
    """Have the library write the gradients, by the layout of ``regard_gradients`` in abi.h."""
    packed = given.pack()
    gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()

    def rows(name: str) -> tuple[int, ...]:
        return vectors(found[name]) if name in found else (0, 0, 0, 0)

    bias = found.get("bias")
    numbers = (
        *vectors(context),
        *vectors(gradient),
        logsumexp.data_ptr(),
        *(*rows("query"), *rows("key"), *rows("value")),
        *((0, 0, 0, 0, 0) if bias is None else (bias.data_ptr(), *bias.stride())),
        *(found[name].data_ptr() if name in found else 0 for name in ("alibi", "sink")),
    )
    call("regard_backward", packed.numbers, numbers)


def _shared(gradient: Tensor, argument: Tensor) -> Tensor:
    """Sum over the axes that an argument was spread along."""
    return gradient.sum_to_size(argument.shape).to(argument.dtype)
