"""What torch's fused kernels on CUDA have in common: what they can't honour, and their layout.

Nothing here reads the device but `nonfinite_reason`, and that only where it must. Which keys
are visible follows from affine bounds (`regard.masks.bounds.AffineBounds`), never from tables.

Axes: B batch, H query heads, L queries, S keys, d a head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Shaped
from regard.backends.objections import (
    objection_to_context,
    objection_to_dropout,
    objection_to_numbers,
    objection_to_sizes,
    objection_to_softcap,
)
from regard.inputs import Problem
from regard.masks.bounds import AffineBounds
from regard.masks.rows import Rows

_LINE = 16  # bytes that the kernels load at once: rows must start at multiples of them


def sees_everything(rows: Rows) -> bool:
    """Whether every query sees every key, as far as affine bounds tell."""
    bounds = rows.bounds
    if not rows.is_interval or not isinstance(bounds, AffineBounds):
        return False
    left = bounds.first_start is None or bounds.first_start + bounds.queries - 1 <= 0
    return left and (bounds.first_stop is None or bounds.first_stop >= bounds.keys)


def causal_offset(rows: Rows) -> int | None:
    """Tell where query 0 sits, if every query sees the keys up to its own position; else None."""
    bounds = rows.bounds
    if not rows.is_interval or not isinstance(bounds, AffineBounds) or bounds.first_stop is None:
        return None
    return (
        bounds.first_stop - 1
        if bounds.first_start is None or bounds.first_start + bounds.queries - 1 <= 0
        else None
    )


def is_plain(rows: Rows) -> bool:
    """Whether a kernel that knows no mask but torch's is_causal can serve these rows."""
    return sees_everything(rows) or causal_offset(rows) == 0


def unsupported(problem: Problem) -> str | None:
    """Object to what none of these kernels supports."""
    return (
        objection_to_sizes(problem)
        or objection_to_softcap(problem)
        or objection_to_dropout(problem)
        or objection_to_context(problem)
    )


def only_causal(problem: Problem, which: str, *, fits: bool) -> str | None:
    """Object to anything added to the scores, and to any mask but one causal mask.

    Args:
        problem: whose last query sits at the last key, if its mask is causal.
        which: the causal mask that is supported, in words.
        fits: whether the numbers of queries and keys fit it.
    """
    rows = problem.rows
    if problem.alibi is not None or rows.adds:
        return "it adds no bias to the scores, as 'efficient' and 'flex' do"
    if sees_everything(rows):
        return None
    if fits and causal_offset(rows) == problem.keys - problem.queries:
        return None
    return f"the only mask that it supports is the causal one {which}"


def nonfinite_reason(problem: Problem) -> str | None:
    """Object to hidden numbers that would reach results, where these are to be kept out.

    A hidden weight is 0 in these kernels, but 0 · NaN is NaN. To know costs reading one number back
    from the device; where nothing is hidden, every number may come out.
    """
    if not problem.check_finite or sees_everything(problem.rows):
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
    # A graph does not know where memory starts; torch's compiler sees to it for these kernels.
    aligned = torch.compiler.is_compiling() or tensor.storage_offset() * itemsize % _LINE == 0
    if last == 1 and all(steps) and aligned:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)
