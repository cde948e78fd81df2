"""Readouts on a GPU, in Triton (Tillet et al. 2019, https://doi.org/10.1145/3315508.3329973).

Attention itself is what torch's kernels are good at; they give the context and the log-sum-exp, and
no readout of the weights. The kernels here recompute the scores once, from query, key and
log-sum-exp, and take all readouts on the way, in memory of O(L·k).

Axes: B batch, H query heads, N = B·H of them numbered through, L queries, S keys.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from regard.backends.kernel_spec import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from regard.backends.kernel_spec import KernelSpec
    from regard.problem import Problem

__all__ = ["objection_to", "objection_to_reading", "read", "why_missing"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WIDEST = 256  # head dimension: wider tiles do not fit a processor's memory
_LONGEST = 2**31 - 2**10  # queries or keys, with room to round up to a tile
_MOST = 64  # keys ranked: a row's are kept in registers


def why_missing() -> str | None:
    """Say why there are no kernels, or None."""
    if find_spec("triton") is None:
        return "triton is not installed; pip install 'triton>=3.6'"
    return None


def objection_to_reading(problem: Problem) -> str | None:
    """Say why `read` can't serve a problem, or None."""
    if problem.query.device.type != "cuda":
        return f"query is on {problem.query.device}, and Triton computes on a GPU"
    why = why_missing()
    if why is not None:
        return why
    if torch.compiler.is_compiling():
        return "torch.compile can't trace kernels that take tensors in a tuple"
    if problem.query.dtype not in _DTYPES:
        return f"query is {problem.query.dtype}, and it reads {', '.join(map(str, _DTYPES))}"
    if not 0 < problem.query.shape[-1] <= _WIDEST:
        return f"it takes head dimensions from 1 to {_WIDEST}"
    if max(problem.queries, problem.keys) > _LONGEST:
        return f"it takes at most {_LONGEST} queries and keys"
    return None


def objection_to(order: KernelSpec) -> str | None:
    """Say why `read` can't take a readout, or None."""
    if order.kind == Kind.TOP and order.size > _MOST:
        return f"it ranks at most {_MOST} keys, and {order.size} are asked for"
    return None


def read(
    problem: Problem,
    orders: Sequence[KernelSpec],
    logsumexp: Float[Tensor, "N L"] | None,
    columns: slice | None,
) -> list[tuple[Tensor, ...]]:
    """Compute what is ordered: a float32 tensor each, and the positions where keys are ranked.

    Args:
        problem: one that `objection_to_reading` has nothing against.
        orders: the reductions, to which `objection_to` has nothing either.
        logsumexp: of each row; None to work it out first, in a pass of its own.
        columns: stay within these keys, for which the log-sum-exp must be given.
    """
    from regard.backends.gpu.triton._read import read_all  # needs triton, which not everyone has

    return read_all(problem, orders, logsumexp, columns)
