"""Combines the parts of two masks joined by ``&``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard._arguments import tensor_of
from regard._tensors import require


def both(
    one: Tensor | None, other: Tensor | None, combine: Callable[[Tensor, Tensor], Tensor]
) -> Tensor | None:
    """Combine two dense parts; None stands for a missing one."""
    if one is None or other is None:
        return one if other is None else other
    try:
        return combine(one, other)
    except RuntimeError as error:
        raise ValueError(
            f"dense masks joined by & do not broadcast: {tuple(one.shape)}, {tuple(other.shape)}"
        ) from error


def same_place(one: Any, other: Any, name: str) -> Any:
    """Return the offset, or the positions, that two masks share.

    Raises:
        ValueError: if they differ; for tensors on CUDA, an assertion runs on the device instead.
    """
    if one is None or other is None:
        return one if other is None else other
    if one is other:
        return one
    tensors = [place for place in (one, other) if isinstance(place, torch.Tensor)]
    message = f"masks joined by & have different {name}"
    if any(tensor.is_cuda for tensor in tensors):
        require((tensor_of(one) == tensor_of(other)).all(), message)
    elif not torch.equal(tensor_of(one), tensor_of(other)):
        raise ValueError(f"{message}: {one}, {other}")
    return one
