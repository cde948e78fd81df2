"""Masks: the keys that each query may see, as intervals combined with ``&``."""

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
