"""Merging the contexts of queries over some keys with those over others.

A context is a mean under the weights exp(score − logsumexp). Over two sets of keys it is the mean
of both contexts, weighed by the two sums of exponentials, whose logarithms are known.

Axes: B batch, H query heads, L queries, Dv head dimension of value; b and h are B or 1, H or 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Float


def merge(
    context: Float[Tensor, "B H L Dv"],
    logsumexp: Float[Tensor, "B H L"],
    more: Float[Tensor, "B H L Dv"],
    of_more: Float[Tensor, "B H L"],
) -> None:
    """Merge contexts and log-sum-exps of further keys, in place.

    A row that saw nothing yet has context 0 and log-sum-exp −inf.
    """
    total = torch.logaddexp(logsumexp, of_more)
    context.mul_(_share(logsumexp, total)).add_(more * _share(of_more, total))
    logsumexp.copy_(total)


def take_in_sink(
    context: Float[Tensor, "B H L Dv"],
    logsumexp: Float[Tensor, "B H L"],
    sink: Float[Tensor, "#b #h"],
) -> None:
    """Take a sink's logit into the denominator, in place; a fully masked row keeps −inf."""
    fully_masked = logsumexp == -torch.inf
    total = torch.logaddexp(logsumexp, sink.to(logsumexp.dtype)[..., None])
    context.mul_(_share(logsumexp, total))
    logsumexp.copy_(total.masked_fill(fully_masked, -torch.inf))


def _share(part: Tensor, total: Tensor) -> Float[Tensor, "B H L 1"]:
    """Compute exp(part − total); 0 for a part that sees nothing."""
    return torch.exp(part - total).masked_fill(part == -torch.inf, 0)[..., None]
