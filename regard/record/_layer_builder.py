"""Groups the calls of a layer into patterns, which grow as a model generates.

The first call has the rows of the prompt. A later call has a row per new token, and keys of which
all but the newest are known: all earlier keys, or the last ones in a rolling cache, possibly
followed by unused entries of a cache of fixed size. So a call continues a pattern if its earlier
keys equal the pattern's last keys. The keys of cross-attention never change; there the model's
self-attention decides whether the run continues (`ContinuationTracker`).

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Float
from regard._tensors import upload
from regard.errors import RecordError
from regard.inputs import Problem
from regard.masks.bounds import AffineBounds
from regard.record._selection import Selection, select_heads
from regard.record.sites import AttentionKind


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerCall:
    """A call of one layer."""

    problem: Problem
    path: str = ""
    """The layer's path."""
    value: Float[Tensor, "B G S Dv"] | None = None
    """The values, where something is kept of them."""
    number: int
    """Number of earlier calls of the layer."""
    left_out: int = 0
    """Number of earlier queries of the text, in a layer that may skip some."""
    begins: bool = False
    """Whether it is known to begin a pattern; otherwise keys are compared."""
    follows: bool = False
    """Whether its queries follow those of the previous call, provided that the keys are equal."""


class LayerBuilder(ABC):
    """Collects the calls of one pattern, and rejects those that do not continue it.

    Args:
        call: the first call.
        kind: the kind of attention.
        selection: the heads and rows to keep.
    """

    def __init__(self, call: LayerCall, kind: AttentionKind, *, selection: Selection) -> None:
        problem = call.problem
        self.heads = selection.head_numbers(problem.heads[1])
        self._selection = selection
        self._kind = kind
        self._rows: list[int] = []
        self._left_out = self._queries = call.left_out
        self._traits = _traits(problem)
        problem = select_heads(problem, self.heads)
        self._keys = problem.keys if kind == "cross" else _filled(problem)
        self._from_elsewhere = None if kind == "cross" else _from_other_runs(problem)
        self._continued = False
        self.new_keys = slice(0, self._keys)
        """Which keys of the latest call were new."""
        self._begin(problem.key[..., : self._keys, :])
        self._add(problem, call.number, shift=0, width=self._keys)

    @property
    def queries(self) -> int:
        """Number of queries of the text so far, including skipped ones."""
        return self._queries

    @property
    def rows(self) -> Sequence[int]:
        """Indices of the queries that are kept."""
        everything = range(self._left_out, self._queries)
        return everything if len(self._rows) == len(everything) else tuple(self._rows)

    @property
    def continued(self) -> bool:
        """Whether the latest call continued the previous one."""
        return self._continued

    def extend(self, call: LayerCall) -> bool:
        """Add a call if it continues this pattern; return whether it does.

        Raises:
            RecordError: if it continues from a cache other than the recorded one.
        """
        self._continued = not call.begins and self._continues(call)
        if not self._continued and not call.begins:
            self._refuse_other_caches(call.problem)
        return self._continued

    def _require_unchanged(self) -> None:  # noqa: B027 - there may be nothing to check
        """Raise if kept tensors were written to, so that keys cannot be compared."""

    @abstractmethod
    def _begin(self, key: Float[Tensor, "B G S D"]) -> None:
        """Store the first keys."""

    @abstractmethod
    def _append(self, key: Float[Tensor, "B G s D"]) -> None:
        """Append keys."""

    @abstractmethod
    def _begins_with(self, key: Float[Tensor, "B G s D"]) -> bool:
        """Return whether this is the pattern's first key."""

    @abstractmethod
    def _ends_with(self, key: Float[Tensor, "B G s D"]) -> bool:
        """Return whether these are the pattern's last keys."""

    def _extend_keys(self, key: Float[Tensor, "B G s D"], past: int) -> bool:
        """Append the keys after the first ``past``, if those are the pattern's last keys."""
        if not self._ends_with(key[..., :past, :]):
            return False
        self._append(key[..., past:, :])
        return True

    @abstractmethod
    def _take(self, problem: Problem, shift: int, width: int) -> None:
        """Add the kept rows of a call.

        Args:
            problem: the call, cropped to these rows.
            shift: index of the call's first key in the pattern.
            width: number of keys of the call, without unused cache entries.
        """

    def _continues(self, call: LayerCall) -> bool:
        problem, number = call.problem, call.number
        if _traits(problem) != self._traits or max(self.heads, default=0) >= problem.heads[1]:
            return False
        problem = select_heads(problem, self.heads)
        past = past_keys(problem)
        width = past + problem.queries
        skipped = max(call.left_out - self._queries, 0)
        if self._kind != "cross" and self._may_come_after(problem, past - skipped, width):
            key = problem.key if width == problem.keys else problem.key[..., :width, :]
            if self._extend_keys(key, past - skipped):
                self.new_keys = slice(past - skipped, width)
                self._keys += skipped + problem.queries
                self._queries += skipped
                self._add(problem, number, shift=self._keys - width, width=width)
                return True
        if call.follows and problem.keys == self._keys and self._ends_with(problem.key):
            self.new_keys = slice(0, 0)
            self._add(
                problem, number, shift=0, width=self._keys
            )  # cross-attention, whose keys never change
            return True
        return False

    def _refuse_other_caches(self, problem: Problem) -> None:
        """Refuse a call whose cached keys are not the recorded ones.

        A call with no more cached keys than the first call had may be a new run, as with a trained
        prefix, or with a query that pools an image. So may a call of several queries with a
        different first key.
        """
        if self._from_elsewhere is None:
            return
        past = past_keys(problem)
        begins_alike = problem.queries == 1 or self._has_first_key(problem)
        continued = past == self._keys or (_may_be_causal(problem) and begins_alike)
        if past > self._from_elsewhere and continued:
            self._require_unchanged()
            raise RecordError(
                f"a call has {past} keys from a cache, but they are not the {self._keys} recorded "
                "before it: the cache was reordered (beam search), cropped (assisted generation) "
                "or made outside the recording; record with num_beams=1, and from the prompt on"
            )

    def _has_first_key(self, problem: Problem) -> bool:
        if _traits(problem) != self._traits:
            return False
        return self._begins_with(select_heads(problem, self.heads).key[..., :1, :])

    def _may_come_after(self, problem: Problem, past: int, width: int) -> bool:
        return 0 < past <= self._keys and width <= problem.keys and _last_seen(problem) <= width

    def _add(self, problem: Problem, number: int, *, shift: int, width: int) -> None:
        count = problem.queries
        numbers = self._selection.row_numbers(self._queries, count, number)
        first, self._queries = self._queries, self._queries + count
        if len(numbers) < count:
            index = torch.tensor(numbers, dtype=torch.int64, device="cpu") - first
            problem = problem.at(upload(index, problem.query.device))
        self._take(problem, shift, width)
        self._rows += numbers


def _traits(problem: Problem) -> tuple[object, ...]:
    """Return the properties that all calls of a pattern share."""
    query = problem.query
    return problem.scale, problem.softcap, query.dtype, query.shape[0], query.shape[-1]


def past_keys(problem: Problem) -> int:
    """Return the number of keys before the first query's own.

    With affine bounds this needs no synchronization with a GPU.
    """
    bounds = problem.rows.bounds
    if isinstance(bounds, AffineBounds):
        return bounds.position if problem.queries else 0
    first = problem.rows.positions[..., :1]
    return int(first.amin()) if first.numel() else 0


def _from_other_runs(problem: Problem) -> int | None:
    """Return the number of cached keys of a pattern's first call; None if it cannot have a cache.

    Queries that see keys after their own are not tokens of the same sequence but latents, or
    learned queries. A single query may be either.
    """
    past = max(past_keys(problem), 0)
    return past if past == 0 or _may_be_causal(problem) else None


def _may_be_causal(problem: Problem) -> bool:
    """Return whether the row bounds allow no query to see a key after its own."""
    rows = problem.rows
    if rows.allowed is not None:
        return True
    if isinstance(rows.bounds, AffineBounds):
        first_stop = rows.bounds.first_stop
        stop = problem.keys if first_stop is None else first_stop
        return stop <= rows.bounds.position + 1 or problem.queries == 0
    return bool((rows.stop <= rows.positions + 1).all())


def _last_seen(problem: Problem) -> int:
    """Return one past the last key that any query may see."""
    bounds = problem.rows.bounds
    if isinstance(bounds, AffineBounds):
        return bounds.last_stop
    stop = problem.rows.stop
    return int(stop.amax()) if stop.numel() else 0


def _filled(problem: Problem) -> int:
    """Return the number of keys of a call, without unused cache entries."""
    width = past_keys(problem) + problem.queries
    room = problem.queries < problem.keys and _last_seen(problem) <= width
    return width if room and 0 < width < problem.keys else problem.keys
