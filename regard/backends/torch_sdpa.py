"""torch's fused kernel on a CPU, wherever it can be made to honour the order of the computation.

On a CPU torch's flash kernel gives the log-sum-exp along with the context. It knows is_causal and
additive masks. Any interval mask is brought to it in blocks of queries: each block is handed only
the keys that lie between its first start and its last stop, so that memory stays O(block·S) and
what nobody sees is not computed. On devices that are neither a CPU nor of CUDA torch chooses its
kernel itself and keeps the log-sum-exp to itself; the kernels of CUDA have modules of their own.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D and Dv head dimensions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from regard._axes import aligned, widened
from regard.backends._sink import with_sink
from regard.backends._transforms import objection_to_context, objection_to_numbers
from regard.backends.gpu.hardware import is_nvidia
from regard.steps import total_bias

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor

    from regard.problem import Problem

    Kernel = Callable[..., tuple[Tensor, Tensor | None]]

# The kernel itself works on 256 queries at a time from L = 768 on: smaller blocks would only add
# calls, larger ones more keys that few of the block's queries see.
_BLOCK = 256
# The fewest queries that one of its threads works on at a time, unless there are fewer.
_SPLIT = 32
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def objection(problem: Problem) -> str | None:
    """Say which argument can't be honoured and what to do, or None."""
    if is_nvidia(problem.query.device):
        return "query is on CUDA, where torch's kernels have names of their own; leave backend out"
    if problem.query.dtype not in _DTYPES:
        return f"query is {problem.query.dtype}, which only the written-out computation serves"
    if problem.value is None:
        return "it computes no weights without a value"
    if problem.query.shape[-1] == 0 or problem.value.shape[-1] == 0:
        return "it takes no head dimension of 0"
    if problem.softcap is not None:
        return f"it has no softcap={problem.softcap}; leave it out"
    if problem.dropout > 0:
        return f"it gives no reproducible dropout={problem.dropout}; set it to 0"
    return (
        objection_to_context(problem)
        # They pass its masks, and in short rows it makes a visible NaN a 0.
        or objection_to_numbers(problem, "it mishandles")
        or _missing_gradient(problem)
        or _missing_logsumexp(problem)
    )


def _missing_gradient(problem: Problem) -> str | None:
    if not problem.differentiable:
        return None
    for name, tensor in (("mask or bias", problem.rows.bias), ("alibi", problem.alibi)):
        if tensor is not None and tensor.requires_grad:
            return f"it gives no gradient of {name}; detach it"
    if problem.sink is not None:
        return "it gives no gradient through a sink; compute under torch.no_grad()"
    return None


def _missing_logsumexp(problem: Problem) -> str | None:
    device = problem.query.device.type
    if problem.sink is not None and device != "cpu":
        return f"torch tells no log-sum-exp on {device}, which a sink needs"
    return None


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"] | None]:
    """Compute context and logsumexp; None in its place where torch does not tell it."""
    assert problem.value is not None, "choose() sends no problem without a value here"
    batch, heads = problem.heads
    if min(batch, heads, problem.queries, problem.keys) == 0:
        context = problem.query.new_zeros(batch, heads, problem.queries, problem.value.shape[-1])
        return context, problem.query.new_full(context.shape[:-1], -torch.inf, dtype=torch.float32)
    if len(problem.rows.start) == 1:
        return _together(problem)
    # Blocks of keys are chosen to fit the mask. Were they shared by sequences of different masks,
    # the rounding of one would depend on which others are in the batch.
    contexts, logsumexps = zip(*(_together(problem.entry(i)) for i in range(batch)), strict=True)
    known = all(logsumexp is not None for logsumexp in logsumexps)
    return torch.cat(contexts), torch.cat(logsumexps) if known else None


def _together(problem: Problem) -> tuple[Tensor, Tensor | None]:
    """Compute a batch whose entries see the same keys."""
    assert problem.value is not None, "run() is the only caller"
    kernel = _flash_on_cpu if problem.query.device.type == "cpu" else _any_kernel
    # The kernel wants D = Dv.
    width = aligned(max(problem.query.shape[-1], problem.value.shape[-1]))
    query, scale = _scaled_in_part(problem.query, problem.scale)
    query, key = widened(query, width), widened(problem.repeated(problem.key), width)
    value = widened(problem.repeated(problem.value), width)

    plain = problem.alibi is None and (not problem.rows.hides or problem.rows.causal_from_zero)
    if plain:
        context, logsumexp = kernel(query, key, value, scale, None, is_causal=problem.rows.hides)
    else:
        context, logsumexp = _in_blocks(problem, kernel, query, key, value, scale)

    context = context[..., : problem.value.shape[-1]]
    if problem.sink is not None:
        assert logsumexp is not None, "objection() sees to it"
        context, logsumexp = with_sink(problem.sink, context, logsumexp)
    # In half precision the kernel's exponential is good to some 15 bits: enough for a context that
    # is rounded to fewer, not for the weights of a pattern.
    return context, logsumexp if problem.query.dtype == torch.float32 else None


def _scaled_in_part(query: Tensor, scale: float) -> tuple[Tensor, float]:
    """Multiply the query by what keeps the scale from being a power of two.

    Matrix libraries multiply by it before the sum or behind it, by how many threads they have; with
    a power of two that rounds alike. In half precision the query would lose digits by it.
    """
    part, exponent = math.frexp(scale)
    if query.dtype != torch.float32 or abs(part) in (0.0, 0.5):
        return query, scale
    return query * part, 2.0**exponent


def _in_blocks(
    problem: Problem, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Tensor | None]:
    """Go over the queries in blocks, each with the keys it can see and a mask of that size."""
    contexts, logsumexps = [], []
    for first in range(0, problem.queries, _BLOCK):
        rows = slice(first, min(first + _BLOCK, problem.queries))
        low, high = problem.rows.span(rows)
        columns = slice(low, max(high, low + 1))  # the kernel wants at least one key
        mask, fully_masked = _additive(problem, rows, columns)
        context, logsumexp = kernel(
            query[..., rows, :],
            key[..., columns, :],
            value[..., columns, :],
            scale,
            mask,
            is_causal=False,
        )
        contexts.append(context.masked_fill(fully_masked, 0))
        if logsumexp is not None:
            logsumexps.append(logsumexp.masked_fill(fully_masked[..., 0], -torch.inf))
    return torch.cat(contexts, dim=-2), torch.cat(logsumexps, dim=-1) if logsumexps else None


def _additive(problem: Problem, rows: slice, columns: slice) -> tuple[Tensor | None, Tensor]:
    """Write a block of mask and bias as the kernel takes it, and the rows that see nothing.

    Such rows are shown every key: the kernel's arithmetic stays finite, and what comes out is
    replaced afterwards, which also cuts their gradient off.
    """
    visible = problem.rows.visible(rows, columns)
    fully_masked = ~visible.any(dim=-1, keepdim=True)
    hidden = ~(visible | fully_masked)
    bias = total_bias(problem, rows, columns)
    if bias is None and not bool(hidden.any()):
        return None, fully_masked
    # On a CPU the kernel adds in float32 whatever the inputs are; elsewhere dtypes must agree.
    dtype = torch.float32 if problem.query.device.type == "cpu" else problem.query.dtype
    if bias is None:
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    else:
        mask = bias.detach().to(dtype).masked_fill(fully_masked, 0)
    return mask.masked_fill(hidden, -torch.inf), fully_masked


def _flash_on_cpu(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, *, is_causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Call torch's CPU kernel (Dao et al. 2022, arXiv:2205.14135) for the log-sum-exp too."""
    queries = query.shape[-2]
    if queries < _SPLIT:  # then the workspaces of its threads lie as far apart as the queries say
        extra = (0, 0, 0, aligned(queries) - queries)
        query, mask = F.pad(query, extra), None if mask is None else F.pad(mask, extra)
    context, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - the public call drops the log-sum-exp
        query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    return context[..., :queries, :], logsumexp[..., :queries]


def _any_kernel(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, *, is_causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Let torch choose the kernel of the device."""
    context = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale
    )
    return context, None
