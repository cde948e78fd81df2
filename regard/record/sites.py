"""The places of a model that attend, found in the order of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from regard.intercept import Call
from regard.record.names import Kind, Names


@dataclass(eq=False)
class Site:
    """One place of a model that attends: a module, or a repeated call of it within one run."""

    modules: tuple[nn.Module, ...]
    kind: Kind
    layer: int
    """Its number among the sites of its kind, in the order of their first calls."""

    @property
    def shares_keys(self) -> bool:
        """Whether it attends to an earlier layer's keys, as transformers says of its module.

        Where a model has computed those and needs the last logits alone, it may leave out the other
        queries (Gemma 4).
        """
        return bool(self.modules) and vars(self.modules[-1]).get("is_kv_shared_layer") is True


class Sites:
    """Finds the site of each call.

    Args:
        model: calls of other models have no site; None takes all.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self.names = Names(model)
        self._within = None if model is None else {id(m) for m in model.modules()}
        self._sites: dict[tuple[int, int], Site] = {}
        self._run = -1
        self._times: dict[int, int] = {}

    def has(self, call: Call) -> bool:
        """Whether a call is made by the model."""
        return self._within is None or any(id(m) in self._within for m in call.modules)

    def of(self, call: Call) -> Site:
        """The site that made a call, which counts as one call of it; not for a repeated one."""
        if call.run != self._run:
            self._run, self._times = call.run, {}
        caller = id(call.modules[-1]) if call.modules else 0
        time = self._times[caller] = self._times.get(caller, -1) + 1
        site = self._sites.get((caller, time))
        if site is None:
            if call.modules:
                self.names.add(call.modules[0])
            kind = self.names.kind(call.modules)
            site = Site(call.modules, kind, self._count(kind))
            self._sites[caller, time] = site
        return site

    def restart(self) -> None:
        """Forget the current run: runs count anew in each block that observes calls."""
        self._run, self._times = -1, {}

    def next(self, modules: Sequence[nn.Module], run: int) -> tuple[Kind, int]:
        """Kind and layer of the site that would make the next call of the innermost module."""
        caller = id(modules[-1]) if modules else 0
        time = self._times.get(caller, -1) + 1 if run == self._run else 0
        site = self._sites.get((caller, time))
        if site is not None:
            return site.kind, site.layer
        kind = self.names.kind(modules)
        return kind, self._count(kind)

    def counts(self) -> dict[Kind, int]:
        """How many layers of each kind made calls."""
        kinds = dict.fromkeys(site.kind for site in self._sites.values())
        return {kind: self._count(kind) for kind in kinds}

    def number(self) -> None:
        """Name the kinds, and so the layers, anew: later calls may have named more modules."""
        counts: dict[Kind, int] = {}
        for site in self._sites.values():
            site.kind = self.names.kind(site.modules)
            site.layer = counts.get(site.kind, 0)
            counts[site.kind] = site.layer + 1

    def _count(self, kind: Kind) -> int:
        return sum(site.kind == kind for site in self._sites.values())
