"""cuDNN's fused attention, the fastest of torch's own on Hopper. Experimental.

Axes: B batch, H query heads, L queries, Dv head dimension of value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.objections import (
    objection_to_dtype,
    objection_to_gradients,
    objection_to_width,
)
from regard.inputs import Problem
from regard_experiments.gpu import hardware, rules
from regard_experiments.gpu.fused._run import fused

_OLDEST = 90000  # of cuDNN, for what torch asks of it
_WIDE_SINCE = 91000  # from here on, 256 instead of 128 on compute capability 9.0


def objection(problem: Problem) -> str | None:
    """Say which argument is not supported, or None."""
    square = problem.queries == problem.keys
    return (
        hardware.elsewhere(problem, "cudnn")
        or rules.unsupported(problem)
        or objection_to_dtype(problem, torch.bfloat16, torch.float16)
        or hardware.too_old(problem, (8, 0))
        or _missing(problem)
        or rules.only_causal(problem, "of as many queries as keys", fits=square)
        or objection_to_width(problem, _widest(problem))
        or objection_to_gradients(problem, sink=False)
        or rules.nonfinite_reason(problem)
    )


def _missing(problem: Problem) -> str | None:
    version = hardware.cudnn_version()
    if version < _OLDEST:
        return f"torch has {f'cuDNN {version}' if version else 'no cuDNN'} but it needs cuDNN 9"
    if problem.differentiable and torch.are_deterministic_algorithms_enabled():
        return "torch.use_deterministic_algorithms is on but its gradients are not deterministic"
    if problem.keys == 1:
        return "a single key is not supported"
    return None


def _widest(problem: Problem) -> int:
    hopper = hardware.capability(problem.query.device) == (9, 0)
    return 256 if hopper and hardware.cudnn_version() >= _WIDE_SINCE else 128


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and logsumexp. The kernel shares key heads among query heads by itself."""
    is_causal = not rules.sees_everything(problem.rows)

    def call(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        context, logsumexp, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001 - the public call drops the log-sum-exp
            query,
            key,
            value,
            attn_bias=None,
            compute_log_sumexp=True,
            is_causal=is_causal,
            scale=scale,
        )
        return context, logsumexp.reshape(context.shape[:-1])  # it comes as (B, H, L, 1)

    return fused(problem, call)
