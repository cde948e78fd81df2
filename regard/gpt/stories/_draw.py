"""Random choices, the same on every machine: based only on `random.Random(seed).random()`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Draws from lists with one sequence of random numbers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, stop: int) -> int:
        """Return a whole number in [0, stop)."""
        return int(self._random() * stop)

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self._random() < probability

    def one(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return all items in a random order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in items]
