"""Edges of heads, and spans of keys: the effect of hiding them to first order, from gradients.

An edge is one weight of one head: layer, head, query, key. Without it the context of its row is o′
in place of o, and the effect to first order is ⟨g, o′ − o⟩, g being the gradient of the number by
the context.

Axes: B = 1 batch, H query heads, L queries, S keys, Dv dimension of a value, M edges, K sets of
spans.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.backends import choose_checked, run
from regard.inputs import Problem
from regard.lens.effect.runs import Unchanged
from regard.lens.effect.table import Check, Effect, Effects, Place
from regard.masks.rows import Rows
from regard.masks.spans import Spans
from regard.pattern import Pattern

Edge = tuple[int, int, int]
"""Head, query and key."""

_MEASURED = 20  # the largest estimates, and edges drawn at random, that are measured
_ROWS = 256  # queries of a mask that are counted at a time


@dataclass(frozen=True, eq=False)
class Derivative:
    """The attention of one call with its values, and the gradient of a number by its context."""

    problem: Problem
    gradient: Float[Tensor, "B H L Dv"]

    @classmethod
    def of(cls, problem: Problem, gradient: Float[Tensor, "B H L Dv"]) -> Derivative:
        """Take an attention call, whose dropout is left out."""
        exact = problem.exact_dtype
        gradient = gradient.detach().to(exact)
        return cls(replace(problem.cast(exact), leading=problem.heads), gradient)

    def change(self, spans: Spans) -> Float[Tensor, "B H L"]:
        """Compute ⟨g, o′ − o⟩ in each row, o′ being the context with spans hidden from it."""
        return self._along(replace(self.problem, rows=self.problem.rows.with_spans(spans)))

    def span_effects(
        self, groups: Sequence[Sequence[tuple[int, int, int]]]
    ) -> Float[Tensor, "K H"]:
        """Compute the effect of hiding sets of spans, to first order; float64, CPU.

        Args:
            groups: sets that are hidden together: start and stop of each span, and the first query
                that it is hidden from.
        """
        rows = torch.arange(self.problem.queries, device=self.problem.query.device)
        effects = torch.zeros(len(groups), self.problem.heads[1], dtype=torch.float64, device="cpu")
        for number, group in enumerate(groups):
            later = [(rows >= query)[None, None] for _, _, query in group]
            start = torch.stack(
                [first * one for (first, _, _), one in zip(group, later, strict=True)]
            )
            stop = torch.stack([end * one for (_, end, _), one in zip(group, later, strict=True)])
            effects[number] = self.change(_hiding(start, stop)).double().sum(dim=(0, 2)).cpu()
        return effects

    def edge_effects(
        self, heads: Sequence[int], k: int, also: Sequence[Edge]
    ) -> tuple[Float[Tensor, " M"], Int[Tensor, "M 3"], Float[Tensor, " m"]]:
        """Compute the effect of hiding single edges, to first order; float64, CPU.

        It is the odds α/(1 − α) times ⟨g, o⟩ − ⟨g, v⟩. For the largest weight of a row, where that
        would be a large number times a small difference, o′ is computed in its place.

        Args:
            heads: the heads.
            k: number of edges.
            also: further edges whose effects are computed.

        Returns:
            The `k` effects of largest magnitude, in no order; head, query and key of each; and the
            effects of the further edges.
        """
        problem, gradient = self.problem, self.gradient
        assert problem.value is not None, "its value was kept"
        pattern = Pattern.of(problem, None)
        largest = pattern.topk(1).positions[..., 0].to(gradient.device)  # (B, H, L)
        start = largest.clamp(min=0)
        exact = self.change(_hiding(start[None], largest[None] + 1))
        own = (gradient * self._context(problem)).sum(dim=-1, keepdim=True)
        ones = problem.value.new_ones(*problem.value.shape[:-1], 1)
        a, b = torch.cat([-gradient, own], dim=-1), torch.cat([problem.value, ones], dim=-1)
        others = pattern.odds().weighted(dot=(a, b))

        top = others.topk(min(k + 1, problem.keys))
        values = torch.cat([top.weights.to(exact), exact[..., None]], dim=-1)
        keys = torch.cat([top.positions.to(largest), largest[..., None]], dim=-1)
        again = torch.zeros_like(keys, dtype=torch.bool)
        again[..., :-1] = top.positions.to(largest) == largest[..., None]
        some = list(heads)
        values, keys, left_out = (t[0, some].cpu() for t in (values, keys, again | (keys < 0)))
        head, query, place = (~left_out).nonzero(as_tuple=True)
        flat = values[head, query, place].double()
        chosen = flat.abs().topk(min(k, len(flat))).indices
        edges = torch.stack(
            [torch.tensor(some, device="cpu")[head], query, keys[head, query, place]], dim=-1
        )
        further = [
            exact[0, head, query] if largest[0, head, query] == key else others[0, head, query, key]
            for head, query, key in also
        ]
        asked = torch.tensor([float(one) for one in further], dtype=torch.float64, device="cpu")
        return flat[chosen], edges[chosen], asked

    def _along(self, hidden: Problem) -> Float[Tensor, "B H L"]:
        change = self._context(hidden) - self._context(self.problem)
        return (self.gradient * change).sum(dim=-1)

    def _context(self, problem: Problem) -> Float[Tensor, "B H L Dv"]:
        return run(problem, choose_checked(problem))[0]


def edges_table(
    target: str,
    unchanged: Unchanged,
    layers: Sequence[tuple[int, Sequence[int], Derivative]],
    k: int,
    seed: int,
    measure: Callable[[Sequence[Place]], Float[Tensor, " K"]],
) -> Effects:
    """Return the table of the largest estimates, and some estimates beside what is measured.

    Args:
        target: description of the target.
        unchanged: the unchanged run.
        layers: index, heads and attention of each layer.
        k: number of largest estimates.
        seed: seed of the edges drawn at random.
        measure: measures the effects of edges.
    """
    found, drawn = _estimated(layers, k, seed)
    names = unchanged.tokens if unchanged.layers[0].kind == "self" else None
    largest, others = (
        [
            Effect(name=_name(place, names), place=place, value=value)
            for place, value in some.items()
        ]
        for some in (found, drawn)
    )
    beside = largest[:_MEASURED]
    measured = measure([effect.place for effect in beside + others])
    return Effects(
        values=torch.tensor(list(found.values()), dtype=torch.float64, device="cpu"),
        unchanged=unchanged.number,
        target=target,
        over="edges",
        method="gradient",
        axes=("edge",),
        labels=(tuple(effect.name for effect in largest),),
        places=tuple(found),
        checks=(
            Check.of(beside, measured[: len(beside)]),
            Check.of(others, measured[len(beside) :]),
        ),
        _ablate=measure,
    )


def _name(place: Place, tokens: tuple[str, ...] | None) -> str:
    """Name an edge by layer and head, and its query and key by position and token."""
    layer, head, *ends = place
    named = [f"{at}" if tokens is None else f"{at} {tokens[at]}" for at in ends]
    return f"{layer}·{head}  {' → '.join(named)}"


def _estimated(
    layers: Sequence[tuple[int, Sequence[int], Derivative]], k: int, seed: int
) -> tuple[dict[Place, float], dict[Place, float]]:
    """Estimate the effect of each edge, a layer at a time.

    Args:
        layers: index, heads and attention of each layer.
        k: number of largest estimates.
        seed: seed of the edges drawn at random.

    Returns:
        The estimates of largest magnitude, the largest first, and those of edges drawn at random,
        by layer, head, query and key.
    """
    drawn = _drawn([(one.problem.rows, heads) for _, heads, one in layers], _MEASURED, seed)
    found: list[tuple[float, Place]] = []
    others: dict[Place, float] = {}
    for (layer, heads, attention), also in zip(layers, drawn, strict=True):
        values, edges, asked = attention.edge_effects(heads, k, also)
        found += [
            (value, (layer, *edge))
            for value, edge in zip(values.tolist(), edges.tolist(), strict=True)
        ]
        found = sorted(found, key=lambda one: (-abs(one[0]), one[1]))[:k]
        others |= {(layer, *edge): value for edge, value in zip(also, asked.tolist(), strict=True)}
    return {place: value for value, place in found}, others


def _drawn(layers: Sequence[tuple[Rows, Sequence[int]]], count: int, seed: int) -> list[list[Edge]]:
    """Draw edges among all that the masks leave visible, each as likely as another, each once.

    Args:
        layers: mask and heads of each layer.
        count: number of edges; all, if there are fewer.
        seed: the seed of the draws.

    Returns:
        The edges of each layer.
    """
    visible = [_visible(rows)[list(heads)] for rows, heads in layers]
    ends = torch.cat([counts.flatten() for counts in visible]).cumsum(0).tolist() if visible else []
    total = ends[-1] if ends else 0
    numbers = random.Random(seed).sample(range(total), min(count, total))
    bounds = torch.tensor([0, *ends], device="cpu")
    firsts = [0, *torch.tensor([counts.numel() for counts in visible], device="cpu").cumsum(0)]
    edges: list[list[Edge]] = [[] for _ in layers]
    for number in numbers:
        place = int(torch.searchsorted(bounds, number, right=True)) - 1  # a row of a head
        layer = next(n for n, (_, stop) in enumerate(pairwise(firsts)) if place < stop)
        rows, heads = layers[layer]
        column, query = divmod(place - int(firsts[layer]), rows.queries)
        row = rows.visible(slice(query, query + 1), slice(0, rows.keys))
        seen = row.expand(*rows.heads, 1, -1)[0, heads[column], 0].nonzero()[:, 0]
        edges[layer].append((heads[column], query, int(seen[number - int(bounds[place])])))
    return edges


def _visible(rows: Rows) -> Int[Tensor, "H L"]:
    """Count the keys that each query sees."""
    parts = []
    for start in range(0, rows.queries, _ROWS):
        stop = min(start + _ROWS, rows.queries)
        block = rows.visible(slice(start, stop), slice(0, rows.keys)).sum(dim=-1)
        parts.append(block.expand(*rows.heads, -1)[0].cpu())
    return torch.cat(parts, dim=-1)


def _hiding(start: Int[Tensor, "N #b #h L"], stop: Int[Tensor, "N #b #h L"]) -> Spans:
    hides = torch.full((len(start),), -torch.inf, dtype=torch.float64, device="cpu")
    return Spans(start, stop, hides)
