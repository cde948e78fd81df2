"""The weight matrix of attention, lazy, and its readouts."""

from regard.pattern._pattern import Pattern
from regard.pattern.readouts import (
    Distance,
    Entropy,
    Image,
    Mass,
    Max,
    MaxScore,
    Offsets,
    Received,
    Top,
    TopK,
)

__all__ = [
    "Distance",
    "Entropy",
    "Image",
    "Mass",
    "Max",
    "MaxScore",
    "Offsets",
    "Pattern",
    "Received",
    "Top",
    "TopK",
]
