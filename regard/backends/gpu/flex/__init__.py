"""torch's FlexAttention, compiled, on CUDA: any mask, and every option but dropout.

Dong et al. 2024, arXiv:2412.05496. What is done to the scores is written as functions of a score
and its place (`_mods`), which torch compiles into one kernel; blocks of keys that no row of a block
of queries sees are left out (`_blocks`). The first call of each kind compiles it.

Axes: B batch, H query heads, L queries, S keys, Dv head dimension of value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from regard._axes import widened
from regard.backends._sink import with_sink
from regard.backends._transforms import objection_to_context
from regard.backends.gpu import hardware, rules
from regard.problem.finite import unrounded

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from regard.problem import Problem

__all__ = ["objection", "run"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_NARROWEST = 16  # head dimension of its matrix products
_WIDEST = 256
_LONGEST = 2**31 - 1  # queries or keys: places are counted in 32 bits


def objection(problem: Problem) -> str | None:
    """Say which argument can't be honoured and what to do, or None."""
    return (
        hardware.elsewhere(problem)
        or _unsupported(problem)
        or hardware.why_no_triton()
        or hardware.too_old(problem, (8, 0))
        or _missing_gradient(problem)
        or rules.nonfinite_reason(problem)
    )


def _unsupported(problem: Problem) -> str | None:
    if problem.query.dtype not in _DTYPES:
        return f"query is {problem.query.dtype}, which only the written-out computation serves"
    if problem.value is None:
        return "it computes no weights without a value"
    dims = problem.query.shape[-1], problem.value.shape[-1]
    if min(dims) == 0:
        return "it takes no head dimension of 0"
    if max(dims) > _WIDEST:
        return f"it takes head dimensions of at most {_WIDEST}"
    if max(problem.queries, problem.keys) > _LONGEST:
        return f"it takes at most {_LONGEST} queries and keys"
    if problem.dropout > 0:
        return f"it gives no reproducible dropout={problem.dropout}; set it to 0"
    return objection_to_context(problem)


def _missing_gradient(problem: Problem) -> str | None:
    if not problem.differentiable:
        return None
    for name, tensor in (("mask or bias", problem.rows.bias), ("alibi", problem.alibi)):
        if tensor is not None and tensor.requires_grad:
            return f"it adds gradients of {name} up in no fixed order; detach it"
    return None


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and logsumexp, through both of which gradients flow.

    The kernel shares key heads among query heads by itself.
    """
    from regard.backends.gpu.flex._blocks import block_mask
    from regard.backends.gpu.flex._kernel import attend
    from regard.backends.gpu.flex._mods import kind, mask_mod, score_mod

    empty = rules.nothing(problem)
    if empty is not None:
        return empty
    assert problem.value is not None, "objection() sees to it"
    key, value = problem.key, problem.value
    if key.shape[1] != value.shape[1]:
        key = problem.repeated(key)
    query, key, value = (
        widened(t, max(_NARROWEST, t.shape[-1])) for t in (problem.query, key, value)
    )
    everything = rules.sees_everything(problem.rows)
    blocks = None if everything else block_mask(problem.rows, mask_mod(problem))
    with unrounded(query.device):
        context, logsumexp = attend(
            query, key, value, problem.scale, score_mod(problem), blocks, kind(problem)
        )
    context = context[..., : problem.value.shape[-1]]
    if problem.sink is None:
        return context, logsumexp
    return with_sink(problem.sink, context, logsumexp)
