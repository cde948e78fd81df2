"""Applies the operations of one block to the calls of a model, and tracks which were used.

Axes: B batch, H query heads, L queries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor, nn

from regard import intercept
from regard._arguments import contains, from_start
from regard.errors import Error
from regard.inputs import Problem
from regard.intercept import Call, was_made_before
from regard.intervene._patching import with_patterns, with_values
from regard.intervene._position import CallPosition, TextTracker, key_runs
from regard.intervene._weights import heads_of, with_spans, with_temperature
from regard.intervene.contexts import context_edit
from regard.intervene.operations import (
    Ablate,
    CheckedIndices,
    KnockOut,
    Operation,
    PatchContext,
    PatchPattern,
    PatchValue,
    Steer,
    Temper,
)
from regard.record.sites import AttentionKind, Site, Sites


class ModelChanger:
    """Changes the calls of one model.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.changes: list[Operation] = []
        self._sites = Sites(model)
        self._texts = TextTracker()
        self._usage = UsageTracker()
        self._latest: tuple[Site, CallPosition] | None = None
        self._ended = False

    def add(self, change: Operation) -> None:
        """Apply an operation to all later calls.

        Raises:
            Error: after the block.
        """
        if self._ended:
            raise Error(f"{change!r}: the block has ended; state changes inside it")
        self.changes.append(change)

    def end(self) -> None:
        """Refuse further operations."""
        self._ended = True

    def may_change(self, modules: Sequence[nn.Module], run: int) -> bool:
        """Return whether an operation may apply to the innermost module's next call."""
        kind, layer = self._sites.next(modules, run)
        return any(
            change.kind == kind and contains(change.layers, layer) for change in self.changes
        )

    def change(self, call: Call) -> intercept.CallChange | None:
        """Return what is computed in place of a call; None leaves it unchanged.

        Raises:
            Error: for contradictory operations, and for one that this call does not allow.
        """
        if not self._sites.has(call):
            return None
        own = replace(call, changed=None).problem()  # keys and positions of the model itself
        site, position = self._located(call, own)
        changes = [
            change
            for change in self.changes
            if change.kind == site.kind
            and contains(change.layers, site.layer)
            and not was_made_before(change.time)
        ]
        if not changes:
            return None
        problem = own if call.changed is None else call.problem()
        for change in changes:
            self._usage.add(change, site.layer, position)
            if call.repeated and isinstance(change, (PatchContext, PatchValue)):
                raise Error(
                    f"{change!r}: layer {site.layer} applies the same weights to several values in "
                    "turn, whose contexts are not told apart; patch its pattern"
                )
        _refuse_contradictions(changes, problem, position)
        changed = _changed(call, changes, position)
        edit = context_edit(changes, problem if changed is None else changed, position)
        return intercept.CallChange(problem=changed, edit=edit)

    def _located(self, call: Call, own: Problem) -> tuple[Site, CallPosition]:
        """Return the site of a call and its position in the text.

        Unchanged calls are tracked too, since positions of later calls depend on them.
        """
        if self._latest is None or not call.repeated:
            site = self._sites.of(call)
            self._latest = site, self._texts.position(site, own, call.run)
        return self._latest

    def require_all_used(self) -> None:
        """Refuse operations that name layers, queries or keys that no call had.

        Raises:
            Error: for the first such operation.
        """
        self._usage.require_all(self.changes, self._sites.counts())


def _changed(call: Call, changes: Sequence[Operation], position: CallPosition) -> Problem | None:
    """Return the attention to compute instead; None if only contexts are replaced."""
    if all(isinstance(change, (Ablate, PatchContext)) for change in changes):
        return None
    problem = with_temperature(with_spans(call.attention(), changes, position), changes)
    values = [change for change in changes if isinstance(change, PatchValue)]
    patterns = [change for change in changes if isinstance(change, PatchPattern)]
    return with_patterns(with_values(problem, values, position), patterns, position)


_UNDONE: tuple[tuple[tuple[type[Operation], ...], tuple[type[Operation], ...]], ...] = (
    ((Ablate, PatchContext), (Ablate, PatchContext, PatchPattern, PatchValue)),
    ((PatchPattern,), (PatchPattern, KnockOut, Steer, Temper)),
)
"""Operations, and those that they undo in the same rows."""


def _refuse_contradictions(
    changes: Sequence[Operation], problem: Problem, position: CallPosition
) -> None:
    """Refuse two operations on a head of which one overrides the other.

    Raises:
        Error: for the first such pair.
    """
    heads = [heads_of(change, problem)[..., None] for change in changes]
    for replacing, undone in _UNDONE:
        first = [n for n, change in enumerate(changes) if isinstance(change, replacing)]
        second = [n for n, change in enumerate(changes) if isinstance(change, undone)]
        rows = {
            n: heads[n] & position.rows(getattr(changes[n], "queries", None))
            for n in {*first, *second}
        }
        _refuse_overlap(changes, first, second, rows)
    values = [n for n, change in enumerate(changes) if isinstance(change, PatchValue)]
    keys = {
        n: heads[n] & position.columns(getattr(changes[n], "keys", None), problem.keys)
        for n in values
    }
    _refuse_overlap(changes, values, values, keys)


def _refuse_overlap(
    changes: Sequence[Operation],
    first: Sequence[int],
    second: Sequence[int],
    places: dict[int, Tensor],
) -> None:
    """Refuse an operation of the first and one of the second in the same place.

    Args:
        changes: all operations.
        first: the indices of some.
        second: the indices of those that they undo.
        places: masks of where the operations apply, by their indices.

    Raises:
        Error: for the first such pair.
    """
    if not first or len(places) < 2:
        return
    times = torch.stack(torch.broadcast_tensors(*places.values())).sum(dim=0)
    if not bool((times > 1).any()):  # of a batch with a change each, there are many pairs
        return
    for one, other in product(first, second):
        if one != other and bool((places[one] & places[other]).any()):
            raise Error(
                f"{changes[one]!r} and {changes[other]!r} contradict each other: the first "
                "replaces what the second changes; leave one out, or give them different heads"
            )


class UsageTracker:
    """Records which named layers and positions occurred, to report unmatched operations."""

    def __init__(self) -> None:
        self._layers: dict[Operation, set[int]] = defaultdict(set)
        self._numbers: dict[tuple[Operation, str], set[int]] = defaultdict(set)
        self._largest: dict[tuple[Operation, str], int] = {}

    def add(self, change: Operation, layer: int, position: CallPosition) -> None:
        """Record a call that an operation applies to."""
        self._layers[change].add(layer)
        for name, count in (
            ("queries", max(position.query_counts)),
            ("keys", max(position.key_counts)),
        ):
            numbers: CheckedIndices = getattr(change, name, None)
            if numbers is None:
                continue
            self._largest[change, name] = max(count, self._largest.get((change, name), 0))
            self._numbers[change, name].update(_present(name, numbers, count, position))

    def require_all(self, changes: Sequence[Operation], layers: dict[AttentionKind, int]) -> None:
        """Refuse changes that name what no call had.

        Args:
            changes: all operations of the block.
            layers: number of layers of each kind.

        Raises:
            Error: for the first such change.
        """
        for change in changes:
            met = self._layers[change]
            missing = sorted(set(change.layers) - met) if isinstance(change.layers, tuple) else []
            if missing or not met:
                had = ", ".join(f"{count} of kind {kind!r}" for kind, count in layers.items())
                what = f"layer {missing[0]}" if missing else "a layer that it names"
                raise Error(
                    f"{change!r} was not made: {what} made no call; layers that did: "
                    f"{had or 'none'}"
                )
            for name in ("queries", "keys"):
                self._require_numbers(change, name)

    def _require_numbers(self, change: Operation, name: str) -> None:
        numbers: CheckedIndices = getattr(change, name, None)
        if numbers is None:
            return
        met = self._numbers[change, name]
        missing = [n for n in numbers if n not in met] if isinstance(numbers, tuple) else []
        if missing or not met:
            what = f"{name} {missing[0]}" if missing else f"any of these {name}"
            raise Error(
                f"{change!r} was not made: no call had {what}; the longest text had "
                f"{self._largest[change, name]} {name}"
            )


def _present(name: str, numbers: CheckedIndices, count: int, position: CallPosition) -> set[int]:
    """Return the indices that exist in this call; for a slice, one index if any exists."""
    if isinstance(numbers, tuple):
        present = set(numbers)
        if name == "keys":
            return {n for n in present if 0 <= from_start(n, count) < count}
        rows = set(position.queries.unique().tolist())
        return {n for n in present if from_start(n, count) in rows}
    if name == "keys":
        return {0} if any(start < stop for start, stop in key_runs(numbers, count)) else set()
    return {0} if bool(torch.any(position.rows(numbers))) else set()
