"""Bring arguments to one layout: leading dimensions as two, batch and heads.

Axes: B batch, H query heads, L queries, S keys; b and h are B or 1, H or 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard._devices import upload
from regard._shapes import Shaped


class Mover:
    """Moves tensors to a device, each once: the layers of a model share masks and biases.

    Args:
        device: where to.
    """

    def __init__(self, device: str | torch.device) -> None:
        self._device = device
        self._moved: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        """Move a tensor; one that is there already comes back itself."""
        place = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        if place not in self._moved:
            # Holding the tensor keeps its address from being reused.
            self._moved[place] = tensor, tensor.to(self._device)
        return self._moved[place][1]


def flat(leading: tuple[int, ...]) -> tuple[int, int]:
    """All leading dimensions as two: batch and heads."""
    return math.prod(leading[:-1]), leading[-1] if leading else 1


def align(
    tensor: Shaped[Tensor, "*t n"], leading: tuple[int, ...], name: str
) -> Shaped[Tensor, "b h n"]:
    """Line a per-sequence tensor up with leading dimensions from the left; flatten them to two."""
    own = tuple(tensor.shape[:-1])
    fits = len(own) <= len(leading) and all(
        have in (1, want) for have, want in zip(own, leading, strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name} has leading dimensions {own}, which do not line up from the left with the "
            f"query's {leading}"
        )
    tensor = tensor.reshape(*own, *(1,) * (len(leading) - len(own)), tensor.shape[-1])
    if tensor.ndim <= 3:
        return tensor.reshape(*(1,) * (3 - tensor.ndim), *tensor.shape)
    return tensor.expand(*leading[:-1], -1, -1).flatten(0, -3)


def _broadcasts(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    try:
        return torch.broadcast_shapes(tensor.shape, shape) == shape
    except RuntimeError:
        return False


def matrix(
    tensor: Tensor | None,
    name: str,
    leading: tuple[int, ...],
    queries: int,
    keys: int,
    device: torch.device,
) -> Tensor | None:
    """Bring a matrix that broadcasts to ``(*leading, L, S)`` to four axes ``(b, h, l, s)``."""
    if tensor is None:
        return None
    full = (*leading, queries, keys)
    if not _broadcasts(tensor, full):
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, which does not broadcast to {full}"
        )
    tensor = upload(tensor, device)
    if len(leading) > 2 and tensor.ndim > 3:  # several batch dimensions become one
        return tensor.expand(*leading, *tensor.shape[-2:]).flatten(0, -4)
    return tensor.reshape(*(1,) * (4 - tensor.ndim), *tensor.shape)


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
    if not _broadcasts(numbers, leading):
        raise ValueError(
            f"{name} holds one number a head: its shape {tuple(numbers.shape)} must broadcast to "
            f"the query's leading dimensions {leading}"
        )
    if len(leading) > 2 and numbers.ndim > 1:
        return numbers.expand(*leading[:-1], -1).flatten(0, -2)
    return numbers.reshape(*(1,) * (2 - numbers.ndim), *numbers.shape)


def padded_size(size: int) -> int:
    """Round a size up to a multiple of 16, which is 64 bytes of float32.

    Matrix libraries round by where in memory a row starts. With rows of whole cache lines, a
    sequence rounds more nearly the same alone and in a batch.
    """
    return -(-size // 16) * 16


def pad_last(tensor: Shaped[Tensor, "*b n d"], width: int) -> Shaped[Tensor, "*b n w"]:
    """Pad the last axis with zeros, which add nothing to a dot product."""
    return tensor if tensor.shape[-1] == width else pad(tensor, (0, width - tensor.shape[-1]))


def cut_last(tensor: Shaped[Tensor, "*b w"], width: int) -> Shaped[Tensor, "*b n"]:
    """Keep the first entries of the last axis, such as those that `pad_last` did not add."""
    return tensor if tensor.shape[-1] == width else tensor.narrow(-1, 0, width)
