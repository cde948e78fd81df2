"""Which keys each query may see: the masks by name, and their rows for given shapes."""

from regard.mask._mask import Mask, causal, dense, documents, intervals, padding, prefix, window

__all__ = ["Mask", "causal", "dense", "documents", "intervals", "padding", "prefix", "window"]
