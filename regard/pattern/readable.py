"""What takes readouts, and the common ones by their names.

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
    """The weights of an attention as far as readouts go, wherever they lie."""

    @abstractmethod
    def read(self, *readouts: Readout[Any, Any]) -> tuple[Any, ...]:
        """Take several readouts in one pass."""

    @abstractmethod
    def crop(
        self, queries: tuple[int, int] | None = None, keys: tuple[int, int] | None = None
    ) -> Readable:
        """Keep a range of queries and a range of keys: the first, and one past the last."""

    def topk(self, k: int) -> Top:
        """Find the k strongest keys of each query: weights and positions ``(..., L, k)``."""
        return self.read(TopK(k))[0]

    def received(
        self,
        reduce: Literal["sum", "mean", "max"] = "sum",
        *,
        queries: int | slice | Sequence[int] | None = None,
        grouped: bool = False,
    ) -> Float[Tensor, "*b S"]:
        """Sum what each key receives over the queries; see `readouts.Received`."""
        return self._tensor(Received(reduce, queries, grouped))

    def max(self) -> Float[Tensor, "*b L"]:
        """Find the largest weight of each row."""
        return self._tensor(Max())

    def max_score(self) -> Float[Tensor, "*b L"]:
        """Find the largest scaled score of each row; see `readouts.MaxScore`."""
        return self._tensor(MaxScore())

    def entropy(self) -> Float[Tensor, "*b L"]:
        """Compute the entropy of each row, in nats."""
        return self._tensor(Entropy())

    def distance(self) -> Float[Tensor, "*b L"]:
        """Average the distance from each query to what it attends to, in tokens."""
        return self._tensor(Distance())

    def offsets(self, n: int) -> Float[Tensor, "*b n"]:
        """Average the weight by how far back it lies, 0 … n−1 tokens; see `readouts.Offsets`."""
        return self._tensor(Offsets(n))

    def mass(self, keys: int | slice | Sequence[int] | Tensor) -> Float[Tensor, "*b L"]:
        """Compute the share of each row on a set of keys: an index, slice, indices or booleans."""
        return self._tensor(Mass(keys))

    def spans(self, labels: Sequence[int] | Int[Tensor, "S"]) -> Float[Tensor, "*b L n"]:
        """Compute the share of each row on each of many spans; see `readouts.Spans`."""
        return self._tensor(Spans(labels))

    def lag(self, d: int) -> LagWeights:
        """Find the weight of each row exactly d tokens back; see `readouts.Lag`."""
        result: LagWeights = self.read(Lag(d))[0]
        return result

    def blocks(
        self, rows: int, columns: int, reduce: Literal["mean", "sum", "max"] = "mean"
    ) -> Float[Tensor, "*b r c"]:
        """Reduce each block of so many rows and columns to a number; see `readouts.Blocks`."""
        return self._tensor(Blocks(rows, columns, reduce))

    def image(
        self,
        rows: int = 512,
        columns: int = 512,
        *,
        queries: tuple[int, int] | None = None,
        keys: tuple[int, int] | None = None,
    ) -> Float[Tensor, "*b r c"]:
        """Average the pattern, or a part of it, down to a picture; see `readouts.Image`.

        Args:
            rows: height of the picture, at most the number of queries shown.
            columns: its width, at most the number of keys shown.
            queries: the first and one past the last that are shown; None is all.
            keys: likewise.

        Raises:
            ValueError: for a range that is empty or not within the pattern.
        """
        shown = self if queries is None and keys is None else self.crop(queries, keys)
        return shown._tensor(Image(rows, columns))  # noqa: SLF001 - its own class

    def _tensor(self, readout: Readout[Any, Tensor]) -> Tensor:
        result: Tensor = self.read(readout)[0]
        return result
