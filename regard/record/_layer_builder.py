"""Which calls of a layer belong together: those of a pattern, which grows as a model generates.

The first call has the prompt's rows. A later one has a row for each new token, and keys of which
all but the newest were there before: all of them, or the last few of a rolling cache, perhaps
followed by room of a cache of fixed size. So a call continues a pattern if its keys are the
pattern's last ones; they are compared. Keys that stay, as those of cross-attention do, tell
nothing: there the model's self-attention has to say that the run goes on (`RunHistory`).

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
from regard.record.names import Kind


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerCall:
    """A call of one layer."""

    problem: Problem
    number: int
    """How many calls of the layer came before."""
    left_out: int = 0
    """How many queries of the text came before its own, in a layer that may leave out some."""
    begins: bool = False
    """Whether it is known to begin a pattern; else its keys tell."""
    follows: bool = False
    """Whether its queries come after those of the call before, if its keys are the same."""


class LayerBuilder(ABC):
    """Takes in the calls of one pattern, and tells those that do not belong to it.

    Args:
        call: the first one.
        kind: what the layer attends to.
        selection: the part of its calls that is kept.
    """

    def __init__(self, call: LayerCall, kind: Kind, *, selection: Selection) -> None:
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
        self._goes_on = False
        self._begin(problem.key[..., : self._keys, :])
        self._add(problem, call.number, shift=0, width=self._keys)

    @property
    def queries(self) -> int:
        """How many queries the text has had so far, those left out included."""
        return self._queries

    @property
    def rows(self) -> Sequence[int]:
        """Numbers of the queries that are kept."""
        everything = range(self._left_out, self._queries)
        return everything if len(self._rows) == len(everything) else tuple(self._rows)

    @property
    def goes_on(self) -> bool:
        """Whether the latest call went on from the one before."""
        return self._goes_on

    def extend(self, call: LayerCall) -> bool:
        """Take in another call, if it continues this pattern.

        Raises:
            RecordError: if it goes on from a cache, but not from the one recorded.
        """
        self._goes_on = not call.begins and self._continues(call)
        if not self._goes_on and not call.begins:
            self._refuse_other_caches(call.problem)
        return self._goes_on

    def _require_unchanged(self) -> None:  # noqa: B027 - there may be nothing to check
        """Refuse tensors that are kept and were written to, so that they can't be compared."""

    @abstractmethod
    def _begin(self, key: Float[Tensor, "B G S D"]) -> None:
        """Take in the first keys."""

    @abstractmethod
    def _append(self, key: Float[Tensor, "B G s D"]) -> None:
        """Take in further keys."""

    @abstractmethod
    def _begins_with(self, key: Float[Tensor, "B G s D"]) -> bool:
        """Whether this is the pattern's first key."""

    @abstractmethod
    def _ends_with(self, key: Float[Tensor, "B G s D"]) -> bool:
        """Tell whether keys are the last ones of this pattern."""

    def _extend_keys(self, key: Float[Tensor, "B G s D"], past: int) -> bool:
        """Take in the keys after the first ``past``, if those are the last ones of this pattern."""
        if not self._ends_with(key[..., :past, :]):
            return False
        self._append(key[..., past:, :])
        return True

    @abstractmethod
    def _take(self, problem: Problem, shift: int, width: int) -> None:
        """Take in the rows of a call that are kept.

        Args:
            problem: the call, with these rows alone.
            shift: how many of the pattern's keys come before those that the call had.
            width: how many keys the call had, without room that is not filled yet.
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
                self._keys += skipped + problem.queries
                self._queries += skipped
                self._add(problem, number, shift=self._keys - width, width=width)
                return True
        if call.follows and problem.keys == self._keys and self._ends_with(problem.key):
            self._add(problem, number, shift=0, width=self._keys)  # cross-attention's, which stay
            return True
        return False

    def _refuse_other_caches(self, problem: Problem) -> None:
        """Refuse a call whose keys before its own are not those recorded.

        Where they are no more than those that the first call had from elsewhere, the call may be a
        run of its own, as with a trained prefix, or with a query that pools a picture. So may one
        of several queries whose first key is another one.
        """
        if self._from_elsewhere is None:
            return
        past = past_keys(problem)
        begins_alike = problem.queries == 1 or self._has_first_key(problem)
        goes_on = past == self._keys or (_may_be_causal(problem) and begins_alike)
        if past > self._from_elsewhere and goes_on:
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
    """What all calls of a pattern have in common."""
    query = problem.query
    return problem.scale, problem.softcap, query.dtype, query.shape[0], query.shape[-1]


def past_keys(problem: Problem) -> int:
    """How many keys come before the first query's own.

    Affine bounds give it without reading anything back from a GPU.
    """
    bounds = problem.rows.bounds
    if isinstance(bounds, AffineBounds):
        return bounds.position if problem.queries else 0
    first = problem.rows.positions[..., :1]
    return int(first.amin()) if first.numel() else 0


def _from_other_runs(problem: Problem) -> int | None:
    """How many keys the first call of a pattern has from a cache; None where it can't have one.

    Queries that all see more keys than there are queries do not stand among these keys: they are
    latents, or learned. One query alone may be either.
    """
    past = max(past_keys(problem), 0)
    return past if past == 0 or _may_be_causal(problem) else None


def _may_be_causal(problem: Problem) -> bool:
    """Whether no query sees a key after its own, as far as the bounds of its row tell."""
    rows = problem.rows
    if rows.allowed is not None:
        return True
    if isinstance(rows.bounds, AffineBounds):
        first_stop = rows.bounds.first_stop
        stop = problem.keys if first_stop is None else first_stop
        return stop <= rows.bounds.position + 1 or problem.queries == 0
    return bool((rows.stop <= rows.positions + 1).all())


def _last_seen(problem: Problem) -> int:
    """One past the last key that any query may see."""
    bounds = problem.rows.bounds
    if isinstance(bounds, AffineBounds):
        return bounds.last_stop
    stop = problem.rows.stop
    return int(stop.amax()) if stop.numel() else 0


def _filled(problem: Problem) -> int:
    """How many keys a call has, without the room of a cache that is not filled yet."""
    width = past_keys(problem) + problem.queries
    room = problem.queries < problem.keys and _last_seen(problem) <= width
    return width if room and 0 < width < problem.keys else problem.keys
