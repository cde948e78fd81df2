"""Recording a run: every attention call becomes part of a track, named by who made it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from regard.record._track import Track
from regard.record.names import Names

if TYPE_CHECKING:
    from torch import nn

    from regard.record._chosen import Chosen
    from regard.record.intercept.calls import Call
    from regard.record.names import Kind


@dataclass(eq=False)
class Slot:
    """One place of a model that attends: a module, or a repeated call of it within one run."""

    modules: tuple[nn.Module, ...]
    kind: Kind
    kept: bool
    tracks: list[Track] = field(default_factory=list)


@dataclass(frozen=True, eq=False, kw_only=True)
class Place:
    """Where a track comes from."""

    name: str
    kind: Kind
    layer: int
    """Its number among those of its kind, in the order of their first calls."""
    track: Track


class Recorder:
    """Sorts the calls it is told into tracks."""

    def __init__(self, model: nn.Module | None, kept: Chosen) -> None:
        self.calls = 0
        self._kept = kept
        self._names = Names(model)
        self._within = None if model is None else {id(m) for m in model.modules()}
        self._slots: dict[tuple[int, int], Slot] = {}
        self._order: list[tuple[Slot, Track]] = []
        self._run = -1
        self._before: Call | None = None
        self._times: dict[int, int] = {}

    def __call__(self, call: Call) -> None:
        """Take one call in."""
        if self._within is not None and not any(id(m) in self._within for m in call.modules):
            return
        self.calls += 1
        before, self._before = self._before, call
        if before is not None and before.run == call.run and call.repeats(before):
            return
        slot = self._slot(call)
        if not slot.kept:
            return
        problem = call.problem()
        if slot.tracks:
            if slot.tracks[-1].extend(problem):
                return
            slot.tracks[-1].refuse(problem)
        track = Track(problem, self._kept, slot.kind)
        slot.tracks.append(track)
        self._order.append((slot, track))

    def places(self) -> list[Place]:
        """Name the tracks, in the order in which they began."""
        counts: dict[Kind, int] = {}
        numbers: dict[Slot, int] = {}
        for slot in self._slots.values():
            slot.kind = self._names.kind(slot.modules)  # later calls may have told more
            numbers[slot] = counts.get(slot.kind, 0)
            counts[slot.kind] = numbers[slot] + 1
        return [
            Place(
                name=self._names.path(slot.modules[-1] if slot.modules else None),
                kind=slot.kind,
                layer=numbers[slot],
                track=track,
            )
            for slot, track in self._order
        ]

    def _slot(self, call: Call) -> Slot:
        if call.run != self._run:
            self._run, self._times = call.run, {}
        who = id(call.modules[-1]) if call.modules else 0
        time = self._times[who] = self._times.get(who, -1) + 1
        slot = self._slots.get((who, time))
        if slot is None:
            if call.modules:
                self._names.learn(call.modules[0])
            kind = self._names.kind(call.modules)
            layer = sum(other.kind == kind for other in self._slots.values())
            slot = Slot(call.modules, kind, self._kept.has_layer(layer))
            self._slots[who, time] = slot
        return slot
