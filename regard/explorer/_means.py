"""The mean pattern of several heads: exact, from their weights, in bands that can be cancelled.

Axes: L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import torch
from torch import Tensor

from regard.explorer._bands import bands, rows
from regard.explorer._windows import Window, average_window
from regard.explorer._work import require_wanted
from regard.pattern import Pattern

_BAND = 2**22  # weights of a head that are held at a time


@dataclass(frozen=True)
class Mean:
    """The mean of patterns ``(L, S)``: a pattern itself, whose rows sum to 1."""

    patterns: Sequence[Pattern]

    def map(self, window: Window, cancelled: Event) -> Tensor:
        """Average a window down to cells: the mean of the heads' windows, see `average_window`."""
        cells = self._mean(lambda pattern: average_window(pattern, window, cancelled), cancelled)
        return cells.to(self.patterns[0].dtype)

    def row(self, query: int, cancelled: Event | None = None) -> Tensor:
        """What a query attends to, ``(S,)``."""
        return self._mean(lambda pattern: pattern[query], cancelled)

    def column(self, key: int, cancelled: Event | None = None) -> Tensor:
        """What attends to a key, ``(L,)``."""
        return self._mean(lambda pattern: pattern[:, key], cancelled)

    def readouts(self, cancelled: Event | None = None) -> Tensor:
        """Entropy, distance, weight on the first key and weight received, ``(4, L)``.

        They are those of the mean pattern. Its entropy is not the mean of the heads' entropies, so
        all its rows are computed.
        """
        of_rows = []
        received = torch.zeros(
            self.patterns[0].shape[-1], dtype=torch.float64, device=self.patterns[0].device
        )
        for first, stop in bands(self.patterns[0], _BAND):
            band = Mean([rows(pattern, first, stop) for pattern in self.patterns])
            distance = band._mean(lambda pattern: pattern.distance(), cancelled)
            low, high = band._span()
            weights = band._mean(lambda pattern, k=slice(low, high): pattern[:, k], cancelled)
            received[low:high] += weights.sum(0)
            first_key = weights[:, 0] if low == 0 and high > 0 else torch.zeros_like(distance)
            entropy = -torch.special.xlogy(weights, weights).sum(-1)
            of_rows.append(torch.stack([entropy, distance, first_key]))
        return torch.cat([torch.cat(of_rows, dim=-1), received[None]])

    def _span(self) -> tuple[int, int]:
        """The smallest range of keys that holds all that any of the heads sees."""
        spans = [pattern.visible_keys() for pattern in self.patterns]
        seen = [span for span in spans if span.start < span.stop] or [slice(0, 0)]
        return min(span.start for span in seen), max(span.stop for span in seen)

    def cell(self, query: int, key: int, cancelled: Event | None = None) -> dict[str, Any]:
        """One weight; a mean of softmaxes has no score of its own."""
        visible = any(pattern.sees(query, key) for pattern in self.patterns)
        weight = self._mean(lambda pattern: pattern[query, key], cancelled)
        return {"weight": float(weight), "score": None, "logsumexp": None, "visible": visible}

    def _mean(self, take: Any, cancelled: Event | None) -> Tensor:
        total = None
        for pattern in self.patterns:
            require_wanted(cancelled)
            part = take(pattern)
            total = part.double() if total is None else total.add_(part)
        assert total is not None, "a layer has heads"
        return total.div_(len(self.patterns))
