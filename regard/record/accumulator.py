"""Readouts of a pattern that comes call by call: rows append, sums over queries add up.

A call is a tile of the whole pattern: its own queries against the keys that it had. Tiles are
merged as they are where a sequence lies on several ranks; but a call has whole rows, so that what
is read of a row is final.

Axes: N heads numbered through, L queries, S keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.inputs import Problem
from regard.pattern import Pattern
from regard.pattern.internal_readouts import Weights
from regard.pattern.ordered import add_rows
from regard.pattern.reading import require_numbers, sizes_of, take
from regard.pattern.readout import Readout, Sizes, Tile
from regard.pattern.received import Received

# Rows of so many calls are put together at a time, since a tensor for each of a long generation's
# steps would take more memory than the numbers in it.
_TOGETHER = 64
# Weights of rows that are read together, where sums need them.
_WEIGHTS = 2**20


def missing_for_calls(readout: Readout[Any, Any]) -> str | None:
    """Say why a readout can't be taken call by call; None if it can."""
    if readout.depends_on_length:
        return "depends on how long the text becomes, which is not known before the end"
    if not readout.is_mergeable:
        return f"has no {type(readout).__name__}.merge, which makes one result of two calls'"
    return None


def allows_rows_together(readout: Readout[Any, Any]) -> bool:
    """Whether rows of several calls, read together, give the bits of each call read by itself.

    Kernels compute a row by itself. A maximum is the same in any order, and sums of weights can be
    added up in that of the calls.
    """
    if not readout.has_kernel:
        return False
    return "query" in readout.axes or readout.reduction == "max" or _sums_weights(readout)


def _sums_weights(readout: Readout[Any, Any]) -> bool:
    return type(readout) is Received and readout.reduce == "sum" and readout.queries is None


class Accumulator:
    """Takes readouts of one pattern, call by call.

    Args:
        readouts: those for which `missing_for_calls` gives None.
        keys: how many there are in all, or 0 where that is not known.
        take: takes readouts of a call.
    """

    def __init__(
        self,
        readouts: Sequence[Readout[Any, Any]],
        keys: int = 0,
        take: Callable[[Sequence[Readout[Any, Any]], Problem, Sizes], tuple[Any, ...]] = take,
    ) -> None:
        self._keys = keys
        self._take = take
        self._parts = [_Rows(r) if "query" in r.axes else _Sums(r) for r in readouts]
        self._sizes: Sizes | None = None

    def add(self, problem: Problem, shift: int) -> None:
        """Read a call.

        Args:
            problem: its rows, over the keys that it had.
            shift: how many of the whole pattern's keys come before these.
        """
        require_numbers(problem)
        sizes = sizes_of(problem)
        self._add(problem, shift, lambda readouts: self._take(readouts, problem, sizes))

    def add_rows(self, problem: Problem) -> None:
        """Read several calls of a row each, as if one by one.

        Args:
            problem: their rows, over all keys; of readouts that `allows_rows_together`.
        """
        require_numbers(problem)
        rows_at_once = max(1, _WEIGHTS // max(1, prod(problem.heads) * problem.keys))
        for first in range(0, problem.queries, rows_at_once):
            rows = slice(first, min(first + rows_at_once, problem.queries))
            part = problem.crop(rows, slice(0, problem.keys))
            read = partial(take, problem=part, sizes=sizes_of(part))
            self._add(part, 0, read, one_by_one=True)

    def add_pattern(self, pattern: Pattern, others: Sequence[Readout[Any, Any]]) -> tuple[Any, ...]:
        """Read the only call.

        Args:
            pattern: all rows, over all keys.
            others: what else to read of it in the same pass.

        Returns:
            The results of the others.
        """
        results: list[Any] = []

        def read(readouts: Sequence[Readout[Any, Any]]) -> Sequence[Any]:
            results.extend(pattern.read(*readouts, *others))
            return results

        self._add(pattern.problem, 0, read)
        return tuple(results[len(results) - len(others) :])

    def results(self, keys: int = 0) -> tuple[Any, ...]:
        """Give what was read so far, with the axes of the whole pattern.

        Args:
            keys: how many it has at least, where no row was read of its latest calls.
        """
        assert self._sizes is not None, "a call was read"
        sizes = replace(self._sizes, keys=max(self._sizes.keys, keys))
        return tuple(part.finish(sizes) for part in self._parts)

    def _add(
        self,
        problem: Problem,
        shift: int,
        read: Callable[[Sequence[Readout[Any, Any]]], Sequence[Any]],
        *,
        one_by_one: bool = False,
    ) -> None:
        # Sums that were made in inference mode could not be added to outside of it.
        inferring = torch.is_inference_mode_enabled()
        with torch.inference_mode(mode=False) if inferring else nullcontext(), torch.no_grad():
            parts = [part.one_by_one() for part in self._parts] if one_by_one else self._parts
            self._add_tile(parts, problem, shift, read)

    def _add_tile(
        self,
        parts: Sequence[_Part],
        problem: Problem,
        shift: int,
        read: Callable[[Sequence[Readout[Any, Any]]], Sequence[Any]],
    ) -> None:
        before = self._sizes
        first = 0 if before is None else before.queries
        queries = slice(first, first + problem.queries)
        keys = slice(shift, shift + problem.keys)
        known = self._keys if before is None else before.keys
        leading = problem.leading if before is None else before.leading
        lengths = queries.stop, max(known, keys.stop)
        sizes = Sizes(leading, *lengths, problem.exact_dtype, problem.query.device, problem.group)
        self._sizes = sizes
        tile = Tile(slice(0, problem.queries), queries, keys, keys, problem)
        if not self._keys:
            for part in parts:
                part.stay_within(sizes.keys)
        requests = [part.of_tile(tile, sizes) for part in parts]
        results = iter(read([one for some in requests for one in some]))
        for part, some in zip(parts, requests, strict=True):
            part.take(tile, sizes, tuple(islice(results, len(some))))


class _Part(ABC):
    """One readout."""

    def __init__(self, readout: Readout[Any, Any]) -> None:
        self.readout = readout
        self._stated = readout

    def stay_within(self, keys: int) -> None:
        """Read of so many keys alone, as there are no more yet."""
        self.readout = self._stated.within(keys)

    @abstractmethod
    def of_tile(self, tile: Tile, sizes: Sizes) -> tuple[Readout[Any, Any], ...]:
        """Say what to read of a call."""

    @abstractmethod
    def take(self, tile: Tile, sizes: Sizes, results: tuple[Any, ...]) -> None:
        """Take in what was read."""

    @abstractmethod
    def finish(self, sizes: Sizes) -> Any:
        """Give the result."""

    def one_by_one(self) -> _Part:
        """What takes in rows as if each came by itself."""
        return self


class _Sums(_Part):
    """A readout that sums over queries, or takes their largest: one state for all calls."""

    def __init__(self, readout: Readout[Any, Any]) -> None:
        super().__init__(readout)
        self._state: Any = None
        self._keys = -1

    def of_tile(self, tile: Tile, sizes: Sizes) -> tuple[Readout[Any, Any], ...]:
        self._state, self._keys = self._lengthened(sizes), max(self._keys, sizes.keys)
        return self.readout.of_tile(self._state, tile)

    def _lengthened(self, sizes: Sizes) -> Any:
        """The state over so many keys; a new one before the first call."""
        if self._state is None:
            return self.readout.begin(sizes)
        if "key" not in self.readout.axes or sizes.keys <= self._keys:
            return self._state
        longer = self.readout.begin(sizes)
        _copy_into(longer, self._state)
        return longer

    def take(self, tile: Tile, sizes: Sizes, results: tuple[Any, ...]) -> None:
        self.readout.merge(self._state, tile, _numbered_through(results, sizes))

    def finish(self, sizes: Sizes) -> Any:
        return self.readout.finish(mapped(torch.clone, self._lengthened(sizes)), sizes)

    def one_by_one(self) -> _Part:
        """A maximum is that of all rows; weights are added up row by row."""
        return _WeightSums(self) if _sums_weights(self.readout) else self

    def add_weights(self, weights: Float[Tensor, "N R S"]) -> None:
        """Add rows to sums over queries, in their order."""
        self._state.copy_(add_rows(self._state, weights))


class _WeightSums(_Part):
    """Sums of the weights of rows that are read together, added up one by one."""

    def __init__(self, sums: _Sums) -> None:
        super().__init__(sums.readout)
        self._sums = sums

    def of_tile(self, tile: Tile, sizes: Sizes) -> tuple[Readout[Any, Any], ...]:
        self._sums.of_tile(tile, sizes)
        return (Weights(torch.arange(tile.problem.keys, device="cpu")),)

    def take(self, tile: Tile, sizes: Sizes, results: tuple[Any, ...]) -> None:  # noqa: ARG002 - of all parts
        (weights,) = _numbered_through(results, sizes)
        self._sums.add_weights(weights)

    def finish(self, sizes: Sizes) -> Any:
        return self._sums.finish(sizes)


class _Rows(_Part):
    """A readout of each row: rows of a call come after those of the calls before."""

    def __init__(self, readout: Readout[Any, Any]) -> None:
        super().__init__(readout)
        self._state: Any = None
        """Of a call without the first keys, whose results are to be shifted."""
        self._results: list[Any] = []

    def of_tile(self, tile: Tile, sizes: Sizes) -> tuple[Readout[Any, Any], ...]:
        if type(self.readout).of_tile is Readout.of_tile and tile.keys.start == 0:
            return (self.readout,)
        state = self.readout.begin(_rows_of(sizes, tile.problem.queries))
        requests = self.readout.of_tile(state, tile)
        if tile.keys.start == 0:  # its own result is that of the whole pattern's rows
            return requests[:1]
        self._state = state
        return requests

    def take(self, tile: Tile, sizes: Sizes, results: tuple[Any, ...]) -> None:
        if self._state is None:
            (result,) = results
        else:
            self.readout.merge(self._state, tile, _numbered_through(results, sizes))
            result = self.readout.finish(self._state, _rows_of(sizes, tile.problem.queries))
            self._state = None
        self._results.append(result)
        if len(self._results) == _TOGETHER:
            self._results = [self._joined(sizes)]

    def finish(self, sizes: Sizes) -> Any:
        joined = self._joined(sizes)
        return mapped(torch.clone, joined) if joined is self._results[0] else joined

    def _joined(self, sizes: Sizes) -> Any:
        """Put results below one another; those of fewer keys may have fewer ranks."""
        axis = len(sizes.leading) + self.readout.axes.index("query")
        results = self._results
        if {"rank", "key"} & set(self.readout.axes):
            row = _rows_of(sizes, 1)
            shapes = [t.shape[axis + 1 :] for t in tensors_in(self._empty(row))]
            results = [self._widened(result, axis, shapes, sizes) for result in results]
        if len(results) == 1:
            return results[0]
        return mapped(lambda *parts: torch.cat(parts, dim=axis), *results)

    def _widened(self, result: Any, axis: int, shapes: list[torch.Size], sizes: Sizes) -> Any:
        """Fill a result up to the width that it has over all keys."""
        tensors = tensors_in(result)
        if [tensor.shape[axis + 1 :] for tensor in tensors] == shapes:
            return result
        whole = self._empty(_rows_of(sizes, tensors[0].shape[axis]))
        _copy_into(whole, result)
        return whole

    def _empty(self, sizes: Sizes) -> Any:
        return self.readout.finish(self.readout.begin(sizes), sizes)


def _rows_of(sizes: Sizes, queries: int) -> Sizes:
    return replace(sizes, queries=queries)


def _copy_into(longer: Any, result: Any) -> None:
    """Copy each tensor of a result or state to the front of the one in its place."""
    for part, whole in zip(tensors_in(result), tensors_in(longer), strict=True):
        whole[tuple(slice(size) for size in part.shape)] = part


def tensors_in(result: Any) -> list[Tensor]:
    """The tensors of a result or state: itself, or those of a tuple."""
    parts = result if isinstance(result, tuple) else (result,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


def mapped(change: Callable[..., Tensor], result: Any, *others: Any) -> Any:
    """Change each tensor of a result or state, given those in its place in others."""
    if isinstance(result, torch.Tensor):
        return change(result, *others)
    if not isinstance(result, tuple):
        return result
    parts = [
        change(*parts) if isinstance(parts[0], torch.Tensor) else parts[0]
        for parts in zip(result, *others, strict=True)
    ]
    make: Callable[[list[Any]], Any] = getattr(type(result), "_make", tuple)
    return make(parts)


def _numbered_through(results: tuple[Any, ...], sizes: Sizes) -> tuple[Any, ...]:
    """Number the heads of results through, as `merge` takes them."""
    leading = len(sizes.leading)

    def flat(tensor: Tensor) -> Tensor:
        return tensor.flatten(0, leading - 1) if leading else tensor[None]

    return tuple(mapped(flat, result) for result in results)
