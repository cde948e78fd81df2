"""Computing one tile, some queries against some keys, forward and backward.

The backward pass takes the log-sum-exp of whole rows, so that the weights it recomputes are
those of the whole sequence, and the contexts of whole rows, from which the derivative of the
softmax's denominator comes.

Axes: B batch, H query heads, L queries, Dv head dimension of value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends import eager, native
from regard.inputs import Problem

# The written-out computation holds a handful of such bands: 2²⁴ float64 scores are 128 MiB.
_SCORES = 2**24


def forward(tile: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and log-sum-exp."""
    if native.objection(tile) is None:
        return native.run(tile)
    parts = [eager.run(tile.crop(rows, slice(0, tile.keys))) for rows in _bands(tile)]
    contexts, logsumexps = zip(*parts, strict=True)
    return torch.cat(contexts, dim=-2), torch.cat(logsumexps, dim=-1)


def backward(
    tile: Problem,
    gradient: Float[Tensor, "B H L Dv"],
    context: Float[Tensor, "B H L Dv"],
    logsumexp: Float[Tensor, "B H L"],
    wanted: Sequence[str],
) -> dict[str, Tensor]:
    """Compute what the tile adds to gradients.

    Args:
        tile: as it was computed.
        gradient: of the context.
        context: of the whole rows.
        logsumexp: likewise.
        wanted: names among query, key, value and alibi.
    """
    if native.objection(tile) is None:
        fully_masked = tile.rows.start >= tile.rows.stop  # within this tile
        own = logsumexp.masked_fill(fully_masked, -torch.inf).contiguous()
        return native.backward(tile, gradient, context, own, wanted)
    gradients: dict[str, Tensor] = {}
    for rows in _bands(tile):
        band = tile.crop(rows, slice(0, tile.keys))
        parts = _written_out(
            band, gradient[..., rows, :], context[..., rows, :], logsumexp[..., rows], wanted
        )
        for name, part in parts.items():
            if name == "query":
                gradients.setdefault(name, torch.empty_like(tile.query))[..., rows, :] = part
            else:
                gradients[name] = gradients[name] + part if name in gradients else part
    return gradients


def _bands(tile: Problem) -> Iterator[slice]:
    """Cut the queries such that the written-out computation stays small."""
    height = max(1, _SCORES // max(1, tile.query.shape[0] * tile.query.shape[1] * tile.keys))
    for top in range(0, tile.queries, height):
        yield slice(top, min(top + height, tile.queries))


def _written_out(
    band: Problem, gradient: Tensor, context: Tensor, logsumexp: Tensor, wanted: Sequence[str]
) -> dict[str, Tensor]:
    """Differentiate written-out rows, weighted in the whole rows by their log-sum-exp.

    A row's context is the mean of tiles' contexts, each with the share exp(own − logsumexp). So
    the gradient of a tile's context is that share of the gradient, and its log-sum-exp's is the
    share of gradient · (own context − context).
    """
    leaves: dict[str, Any] = {
        name: getattr(band, name).detach().requires_grad_() for name in wanted
    }
    with torch.enable_grad():
        own_context, own_logsumexp = eager.run(replace(band, **leaves))
    assert own_logsumexp is not None, "the written-out computation gives it"
    share = torch.exp(own_logsumexp - logsumexp).detach()
    share = share.masked_fill(own_logsumexp == -torch.inf, 0)[..., None]
    exact = gradient.to(share.dtype)
    ahead = (exact * (own_context.detach() - context)).sum(dim=-1)
    gradients = torch.autograd.grad(
        (own_context, own_logsumexp),
        list(leaves.values()),
        ((exact * share).to(own_context.dtype), ahead * share[..., 0]),
        allow_unused=True,
    )
    return {
        name: torch.zeros_like(leaf) if part is None else part
        for (name, leaf), part in zip(leaves.items(), gradients, strict=True)
    }
