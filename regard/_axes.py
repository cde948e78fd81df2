"""Bringing what a user hands over to one layout: leading dimensions as two, batch and heads.

Axes: B batch, H query heads, L queries, S keys; b and h are B or 1, H or 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

if TYPE_CHECKING:
    from jaxtyping import Shaped
    from torch import Tensor


class Mover:
    """Moves tensors to a device, each once: the layers of a model share masks and biases.

    Args:
        device: where to.
    """

    def __init__(self, device: str | torch.device) -> None:
        self._device = device
        self._known: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        """The same numbers there: the tensor itself where it is there already."""
        place = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        if place not in self._known:
            # Holding the tensor keeps its address from being given to another one.
            self._known[place] = tensor, tensor.to(self._device)
        return self._known[place][1]


def flat(leading: tuple[int, ...]) -> tuple[int, int]:
    """All leading dimensions as two: batch and heads."""
    return math.prod(leading[:-1]), leading[-1] if leading else 1


def align(
    tensor: Shaped[Tensor, "*t n"], leading: tuple[int, ...], name: str
) -> Shaped[Tensor, "b h n"]:
    """Line a per-sequence tensor up with leading dimensions from the left; flatten them to two."""
    given = tuple(tensor.shape[:-1])
    fits = len(given) <= len(leading) and all(
        have in (1, want) for have, want in zip(given, leading, strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name} has leading dimensions {given}, which do not line up from the left with the "
            f"query's {leading}"
        )
    tensor = tensor.reshape(*given, *(1,) * (len(leading) - len(given)), tensor.shape[-1])
    if tensor.ndim <= 3:
        return tensor.reshape(*(1,) * (3 - tensor.ndim), *tensor.shape)
    return tensor.expand(*leading[:-1], -1, -1).flatten(0, -3)


def matrix(
    given: Tensor | None,
    name: str,
    leading: tuple[int, ...],
    queries: int,
    keys: int,
    device: torch.device,
) -> Tensor | None:
    """Bring a matrix that broadcasts to ``(*leading, L, S)`` to four axes ``(b, h, l, s)``."""
    if given is None:
        return None
    full = (*leading, queries, keys)
    try:
        fits = torch.broadcast_shapes(given.shape, full) == full
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} has shape {tuple(given.shape)}, which does not broadcast to {full}"
        )
    given = given.to(device)
    if len(leading) > 2 and given.ndim > 3:  # batch dimensions that are to become one
        return given.expand(*leading, *given.shape[-2:]).flatten(0, -4)
    return given.reshape(*(1,) * (4 - given.ndim), *given.shape)


def four_axes(tensor: Tensor, leading: tuple[int, ...]) -> Tensor:
    """Bring a tensor to (B, heads, positions, dim); batch dimensions of size 1 spread."""
    if tensor.ndim == 4 and tensor.shape[0] == leading[0]:
        return tensor
    heads = tensor.shape[-3:-2]
    tensor = tensor.expand(*leading[:-1], *heads, *tensor.shape[-2:])
    batch = flat(leading)[0]
    return tensor.reshape(batch, heads[0] if heads else 1, *tensor.shape[-2:])


def per_head(numbers: Tensor | None, name: str, leading: tuple[int, ...]) -> Tensor | None:
    """Bring one number a head, broadcastable to the leading dimensions, to (b, h)."""
    if numbers is None:
        return None
    try:
        fits = torch.broadcast_shapes(numbers.shape, leading) == leading
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} holds one number a head: its shape {tuple(numbers.shape)} must broadcast to "
            f"the query's leading dimensions {leading}"
        )
    if len(leading) > 2 and numbers.ndim > 1:
        return numbers.expand(*leading[:-1], -1).flatten(0, -2)
    return numbers.reshape(*(1,) * (2 - numbers.ndim), *numbers.shape)


def aligned(size: int) -> int:
    """Round a size up to a multiple of 16, which is 64 bytes of float32.

    Matrix libraries round differently by where in memory a matrix starts. Where rows are a multiple
    of a cache line, one such difference less is left between a sequence alone and in a batch.
    """
    return -(-size // 16) * 16


def widened(tensor: Shaped[Tensor, "*b n d"], width: int) -> Shaped[Tensor, "*b n w"]:
    """Pad the last axis with zeros, which add nothing to a dot product."""
    return tensor if tensor.shape[-1] == width else pad(tensor, (0, width - tensor.shape[-1]))
