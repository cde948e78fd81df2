"""Answers about one head: a query's attention number by number, and its scores.

The numbers are those of the command line. Axes: L queries, S keys, D head dimension, Dv of value.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from threading import Event
from typing import Any

import torch
from torch import Tensor

from regard.lens.naming.head_scores import score_heads
from regard.lens.naming.heads import SCORES, HeadScores
from regard.page._bands import cancellable_reader
from regard.pattern import Pattern
from regard.pattern.weighted import WeightedPattern
from regard.record import Layer
from regard.steps import written_out

STRONGEST = 24
"""Keys of a query that are written out at a time, unless a request names another number."""
_SCORES = ("scaled", "softcapped", "biased", "masked")


def for_json(value: Any) -> Any:
    """Replace NaN and infinities by None: JSON has neither."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name: for_json(entry) for name, entry in value.items()}
    return [for_json(entry) for entry in value] if isinstance(value, list) else value


def walk(
    pattern: Pattern | WeightedPattern,
    values: Tensor | None,
    query: int,
    *,
    first: int = 0,
    count: int = STRONGEST,
    picked: int | None = None,
) -> dict[str, Any]:
    """Write one query's attention out, for some of its keys.

    Keys are ranked: the visible ones by the magnitude of their entry, which is the weight unless
    the view is of weights times factors; then those that the mask hides.

    Args:
        pattern: one head, ``(L, S)``.
        values: its values ``(S, Dv)``, if they are known.
        query: the query.
        first: rank of the first key that is written out.
        count: how many keys are written out.
        picked: a key that is written out too, whatever its rank.
    """
    problem = pattern.problem.at(torch.tensor([query], device="cpu"))
    # One copy from a GPU for all the single numbers that are read below.
    steps = {name: tensor.flatten().cpu() for name, tensor in written_out(problem)}
    weights = steps["weights"]
    is_weighted = isinstance(pattern, WeightedPattern)
    entries = pattern[query].cpu() if is_weighted else weights
    hidden = steps["masked"] == -torch.inf
    visible = len(hidden) - int(hidden.sum())
    order = entries.abs().masked_fill(hidden, -1.0).argsort(descending=True, stable=True)
    keys = problem.key[0, 0]
    context = None if values is None else weights.to(values.device) @ values.to(weights.dtype)

    def entry(rank: int) -> dict[str, Any]:
        key = int(order[rank])
        scores = {name: float(steps[name][key]) for name in _SCORES if name in steps}
        return {
            "position": key,
            "rank": rank,
            "visible": not bool(hidden[key]),
            "key": keys[key].tolist(),
            "score": float(steps["scores"][key]),
            **scores,
            "weight": float(weights[key]),
            **({"entry": float(entries[key])} if is_weighted else {}),
            "value": None if values is None else values[key].tolist(),
        }

    # Hidden keys are listed apart, when `first` is a rank after that of the last visible key.
    shown = range(first, min(first + count, visible if first < visible else len(order)))
    stop = order[min(first + count, visible) : visible]
    return {
        "scale": problem.scale,
        "steps": [name for name in _SCORES if name in steps],
        "sink": problem.sink is not None,
        "query": problem.query.flatten().tolist(),
        "logsumexp": float(steps["logsumexp"]),
        "count": visible,
        "keys": [entry(rank) for rank in shown],
        "picked": None if picked is None else entry(int((order == picked).nonzero())),
        "rest": {
            "count": len(stop),
            "weight": max(0.0, float(weights[stop].sum())),
            **({"entry": float(entries[stop].sum())} if is_weighted else {}),
        },
        "hidden": len(hidden) - visible,
        "context": None if context is None else context.tolist(),
    }


def scores_of(
    pattern: Pattern,
    layer: Layer,
    places: Sequence[int],
    tokens: tuple[str, ...],
    cancelled: Event | None,
) -> list[dict[str, Any]]:
    """Score some heads of a layer, at those places in it, by their pattern ``(H, L, S)``."""
    part = Layer(
        name=layer.name,
        kind=layer.kind,
        index=layer.index,
        heads=tuple(layer.heads[place] for place in places),
        rows=layer.rows,
        get_pattern=lambda: pattern,
    )
    scores = score_heads([part], (tokens,), progress=False, read=cancellable_reader(cancelled))
    return [scores_entry(one, place) for one, place in zip(scores, places, strict=True)]


def scores_entry(scores: HeadScores, head: int) -> dict[str, Any]:
    """Return the scores of the head at that place in its layer, by their names."""
    return {
        "head": head,
        "role": scores.role,
        "meaning": scores.role.meaning,
        "evidence": scores.evidence,
        "score": scores.score,
        "margin": scores.margin,
        "queries": scores.queries,
        "undecided": scores.undecided,
        "sinks": list(scores.sinks or ()),
        **{name: getattr(scores, name) for name in SCORES},
    }
