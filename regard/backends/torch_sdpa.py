"""torch's fused kernels, for problems that can be expressed by their arguments.

On a CPU torch's flash kernel returns the log-sum-exp along with the context. It supports is_causal
and additive masks. Any interval mask is applied in blocks of queries: each block is computed with
the keys between its first start and its last stop only, so memory is O(block·S) and keys that no
query sees are skipped. On other devices torch chooses the kernel and does not return the
log-sum-exp.

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

# The kernel processes 256 queries at a time if L ≥ 768: smaller blocks would add calls, larger ones
# keys that few queries of the block see.
_BLOCK = 256
# The smallest number of queries that a thread of the kernel processes at a time.
_SPLIT = 32


def objection(problem: Problem) -> str | None:
    """Return which argument is not supported, or None."""
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
    """Object to NaN and infinity, which pass its masks and turn into 0 in short rows."""
    return objection_to_numbers(problem, "it mishandles") if problem.check_finite else None


def _missing_logsumexp(problem: Problem) -> str | None:
    device = problem.query.device.type
    if problem.sink is not None and device != "cpu":
        return f"a sink needs the log-sum-exp, which torch does not return on {device}"
    return None


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"] | None]:
    """Compute context and log-sum-exp, natural logarithm; None if torch does not return it."""
    assert problem.value is not None, "objection() refuses a missing value"
    empty = empty_result(problem, problem.value)
    if empty is not None:
        return empty
    if len(problem.rows.start) == 1:
        return _together(problem)
    # Blocks of keys depend on the mask. If sequences of different masks shared them, the rounding
    # of one would depend on the others in the batch.
    contexts, logsumexps = zip(
        *(_together(problem.entry(i)) for i in range(problem.heads[0])), strict=True
    )
    known = all(logsumexp is not None for logsumexp in logsumexps)
    return torch.cat(contexts), torch.cat(logsumexps) if known else None


def _together(problem: Problem) -> tuple[Tensor, Tensor | None]:
    """Compute a batch whose entries have the same mask."""
    assert problem.value is not None, "run() is the only caller"
    kernel = _flash_on_cpu if problem.query.device.type == "cpu" else _any_kernel
    # The kernel requires D = Dv.
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
    # In half precision the kernel's exponential has about 15 correct bits: enough for a context
    # that is rounded to fewer, not for the weights of a pattern.
    return context, logsumexp if problem.query.dtype == torch.float32 else None


def _scaled_in_part(query: Tensor, scale: float) -> tuple[Tensor, float]:
    """Multiply a float32 query by the mantissa of the scale, and return the power of two.

    Matrix libraries multiply by the scale before or after the sum, depending on the number of
    threads; with a power of two both round equally. A half-precision query would lose digits.
    """
    part, exponent = math.frexp(scale)
    if query.dtype != torch.float32 or abs(part) in (0.0, 0.5):
        return query, scale
    return query * part, 2.0**exponent


def _columns(problem: Problem, rows: slice) -> slice:
    """Return the range of keys that some queries see, at least one, which the kernel requires."""
    low, high = problem.rows.span(rows)
    return slice(low, max(high, low + 1))


def _mask(block: MaskBlock, dtype: torch.dtype) -> Tensor | None:
    """Return mask and bias as an additive mask, or None if it would be 0."""
    if block.bias is None and not bool(block.hidden.any()):
        return None
    # On a CPU the kernel adds in float32 whatever the inputs are; elsewhere dtypes must agree.
    return block.additive(torch.float32 if block.hidden.device.type == "cpu" else dtype)


def _flash_on_cpu(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, *, is_causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Call torch's flash kernel on a CPU (Dao et al. 2022, arXiv:2205.14135)."""
    queries = query.shape[-2]
    if queries < _SPLIT:  # pad them: they determine the offsets of its threads' workspaces
        extra = (0, 0, 0, padded_size(queries) - queries)
        query, mask = F.pad(query, extra), None if mask is None else F.pad(mask, extra)
    context, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - the public call drops the log-sum-exp
        query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    return context[..., :queries, :], logsumexp[..., :queries]


def _any_kernel(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, *, is_causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Call `F.scaled_dot_product_attention`, which chooses the kernel of the device."""
    query, scale = with_positive_scale(query, scale)
    with without_autocast(query.device):
        context = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale
        )
    return context, None


def with_positive_scale(
    query: Float[Tensor, "B H L d"], scale: float
) -> tuple[Float[Tensor, "B H L d"], float]:
    """Move the sign of the scale, or a scale of 0, into the query.

    Fused GPU kernels take the maximum of the scores before scaling, and mask by a score of −∞: both
    are wrong for a scale ≤ 0.
    """
    if scale > 0:
        return query, scale
    return (-query, -scale) if scale < 0 else (query * 0, 1.0)
