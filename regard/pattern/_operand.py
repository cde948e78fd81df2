"""What a pattern may be multiplied by.

Axes: B batch, H query heads, L queries, S keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def check_operand(
    name: str, shape: torch.Size, device: torch.device, x: Tensor, axis: int, given: Tensor
) -> None:
    """Raise `ValueError` unless a matrix fits a pattern.

    Args:
        name: how the pattern shows itself.
        shape: its shape.
        device: where it is.
        x: the operand as a matrix.
        axis: that of x which is summed over: −2 takes its S, −1 its L.
        given: the operand as it came.
    """
    leading = shape[:-2]
    letter, want = ("S", shape[-1]) if axis == -2 else ("L", shape[-2])
    try:
        fits = torch.broadcast_shapes(x.shape[:-2], leading) == leading
    except RuntimeError:
        fits = False
    if x.ndim < 2 or x.shape[axis] != want or not fits:
        raise ValueError(
            f"an operand of shape {tuple(given.shape)} does not fit {name}: it needs "
            f"{letter}={want} and leading dimensions that broadcast to {tuple(leading)}"
        )
    if given.device != device:
        raise ValueError(f"the operand is on {given.device}, the pattern on {device}")
