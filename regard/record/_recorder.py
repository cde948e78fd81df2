"""Sorting a model's attention calls into layers."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from regard.record._pattern_builder import PatternBuilder
from regard.record._selection import Selection
from regard.record.intercept import Call
from regard.record.layer import Layer
from regard.record.names import Kind, Names


@dataclass(eq=False)
class _Site:
    """One place of a model that attends: a module, or a repeated call of it within one run."""

    modules: tuple[nn.Module, ...]
    kind: Kind
    selected: bool
    builders: list[PatternBuilder] = field(default_factory=list)


class Recorder:
    """Records calls: each adds to the pattern of the layer that made it.

    Args:
        model: calls of other models are left out; None records all.
        selection: the part of the calls that is kept.
    """

    def __init__(self, model: nn.Module | None, selection: Selection) -> None:
        self.calls = 0
        self._selection = selection
        self._names = Names(model)
        self._within = None if model is None else {id(m) for m in model.modules()}
        self._sites: dict[tuple[int, int], _Site] = {}
        self._order: list[tuple[_Site, PatternBuilder]] = []
        self._run = -1
        self._before: Call | None = None
        self._times: dict[int, int] = {}

    def __call__(self, call: Call) -> None:
        """Record one call."""
        if self._within is not None and not any(id(m) in self._within for m in call.modules):
            return
        self.calls += 1
        before, self._before = self._before, call
        if before is not None and before.run == call.run and call.repeats(before):
            return
        site = self._site(call)
        if not site.selected:
            return
        problem = call.problem()
        if site.builders:
            if site.builders[-1].extend(problem):
                return
            site.builders[-1].refuse(problem)
        builder = PatternBuilder(problem, self._selection, site.kind)
        site.builders.append(builder)
        self._order.append((site, builder))

    def layers(self) -> list[Layer]:
        """The layers recorded so far, in the order of their first calls."""
        counts: dict[Kind, int] = {}
        numbers: dict[_Site, int] = {}
        for site in self._sites.values():
            site.kind = self._names.kind(site.modules)  # later calls may have named more modules
            numbers[site] = counts.get(site.kind, 0)
            counts[site.kind] = numbers[site] + 1
        return [
            Layer(
                name=self._names.path(site.modules[-1] if site.modules else None),
                kind=site.kind,
                index=numbers[site],
                heads=builder.heads,
                rows=builder.rows,
                get_pattern=builder.pattern,
            )
            for site, builder in self._order
        ]

    def _site(self, call: Call) -> _Site:
        if call.run != self._run:
            self._run, self._times = call.run, {}
        caller = id(call.modules[-1]) if call.modules else 0
        time = self._times[caller] = self._times.get(caller, -1) + 1
        site = self._sites.get((caller, time))
        if site is None:
            if call.modules:
                self._names.add(call.modules[0])
            kind = self._names.kind(call.modules)
            layer = sum(other.kind == kind for other in self._sites.values())
            site = _Site(call.modules, kind, self._selection.has_layer(layer))
            self._sites[caller, time] = site
        return site
