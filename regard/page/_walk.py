"""One query's attention number by number: the same steps as on the command line.

Axes: S keys, D head dimension, Dv of value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.pattern import Pattern
from regard.steps import written_out

STRONGEST = 24
"""Keys of a query that are written out at a time, unless a request names another number."""


def walk(
    pattern: Pattern,
    values: Tensor | None,
    query: int,
    *,
    first: int = 0,
    count: int = STRONGEST,
    picked: int | None = None,
) -> dict[str, Any]:
    """Write one query's attention out, for some of its keys.

    Keys are ranked: the visible ones by weight, then those that the mask hides.

    Args:
        pattern: one head, ``(L, S)``.
        values: its values ``(S, Dv)``, if they are known.
        query: the query.
        first: rank of the first key that is written out.
        count: how many are.
        picked: a key that is written out beside them, whatever its rank.
    """
    problem = pattern.problem.at(torch.tensor([query], device="cpu"))
    # Read number by number below, for which a row is copied from a GPU once, and not each of them.
    steps = {name: tensor.flatten().cpu() for name, tensor in written_out(problem)}
    weights = steps["weights"]
    hidden = steps["masked"] == -torch.inf
    visible = len(hidden) - int(hidden.sum())
    order = weights.masked_fill(hidden, -1.0).argsort(descending=True, stable=True)
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
            "value": None if values is None else values[key].tolist(),
        }

    # Hidden keys are a page of their own: requested by a rank after the last visible one's.
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
        "rest": {"count": len(stop), "weight": max(0.0, float(weights[stop].sum()))},
        "hidden": len(hidden) - visible,
        "context": None if context is None else context.tolist(),
    }


_SCORES = ("scaled", "softcapped", "biased", "masked")
