"""Readouts of one pattern, taken at each call, whose queries and keys are let go.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.inputs import Problem
from regard.pattern.readout import Readout
from regard.record._call_reader import CallReader
from regard.record._layer_builder import LayerBuilder, LayerCall
from regard.record._selection import Selection
from regard.record.accumulator import Accumulator
from regard.record.names import Kind

# Of so many keys a checksum is kept each: sequences that changed places differ in their last words.
_COMPARED = 16

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By their size in bytes."""


class ReadingsBuilder(LayerBuilder):
    """Reads the calls of one pattern.

    Args:
        call, kind, selection: as for every `LayerBuilder`.
        readouts: what to read of each.
        reader: takes them.
    """

    def __init__(
        self,
        call: LayerCall,
        kind: Kind,
        *,
        selection: Selection,
        readouts: Sequence[Readout[Any, Any]],
        reader: CallReader,
    ) -> None:
        self.number = call.number
        self.leading: tuple[int, ...] = ()
        self._checksums: deque[int] = deque(maxlen=_COMPARED)
        self._accumulator = Accumulator(readouts, take=reader.take)
        super().__init__(call, kind, selection=selection)

    @property
    def keys(self) -> int:
        """How many keys there were so far."""
        return self._keys

    def results(self) -> tuple[Any, ...]:
        """Give what was read so far; there must be rows."""
        return self._accumulator.results(self._keys)

    def _begin(self, key: Float[Tensor, "B G S D"]) -> None:
        self._first = _checksums(key[..., :1, :])
        self._append(key)

    def _append(self, key: Float[Tensor, "B G s D"]) -> None:
        self._checksums.extend(_checksums(key))

    def _begins_with(self, key: Float[Tensor, "B G s D"]) -> bool:
        return _checksums(key) == self._first

    def _ends_with(self, key: Float[Tensor, "B G s D"]) -> bool:
        """Tell whether the last keys have the checksums of the last ones of this pattern."""
        return self._are_last(_checksums(key))

    def _extend_keys(self, key: Float[Tensor, "B G s D"], past: int) -> bool:
        further = key.shape[-2] - past
        if past + further <= 0 or further > _COMPARED:
            return super()._extend_keys(key, past)
        # The sums of both at once, which a step of a generation needs.
        sums = _checksums(key, _COMPARED + further)
        if not self._are_last(sums[: len(sums) - further]):
            return False
        self._checksums.extend(sums[len(sums) - further :])
        return True

    def _are_last(self, sums: list[int]) -> bool:
        count = min(len(sums), len(self._checksums))
        return sums[len(sums) - count :] == list(self._checksums)[len(self._checksums) - count :]

    def _take(self, problem: Problem, shift: int, width: int) -> None:
        if problem.queries == 0:
            return
        if width < problem.keys:
            problem = problem.crop(slice(0, problem.queries), slice(0, width))
        self.leading = self.leading or problem.leading
        self._accumulator.add(problem, shift)


def _checksums(key: Float[Tensor, "B G s D"], count: int = _COMPARED) -> list[int]:
    """Make a number of the bits of each of the last keys, of all sequences and heads."""
    bits = key[..., -count:, :].view(_INTEGERS[key.itemsize])
    batch, groups, _, dim = key.shape
    sums: list[int] = (bits * _factors((batch, groups, 1, dim), key.device)).sum((0, 1, 3)).tolist()
    return sums


@lru_cache(maxsize=4)
def _factors(shape: tuple[int, ...], device: torch.device) -> Int[Tensor, "B G 1 D"]:
    """Make odd numbers that have no order, by wrapping products and shifts, of consecutive ones."""
    numbers = torch.arange(1, prod(shape) + 1, device=device).reshape(shape)
    numbers = numbers * -7046029254386353131
    numbers = (numbers ^ (numbers >> 30)) * -4658895280553007687
    return (numbers ^ (numbers >> 27)) | 1
