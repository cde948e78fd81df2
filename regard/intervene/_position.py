"""Positions of a call's queries and keys in the whole text.

In a generation with a key/value cache each call has few queries and many keys; a rolling cache
holds only the last keys. Operations name queries and keys by their positions in the text.

Axes: B batch, H query heads, L queries, S keys; b and h are B or 1, H or 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from regard._arguments import from_start, runs
from regard._shapes import Bool, Float, Int
from regard.errors import Error
from regard.inputs import Problem
from regard.intervene.operations import CheckedIndices
from regard.record.sites import ContinuationTracker, Site

TextStart = Literal["read", "cached", "dropped"]
"""How a text began: its first token was read in the block, was in a cache, or had been evicted
from a rolling cache, so that positions counted from the start are unknown."""

_TEXTS = 8  # texts with caches that a model may process alternately


@dataclass(frozen=True, eq=False, kw_only=True)
class CallPosition:
    """Positions of a call's queries and keys in the text."""

    queries: Int[Tensor, "#b #h L"]
    first_key: int
    """Position of the call's first key."""
    query_counts: tuple[int, ...]
    """Number of queries so far per batch entry, or one number for all."""
    key_counts: tuple[int, ...]
    """Number of keys so far, likewise."""
    start: TextStart = "read"
    """How the text began."""

    def rows(self, numbers: CheckedIndices) -> Bool[Tensor, "#b #h L"]:
        """Return a mask of the selected rows of the call."""
        self._require_certain("queries", numbers)
        if numbers is None:
            return torch.ones_like(self.queries, dtype=torch.bool)
        parts = [
            _among(queries, numbers, count)
            for queries, count in zip(
                self.queries.tensor_split(len(self.query_counts)), self.query_counts, strict=True
            )
        ]
        return torch.cat(parts)

    def spans(self, numbers: CheckedIndices, keys: int) -> list[tuple[Tensor, Tensor]]:
        """Return the selected runs of keys, each as start and stop ``(b, 1, 1)`` in the call."""
        self._require_certain("keys", numbers)
        entries = [key_runs(numbers, count) for count in self.key_counts]
        width = max(len(entry) for entry in entries)
        padded = torch.tensor(
            [entry + [(0, 0)] * (width - len(entry)) for entry in entries], device="cpu"
        )
        ends = (padded.reshape(len(entries), width, 2) - self.first_key).clamp(0, keys)
        ends = ends.to(self.queries.device)
        return [(ends[:, n, :1, None], ends[:, n, 1:, None]) for n in range(width)]

    def columns(self, numbers: CheckedIndices, keys: int) -> Bool[Tensor, "#b 1 S"]:
        """Return a mask of the selected keys of the call."""
        key = torch.arange(keys, device=self.queries.device)
        named = torch.zeros(1, 1, keys, dtype=torch.bool, device=self.queries.device)
        for start, stop in self.spans(numbers, keys):
            named = named | ((start <= key) & (key < stop))
        return named

    def _require_certain(self, name: str, numbers: CheckedIndices) -> None:
        if numbers is not None and not _count_from_end(numbers):
            self.require_start(f"{name}={numbers!r}", ", or count from the end")

    def require_start(self, what: str, other_cure: str = "") -> None:
        """Refuse positions counted from the start of a text if they are unknown.

        Args:
            what: the positions, for the message.
            other_cure: another cure, for the message.

        Raises:
            Error: if a cache had evicted keys before the block began.
        """
        if self.start == "dropped":
            raise Error(
                f"{what} counts from the start of the text, but a rolling cache was full before "
                "the block began, and how many keys it has dropped is unknown; enter the block "
                f"before the text's first token is read{other_cure}"
            )


def _count_from_end(numbers: tuple[int, ...] | slice) -> bool:
    if isinstance(numbers, tuple):
        return all(number < 0 for number in numbers)
    return numbers.start is not None and numbers.start < 0 and (numbers.stop or -1) < 0


def key_runs(numbers: CheckedIndices, count: int) -> list[tuple[int, int]]:
    """Return runs of consecutive selected keys; keys beyond the count do not exist yet."""
    if numbers is None:
        return [(0, count)]
    if isinstance(numbers, slice):
        start, stop, step = numbers.indices(count)
        if step == 1:
            return [(start, max(start, stop))]
        return runs(range(start, stop, step))
    places = (from_start(number, count) for number in numbers)
    return runs(position for position in places if 0 <= position < count)


def _among(
    queries: Int[Tensor, "b h L"], numbers: tuple[int, ...] | slice, count: int
) -> Bool[Tensor, "b h L"]:
    if isinstance(numbers, slice):
        start, stop, step = numbers.indices(count)
        return (queries >= start) & (queries < stop) & ((queries - start) % step == 0)
    wanted = torch.tensor([from_start(number, count) for number in numbers], device=queries.device)
    return torch.isin(queries, wanted)


@dataclass(frozen=True, eq=False)
class _TextEnd:
    """The end of a text that a layer has processed."""

    key: Float[Tensor, "B G 1 D"]
    """The last key, by which the next call with the same cache is recognised."""
    count: int
    """Number of queries."""
    start: TextStart = "read"


class TextTracker:
    """Tracks how much of each text the layers of a model have processed."""

    def __init__(self) -> None:
        self._ends: dict[Site, list[_TextEnd]] = {}
        self._sources: dict[Site, _TextEnd] = {}
        self._runs = ContinuationTracker()
        self._latest: tuple[int, CallPosition] | None = None
        """Run and position of the latest self-attention call."""

    def position(self, site: Site, problem: Problem, run: int) -> CallPosition:
        """Return the positions of a site's next call."""
        if site.kind == "cross":
            return self._cross_place(site, problem, run)
        positions = problem.rows.positions
        past = int(positions[..., :1].amin()) if positions.numel() else 0
        ends = self._ends.setdefault(site, [])
        before = _last_key(problem, past)
        known = None if before is None else next((e for e in ends if _equal(e.key, before)), None)
        # A rolling cache has evicted the first keys, so the call's first key is a later one.
        first_key = 0 if known is None else max(known.count - past, 0)
        start = _start(known, past, first_key)
        earlier = self._place_in(run) if known is None and site.shares_keys else None
        if earlier is not None:  # earlier queries may have been skipped
            first_key = max(max(earlier.query_counts) - past - problem.queries, 0)
            start = earlier.start
        queries = positions + first_key
        counts = _counts(queries)
        position = CallPosition(
            queries=queries,
            first_key=first_key,
            query_counts=counts,
            key_counts=counts,
            start=start,
        )
        last = _last_key(problem, past + problem.queries)
        if last is not None:
            others = [end for end in ends if end is not known]
            self._ends[site] = [_TextEnd(last.clone(), max(counts), start), *others][:_TEXTS]
        if site.kind == "self":
            self._latest = run, position
        self._runs.add_self_attention(run=run, queries=problem.queries, continued=known is not None)
        return position

    def _place_in(self, run: int) -> CallPosition | None:
        """Return the position of the latest self-attention call of a run."""
        return self._latest[1] if self._latest is not None and self._latest[0] == run else None

    def _cross_place(self, site: Site, problem: Problem, run: int) -> CallPosition:
        follows = self._runs.continues(site, run=run, queries=problem.queries)
        position = self._place_in(run)  # the queries are those of the decoder's self-attention
        if position is not None and position.queries.shape[-1] == problem.queries:
            return replace(position, first_key=0, key_counts=(problem.keys,))
        # In a generating decoder, each call has the next queries, and all keys of the source.
        last, known = _last_key(problem, problem.keys), self._sources.get(site)
        continued = follows and known is not None and _equal(known.key, last)
        seen = known.count if known is not None and continued else 0
        if last is not None:
            self._sources[site] = _TextEnd(last.clone(), seen + problem.queries)
        queries = torch.arange(seen, seen + problem.queries, device=problem.query.device)
        return CallPosition(
            queries=queries[None, None],
            first_key=0,
            query_counts=(seen + problem.queries,),
            key_counts=(problem.keys,),
        )


def _start(known: _TextEnd | None, past: int, first_key: int) -> TextStart:
    """Return how a text began, as known from its next call."""
    if known is None:
        return "cached" if past else "read"
    if known.start != "cached":
        return known.start
    # A cache that evicts a key immediately was full before; a growing cache holds all keys.
    return "dropped" if first_key else "read"


def _last_key(problem: Problem, count: int) -> Tensor | None:
    """Return the key at index ``count - 1``, or None if there is none."""
    return problem.key[..., count - 1 : count, :] if 0 < count <= problem.keys else None


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.dtype == other.dtype and torch.equal(one, other)


def _counts(queries: Int[Tensor, "b h L"]) -> tuple[int, ...]:
    if queries.numel() == 0:
        return (0,)
    return tuple(int(last) + 1 for last in queries.amax(dim=(-2, -1)))
