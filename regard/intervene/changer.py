"""The changes of one block, applied to the calls of a model.

Axes: B batch, H query heads, L queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from torch import Tensor, nn

from regard import intercept
from regard._arguments import contains
from regard.errors import Error
from regard.inputs import Problem
from regard.intercept import Call, was_made_before
from regard.intervene._met import Met
from regard.intervene._patching import with_pattern
from regard.intervene._place import Place, Progress
from regard.intervene._weights import heads_of, with_spans, with_temperature
from regard.intervene.changes import Ablate, Change, KnockOut, Patch, Steer, Temper
from regard.intervene.contexts import ablations
from regard.record.sites import Site, Sites


class ModelChanger:
    """Changes the calls of one model.

    Args:
        model: whose calls.
    """

    def __init__(self, model: nn.Module) -> None:
        self.changes: list[Change] = []
        self._sites = Sites(model)
        self._progress = Progress()
        self._met = Met()
        self._latest: tuple[Site, Place] | None = None
        self._ended = False

    def add(self, change: Change) -> None:
        """Make a change in the calls to come.

        Raises:
            Error: after the block.
        """
        if self._ended:
            raise Error(f"{change!r}: the block has ended; state changes inside it")
        self.changes.append(change)

    def end(self) -> None:
        """Take no further changes."""
        self._ended = True

    def may_change(self, modules: Sequence[nn.Module], run: int) -> bool:
        """Whether the next call of the innermost of these modules may be changed."""
        kind, layer = self._sites.next(modules, run)
        return any(
            change.kind == kind and contains(change.layers, layer) for change in self.changes
        )

    def change(self, call: Call) -> intercept.Change | None:
        """Say what is computed in place of a call; None leaves it as it is.

        Raises:
            Error: for changes that contradict each other, and for one that this call
                does not allow.
        """
        if not self._sites.has(call):
            return None
        own = replace(call, changed=None).problem()  # keys and positions of the model itself
        site, place = self._located(call, own)
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
            self._met.add(change, site.layer, place)
        _refuse_contradictions(changes, problem)
        changed = _changed(call, changes, place)
        ablated = [change for change in changes if isinstance(change, Ablate)]
        edits = ablations(ablated, problem if changed is None else changed, site)
        return intercept.Change(problem=changed, edit=_together(edits) if edits else None)

    def _located(self, call: Call, own: Problem) -> tuple[Site, Place]:
        """Find the site of a call and its place in the text; of a call that nothing changes too.

        Later calls are placed by those before them.
        """
        if self._latest is None or not call.repeated:
            site = self._sites.of(call)
            self._latest = site, self._progress.place(site, own, call.run)
        return self._latest

    def require_all_met(self) -> None:
        """Refuse changes that name what no call had.

        Raises:
            Error: for the first such change.
        """
        self._met.require_all(self.changes, self._sites.counts())


def _changed(call: Call, changes: Sequence[Change], place: Place) -> Problem | None:
    """The attention in place of a call's own; None where its weights stay."""
    if all(isinstance(change, Ablate) for change in changes):
        return None
    problem = with_temperature(with_spans(call.attention(), changes, place), changes)
    for change in changes:
        if isinstance(change, Patch):
            problem = with_pattern(problem, change, place)
    return problem


def _together(edits: list[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    def edit(context: Tensor) -> Tensor:
        for each in edits:
            context = each(context)
        return context

    return edit


def _refuse_contradictions(changes: Sequence[Change], problem: Problem) -> None:
    """Refuse two changes of a head of which one undoes the other.

    Raises:
        Error: for the first such pair.
    """
    replaced: tuple[tuple[type[Change], tuple[type[Change], ...]], ...] = (
        (Ablate, (Ablate, Patch)),
        (Patch, (Patch, KnockOut, Steer, Temper)),
    )
    for kind, undone in replaced:
        for one, other in product(changes, changes):
            if one is other or not isinstance(one, kind) or not isinstance(other, undone):
                continue
            if bool((heads_of(one, problem) & heads_of(other, problem)).any()):
                raise Error(
                    f"{one!r} and {other!r} contradict each other: the first replaces what the "
                    "second changes; leave one out, or give them different heads"
                )
