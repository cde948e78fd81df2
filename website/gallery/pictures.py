"""Weights as pictures in one colour: a pixel's opacity is where its weight lies on the scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

__all__ = ["DECADES", "HIGHEST", "ink", "write_picture"]

HIGHEST, DECADES = -1, 5
"""The logarithmic scale: full ink from 0.1 on, none five decades below."""


def ink(weights: Tensor) -> Tensor:
    """Where weights lie on the logarithmic scale, 0 … 1."""
    return ((weights.log10() - HIGHEST) / DECADES + 1).clamp(0, 1).nan_to_num(0)


def write_picture(path: Path, opacity: Tensor) -> None:
    """Write a picture as PNG: one colour, which the page's style replaces, with 256 opacities.

    Args:
        path: the file.
        opacity: (rows, columns), 0 … 1.
    """
    levels = (opacity * 255).round().numpy().astype(np.uint8)
    image = Image.frombytes("P", levels.shape[::-1], levels.tobytes())
    image.putpalette([179, 67, 30] * 256)
    image.save(path, transparency=bytes(range(256)), optimize=True)
