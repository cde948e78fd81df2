"""The backward pass: gradients of all differentiable arguments of attention.

Axes: B batch, H query heads, L queries, S keys, Dv head dimension of value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.native._arguments import Arguments, vectors
from regard.backends.native._structs import GRADIENTS
from regard.backends.native.library import call

DIFFERENTIABLE = ("query", "key", "value", "bias", "alibi", "sink")


def backward(
    gradient: Float[Tensor, "B H L Dv"],
    context: Float[Tensor, "B H L Dv"],
    logsumexp: Float[Tensor, "B H L"],
    wanted: list[bool],
    *arguments: Any,
    all_keys: bool = True,
) -> list[Tensor]:
    """Compute the wanted gradients, in the order of the arguments.

    Args:
        gradient: the gradient of the context.
        context: the result of the forward pass.
        logsumexp: the result of the forward pass.
        wanted: for each argument, whether to compute its gradient.
        arguments: those of the forward pass; see `Arguments`.
        all_keys: whether the arguments have all keys of the rows. If so, the gradient of an ALiBi
            slope does not depend on the rounding of the context.
    """
    inputs = Arguments(*arguments)
    names = [name for name, want in zip(Arguments._fields, wanted, strict=True) if want]
    batch, heads, queries, _ = inputs.query.shape
    gradients: dict[str, Tensor] = {
        name: torch.empty_like(getattr(inputs, name), memory_format=torch.contiguous_format)
        for name in names
        if name in {"query", "key", "value"}
    }
    if "bias" in names:  # of each entry; `_shared` sums over broadcast axes
        gradients["bias"] = gradient.new_zeros(
            batch, heads, queries, inputs.key.shape[-2], dtype=torch.float32
        )
    gradients |= {
        name: gradient.new_zeros(batch, heads, dtype=torch.float32)
        for name in names
        if name in {"alibi", "sink"}
    }
    packed = inputs.pack()
    fill(packed.numbers, gradient, context, logsumexp, gradients, all_keys=all_keys)
    return [_shared(gradients[name], getattr(inputs, name)) for name in names]


def like(
    gradient: Tensor,  # noqa: ARG001 - the signature of `backward`
    context: Tensor,  # noqa: ARG001
    logsumexp: Tensor,  # noqa: ARG001
    wanted: list[bool],
    *arguments: Any,
) -> list[Tensor]:
    """Allocate the gradients, for fake tensors."""
    tensors = (tensor for tensor, want in zip(arguments, wanted, strict=True) if want)
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def fill(
    problem: bytes,
    gradient: Float[Tensor, "B H L Dv"],
    context: Float[Tensor, "B H L Dv"],
    logsumexp: Float[Tensor, "B H L"],
    gradients: dict[str, Tensor],
    *,
    all_keys: bool = True,
) -> None:
    """Call the library to write gradients.

    Args:
        problem: the packed problem.
        gradient: as for `backward`.
        context: as for `backward`.
        logsumexp: as for `backward`.
        gradients: the tensors to overwrite, by argument name.
        all_keys: as for `backward`.
    """
    # Saved-tensor hooks may return tensors in another layout.
    gradient, context = (t if t.stride(-1) == 1 else t.contiguous() for t in (gradient, context))
    logsumexp = logsumexp.contiguous()

    def rows(name: str) -> tuple[int, ...]:
        return vectors(gradients[name]) if name in gradients else (0, 0, 0, 0)

    bias = gradients.get("bias")
    numbers = GRADIENTS.pack(
        *vectors(context),
        *vectors(gradient),
        logsumexp.data_ptr(),
        *(*rows("query"), *rows("key"), *rows("value")),
        *((0, 0, 0, 0, 0) if bias is None else (bias.data_ptr(), *bias.stride())),
        *(gradients[name].data_ptr() if name in gradients else 0 for name in ("alibi", "sink")),
        int(all_keys),
    )
    call("regard_backward", problem, numbers)


def _shared(gradient: Tensor, argument: Tensor) -> Tensor:
    """Sum a gradient over the broadcast axes of its argument."""
    return gradient.sum_to_size(argument.shape).to(argument.dtype)
