"""What torch's fused kernels on CUDA have in common: what they can't honour, and their layout.

Nothing here reads the device but `nonfinite_reason`, and that only where it must. Which keys
are visible follows from the rule of the mask (`regard.mask.bounds.AffineBounds`), not its tables.

Axes: B batch, H query heads, L queries, S keys, d a head dimension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from regard.backends._transforms import objection_to_context, objection_to_numbers
from regard.mask.bounds import AffineBounds

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from torch import Tensor

    from regard.mask.rows import Rows
    from regard.problem import Problem

_LINE = 16  # bytes that the kernels load at once: rows must start at multiples of them


def sees_everything(rows: Rows) -> bool:
    """Whether every query sees every key, as far as a rule says so."""
    line = rows.bounds
    if not rows.interval or not isinstance(line, AffineBounds):
        return False
    left = line.first_start is None or line.first_start + line.queries - 1 <= 0
    return left and (line.first_stop is None or line.first_stop >= line.keys)


def causal_offset(rows: Rows) -> int | None:
    """Tell where query 0 sits, if every query sees the keys up to its own position; else None."""
    line = rows.bounds
    if not rows.interval or not isinstance(line, AffineBounds) or line.first_stop is None:
        return None
    return (
        line.first_stop - 1
        if line.first_start is None or line.first_start + line.queries - 1 <= 0
        else None
    )


def is_plain(rows: Rows) -> bool:
    """Whether a kernel that knows no mask but torch's is_causal can serve these rows."""
    return sees_everything(rows) or causal_offset(rows) == 0


def unsupported(problem: Problem) -> str | None:
    """Object to what none of these kernels knows."""
    if problem.value is None:
        return "it computes no weights without a value"
    if problem.query.shape[-1] == 0 or problem.value.shape[-1] == 0:
        return "it takes no head dimension of 0"
    if problem.softcap is not None:
        return f"it has no softcap={problem.softcap}; leave it out"
    if problem.dropout > 0:
        return f"it gives no reproducible dropout={problem.dropout}; set it to 0"
    if problem.differentiable and problem.sink is not None:
        return "it gives no gradient through a sink; compute under torch.no_grad()"
    return objection_to_context(problem)


def not_half(problem: Problem) -> str | None:
    """Object to any dtype but the half precisions."""
    if problem.query.dtype in (torch.bfloat16, torch.float16):
        return None
    return f"query is {problem.query.dtype}, and it takes bfloat16 and float16"


def nonfinite_reason(problem: Problem) -> str | None:
    """Object to numbers that would reach results from behind a mask.

    A hidden weight is 0 in these kernels, but 0 · NaN is NaN. That there is none costs reading one
    number back from the device; where nothing is hidden, no number can come out that should not.
    """
    if sees_everything(problem.rows):
        return None
    return objection_to_numbers(problem, "its masks let through")


def rounded_up(size: int) -> int:
    """Round a head dimension up to what the kernels' loads take."""
    return -(-size // 8) * 8


def laid_out(tensor: Shaped[Tensor, "*b n d"]) -> Shaped[Tensor, "*b n d"]:
    """Copy a tensor if its rows do not lie as the kernels load them."""
    itemsize = tensor.element_size()
    *strides, last = tensor.stride()
    steps = [stride * itemsize % _LINE == 0 and stride > 0 for stride in strides]
    if last == 1 and all(steps) and tensor.storage_offset() * itemsize % _LINE == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def with_positive_scale(
    query: Float[Tensor, "B H L d"], scale: float
) -> tuple[Float[Tensor, "B H L d"], float]:
    """Move the sign of the scale into the query, and a scale of 0 altogether.

    The kernels look for the largest score before they scale it, and hide by a score of −∞: both
    go wrong with a scale that is not above 0.
    """
    if scale > 0:
        return query, scale
    return (-query, -scale) if scale < 0 else (query * 0, 1.0)


def nothing(problem: Problem) -> tuple[Float[Tensor, "B H L d"], Float[Tensor, "B H L"]] | None:
    """Give the result of a problem without rows or keys, which kernels refuse; else None."""
    assert problem.value is not None, "unsupported() sees to it"
    batch, heads = problem.heads
    if min(batch, heads, problem.queries, problem.keys) > 0:
        return None
    shape = (batch, heads, problem.queries)
    context = problem.query.new_zeros(*shape, problem.value.shape[-1])
    return context, problem.query.new_full(shape, -torch.inf, dtype=torch.float32)
