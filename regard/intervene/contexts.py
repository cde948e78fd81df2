"""Replaced contexts of a call: by 0, by their mean, or by those of another run.

Axes: B batch, H query heads, L queries, Dv dimension of a value; b and h are B or 1, H or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from regard._shapes import Bool, Float
from regard.inputs import Problem
from regard.intervene._patching import with_contexts
from regard.intervene._position import CallPosition
from regard.intervene._weights import heads_of
from regard.intervene.operations import Ablate, Operation, PatchContext


def context_edit(
    changes: Sequence[Operation], problem: Problem, position: CallPosition
) -> Callable[[Tensor], Tensor] | None:
    """Return a function that replaces contexts in ``(B, H, L, Dv)``; None if no change does.

    Args:
        changes: the changes of the call, of any kind; those that replace contexts are applied.
        problem: the call.
        position: its position in the text.
    """
    ablated = [change for change in changes if isinstance(change, Ablate)]
    patched = [change for change in changes if isinstance(change, PatchContext)]
    edits = []
    sees = problem.rows.start < problem.rows.stop
    for by, edit in (("zero", _zero), ("mean", _mean)):
        heads = [heads_of(change, problem) for change in ablated if change.by == by]
        if heads:
            edits.append(edit(reduce(torch.logical_or, heads)[..., None, None], sees))
    if patched:
        edits.append(with_contexts(patched, problem, position))
    if not edits:
        return None
    return lambda context: reduce(lambda result, edit: edit(result), edits, context)


def _zero(here: Bool[Tensor, "#b #h 1 1"], _: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda context: context.masked_fill(here, 0)


def _mean(
    here: Bool[Tensor, "#b #h 1 1"], sees: Bool[Tensor, "#b #h L"]
) -> Callable[[Tensor], Tensor]:
    """Average over the queries that see a key; 0 if there is none."""
    present = sees[..., None]

    def edit(context: Float[Tensor, "B H L Dv"]) -> Float[Tensor, "B H L Dv"]:
        total = torch.where(present, context, 0).sum(dim=-2, keepdim=True)
        mean = total / present.sum(dim=-2, keepdim=True).clamp(min=1)
        return torch.where(here, mean, context)

    return edit
