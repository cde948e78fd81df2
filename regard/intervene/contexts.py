"""Ablation: replaces the contexts of a call.

Axes: B batch, H query heads, L queries, Dv dimension of a value; b and h are B or 1, H or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from regard._shapes import Bool, Float
from regard.errors import Error
from regard.inputs import Problem
from regard.intervene._weights import heads_of
from regard.intervene.operations import Ablate
from regard.record import Recording
from regard.record.sites import Site


def ablations(
    changes: Sequence[Ablate], problem: Problem, site: Site
) -> list[Callable[[Tensor], Tensor]]:
    """Return functions that apply several ablations to a context ``(B, H, L, Dv)``.

    All zero ablations share one pass.

    Raises:
        Error: as for `ablation`.
    """
    zeros = [heads_of(change, problem) for change in changes if change.by == "zero"]
    edits = [ablation(change, problem, site) for change in changes if change.by != "zero"]
    if zeros:
        edits.append(_zero(reduce(torch.logical_or, zeros)))
    return edits


def ablation(change: Ablate, problem: Problem, site: Site) -> Callable[[Tensor], Tensor]:
    """Return a function that applies an ablation to a context ``(B, H, L, Dv)``.

    Raises:
        Error: for a recording without the mean contexts of these heads.
    """
    if change.by == "zero":
        return _zero(heads_of(change, problem))
    here = heads_of(change, problem)[..., None, None]
    if change.by == "mean":
        sees = problem.rows.start < problem.rows.stop
        return lambda context: torch.where(here, _mean(context, sees), context)
    mean = _recorded_mean(change, problem, site)
    return lambda context: torch.where(here, mean.to(context), context)


def _zero(heads: Bool[Tensor, "#b #h"]) -> Callable[[Tensor], Tensor]:
    return lambda context: context.masked_fill(heads[..., None, None], 0)


def _mean(context: Float[Tensor, "B H L Dv"], sees: Bool[Tensor, "#b #h L"]) -> Tensor:
    """Average over the queries that see a key, ``(B, H, 1, Dv)``; 0 if there is none."""
    present = sees[..., None]
    total = torch.where(present, context, 0).sum(dim=-2, keepdim=True)
    return total / present.sum(dim=-2, keepdim=True).clamp(min=1)


def _recorded_mean(change: Ablate, problem: Problem, site: Site) -> Tensor:
    recording = change.by
    assert isinstance(recording, Recording), "checked when the change was stated"
    means = [
        layer.mean_context
        for layer in recording.layers
        if (layer.kind, layer.index) == (site.kind, site.layer)
    ]
    if not means or means[0] is None:
        raise Error(
            f"{change!r}: the recording has no mean context of layer {site.layer}; make it by "
            "record(model, mean_contexts=True)"
        )
    mean = means[0]  # (H, Dv)
    if len(mean) != problem.heads[1]:
        raise Error(
            f"{change!r}: the recording has {len(mean)} heads in layer {site.layer}, the call "
            f"{problem.heads[1]}; record all heads"
        )
    return mean[:, None]
