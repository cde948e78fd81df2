"""Results that kernels do not compute themselves: of an empty problem, and with a sink logit."""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Float
from regard.inputs import Problem


def empty_result(
    problem: Problem, value: Float[Tensor, "B _ S Dv"]
) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]] | None:
    """Give the result of a problem without rows or keys, which kernels refuse; else None."""
    shape = (*problem.heads, problem.queries)
    if min(*shape, problem.keys) > 0:
        return None
    context = problem.query.new_zeros(*shape, value.shape[-1])
    return context, problem.query.new_full(shape, -torch.inf, dtype=torch.float32)


def with_sink(
    sink: Float[Tensor, "#b #h"] | None,
    context: Float[Tensor, "B H L Dv"],
    logsumexp: Float[Tensor, "B H L"],
) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Scale the context by the share that a sink leaves it, and add the sink's logit.

    Gradients go through both where the log-sum-exp has one; a row that sees nothing gets none.
    """
    if sink is None:
        return context, logsumexp
    fully_masked = logsumexp == -torch.inf
    seen = logsumexp.masked_fill(fully_masked, 0)  # ∞ − ∞ would make a NaN of the gradient of 0
    total = torch.logaddexp(seen, sink.float()[..., None])
    share = torch.exp(seen - total).masked_fill(fully_masked, 0)[..., None]
    return (context * share).to(context.dtype), total.masked_fill(fully_masked, -torch.inf)
