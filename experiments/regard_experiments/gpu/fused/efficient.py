"""torch's memory-efficient attention (xFormers, Lefaudeux et al. 2022), float32 too. Experimental.

It takes a bias written down, and with it any mask: in blocks of queries, so that what is written at
a time stays small. It computes every block of keys, hidden or not.

Axes: B batch, H query heads, L queries, Dv head dimension of value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Float
from regard._tensors import cut_last, pad_last
from regard.backends.blocks import MaskBlock, in_blocks
from regard.backends.objections import THREE_DTYPES, objection_to_dtype, objection_to_gradients
from regard.inputs import Problem
from regard_experiments.gpu import hardware, rules
from regard_experiments.gpu.fused._run import fused

_WRITTEN = 2**26  # numbers of a mask that are written down at a time
_ALIGNED = 16  # numbers that the rows of a bias must lie apart by a multiple of


def objection(problem: Problem) -> str | None:
    """Say which argument is not supported, or None."""
    return (
        objection_to_dtype(problem, *THREE_DTYPES)
        or hardware.elsewhere(problem, "efficient")
        or rules.unsupported(problem)
        or hardware.too_old(problem, (8, 0) if problem.query.dtype == torch.bfloat16 else (5, 0))
        or _rounded_bias(problem)
        or objection_to_gradients(problem, sink=False)
        or rules.nonfinite_reason(problem)
    )


def _rounded_bias(problem: Problem) -> str | None:
    """Object to a bias that the kernel would take only after it was rounded."""
    dtype, bias = problem.query.dtype, problem.rows.bias
    if dtype == torch.float32:
        return None
    if problem.alibi is not None:
        return f"it takes a bias in the query's {dtype} only, which rounds ALiBi's distances"
    if problem.rows.spans is not None and problem.rows.spans.adds:
        return f"it takes a bias in the query's {dtype} only, which rounds what is added to scores"
    if bias is not None and bias.dtype != dtype:
        return f"it takes a bias in the query's {dtype} only, which rounds one of {bias.dtype}"
    return None


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and logsumexp."""

    def call(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        if problem.alibi is None and rules.is_plain(problem.rows):
            is_causal = not rules.sees_everything(problem.rows)
            return _kernel(query, key, value, scale, None, is_causal=is_causal)

        def attend(block: MaskBlock) -> tuple[Tensor, Tensor]:
            mask = _aligned(block.additive(query.dtype)).expand(*problem.heads, -1, -1)
            part = rules.laid_out(query[..., block.rows, :])
            return _kernel(part, key, value, scale, mask, is_causal=False)

        size = max(_WRITTEN // max(1, problem.keys * _heads_written(problem)), 1)
        context, logsumexp = in_blocks(problem, size, lambda _: slice(0, problem.keys), attend)
        assert logsumexp is not None, "each block has one"
        return context, logsumexp

    return fused(problem, call, repeat=True)


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
    return context, cut_last(logsumexp, query.shape[-2])  # which comes padded to a multiple of 32


def _aligned(mask: Tensor) -> Tensor:
    """Lay the rows of a mask out as far apart as the kernel wants them."""
    keys = mask.shape[-1]
    return cut_last(pad_last(mask, -(-keys // _ALIGNED) * _ALIGNED), keys)


def _heads_written(problem: Problem) -> int:
    """Count the heads that a mask differs in."""
    rows = problem.rows
    spans = None if rows.spans is None else rows.spans.start[0]
    tensors = (rows.start, rows.allowed, rows.bias, problem.alibi, spans)
    shapes = [t.shape[:2] for t in tensors if t is not None]
    return torch.broadcast_shapes(*shapes).numel()
