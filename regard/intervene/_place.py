"""Where a call's queries and keys stand in the whole text.

Over a generation with a key/value cache each call has a few queries and many keys, of a rolling
cache the last ones alone. Changes name queries and keys by their numbers in the text.

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
from regard.intervene.changes import Selected
from regard.record.run_history import RunHistory
from regard.record.sites import Site

Start = Literal["read", "cached", "dropped"]
"""How a text began: its first token was read here, or came from a cache, or from one that had
dropped keys, so that numbers from the start are unknown."""

_TEXTS = 8  # that a model may read in turn, each with a cache


@dataclass(frozen=True, eq=False, kw_only=True)
class Place:
    """The numbers of a call's queries and keys in the text."""

    queries: Int[Tensor, "#b #h L"]
    first_key: int
    """The number of the call's first key."""
    query_counts: tuple[int, ...]
    """How many queries each entry of the batch has had, or one for all."""
    key_counts: tuple[int, ...]
    """How many keys, likewise."""
    start: Start = "read"
    """How the text began."""

    def rows(self, numbers: Selected) -> Bool[Tensor, "#b #h L"]:
        """Which of the call's rows are meant."""
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

    def spans(self, numbers: Selected, keys: int) -> list[tuple[Tensor, Tensor]]:
        """The runs of keys that are meant, each as start and stop ``(b, 1, 1)`` in the call."""
        self._require_certain("keys", numbers)
        entries = [key_runs(numbers, count) for count in self.key_counts]
        width = max(len(entry) for entry in entries)
        padded = torch.tensor(
            [entry + [(0, 0)] * (width - len(entry)) for entry in entries], device="cpu"
        )
        ends = (padded.reshape(len(entries), width, 2) - self.first_key).clamp(0, keys)
        ends = ends.to(self.queries.device)
        return [(ends[:, n, :1, None], ends[:, n, 1:, None]) for n in range(width)]

    def _require_certain(self, name: str, numbers: Selected) -> None:
        if numbers is not None and not _count_from_end(numbers):
            self.require_start(f"{name}={numbers!r}", ", or count from the end")

    def require_start(self, what: str, other_cure: str = "") -> None:
        """Refuse numbers from the start of a text where those are unknown.

        Args:
            what: the numbers, for the message.
            other_cure: what else helps than an earlier block.

        Raises:
            Error: if a cache had dropped keys before the text was read here.
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


def key_runs(numbers: Selected, count: int) -> list[tuple[int, int]]:
    """Runs of consecutive keys, of so many, that numbers mean; others mean nothing yet."""
    if numbers is None:
        return [(0, count)]
    if isinstance(numbers, slice):
        start, stop, step = numbers.indices(count)
        if step == 1:
            return [(start, max(start, stop))]
        return runs(range(start, stop, step))
    places = (from_start(number, count) for number in numbers)
    return runs(place for place in places if 0 <= place < count)


def _among(
    queries: Int[Tensor, "b h L"], numbers: tuple[int, ...] | slice, count: int
) -> Bool[Tensor, "b h L"]:
    if isinstance(numbers, slice):
        start, stop, step = numbers.indices(count)
        return (queries >= start) & (queries < stop) & ((queries - start) % step == 0)
    wanted = torch.tensor([from_start(number, count) for number in numbers], device=queries.device)
    return torch.isin(queries, wanted)


@dataclass(frozen=True, eq=False)
class _End:
    """The end of a text that a site has read."""

    key: Float[Tensor, "B G 1 D"]
    """The last one, by which the next call of a text with a cache is known."""
    count: int
    """Of queries."""
    start: Start = "read"


class Progress:
    """How far each site of a model is in its texts."""

    def __init__(self) -> None:
        self._ends: dict[Site, list[_End]] = {}
        self._sources: dict[Site, _End] = {}
        self._runs = RunHistory()
        self._latest: tuple[int, Place] | None = None
        """Run and place of the latest call of self-attention."""

    def place(self, site: Site, problem: Problem, run: int) -> Place:
        """Find the place of the next call of a site, made in a run of the model."""
        if site.kind == "cross":
            return self._cross_place(site, problem, run)
        positions = problem.rows.positions
        past = int(positions[..., :1].amin()) if positions.numel() else 0
        ends = self._ends.setdefault(site, [])
        before = _last_key(problem, past)
        known = None if before is None else next((e for e in ends if _equal(e.key, before)), None)
        # Of a rolling cache the first keys are gone: the call's first is a later one of the text.
        first_key = 0 if known is None else max(known.count - past, 0)
        start = _start(known, past, first_key)
        earlier = self._place_in(run) if known is None and site.shares_keys else None
        if earlier is not None:  # queries before the call's own may have been left out
            first_key = max(max(earlier.query_counts) - past - problem.queries, 0)
            start = earlier.start
        queries = positions + first_key
        counts = _counts(queries)
        place = Place(
            queries=queries,
            first_key=first_key,
            query_counts=counts,
            key_counts=counts,
            start=start,
        )
        last = _last_key(problem, past + problem.queries)
        if last is not None:
            others = [end for end in ends if end is not known]
            self._ends[site] = [_End(last.clone(), max(counts), start), *others][:_TEXTS]
        if site.kind == "self":
            self._latest = run, place
        self._runs.add_self_attention(run=run, queries=problem.queries, goes_on=known is not None)
        return place

    def _place_in(self, run: int) -> Place | None:
        """The place of the latest self-attention of a run."""
        return self._latest[1] if self._latest is not None and self._latest[0] == run else None

    def _cross_place(self, site: Site, problem: Problem, run: int) -> Place:
        follows = self._runs.follows(site, run=run, queries=problem.queries)
        place = self._place_in(run)  # the queries are those of the decoder's self-attention
        if place is not None and place.queries.shape[-1] == problem.queries:
            return replace(place, first_key=0, key_counts=(problem.keys,))
        # Of a decoder that generates, each call has the next queries, and all keys every time.
        last, known = _last_key(problem, problem.keys), self._sources.get(site)
        goes_on = follows and known is not None and _equal(known.key, last)
        seen = known.count if known is not None and goes_on else 0
        if last is not None:
            self._sources[site] = _End(last.clone(), seen + problem.queries)
        queries = torch.arange(seen, seen + problem.queries, device=problem.query.device)
        return Place(
            queries=queries[None, None],
            first_key=0,
            query_counts=(seen + problem.queries,),
            key_counts=(problem.keys,),
        )


def _start(known: _End | None, past: int, first_key: int) -> Start:
    """How a text began, as far as its next call tells."""
    if known is None:
        return "cached" if past else "read"
    if known.start != "cached":
        return known.start
    # A cache that drops a key at once was full before; one that grows holds all of the text.
    return "dropped" if first_key else "read"


def _last_key(problem: Problem, count: int) -> Tensor | None:
    """The last of a call's first keys, as many as this; None where there is none."""
    return problem.key[..., count - 1 : count, :] if 0 < count <= problem.keys else None


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.dtype == other.dtype and torch.equal(one, other)


def _counts(queries: Int[Tensor, "b h L"]) -> tuple[int, ...]:
    if queries.numel() == 0:
        return (0,)
    return tuple(int(last) + 1 for last in queries.amax(dim=(-2, -1)))
