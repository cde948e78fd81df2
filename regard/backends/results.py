"""Results that kernels do not compute: of an empty problem, and with a sink logit.

Axes: B batch, H query heads, L queries, S keys, Dv head dimension of value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Float
from regard.inputs import Problem


def empty_result(
    problem: Problem, value: Float[Tensor, "B _ S Dv"]
) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]] | None:
    """Return the result of a problem without rows or keys, which kernels refuse; else None."""
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
    """Add a sink logit to the softmax denominator: rescale the context, update the log-sum-exp.

    Both are differentiable if the log-sum-exp is; rows without visible keys get a gradient of 0.

    Args:
        sink: the sink logits; None returns context and log-sum-exp unchanged.
        context: the context without a sink.
        logsumexp: the log-sum-exp without a sink, natural logarithm.

    Returns:
        Context and log-sum-exp with the sink.
    """
    if sink is None:
        return context, logsumexp
    fully_masked = logsumexp == -torch.inf
    seen = logsumexp.masked_fill(fully_masked, 0)  # ∞ − ∞ would turn the gradient into NaN
    total = torch.logaddexp(seen, sink.float()[..., None])
    share = torch.exp(seen - total).masked_fill(fully_masked, 0)[..., None]
    return (context * share).to(context.dtype), total.masked_fill(fully_masked, -torch.inf)
