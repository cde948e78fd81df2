"""Choices that are the same on every machine: made of `random.Random(seed).random()` alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Draws from lists, by one sequence of random numbers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, stop: int) -> int:
        """Return a whole number in [0, stop)."""
        return int(self._random() * stop)

    def chance(self, probability: float) -> bool:
        """True as often as `probability` says."""
        return self._random() < probability

    def one(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return all items in a random order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in items]
