"""torch's fused kernel on a CPU, wherever it can be made to honour the order of the computation.

On a CPU torch's flash kernel gives the log-sum-exp along with the context. It knows is_causal and
additive masks. Any interval mask is brought to it in blocks of queries: each block is handed only
the keys that lie between its first start and its last stop, so that memory stays O(block·S) and
what nobody sees is not computed. On other devices torch chooses its kernel itself and keeps the
log-sum-exp to itself.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D and Dv head dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._shapes import Float
from regard._tensors import pad_last, padded_size
from regard.backends.blocks import MaskBlock, in_blocks
from regard.backends.objections import (
    THREE_DTYPES,
    objection_to_context,
    objection_to_dropout,
    objection_to_dtype,
    objection_to_gradients,
    objection_to_numbers,
    objection_to_sizes,
    objection_to_softcap,
)
from regard.backends.results import empty_result, with_sink
from regard.inputs import Problem
from regard.inputs.finite import without_autocast

Kernel = Callable[..., tuple[Tensor, Tensor | None]]

# The kernel itself works on 256 queries at a time from L = 768 on: smaller blocks would only add
# calls, larger ones more keys that few of the block's queries see.
_BLOCK = 256
# The fewest queries that one of its threads works on at a time, unless there are fewer.
_SPLIT = 32


def objection(problem: Problem) -> str | None:
    """Say which argument is not supported, or None."""
    return (
        objection_to_dtype(problem, *THREE_DTYPES)
        or objection_to_sizes(problem)
        or objection_to_softcap(problem)
        or objection_to_dropout(problem)
        or objection_to_context(problem)
        or _nonfinite_reason(problem)
        or objection_to_gradients(problem, sink=False)
        or _missing_logsumexp(problem)
    )


def _nonfinite_reason(problem: Problem) -> str | None:
    """Object to numbers that pass its masks, and of which it makes a 0 in short rows: NaN."""
    return objection_to_numbers(problem, "it mishandles") if problem.check_finite else None


def _missing_logsumexp(problem: Problem) -> str | None:
    device = problem.query.device.type
    if problem.sink is not None and device != "cpu":
        return f"a sink needs the log-sum-exp, which torch does not return on {device}"
    return None


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"] | None]:
    """Compute context and logsumexp; None in its place where torch does not tell it."""
    assert problem.value is not None, "objection() refuses a missing value"
    empty = empty_result(problem, problem.value)
    if empty is not None:
        return empty
    if len(problem.rows.start) == 1:
        return _together(problem)
    # Blocks of keys are chosen to fit the mask. Were they shared by sequences of different masks,
    # the rounding of one would depend on which others are in the batch.
    contexts, logsumexps = zip(
        *(_together(problem.entry(i)) for i in range(problem.heads[0])), strict=True
    )
    known = all(logsumexp is not None for logsumexp in logsumexps)
    return torch.cat(contexts), torch.cat(logsumexps) if known else None


def _together(problem: Problem) -> tuple[Tensor, Tensor | None]:
    """Compute a batch whose entries see the same keys."""
    assert problem.value is not None, "run() is the only caller"
    kernel = _flash_on_cpu if problem.query.device.type == "cpu" else _any_kernel
    # The kernel wants D = Dv.
    width = padded_size(max(problem.query.shape[-1], problem.value.shape[-1]))
    query, scale = _scaled_in_part(problem.query, problem.scale)
    query, key = pad_last(query, width), pad_last(problem.repeated(problem.key), width)
    value = pad_last(problem.repeated(problem.value), width)

    is_causal = problem.rows.hides_any
    if problem.alibi is None and (not is_causal or problem.rows.is_lower_triangular):
        context, logsumexp = kernel(query, key, value, scale, None, is_causal=is_causal)
    else:

        def attend(block: MaskBlock) -> tuple[Tensor, Tensor | None]:
            mask = _mask(block, query.dtype)
            rows, columns = query[..., block.rows, :], (..., block.columns, slice(None))
            return kernel(rows, key[columns], value[columns], scale, mask, is_causal=False)

        context, logsumexp = in_blocks(problem, _BLOCK, partial(_columns, problem), attend)

    context = context[..., : problem.value.shape[-1]]
    if problem.sink is not None:
        assert logsumexp is not None, "objection() refuses a sink where there is none"
        context, logsumexp = with_sink(problem.sink, context, logsumexp)
    # In half precision the kernel's exponential is good to some 15 bits: enough for a context that
    # is rounded to fewer, not for the weights of a pattern.
    return context, logsumexp if problem.query.dtype == torch.float32 else None


def _scaled_in_part(query: Tensor, scale: float) -> tuple[Tensor, float]:
    """Multiply the query by what keeps the scale from being a power of two.

    Matrix libraries multiply by it before the sum or after it, by how many threads they have; with
    a power of two that rounds alike. In half precision the query would lose digits by it.
    """
    part, exponent = math.frexp(scale)
    if query.dtype != torch.float32 or abs(part) in (0.0, 0.5):
        return query, scale
    return query * part, 2.0**exponent


def _columns(problem: Problem, rows: slice) -> slice:
    """The keys that some queries see; the kernel wants at least one."""
    low, high = problem.rows.span(rows)
    return slice(low, max(high, low + 1))


def _mask(block: MaskBlock, dtype: torch.dtype) -> Tensor | None:
    """Write mask and bias down, unless there is nothing to add."""
    if block.bias is None and not bool(block.hidden.any()):
        return None
    # On a CPU the kernel adds in float32 whatever the inputs are; elsewhere dtypes must agree.
    return block.additive(torch.float32 if block.hidden.device.type == "cpu" else dtype)


def _flash_on_cpu(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, *, is_causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Call torch's CPU kernel (Dao et al. 2022, arXiv:2205.14135) for the log-sum-exp too."""
    queries = query.shape[-2]
    if queries < _SPLIT:  # then the workspaces of its threads lie as far apart as the queries say
        extra = (0, 0, 0, padded_size(queries) - queries)
        query, mask = F.pad(query, extra), None if mask is None else F.pad(mask, extra)
    context, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - the public call drops the log-sum-exp
        query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    return context[..., :queries, :], logsumexp[..., :queries]


def _any_kernel(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, *, is_causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Let torch choose the kernel of the device."""
    query, scale = with_positive_scale(query, scale)
    with without_autocast(query.device):
        context = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale
        )
    return context, None


def with_positive_scale(
    query: Float[Tensor, "B H L d"], scale: float
) -> tuple[Float[Tensor, "B H L d"], float]:
    """Move the sign of the scale into the query, and a scale of 0 altogether.

    Fused kernels of a GPU look for the largest score before they scale it, and hide by a score of
    −∞: both go wrong with a scale that is not above 0.
    """
    if scale > 0:
        return query, scale
    return (-query, -scale) if scale < 0 else (query * 0, 1.0)
