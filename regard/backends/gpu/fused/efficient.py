"""torch's memory-efficient attention (xFormers, Lefaudeux et al. 2022), which takes float32 too.

It takes a bias written down, and with it any mask: in blocks of queries, so that what is written at
a time stays small. It computes every block of keys, hidden or not.

Axes: B batch, H query heads, L queries, S keys, Dv head dimension of value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from regard._axes import widened
from regard.backends._sink import with_sink
from regard.backends.gpu import hardware, rules
from regard.problem.finite import unrounded
from regard.steps import total_bias

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from regard.problem import Problem

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WRITTEN = 2**26  # numbers of a mask that are written down at a time
_ALIGNED = 16  # numbers that the rows of a bias must lie apart by a multiple of


def objection(problem: Problem) -> str | None:
    """Say which argument can't be honoured and what to do, or None."""
    dtype = problem.query.dtype
    if dtype not in _DTYPES:
        return f"query is {dtype}, which only the written-out computation serves"
    return (
        hardware.elsewhere(problem)
        or rules.unsupported(problem)
        or hardware.too_old(problem, (8, 0) if dtype == torch.bfloat16 else (5, 0))
        or _rounded_bias(problem)
        or _missing_gradient(problem)
        or rules.nonfinite_reason(problem)
    )


def _rounded_bias(problem: Problem) -> str | None:
    """Object to a bias that the kernel would take only after it was rounded."""
    dtype, bias = problem.query.dtype, problem.rows.bias
    if dtype == torch.float32:
        return None
    if problem.alibi is not None:
        return f"it takes a bias in the query's {dtype} only, which rounds ALiBi's distances"
    if bias is not None and bias.dtype != dtype:
        return f"it takes a bias in the query's {dtype} only, which rounds one of {bias.dtype}"
    return None


def _missing_gradient(problem: Problem) -> str | None:
    if not problem.differentiable:
        return None
    for name, tensor in (("mask or bias", problem.rows.bias), ("alibi", problem.alibi)):
        if tensor is not None and tensor.requires_grad:
            return f"it gives no gradient of {name} here; detach it"
    return None


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and logsumexp. Key heads are repeated, which the kernel does not do."""
    empty = rules.nothing(problem)
    if empty is not None:
        return empty
    assert problem.value is not None, "unsupported() sees to it"
    query, scale = rules.with_positive_scale(problem.query, problem.scale)
    key, value = problem.repeated(problem.key), problem.repeated(problem.value)
    query, key, value = (
        rules.laid_out(widened(t, rules.rounded_up(t.shape[-1]))) for t in (query, key, value)
    )
    with unrounded(query.device):
        if problem.alibi is None and rules.is_plain(problem.rows):
            is_causal = not rules.sees_everything(problem.rows)
            context, logsumexp = _kernel(query, key, value, scale, None, is_causal=is_causal)
        else:
            context, logsumexp = _in_blocks(problem, query, key, value, scale)
    context = context[..., : problem.value.shape[-1]]
    if problem.sink is None:
        return context, logsumexp
    return with_sink(problem.sink, context, logsumexp)


def _kernel(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, *, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Call the kernel; its ``is_causal`` has query 0 see key 0 alone, whatever L and S are."""
    context, logsumexp, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(  # noqa: SLF001 - the public call drops the log-sum-exp
        query,
        key,
        value,
        attn_bias=mask,
        compute_log_sumexp=True,
        is_causal=is_causal,
        scale=scale,
    )
    return context, logsumexp[..., : query.shape[-2]]  # which comes padded to a multiple of 32


def _in_blocks(
    problem: Problem, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Go over the queries in blocks, each with a mask of its size."""
    contexts, logsumexps = [], []
    size = max(_WRITTEN // max(1, problem.keys * _heads_written(problem)), 1)
    for first in range(0, problem.queries, size):
        rows = slice(first, min(first + size, problem.queries))
        mask, fully_masked = _additive(problem, rows)
        part = rules.laid_out(query[..., rows, :])
        context, logsumexp = _kernel(part, key, value, scale, mask, is_causal=False)
        contexts.append(context.masked_fill(fully_masked, 0))
        logsumexps.append(logsumexp.masked_fill(fully_masked[..., 0], -torch.inf))
    return torch.cat(contexts, dim=-2), torch.cat(logsumexps, dim=-1)


def _heads_written(problem: Problem) -> int:
    """Count the heads that a mask differs in."""
    rows = problem.rows
    tensors = (rows.start, rows.allowed, rows.bias, problem.alibi)
    shapes = [t.shape[:2] for t in tensors if t is not None]
    return torch.broadcast_shapes(*shapes).numel()


def _additive(problem: Problem, rows: slice) -> tuple[Tensor, Tensor]:
    """Write a block of mask and bias as the kernel takes it, and the rows that see nothing.

    Such rows are shown every key: the kernel's arithmetic stays finite, and what comes out is
    replaced afterwards, which also cuts their gradient off.
    """
    columns = slice(0, problem.keys)
    visible = problem.rows.visible(rows, columns)
    fully_masked = ~visible.any(dim=-1, keepdim=True)
    bias = total_bias(problem, rows, columns)
    dtype = problem.query.dtype
    if bias is None:
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    else:
        mask = bias.detach().to(dtype).masked_fill(fully_masked, 0)
    mask = mask.masked_fill(~(visible | fully_masked), -torch.inf)
    apart = -(-problem.keys // _ALIGNED) * _ALIGNED
    mask = widened(mask, apart)[..., : problem.keys]
    return mask.expand(*problem.heads, -1, -1), fully_masked
