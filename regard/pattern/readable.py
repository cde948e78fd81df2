"""The base class of patterns: readouts, and a method for each common one.

Axes: B batch, H query heads, L queries, S keys. Every leading dimension is optional.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from regard._shapes import Float, Int
from regard.pattern.readouts import (
    Blocks,
    Distance,
    Entropy,
    Image,
    Lag,
    LagWeights,
    Mass,
    Max,
    MaxScore,
    Offsets,
    Readout,
    Received,
    Spans,
    Top,
    TopK,
)

__all__ = ["Readable"]


class Readable(ABC):
    """The weights of an attention, of which readouts can be taken."""

    @abstractmethod
    def read(self, *readouts: Readout[Any, Any]) -> tuple[Any, ...]:
        """Take several readouts in one pass; return their results in order."""

    @abstractmethod
    def crop(
        self, queries: tuple[int, int] | None = None, keys: tuple[int, int] | None = None
    ) -> Readable:
        """Restrict it to a range of queries and a range of keys, each as start and stop."""

    def topk(self, k: int) -> Top:
        """Find the keys of largest weight: weights and positions ``(..., L, min(k, S))``."""
        return self.read(TopK(k))[0]

    def received(
        self,
        reduce: Literal["sum", "mean", "max"] = "sum",
        *,
        queries: int | slice | Sequence[int] | None = None,
        grouped: bool = False,
    ) -> Float[Tensor, "*b S"]:
        """Sum the weight on each key over the queries, ``(..., S)``; see `readouts.Received`."""
        return self._tensor(Received(reduce, queries, grouped))

    def max(self) -> Float[Tensor, "*b L"]:
        """Find the largest weight of each row, ``(..., L)``."""
        return self._tensor(Max())

    def max_score(self) -> Float[Tensor, "*b L"]:
        """Find the largest scaled score of each row, ``(..., L)``; see `readouts.MaxScore`."""
        return self._tensor(MaxScore())

    def entropy(self) -> Float[Tensor, "*b L"]:
        """Compute the entropy of each row in nats, ``(..., L)``."""
        return self._tensor(Entropy())

    def distance(self) -> Float[Tensor, "*b L"]:
        """Compute the mean distance from each query to its keys in tokens, ``(..., L)``."""
        return self._tensor(Distance())

    def offsets(self, n: int) -> Float[Tensor, "*b n"]:
        """Average the weight at each distance 0 … n−1, ``(..., n)``; see `readouts.Offsets`."""
        return self._tensor(Offsets(n))

    def mass(self, keys: int | slice | Sequence[int] | Tensor) -> Float[Tensor, "*b L"]:
        """Compute the weight of each row on a set of keys, ``(..., L)``; see `readouts.Mass`."""
        return self._tensor(Mass(keys))

    def spans(self, labels: Sequence[int] | Int[Tensor, "S"]) -> Float[Tensor, "*b L n"]:
        """Compute the weight of each row on each span, ``(..., L, n)``; see `readouts.Spans`."""
        return self._tensor(Spans(labels))

    def lag(self, d: int) -> LagWeights:
        """Find the weight of each row exactly d tokens back, ``(..., L)``; see `readouts.Lag`."""
        result: LagWeights = self.read(Lag(d))[0]
        return result

    def blocks(
        self, rows: int, columns: int, reduce: Literal["mean", "sum", "max"] = "mean"
    ) -> Float[Tensor, "*b r c"]:
        """Reduce each block of weights, ``(..., ⌈L/rows⌉, ⌈S/columns⌉)``; see `readouts.Blocks`."""
        return self._tensor(Blocks(rows, columns, reduce))

    def image(
        self,
        rows: int = 512,
        columns: int = 512,
        *,
        queries: tuple[int, int] | None = None,
        keys: tuple[int, int] | None = None,
    ) -> Float[Tensor, "*b r c"]:
        """Down-sample the pattern, or a part of it, to an image; see `readouts.Image`.

        Args:
            rows: height of the image, at most the number of queries.
            columns: width of the image, at most the number of keys.
            queries: start and stop of the queries; None for all.
            keys: start and stop of the keys; None for all.

        Raises:
            ValueError: for a range that is empty or not within the pattern.
        """
        shown = self if queries is None and keys is None else self.crop(queries, keys)
        return shown._tensor(Image(rows, columns))  # noqa: SLF001 - its own class

    def _tensor(self, readout: Readout[Any, Tensor]) -> Tensor:
        result: Tensor = self.read(readout)[0]
        return result
