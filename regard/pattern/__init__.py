"""Attention weights as a lazy matrix, and the readouts of it."""

from regard.pattern._pattern import Pattern
from regard.pattern.mean import MeanPattern

__all__ = ["MeanPattern", "Pattern"]
