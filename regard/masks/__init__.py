"""Which keys each query may see: the masks by name, and their rows for given shapes."""

from regard.masks._mask import Mask, causal, dense, documents, intervals, padding, prefix, window
from regard.masks.hiding import hide

__all__ = [
    "Mask",
    "causal",
    "dense",
    "documents",
    "hide",
    "intervals",
    "padding",
    "prefix",
    "window",
]
