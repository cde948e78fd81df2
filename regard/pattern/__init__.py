"""The weight matrix of attention, lazy, and its readouts."""

from regard.pattern._pattern import Pattern
from regard.pattern.mean import MeanPattern
from regard.pattern.readouts import (
    Blocks,
    Distance,
    Entropy,
    Image,
    Lag,
    LagWeights,
    Mass,
    Max,
    MaxScore,
    Offsets,
    Received,
    Spans,
    Top,
    TopK,
)

__all__ = [
    "Blocks",
    "Distance",
    "Entropy",
    "Image",
    "Lag",
    "LagWeights",
    "Mass",
    "Max",
    "MaxScore",
    "MeanPattern",
    "Offsets",
    "Pattern",
    "Received",
    "Spans",
    "Top",
    "TopK",
]
