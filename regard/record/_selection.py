"""The part of a run to keep: its layers, heads, rows and calls, and the device.

Axes: B batch, H query heads, G key/value heads, L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard._arguments import check_indices, check_whole, chosen, contains, from_start, has_negative
from regard._tensors import upload, version
from regard.errors import RecordError
from regard.inputs import Problem


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The part of a run to keep; None is all of it."""

    layers: tuple[int, ...] | slice | None = None
    heads: tuple[int, ...] | slice | None = None
    rows: tuple[int, ...] | slice | None = None
    every: int = 1
    """Keep one of so many calls of each layer, starting with the first."""
    offload: bool = False
    keep_of_values: tuple[Callable[[str, Tensor], Mapping[str, Tensor]], ...] = ()
    """What to keep of the values beside; see `regard.record._kept`."""

    def has_layer(self, layer: int) -> bool:
        """Return whether a layer is kept."""
        return contains(self.layers, layer)

    def head_numbers(self, heads: int) -> tuple[int, ...]:
        """Return the indices of the kept heads, out of so many.

        Raises:
            IndexError: for a head that does not exist.
        """
        return chosen(self.heads, heads, "heads")

    def row_numbers(self, first: int, rows: int, call: int) -> list[int]:
        """Return the indices of the kept rows of a call.

        Indices from 0 count over all calls, negative ones from the end of each call.

        Args:
            first: number of earlier rows of the pattern.
            rows: number of rows of the call.
            call: number of earlier calls of the layer.
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
        """Copy a tensor to main memory with ``offload``, or if it is a view of a larger one.

        A tensor that was written to before is copied as well: it may be a buffer that the next
        step overwrites, such as a cache of fixed size.
        """
        if self.offload:
            return tensor.to("cpu", copy=True)
        if tensor.is_inference() or version(tensor):  # inference mode has no version counter
            return tensor.clone()
        own = tensor.numel() * tensor.itemsize >= tensor.untyped_storage().nbytes()
        return tensor if own else tensor.clone(memory_format=torch.contiguous_format)


def selection_of(
    layers: Any, heads: Any, rows: Any, *, every: Any = 1, offload: Any = None, keep: Any = ()
) -> Selection:
    """Check the arguments of `record` and `read_while_running`.

    Raises:
        TypeError: for anything but an integer, a slice or integers.
        ValueError: for a negative layer or step, or a device other than "cpu".
    """
    check_whole(every, "every")
    if every < 1:
        raise ValueError(f"every must be at least 1, but is {every}")
    if offload not in (None, "cpu"):
        raise ValueError(f"offload may be 'cpu' or None, but is {offload!r}")
    selection = Selection(
        layers=check_indices("layers", layers),
        heads=check_indices("heads", heads),
        rows=check_indices("rows", rows),
        every=every,
        offload=offload == "cpu",
        keep_of_values=keep,
    )
    if has_negative(selection.layers):
        raise ValueError(
            f"layers={layers!r} counts from the end, which is not known while a model runs; count "
            "from 0"
        )
    return selection


def require_as_seen(
    tensor: Tensor,
    writes: int,
    then: str = "recorded, so their weights are lost; record with offload='cpu', which copies them",
) -> None:
    """Check that a tensor of the model still holds its numbers.

    Args:
        tensor: the tensor, which is not an inference tensor.
        writes: its version when it was seen.
        then: how the error goes on after "after they were".

    Raises:
        RecordError: if it was written to or freed since.
    """
    freed = tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0
    if freed or version(tensor) != writes:
        what = "freed" if freed else "written to"
        raise RecordError(
            f"the model's tensors of shape {tuple(tensor.shape)} were {what} after they were {then}"
        )


def select_heads(problem: Problem, numbers: tuple[int, ...]) -> Problem:
    """Keep some query heads of a problem, and the key heads that they use.

    If the kept query heads are not evenly distributed over key heads, key heads are repeated.
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

    shared = key_heads(numbers, heads, groups)
    return replace(
        problem,
        leading=(*problem.leading[:-1], len(numbers)),
        query=problem.query[:, index],
        key=problem.key[:, index_of(shared)],
        rows=problem.rows.mapped((problem.heads[0], len(numbers)), pick),
        alibi=pick_if_any(problem.alibi),
        sink=pick_if_any(problem.sink),
    )


def key_heads(numbers: Sequence[int], heads: int, groups: int) -> list[int]:
    """Return the key heads that some query heads use.

    Each is named once if the query heads are evenly distributed over them, else once a query head.

    >>> key_heads((0, 1, 4), heads=6, groups=3), key_heads((0, 1, 4, 5), heads=6, groups=3)
    ([0, 0, 2], [0, 2])
    """
    shared = [number * groups // heads for number in numbers]
    apart = list(dict.fromkeys(shared))
    is_even = shared == [group for group in apart for _ in range(len(shared) // len(apart))]
    return apart if is_even else shared
