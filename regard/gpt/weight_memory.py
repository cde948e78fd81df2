"""A model's weights in memory that a step of generation reads fast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

import torch
from torch import Tensor, nn

from regard import _huge_pages

__all__ = ["load_into_huge_pages", "to_huge_pages"]

_PLAIN = (Tensor, nn.Parameter)


def load_into_huge_pages(
    shapes: Mapping[str, tuple[int, ...]], weights: Iterable[tuple[str, Tensor]]
) -> dict[str, Tensor]:
    """Copy the weights of a file to huge pages, in float32; they come one by one.

    Else they would be read from where the system keeps the file, which is slower.
    """
    memory = _huge_pages.allocate(*((shape, torch.float32) for shape in shapes.values()))
    state = dict(zip(shapes, memory, strict=True))
    for name, weight in weights:
        state[name].copy_(weight)
    return state


def to_huge_pages(model: nn.Module) -> None:
    """Move the weights that lie on the CPU to huge pages, side by side.

    `load` gives a model whose weights lie there, until it is converted to another dtype. Parameters
    and buffers stay the objects that they are.
    """
    tensors = [
        tensor
        for tensor in chain(model.parameters(), model.buffers())
        if type(tensor) in _PLAIN and tensor.is_cpu and tensor.is_contiguous()
    ]
    with torch.no_grad():
        memory = _huge_pages.allocate(*((tensor.shape, tensor.dtype) for tensor in tensors))
        for tensor, moved in zip(tensors, memory, strict=True):
            tensor.data = moved.copy_(tensor)
