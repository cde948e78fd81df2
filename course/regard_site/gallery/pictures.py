"""Weights as pictures in one colour: a pixel's opacity is where its weight lies on the scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

__all__ = ["DECADES", "HIGHEST", "ink", "write_picture"]

HIGHEST, DECADES = -1, 5
"""The logarithmic scale: full ink from 0.1 on, none five decades below."""

_SHADES = 32


def ink(weights: Tensor) -> Tensor:
    """Where weights lie on the logarithmic scale, 0 … 1."""
    return ((weights.log10() - HIGHEST) / DECADES + 1).clamp(0, 1).nan_to_num(0)


def write_picture(path: Path, opacity: Tensor) -> None:
    """Write a picture as PNG: the accent of the page's light colours in `_SHADES` opacities.

    Args:
        path: the file.
        opacity: (rows, columns), 0 … 1.
    """
    shades = (opacity * (_SHADES - 1)).round().numpy().astype(np.uint8)
    image = Image.frombytes("P", shades.shape[::-1], shades.tobytes())
    image.putpalette([179, 67, 30] * _SHADES)
    image.save(path, transparency=bytes(255 * shade // (_SHADES - 1) for shade in range(_SHADES)))
