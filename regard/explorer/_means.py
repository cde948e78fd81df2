"""The mean pattern of several heads: exact, from their weights, in bands that can be called off.

Axes: L queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from regard.explorer._windows import averaged
from regard.explorer._work import ReplacedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from threading import Event

    from torch import Tensor

    from regard.pattern import Pattern

_BAND = 2**22  # weights of a head that are held at a time


@dataclass(frozen=True)
class Mean:
    """The mean of patterns ``(L, S)``: a pattern itself, whose rows sum to 1."""

    patterns: Sequence[Pattern]

    def map(
        self, queries: tuple[int, int], keys: tuple[int, int], block: int, off: Event
    ) -> Tensor:
        """Average a window down to cells: the mean of the heads' windows, see `averaged`.

        Raises:
            ReplacedError: the event was set meanwhile.
        """
        return self._mean(lambda pattern: averaged(pattern, queries, keys, block, off), off)

    def row(self, query: int, off: Event | None = None) -> Tensor:
        """What a query attends to, ``(S,)``."""
        return self._mean(lambda pattern: pattern[query], off)

    def column(self, key: int, off: Event | None = None) -> Tensor:
        """What attends to a key, ``(L,)``."""
        return self._mean(lambda pattern: pattern[:, key], off)

    def readouts(self, off: Event | None = None) -> Tensor:
        """Entropy, distance, weight on the first key and weight received, ``(4, L)``.

        They are those of the mean pattern. Its entropy is no mean of entropies, so all rows of it
        are computed.

        Raises:
            ReplacedError: the event was set meanwhile.
        """
        length, keys = self.patterns[0].shape
        along = []
        received = torch.zeros(keys, dtype=torch.float64, device=self.patterns[0].device)
        distance = self._mean(lambda pattern: pattern.distance(), off)
        for first, behind in _bands(0, length, max(1, _BAND // max(keys, 1))):
            weights = self._mean(lambda pattern, b=(first, behind): pattern[slice(*b)], off)
            received += weights.sum(0)
            along.append(
                torch.stack([-torch.special.xlogy(weights, weights).sum(-1), weights[:, 0]])
            )
        entropy, first_key = torch.cat(along, dim=-1)
        return torch.stack([entropy, distance, first_key, received])

    def cell(self, query: int, key: int) -> dict[str, Any]:
        """One weight; a mean of softmaxes has no score of its own."""
        visible = any(
            bool(
                pattern.parts()[0].rows.visible(slice(query, query + 1), slice(key, key + 1)).any()
            )
            for pattern in self.patterns
        )
        weight = self._mean(lambda pattern: pattern[query, key], None)
        return {"weight": float(weight), "score": None, "logsumexp": None, "visible": visible}

    def _mean(self, take: Any, off: Event | None) -> Tensor:
        total = None
        for pattern in self.patterns:
            if off is not None and off.is_set():
                raise ReplacedError("replaced")
            part = take(pattern).double()
            total = part if total is None else total.add_(part)
        assert total is not None, "a layer has heads"
        return total.div_(len(self.patterns))


def _bands(first: int, behind: int, height: int) -> Iterator[tuple[int, int]]:
    for start in range(first, behind, height):
        yield start, min(start + height, behind)
