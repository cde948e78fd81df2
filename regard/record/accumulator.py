"""Accumulates readouts of a pattern call by call: appends rows, and adds sums over queries.

A call is a tile of the whole pattern: its queries against the keys it had. Tiles are merged as for
a sequence distributed over ranks, but a call has whole rows, so results per row are final.

Axes: N flattened batch and heads, L queries, S keys.
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

# Results of so many calls are concatenated at a time; one tensor per generation step would take
# more memory than its data.
_TOGETHER = 64
# Maximum number of weights materialized at a time for sums.
_WEIGHTS = 2**20


def missing_for_calls(readout: Readout[Any, Any]) -> str | None:
    """Return why a readout cannot be taken call by call, or None if it can."""
    if readout.depends_on_length:
        return "depends on how long the text becomes, which is not known before the end"
    if not readout.is_mergeable:
        return f"has no {type(readout).__name__}.merge, which makes one result of two calls'"
    return None


def allows_rows_together(readout: Readout[Any, Any]) -> bool:
    """Return whether reading rows of several calls together is bit-equal to reading each call.

    Kernels compute rows independently; a maximum does not depend on order, and sums of weights can
    be added in call order.
    """
    if not readout.has_kernel:
        return False
    return "query" in readout.axes or readout.reduction == "max" or _sums_weights(readout)


def _sums_weights(readout: Readout[Any, Any]) -> bool:
    return type(readout) is Received and readout.reduce == "sum" and readout.queries is None


class Accumulator:
    """Accumulates readouts of one pattern, call by call.

    Args:
        readouts: readouts for which `missing_for_calls` returns None.
        keys: total number of keys, or 0 if unknown.
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
            problem: the rows of the call, over the keys of the call.
            shift: index of the call's first key in the pattern.
        """
        require_numbers(problem)
        sizes = sizes_of(problem)
        self._add(problem, shift, lambda readouts: self._take(readouts, problem, sizes))

    def add_rows(self, problem: Problem) -> None:
        """Read several calls of one row each in one pass.

        All readouts must pass `allows_rows_together`.

        Args:
            problem: the rows of all calls, over all keys.
        """
        require_numbers(problem)
        rows_at_once = max(1, _WEIGHTS // max(1, prod(problem.heads) * problem.keys))
        for first in range(0, problem.queries, rows_at_once):
            rows = slice(first, min(first + rows_at_once, problem.queries))
            part = problem.crop(rows, slice(0, problem.keys))
            read = partial(take, problem=part, sizes=sizes_of(part))
            self._add(part, 0, read, one_by_one=True)

    def add_pattern(self, pattern: Pattern, others: Sequence[Readout[Any, Any]]) -> tuple[Any, ...]:
        """Read a pattern of a single call.

        Args:
            pattern: all rows, over all keys.
            others: further readouts to take in the same pass.

        Returns:
            The results of the further readouts.
        """
        results: list[Any] = []

        def read(readouts: Sequence[Readout[Any, Any]]) -> Sequence[Any]:
            results.extend(pattern.read(*readouts, *others))
            return results

        self._add(pattern.problem, 0, read)
        return tuple(results[len(results) - len(others) :])

    def results(self, keys: int = 0) -> tuple[Any, ...]:
        """Return the results so far, with the axes of the whole pattern.

        Args:
            keys: minimum number of keys, if no row of the latest calls was read.
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
        # Inference tensors cannot be modified outside inference mode.
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
        """Restrict the readout to the keys that exist so far."""
        self.readout = self._stated.within(keys)

    @abstractmethod
    def of_tile(self, tile: Tile, sizes: Sizes) -> tuple[Readout[Any, Any], ...]:
        """Return the readouts to take of a call."""

    @abstractmethod
    def take(self, tile: Tile, sizes: Sizes, results: tuple[Any, ...]) -> None:
        """Add the results of a call."""

    @abstractmethod
    def finish(self, sizes: Sizes) -> Any:
        """Return the result."""

    def one_by_one(self) -> _Part:
        """Return the part that adds rows one by one."""
        return self


class _Sums(_Part):
    """A readout that sums over queries or takes their maximum, with one state for all calls."""

    def __init__(self, readout: Readout[Any, Any]) -> None:
        super().__init__(readout)
        self._state: Any = None
        self._keys = -1

    def of_tile(self, tile: Tile, sizes: Sizes) -> tuple[Readout[Any, Any], ...]:
        self._state, self._keys = self._lengthened(sizes), max(self._keys, sizes.keys)
        return self.readout.of_tile(self._state, tile)

    def _lengthened(self, sizes: Sizes) -> Any:
        """Return the state extended to all keys, or a new state before the first call."""
        if self._state is None:
            return self.readout.begin(sizes)
        if "key" not in self.readout.axes or sizes.keys <= self._keys:
            return self._state
        longer = self.readout.begin(sizes)
        _copy_into(longer, self._state)
        return longer

    def take(self, tile: Tile, sizes: Sizes, results: tuple[Any, ...]) -> None:
        self.readout.merge(self._state, tile, _flattened(results, sizes))

    def finish(self, sizes: Sizes) -> Any:
        return self.readout.finish(mapped(torch.clone, self._lengthened(sizes)), sizes)

    def one_by_one(self) -> _Part:
        """Return a maximum needs no change; weights are added row by row."""
        return _WeightSums(self) if _sums_weights(self.readout) else self

    def add_weights(self, weights: Float[Tensor, "N R S"]) -> None:
        """Add rows in order to sums over queries."""
        self._state.copy_(add_rows(self._state, weights))


class _WeightSums(_Part):
    """Sums of weights over rows that are read together and added one by one."""

    def __init__(self, sums: _Sums) -> None:
        super().__init__(sums.readout)
        self._sums = sums

    def of_tile(self, tile: Tile, sizes: Sizes) -> tuple[Readout[Any, Any], ...]:
        self._sums.of_tile(tile, sizes)
        return (Weights(torch.arange(tile.problem.keys, device="cpu")),)

    def take(self, tile: Tile, sizes: Sizes, results: tuple[Any, ...]) -> None:  # noqa: ARG002 - of all parts
        (weights,) = _flattened(results, sizes)
        self._sums.add_weights(weights)

    def finish(self, sizes: Sizes) -> Any:
        return self._sums.finish(sizes)


class _Rows(_Part):
    """A readout per row: the rows of each call are appended."""

    def __init__(self, readout: Readout[Any, Any]) -> None:
        super().__init__(readout)
        self._state: Any = None
        """State for a call that lacks the first keys, whose results must be shifted."""
        self._results: list[Any] = []

    def of_tile(self, tile: Tile, sizes: Sizes) -> tuple[Readout[Any, Any], ...]:
        if type(self.readout).of_tile is Readout.of_tile and tile.keys.start == 0:
            return (self.readout,)
        state = self.readout.begin(_rows_of(sizes, tile.problem.queries))
        requests = self.readout.of_tile(state, tile)
        if tile.keys.start == 0:  # equal to the result for these rows of the whole pattern
            return requests[:1]
        self._state = state
        return requests

    def take(self, tile: Tile, sizes: Sizes, results: tuple[Any, ...]) -> None:
        if self._state is None:
            (result,) = results
        else:
            self.readout.merge(self._state, tile, _flattened(results, sizes))
            result = self.readout.finish(self._state, _rows_of(sizes, tile.problem.queries))
            self._state = None
        self._results.append(result)
        if len(self._results) == _TOGETHER:
            self._results = [self._joined(sizes)]

    def finish(self, sizes: Sizes) -> Any:
        joined = self._joined(sizes)
        return mapped(torch.clone, joined) if joined is self._results[0] else joined

    def _joined(self, sizes: Sizes) -> Any:
        """Concatenate results; those of calls with fewer keys may have fewer ranks."""
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
        """Pad a result to its width over all keys."""
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
    """Copy each tensor of a result or state into the leading part of its larger counterpart."""
    for part, whole in zip(tensors_in(result), tensors_in(longer), strict=True):
        whole[tuple(slice(size) for size in part.shape)] = part


def tensors_in(result: Any) -> list[Tensor]:
    """Return the tensors of a result or state, which is a tensor or a tuple."""
    parts = result if isinstance(result, tuple) else (result,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


def mapped(change: Callable[..., Tensor], result: Any, *others: Any) -> Any:
    """Apply a function to each tensor of a result or state and its counterparts in others."""
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


def _flattened(results: tuple[Any, ...], sizes: Sizes) -> tuple[Any, ...]:
    """Flatten batch and heads of results, as `merge` expects."""
    leading = len(sizes.leading)

    def flat(tensor: Tensor) -> Tensor:
        return tensor.flatten(0, leading - 1) if leading else tensor[None]

    return tuple(mapped(flat, result) for result in results)
