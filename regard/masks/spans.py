"""Spans of keys whose scores are changed: hidden, or shifted by a number.

Without a key in its middle, a row's interval is no longer an interval. Such keys are stored as
spans beside it, two integers per row each, so that no mask has the size of the weights.

Axes: N spans, B batch, H query heads, L queries, S keys; b and h are B or 1, H or 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from regard._arguments import chosen, from_start, runs
from regard._contexts import is_concrete
from regard._shapes import Bool, Float, Int
from regard._tensors import broadcast_shapes, upload
from regard.masks.bounds import AffineBounds, IndexBounds


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of keys in each row: −inf hides their keys, any other number is added to their scores.

    Spans may overlap: hidden keys stay hidden, and numbers are summed.
    """

    start: Int[Tensor, "N #b #h L"]
    """The first key, 0 ≤ start ≤ stop ≤ S."""
    stop: Int[Tensor, "N #b #h L"]
    """One past the last key; equal to start if the span has no key in the row."""
    added: Float[Tensor, "N"]
    """Added after softcap and bias; float64, always on the CPU."""

    def hidden(self, rows: slice, columns: slice) -> Bool[Tensor, "b h l s"]:
        """Compute a block of the matrix that is True for hidden keys."""
        blocks = zip(self.hides.unbind(), self._blocks(rows, columns), strict=True)
        return reduce(torch.logical_or, (inside & hides for hides, inside in blocks))

    def added_block(
        self, rows: slice, columns: slice, dtype: torch.dtype
    ) -> Float[Tensor, "b h l s"] | None:
        """Compute the sum added to the scores of a block; None if there is none."""
        if not self.adds:
            return None
        added = self.added.masked_fill(self.added.isneginf(), 0).to(dtype)
        added = upload(added, self.start.device)
        blocks = self._blocks(rows, columns)
        return sum(
            (inside * added[i] for i, inside in enumerate(blocks)), start=added.new_zeros(())
        )

    @property
    def hides(self) -> Bool[Tensor, "N"]:
        """True for each span that hides its keys; on the device of the tables."""
        return upload(self.added.isneginf(), self.start.device)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Start, stop and added."""
        return self.start, self.stop, self.added

    @property
    def adds(self) -> bool:
        """True if some span may add a finite number."""
        return not is_concrete(self.added) or not bool(self.added.isneginf().all())

    def hidden_apart(self) -> tuple[Int[Tensor, "N b h L"], Int[Tensor, "N b h L"]]:
        """Compute disjoint, ordered starts and stops of the hidden spans of each row."""
        hides = self.hides[:, None, None, None]
        order = torch.where(hides, self.start, torch.iinfo(torch.int64).max).argsort(0)
        start = self.start.gather(0, order)
        stop = torch.where(hides, self.stop, self.start).gather(0, order)
        covered = torch.zeros_like(stop[0])
        starts, stops = [], []
        for low, high in zip(start.unbind(), stop.unbind(), strict=True):
            starts.append(torch.maximum(low, covered))
            covered = torch.maximum(high, covered)
            stops.append(torch.maximum(high, starts[-1]))
        return torch.stack(starts), torch.stack(stops)

    def joined(self, other: Spans) -> Spans:
        """Return these spans together with others of the same rows."""
        shape = broadcast_shapes(self.start.shape[1:], other.start.shape[1:])
        start, stop = (
            torch.cat([table.expand(-1, *shape) for table in tables])
            for tables in ((self.start, other.start), (self.stop, other.stop))
        )
        return Spans(start, stop, torch.cat((self.added, other.added)))

    def without_shifts(self) -> Spans | None:
        """Keep only the spans that hide their keys."""
        kept = self.added.isneginf()
        return self._kept(kept.nonzero().flatten().tolist())

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Spans | None:
        """Apply a function to each span's tables ``(b, h, L)``.

        Spans that are now empty in every row are dropped if values are concrete and on the CPU.
        """
        start, stop = (torch.stack([function(t) for t in ts]) for ts in (self.start, self.stop))
        spans = Spans(start, stop, self.added)
        if spans.start.is_cuda or not is_concrete(spans.start):
            return spans
        touched = (spans.start < spans.stop).flatten(1).any(1)
        return spans._kept([i for i, touches in enumerate(touched.tolist()) if touches])

    def _kept(self, numbers: list[int]) -> Spans | None:
        if len(numbers) == len(self.added):
            return self
        if not numbers:
            return None
        return Spans(self.start[numbers], self.stop[numbers], self.added[numbers])

    def _blocks(self, rows: slice, columns: slice) -> Iterator[Bool[Tensor, "b h l s"]]:
        key = torch.arange(columns.start, columns.stop, device=self.start.device)
        tables = (table[..., rows, None].unbind() for table in (self.start, self.stop))
        for start, stop in zip(*tables, strict=True):
            yield (key >= start) & (key < stop)


def trimmed(
    bounds: AffineBounds | IndexBounds, spans: Spans
) -> tuple[AffineBounds | IndexBounds, Spans | None]:
    """Shrink intervals that begin or end with hidden spans, and clip the spans to the result.

    Afterwards a row is fully masked if and only if start = stop. Empty spans are dropped if values
    are concrete and on the CPU.
    """
    start, stop = bounds.start, bounds.stop
    hidden = list(zip(*(table.unbind() for table in spans.hidden_apart()), strict=True))
    for low, high in hidden:
        start = torch.where((low <= start) & (start < high), high, start)
    for low, high in reversed(hidden):
        stop = torch.where((low < stop) & (stop <= high), low, stop)
    start = torch.minimum(start, stop)
    low, high = torch.maximum(spans.start, start), torch.minimum(spans.stop, stop)
    touched = low < high
    low, high = torch.where(touched, low, 0), torch.where(touched, high, 0)
    cut = IndexBounds(bounds.positions, start, stop)
    if start.is_cuda or not is_concrete(start):
        return cut, Spans(low, high, spans.added)
    moved = (start != bounds.start).any() | (stop != bounds.stop).any()
    has_moved, *touches = torch.cat((moved[None], touched.flatten(1).any(1))).tolist()  # one read
    kept = [i for i, touch in enumerate(touches) if touch]
    rest = Spans(low[kept], high[kept], spans.added[kept]) if kept else None
    return cut if has_moved else bounds, rest


def runs_of(keys: Bool[Tensor, "b h S"]) -> tuple[Int[Tensor, "N b h"], Int[Tensor, "N b h"]]:
    """Find the start and stop of each run of adjacent keys that are True; 0 and 0 for none."""
    edges = torch.nn.functional.pad(keys.byte(), (1, 1)).diff()  # 1 at a start, 255 at a stop
    number = (edges == 1).cumsum(-1) - 1
    count = int(number.amax()) + 1 if number.numel() else 0
    tables = torch.zeros(2, max(count, 0), *keys.shape[:-1], dtype=torch.int64, device=keys.device)
    for table, mark in zip(tables.unbind(), (1, 255), strict=True):
        batch, head, place = (edges == mark).nonzero(as_tuple=True)
        table[number[batch, head, place], batch, head] = place
    return tables[0], tables[1]


def join_spans(parts: Sequence[Spans | None], queries: Sequence[int]) -> Spans | None:
    """Concatenate the spans of several parts along the rows, with as few spans as possible.

    Args:
        parts: the spans of each part, over the same keys.
        queries: number of rows of each part.
    """
    present = [part for part in parts if part is not None]
    if not present:
        return None
    needed: Counter[float] = Counter()
    for spans in present:
        needed |= Counter(spans.added.tolist())
    numbers = list(needed.elements())
    heads = broadcast_shapes(*(spans.start.shape[1:3] for spans in present))
    shape = (2, len(numbers), *heads, sum(queries))
    tables = torch.zeros(shape, dtype=torch.int64, device=present[0].start.device)
    first = 0
    for part, count in zip(parts, queries, strict=True):
        rows = slice(first, first + count)
        places = {number: numbers.index(number) for number in needed}
        tensors = () if part is None else part.tensors
        for start, stop, number in zip(*tensors, strict=True):
            place = places[float(number)]
            tables[0, place, ..., rows], tables[1, place, ..., rows] = start, stop
            places[float(number)] += 1
        first = rows.stop
    added = torch.tensor(numbers, dtype=torch.float64, device="cpu")
    return Spans(tables[0], tables[1], added)


@dataclass(frozen=True)
class ScoreChange:
    """A change of the scores of some keys, for some queries, in some heads."""

    added: float
    keys: tuple[int, ...] | slice
    queries: tuple[int, ...] | slice | None
    heads: tuple[int, ...] | slice | None

    def __repr__(self) -> str:
        hides = self.added == -math.inf
        parts = [_text(self.keys)] if hides else [f"{self.added:g}", _text(self.keys)]
        others = {"queries": self.queries, "heads": self.heads}
        parts += [f"{name}={_text(index)}" for name, index in others.items() if index is not None]
        return f"{'hide' if hides else 'add_to_scores'}({', '.join(parts)})"

    def tables(
        self, positions: Int[Tensor, "#b #h L"], keys: int, heads: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Compute start and stop in each row, ``(b, h, L)``, for each run of adjacent keys.

        Raises:
            IndexError: for a key or a head that does not exist.
        """
        touched = _holds(self.queries, positions, keys)
        numbers = chosen(self.heads, heads, "heads")
        some = [head in numbers for head in range(heads)]
        if not all(some):
            touched = touched & upload(torch.tensor(some, device="cpu"), positions.device)[:, None]
        return [
            (
                touched * first,
                touched * stop,
            )  # torch.where would fix symbolic sizes
            for first, stop in _key_runs(self.keys, keys)
        ]


def resolve_changes(
    changes: Sequence[ScoreChange], bounds: AffineBounds | IndexBounds, keys: int, heads: int
) -> tuple[AffineBounds | IndexBounds, Spans | None]:
    """Compute the spans of some changes for given sizes, and trim intervals and spans.

    Raises:
        IndexError: for a key or a head that does not exist.
    """
    starts, stops, added = [], [], []
    for change in changes:
        for start, stop in change.tables(bounds.positions, keys, heads):
            starts.append(start)
            stops.append(stop)
            added.append(change.added)
    if not starts:
        return bounds, None
    start, stop = (torch.stack(torch.broadcast_tensors(*table)) for table in (starts, stops))
    numbers = torch.tensor(added, dtype=torch.float64, device="cpu")
    return trimmed(bounds, Spans(start, stop, numbers))


def _key_runs(indices: tuple[int, ...] | slice, keys: int) -> list[tuple[int, int]]:
    if not isinstance(indices, slice) or indices.step not in (None, 1):
        return runs(chosen(indices, keys, "keys"))
    start, stop = _end(indices.start, 0, keys), _end(indices.stop, keys, keys)
    return [(start, stop)] if start < stop else []


def _end(end: int | None, default: int, size: int) -> int:
    if end is None:
        return default
    return max(from_start(end, size), 0) if end < 0 else min(end, size)


def _holds(
    indices: tuple[int, ...] | slice | None, positions: Int[Tensor, "#b #h L"], size: int
) -> Bool[Tensor, "#b #h L"]:
    """Mark the positions that an index contains; negative numbers count from the end."""
    if indices is None:
        return torch.ones_like(positions, dtype=torch.bool)
    if isinstance(indices, slice):
        start, stop, step = (indices.start, indices.stop, indices.step or 1)
        first = 0 if start is None else max(from_start(start, size), 0)
        held = (positions - first) % step == 0
        if start is not None:
            held = held & (positions >= first)
        if stop is not None:
            held = held & (positions < max(from_start(stop, size), 0))  # as of a list, not from −1
        return held
    held = torch.zeros_like(positions, dtype=torch.bool)
    for number in indices:
        place = from_start(number, size)
        if place >= 0:
            held = held | (positions - place == 0)
    return held


def _text(indices: tuple[int, ...] | slice) -> str:
    if isinstance(indices, slice):
        step = "" if indices.step in (None, 1) else f", {indices.step}"
        return f"slice({indices.start}, {indices.stop}{step})"
    return str(indices[0]) if len(indices) == 1 else str(list(indices))
