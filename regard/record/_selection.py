"""The part of a run that is kept: which layers, heads, rows and calls, and where.

Axes: B batch, H query heads, G key/value heads, L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard._arguments import check_indices, check_whole, chosen, contains, from_start, has_negative
from regard._tensors import upload, version
from regard.inputs import Problem


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The part of a run that is kept; None is all of it."""

    layers: tuple[int, ...] | slice | None = None
    heads: tuple[int, ...] | slice | None = None
    rows: tuple[int, ...] | slice | None = None
    every: int = 1
    """Of the calls of a layer, one in so many is kept, from the first on."""
    offload: bool = False

    def has_layer(self, layer: int) -> bool:
        """Tell whether a layer is kept."""
        return contains(self.layers, layer)

    def head_numbers(self, heads: int) -> tuple[int, ...]:
        """Numbers of the heads that are kept, of `heads`.

        Raises:
            IndexError: for a head that the call does not have.
        """
        return chosen(self.heads, heads, "heads")

    def row_numbers(self, first: int, rows: int, call: int) -> list[int]:
        """Numbers of the rows that are kept of a call, with ``first`` rows before it.

        Those given by a number from 0 are counted over all calls, those by a negative one from the
        end of each.

        Args:
            first: how many rows the pattern had before.
            rows: how many the call has.
            call: how many calls the layer made before.
        """
        if call % self.every:
            return []
        everything = range(first, first + rows)
        if self.rows is None:
            return list(everything)
        if isinstance(self.rows, slice):
            start, stop, step = self.rows.start, self.rows.stop, self.rows.step or 1
            start = from_start(0 if start is None else start, everything.stop)
            stop = everything.stop if stop is None else from_start(stop, everything.stop)
            return [row for row in everything if row in range(start, stop, step)]
        wanted = {from_start(row, everything.stop) for row in self.rows}
        return [row for row in everything if row in wanted]

    def keep(self, tensor: Tensor) -> Tensor:
        """Copy a tensor out of a larger one, and to main memory with ``offload``.

        One that was written to before is copied as well: it may be a buffer that the next step
        overwrites, such as a cache of fixed size that the prompt fills.
        """
        if self.offload:
            return tensor.to("cpu", copy=True)
        if tensor.is_inference() or version(tensor):  # in inference mode no one counts
            return tensor.clone()
        own = tensor.numel() * tensor.itemsize >= tensor.untyped_storage().nbytes()
        return tensor if own else tensor.clone(memory_format=torch.contiguous_format)


def selection_of(layers: Any, heads: Any, rows: Any, every: Any, offload: Any) -> Selection:
    """Check the arguments of `record`.

    Raises:
        TypeError: for anything but an integer, a slice or integers.
        ValueError: for a negative layer or step, or a place other than "cpu".
    """
    if every is not None:
        check_whole(every, "every")
        if every < 1:
            raise ValueError(f"every must be at least 1, but is {every}")
    if offload not in (None, "cpu"):
        raise ValueError(f"offload may be 'cpu' or None, but is {offload!r}")
    selection = Selection(
        layers=check_indices("layers", layers),
        heads=check_indices("heads", heads),
        rows=check_indices("rows", rows),
        every=1 if every is None else every,
        offload=offload == "cpu",
    )
    if has_negative(selection.layers):
        raise ValueError(
            f"layers={layers!r} counts from the end, which is not known while a model runs; count "
            "from 0"
        )
    return selection


def select_heads(problem: Problem, numbers: tuple[int, ...]) -> Problem:
    """Keep some heads of a problem, and the key heads that they need.

    Where those have unequal numbers of query heads left, each of these gets a key head of its own.
    """
    heads, groups = problem.heads[1], problem.key.shape[1]
    if numbers == tuple(range(heads)):
        return problem

    def index_of(some: Sequence[int]) -> Tensor:
        index = torch.tensor(some, dtype=torch.int64, device="cpu")
        return upload(index, problem.query.device)

    index = index_of(numbers)

    def pick(tensor: Tensor) -> Tensor:
        return tensor if tensor.shape[1] == 1 else tensor[:, index]

    def pick_if_any(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else pick(tensor)

    shared = [number * groups // heads for number in numbers]
    apart = list(dict.fromkeys(shared))
    if shared == [group for group in apart for _ in range(len(shared) // len(apart))]:
        shared = apart
    return replace(
        problem,
        leading=(*problem.leading[:-1], len(numbers)),
        query=problem.query[:, index],
        key=problem.key[:, index_of(shared)],
        rows=problem.rows.mapped((problem.heads[0], len(numbers)), pick),
        alibi=pick_if_any(problem.alibi),
        sink=pick_if_any(problem.sink),
    )
