"""What can be read of a pattern in one pass over it: `pattern.read(TopK(4), Entropy())`.

To write one, derive from `Readout`; `regard.pattern.readout` says what its methods do.
"""

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
    Readout,
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
    "Offsets",
    "Readout",
    "Received",
    "Spans",
    "Top",
    "TopK",
]
