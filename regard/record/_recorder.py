"""Sorting a model's attention calls into layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard._shapes import Float
from regard.problem import Problem
from regard.record._pattern_builder import PatternBuilder
from regard.record._selection import Selection
from regard.record.intercept import Call
from regard.record.layer import Layer
from regard.record.sites import Site, Sites


class Recorder:
    """Records calls: each adds to the pattern of the layer that made it.

    Args:
        model: calls of other models are left out; None records all.
        selection: the part of the calls that is kept.
    """

    def __init__(self, model: nn.Module | None, selection: Selection) -> None:
        self.calls = 0
        self._selection = selection
        self._sites = Sites(model)
        self._builders: dict[Site, list[PatternBuilder]] = {}
        """Of the sites that are kept."""
        self._others: set[Site] = set()
        self._order: list[tuple[Site, PatternBuilder]] = []
        self._contexts: dict[Site, _ContextSum] = {}
        self._context: Tensor | None = None

    def observe_context(self, call: Call, context: Float[Tensor, "B H L Dv"]) -> None:
        """Take the context of the call that is recorded next."""
        self._context = context.detach() if self._sites.has(call) else None

    def __call__(self, call: Call) -> None:
        """Record one call."""
        context, self._context = self._context, None
        if not self._sites.has(call):
            return
        self.calls += 1
        if call.repeated:
            return
        site = self._sites.of(call)
        if site not in self._builders and not self._selection.has_layer(site.layer):
            self._others.add(site)  # a layer's number may change, what is kept does not
        if site in self._others:
            return
        builders = self._builders.setdefault(site, [])
        problem = call.problem()
        if context is not None:
            self._contexts.setdefault(site, _ContextSum()).add(context, problem)
        if builders:
            if builders[-1].extend(problem):
                return
            builders[-1].refuse(problem)
        builder = PatternBuilder(problem, self._selection, site.kind)
        builders.append(builder)
        self._order.append((site, builder))

    def layers(self) -> list[Layer]:
        """The layers recorded so far, in the order of their first calls."""
        self._sites.number()
        return [
            Layer(
                name=self._sites.names.path(site.modules[-1] if site.modules else None),
                kind=site.kind,
                index=site.layer,
                heads=builder.heads,
                rows=builder.rows,
                mean_context=self._mean_context(site, builder),
                get_pattern=builder.pattern,
            )
            for site, builder in self._order
        ]

    def _mean_context(self, site: Site, builder: PatternBuilder) -> Tensor | None:
        if site not in self._contexts:
            return None
        return self._contexts[site].mean()[list(builder.heads)]


class _ContextSum:
    """The sum of a layer's contexts over all rows that see a key."""

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._count: Tensor | None = None

    def add(self, context: Float[Tensor, "B H L Dv"], problem: Problem) -> None:
        """Add the rows of a call."""
        sees = (problem.rows.start < problem.rows.stop)[..., None]  # (b, h, L, 1)
        total = torch.where(sees, context, 0).sum(dim=(0, 2), dtype=torch.float64)
        count = sees.expand(*context.shape[:3], 1).sum(dim=(0, 2))
        self._total = total if self._total is None else self._total + total
        self._count = count if self._count is None else self._count + count

    def mean(self) -> Float[Tensor, "H Dv"]:
        """The mean of each head; 0 where no row saw a key."""
        assert self._total is not None, "made for a call"
        assert self._count is not None, "likewise"
        return (self._total / self._count.clamp(min=1)).float()
