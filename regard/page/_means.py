"""The mean pattern of several heads, read so that it can be cancelled between them.

Axes: L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, overload

from torch import Tensor

from regard.page._bands import readouts_along
from regard.page._windows import Window, average_window
from regard.page._work import require_wanted
from regard.pattern import MeanPattern, Pattern


@dataclass(frozen=True)
class Mean:
    """The mean of patterns ``(L, S)``."""

    patterns: Sequence[Pattern]

    def map(self, window: Window, cancelled: Event) -> Tensor:
        """Average a window down to cells, see `average_window`."""
        return average_window(self._until(cancelled), window, cancelled)

    def row(self, query: int, cancelled: Event | None = None) -> Tensor:
        """What a query attends to, ``(S,)``."""
        weights: Tensor = self._until(cancelled)[query]
        return weights

    def column(self, key: int, cancelled: Event | None = None) -> Tensor:
        """What attends to a key, ``(L,)``."""
        weights: Tensor = self._until(cancelled)[:, key]
        return weights

    def readouts(
        self, cancelled: Event | None = None, progress: Callable[[int], None] | None = None
    ) -> Tensor:
        """Entropy, distance, weight on the first key and weight received, ``(4, L)``.

        They are those of the mean pattern. Its entropy is not the mean of the heads' entropies, so
        all its rows are computed; `progress` is called with how many of them are.
        """
        return readouts_along(self._until(cancelled), cancelled, progress)

    def cell(self, query: int, key: int, cancelled: Event | None = None) -> dict[str, Any]:
        """One weight; a mean of softmaxes has no score of its own."""
        mean = self._until(cancelled)
        weight, visible = float(mean[query, key]), mean.sees(query, key)
        return {"weight": weight, "score": None, "logsumexp": None, "visible": visible}

    def _until(self, cancelled: Event | None) -> MeanPattern:
        return MeanPattern(_UntilCancelled(self.patterns, cancelled))


class _UntilCancelled(Sequence[Pattern]):
    """Patterns that are gone through no further once it is cancelled."""

    def __init__(self, patterns: Sequence[Pattern], cancelled: Event | None) -> None:
        self._patterns = patterns
        self._cancelled = cancelled

    def __len__(self) -> int:
        return len(self._patterns)

    @overload
    def __getitem__(self, index: int) -> Pattern: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Pattern]: ...
    def __getitem__(self, index: int | slice) -> Pattern | Sequence[Pattern]:
        return self._patterns[index]

    def __iter__(self) -> Iterator[Pattern]:
        for pattern in self._patterns:
            require_wanted(self._cancelled)
            yield pattern
