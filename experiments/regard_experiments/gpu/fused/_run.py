"""What torch's fused kernels on CUDA have in common: everything but the call itself.

Axes: B batch, H query heads, L queries, Dv head dimension of value.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from regard._shapes import Float
from regard._tensors import cut_last, pad_last
from regard.backends.results import empty_result, with_sink
from regard.backends.torch_sdpa import with_positive_scale
from regard.inputs import Problem
from regard.inputs.finite import without_autocast
from regard_experiments.gpu import rules

Call = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]


def fused(
    problem: Problem, call: Call, *, width: int = 0, repeat: bool = False
) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and logsumexp by a call with query, key, value and scale.

    Args:
        problem: to which the backend has no objection.
        call: of the kernel.
        width: the least head dimension that query, key and value are widened to.
        repeat: whether the kernel needs a key head for each query head.
    """
    value = problem.value
    assert value is not None, "unsupported() objects to a missing value"
    empty = empty_result(problem, value)
    if empty is not None:
        return empty
    key, size = problem.key, value.shape[-1]
    if repeat or key.shape[1] != value.shape[1]:
        key = problem.repeated(key)
    if repeat:
        value = problem.repeated(value)
    query, scale = with_positive_scale(problem.query, problem.scale)
    query, key, value = (
        rules.laid_out(pad_last(t, max(width, rules.rounded_up(t.shape[-1]))))
        for t in (query, key, value)
    )
    with without_autocast(query.device):
        context, logsumexp = call(query, key, value, scale)
    return with_sink(problem.sink, cut_last(context, size), logsumexp)
