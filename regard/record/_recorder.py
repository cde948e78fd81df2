"""Sorting a model's attention calls into layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from regard._shapes import Float
from regard.inputs import Problem
from regard.intercept import Call
from regard.record._layer_builder import LayerCall, past_keys
from regard.record._pattern_builder import PatternBuilder
from regard.record._selection import Selection
from regard.record.layer import Layer
from regard.record.names import Kind
from regard.record.run_history import RunHistory
from regard.record.sites import Site, Sites


@runtime_checkable
class Builder(Protocol):
    """Takes in calls of one layer."""

    @property
    def goes_on(self) -> bool:
        """Whether the latest call went on from the one before."""

    @property
    def queries(self) -> int:
        """How many queries its text has had so far."""

    def extend(self, call: LayerCall) -> bool:
        """Take in another call, unless another builder has to."""


B = TypeVar("B", bound=Builder)


@dataclass(frozen=True)
class Place:
    """Where a builder's calls are made."""

    name: str
    kind: Kind
    index: int


class Recorder(Generic[B]):
    """Records calls: each goes to the builder of the layer that made it.

    Args:
        model: calls of other models are left out; None records all.
        selection: the part of the calls that is kept.
        begin: makes the builder of a call that no builder of its layer takes.
    """

    def __init__(
        self,
        model: nn.Module | None,
        selection: Selection,
        begin: Callable[[LayerCall, Kind], B],
    ) -> None:
        self.calls = 0
        self._selection = selection
        self._begin = begin
        self._sites = Sites(model)
        self._runs = RunHistory()
        self._latest: tuple[int, B] | None = None
        """Run and builder of the latest call that was not of cross-attention."""
        self._builders: dict[Site, B] = {}
        """The last of each site that is kept."""
        self._counts: dict[Site, int] = {}
        self._others: set[Site] = set()
        self._order: list[tuple[Site, B]] = []
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
        problem = call.problem()
        if context is not None:
            self._contexts.setdefault(site, _ContextSum()).add(context, problem)
        builder = self._taken(site, problem, call.run)
        if site.kind != "cross":
            self._latest = call.run, builder
            self._runs.add_self_attention(
                run=call.run, queries=problem.queries, goes_on=builder.goes_on
            )

    def builders(self) -> list[tuple[Place, B]]:
        """The builders and their places, in the order of their first calls."""
        self._sites.number()
        return [(self._place(site), builder) for site, builder in self._order]

    @property
    def has_several_calls(self) -> bool:
        """Whether any place made more than one call, as in a generation."""
        return any(latest > 0 for latest in self._counts.values())

    def mean_contexts(self) -> list[Float[Tensor, "H Dv"] | None]:
        """Of each builder's place, the mean context of all its heads, if contexts were observed."""
        sums = [self._contexts.get(site) for site, _ in self._order]
        return [None if total is None else total.mean() for total in sums]

    def _taken(self, site: Site, problem: Problem, run: int) -> B:
        """Let a site's builder take a call, or another one that begins with it."""
        number = self._counts[site] = self._counts.get(site, -1) + 1
        left_out, begins = self._of_text(problem, run) if site.shares_keys else (0, False)
        call = LayerCall(
            problem=problem,
            number=number,
            left_out=left_out,
            begins=begins,
            follows=self._runs.follows(site, run=run, queries=problem.queries),
        )
        if site in self._builders and self._builders[site].extend(call):
            return self._builders[site]
        builder = self._builders[site] = self._begin(call, site.kind)
        self._order.append((site, builder))
        return builder

    def _of_text(self, problem: Problem, run: int) -> tuple[int, bool]:
        """How many queries of its text come before a call's own, and whether the text begins.

        The layer before it in the run tells; its count includes queries left out.
        """
        if self._latest is None or self._latest[0] != run:
            return past_keys(problem), False
        builder = self._latest[1]
        return max(builder.queries - problem.queries, 0), not builder.goes_on

    def _place(self, site: Site) -> Place:
        name = self._sites.names.path(site.modules[-1] if site.modules else None)
        return Place(name, site.kind, site.layer)


def layers_of(recorder: Recorder[PatternBuilder]) -> list[Layer]:
    """The layers recorded so far, in the order of their first calls."""
    pairs = zip(recorder.builders(), recorder.mean_contexts(), strict=True)
    return [
        Layer(
            name=place.name,
            kind=place.kind,
            index=place.index,
            heads=builder.heads,
            rows=builder.rows,
            mean_context=None if context is None else context[list(builder.heads)],
            get_pattern=builder.pattern,
            get_calls=builder.calls,
        )
        for (place, builder), context in pairs
    ]


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
