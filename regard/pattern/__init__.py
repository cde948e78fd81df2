"""The weight matrix of attention, lazy, and what is read of it."""

from regard.pattern._pattern import Pattern
from regard.pattern.mean import MeanPattern

__all__ = ["MeanPattern", "Pattern"]
