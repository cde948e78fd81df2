"""torch's FlexAttention, compiled, on CUDA: any mask, and every option but dropout. Experimental.

Dong et al. 2024, arXiv:2412.05496. What is done to the scores is written as functions of a score
and its place (`_mods`), which torch compiles into one kernel; blocks of keys that no row of a block
of queries sees are left out (`_block_mask`). The first call of each kind compiles it.

Axes: B batch, H query heads, L queries, S keys, Dv head dimension of value.
"""

from __future__ import annotations

from torch import Tensor

from regard._shapes import Float
from regard._tensors import cut_last, pad_last
from regard.backends.objections import (
    THREE_DTYPES,
    objection_to_context,
    objection_to_dropout,
    objection_to_dtype,
    objection_to_gradients,
    objection_to_length,
    objection_to_sizes,
    objection_to_width,
)
from regard.backends.results import empty_result, with_sink
from regard.inputs import Problem
from regard.inputs.finite import without_autocast
from regard_experiments.gpu import hardware, rules

__all__ = ["objection", "run"]

_NARROWEST = 16  # head dimension of its matrix products
_WIDEST = 256
_LONGEST = 2**31 - 1  # queries or keys: places are counted in 32 bits


def objection(problem: Problem) -> str | None:
    """Say which argument is not supported, or None.

    Gradients of a bias and of ALiBi's slopes would be added up in no fixed order.
    """
    return (
        hardware.elsewhere(problem, "flex")
        or objection_to_dtype(problem, *THREE_DTYPES)
        or objection_to_sizes(problem)
        or objection_to_width(problem, _WIDEST)
        or objection_to_length(problem, _LONGEST)
        or objection_to_dropout(problem)
        or objection_to_context(problem)
        or hardware.why_no_triton()
        or hardware.too_old(problem, (8, 0))
        or objection_to_gradients(problem, sink=True)
        or rules.nonfinite_reason(problem)
    )


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and logsumexp, through both of which gradients flow.

    The kernel shares key heads among query heads by itself.
    """
    from regard_experiments.gpu.flex._block_mask import block_mask
    from regard_experiments.gpu.flex._kernel import attend
    from regard_experiments.gpu.flex._mods import kind, mask_mod, score_mod

    value, key = problem.value, problem.key
    assert value is not None, "objection() refuses a missing value"
    empty = empty_result(problem, value)
    if empty is not None:
        return empty
    size = value.shape[-1]
    if key.shape[1] != value.shape[1]:
        key = problem.repeated(key)
    query, key, value = (
        pad_last(t, max(_NARROWEST, t.shape[-1])) for t in (problem.query, key, value)
    )
    everything = rules.sees_everything(problem.rows)
    blocks = None if everything else block_mask(problem.rows, mask_mod(problem))
    with without_autocast(query.device):
        context, logsumexp = attend(
            query, key, value, problem.scale, score_mod(problem), blocks, kind(problem)
        )
    return with_sink(problem.sink, cut_last(context, size), logsumexp)
