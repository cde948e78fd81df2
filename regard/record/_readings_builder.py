"""Readouts of one pattern, taken at each call, whose queries and keys are let go.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.pattern import Pattern
from regard.pattern.readout import Readout
from regard.problem import Problem
from regard.record._accumulator import Accumulator
from regard.record._layer_builder import LayerBuilder
from regard.record._selection import Selection
from regard.record.names import Kind

# Of so many keys a checksum is kept each: sequences that changed places differ in their last words.
_COMPARED = 16

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By their size in bytes."""


class ReadingsBuilder(LayerBuilder):
    """Reads the calls of one pattern.

    Args:
        problem, kind, number, selection: as for every `LayerBuilder`.
        readouts: what to read of each.
    """

    def __init__(
        self,
        problem: Problem,
        kind: Kind,
        number: int,
        *,
        selection: Selection,
        readouts: Sequence[Readout[Any, Any]],
    ) -> None:
        self.number = number
        self.leading: tuple[int, ...] = ()
        self._checksums: deque[int] = deque(maxlen=_COMPARED)
        self._accumulator = Accumulator(readouts)
        super().__init__(problem, kind, number, selection=selection)

    @property
    def keys(self) -> int:
        """How many keys there were so far."""
        return self._keys

    def results(self) -> tuple[Any, ...]:
        """Give what was read so far; there must be rows."""
        return self._accumulator.results()

    def _begin(self, key: Float[Tensor, "B G S D"]) -> None:
        self._append(key)

    def _append(self, key: Float[Tensor, "B G s D"]) -> None:
        self._checksums.extend(_checksums(key))

    def _ends_with(self, key: Float[Tensor, "B G s D"]) -> bool:
        """Tell whether the last keys have the checksums of the last ones of this pattern."""
        theirs = _checksums(key)
        count = min(len(theirs), len(self._checksums))
        return (
            theirs[len(theirs) - count :] == list(self._checksums)[len(self._checksums) - count :]
        )

    def _take(self, problem: Problem, shift: int, width: int) -> None:
        if problem.queries == 0:
            return
        problem = problem.crop(slice(0, problem.queries), slice(0, width))
        self.leading = self.leading or problem.leading
        self._accumulator.add(Pattern.of(problem, None), shift)


def _checksums(key: Float[Tensor, "B G s D"]) -> list[int]:
    """Make a number of the bits of each of the last few keys, of all sequences and heads."""
    last = key[..., -_COMPARED:, :].movedim(-2, 0).flatten(1).contiguous()  # (s, B·G·D)
    bits = last.view(_INTEGERS[last.itemsize]).long()
    sums: list[int] = (bits * _factors(bits.shape[-1], bits.device)).sum(dim=-1).tolist()
    return sums


@lru_cache(maxsize=4)
def _factors(count: int, device: torch.device) -> Tensor:
    """Make odd numbers that have no order, by wrapping products and shifts, of consecutive ones."""
    numbers = torch.arange(1, count + 1, device=device)
    numbers = numbers * -7046029254386353131
    numbers = (numbers ^ (numbers >> 30)) * -4658895280553007687
    return (numbers ^ (numbers >> 27)) | 1
