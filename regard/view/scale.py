"""The default scale of weights in pictures."""

from __future__ import annotations

from typing import Literal

__all__ = ["FEW", "ScaleKind", "usual"]

ScaleKind = Literal["log", "linear"]

FEW = 64
"""Up to so many keys the scale is linear: a uniform weight is then at least about 0.01, and a
logarithmic scale would hardly distinguish 0.1 from 0.6."""


def usual(keys: int) -> ScaleKind:
    """Return the scale of a picture by the number of keys that it shows."""
    return "linear" if keys <= FEW else "log"
