"""A sink, put into the denominator of the softmax after the fact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def with_sink(
    sink: Float[Tensor, "#b #h"],
    context: Float[Tensor, "B H L Dv"],
    logsumexp: Float[Tensor, "B H L"],
) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Scale the context by the share that the sink leaves it, and add the sink's logit.

    Gradients go through both where the log-sum-exp has one; a row that sees nothing gets none.
    """
    fully_masked = logsumexp == -torch.inf
    seen = logsumexp.masked_fill(fully_masked, 0)  # ∞ − ∞ would make a NaN of the gradient of 0
    total = torch.logaddexp(seen, sink.float()[..., None])
    share = torch.exp(seen - total).masked_fill(fully_masked, 0)[..., None]
    return (context * share).to(context.dtype), total.masked_fill(fully_masked, -torch.inf)
