"""Which scale of weights a picture has where nobody chose one."""

from __future__ import annotations

from typing import Literal

__all__ = ["FEW", "ScaleKind", "usual"]

ScaleKind = Literal["log", "linear"]

FEW = 64
"""Up to so many keys the scale is linear: an even share is then at least a hundredth or so, and a
logarithmic scale would hardly tell 0.1 from 0.6."""


def usual(keys: int) -> ScaleKind:
    """The scale of a picture by the number of keys that it shows."""
    return "linear" if keys <= FEW else "log"
