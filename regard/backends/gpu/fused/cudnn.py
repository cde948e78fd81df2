"""cuDNN's fused attention, the fastest of torch's own on Hopper.

Axes: B batch, H query heads, L queries, S keys, Dv head dimension of value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from regard._axes import widened
from regard.backends._sink import with_sink
from regard.backends.gpu import hardware, rules
from regard.problem.finite import unrounded

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from regard.problem import Problem

_OLDEST = 90000  # of cuDNN, for what torch asks of it
_WIDE_SINCE = 91000  # from here on, 256 instead of 128 on compute capability 9.0


def objection(problem: Problem) -> str | None:
    """Say which argument can't be honoured and what to do, or None."""
    return (
        hardware.elsewhere(problem)
        or rules.unsupported(problem)
        or rules.not_half(problem)
        or hardware.too_old(problem, (8, 0))
        or _missing(problem)
        or _other_mask(problem)
        or _too_wide(problem)
        or rules.nonfinite_reason(problem)
    )


def _missing(problem: Problem) -> str | None:
    version = hardware.cudnn_version()
    if version < _OLDEST:
        return f"it needs cuDNN 9, and torch has {version or 'none'}"
    if problem.differentiable and torch.are_deterministic_algorithms_enabled():
        return "its gradients are not deterministic, which torch was told to be"
    if problem.keys == 1:
        return "it takes no single key"
    return None


def _other_mask(problem: Problem) -> str | None:
    if problem.alibi is not None or problem.rows.bias is not None:
        return "nothing is added to its scores here; 'efficient' and 'flex' do that"
    if rules.sees_everything(problem.rows):
        return None
    if rules.causal_offset(problem.rows) != 0 or problem.queries != problem.keys:
        return "it knows no mask but the causal one of as many queries as keys"
    return None


def _too_wide(problem: Problem) -> str | None:
    assert problem.value is not None, "unsupported() sees to it"
    hopper = hardware.capability(problem.query.device) == (9, 0)
    widest = 256 if hopper and hardware.cudnn_version() >= _WIDE_SINCE else 128
    if max(problem.query.shape[-1], problem.value.shape[-1]) > widest:
        return f"it takes head dimensions of at most {widest} on this GPU"
    return None


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and logsumexp. The kernel shares key heads among query heads by itself."""
    empty = rules.nothing(problem)
    if empty is not None:
        return empty
    assert problem.value is not None, "unsupported() sees to it"
    key, value = problem.key, problem.value
    if key.shape[1] != value.shape[1]:
        key = problem.repeated(key)
    query, scale = rules.with_positive_scale(problem.query, problem.scale)
    query, key, value = (
        rules.laid_out(widened(t, rules.rounded_up(t.shape[-1]))) for t in (query, key, value)
    )
    is_causal = not rules.sees_everything(problem.rows)
    with unrounded(query.device):
        context, logsumexp, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001 - the public call drops the log-sum-exp
            query,
            key,
            value,
            attn_bias=None,
            compute_log_sumexp=True,
            is_causal=is_causal,
            scale=scale,
        )
    context = context[..., : problem.value.shape[-1]]
    logsumexp = logsumexp.reshape(context.shape[:-1])  # it comes as (B, H, L, 1)
    if problem.sink is None:
        return context, logsumexp
    return with_sink(problem.sink, context, logsumexp)
