"""Readouts on a GPU, in Triton (Tillet et al. 2019, https://doi.org/10.1145/3315508.3329973).

Experimental: run by Triton's interpreter and compiled for GPUs, but not run on one.

Attention itself is what torch's kernels are good at; they give the context and the log-sum-exp, and
no readout of the weights. The kernels here recompute the scores once, from query, key and
log-sum-exp, and take all readouts on the way, in memory of O(L·k).

Axes: B batch, H query heads, N = B·H of them numbered through, L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.kernel_spec import Divergence, KernelSpec, Kind
from regard.backends.objections import (
    THREE_DTYPES,
    objection_to_dtype,
    objection_to_length,
    objection_to_pair,
)
from regard.errors import Error
from regard.inputs import Problem
from regard_experiments.gpu.hardware import why_no_triton

__all__ = [
    "compare",
    "objection_to",
    "objection_to_comparing",
    "objection_to_reading",
    "read",
    "refine",
]

_WIDEST = 256  # head dimension: wider tiles do not fit a processor's memory
_LONGEST = 2**31 - 2**10  # queries or keys, with room to round up to a tile
_MOST = 64  # keys ranked: a row's are kept in registers


def objection_to_reading(problem: Problem) -> str | None:
    """Say why `read` does not take a problem, or None."""
    device, width = problem.query.device, problem.query.shape[-1]
    if device.type != "cuda":
        return f"query is on {device} but Triton needs a GPU"
    why = why_no_triton()
    if why is not None:
        return why
    if torch.compiler.is_compiling():
        return "torch.compile cannot trace kernels that take tensors in a tuple"
    if not 0 < width <= _WIDEST:
        return f"head dimension {width} is not between 1 and {_WIDEST}"
    return objection_to_dtype(problem, *THREE_DTYPES) or objection_to_length(problem, _LONGEST)


def objection_to(spec: KernelSpec, problem: Problem) -> str | None:  # noqa: ARG001 - every reader answers this question
    """Say why `read` does not take a readout, or None."""
    if spec.kind == Kind.REPEATS:
        return "weights between repeated tokens are streamed on a GPU"
    if spec.kind == Kind.TOP and spec.size > _MOST:
        return f"{spec.size} ranked keys are above {_MOST}"
    return None


def objection_to_comparing(one: Problem, other: Problem) -> str | None:
    """Say why `compare` does not take two problems, or None."""
    return objection_to_reading(one) or objection_to_reading(other) or objection_to_pair(one, other)


def read(
    problem: Problem,
    specs: Sequence[KernelSpec],
    logsumexp: Float[Tensor, "N L"] | None,
    columns: slice | None,
) -> list[tuple[Tensor, ...]]:
    """Compute readouts: a float32 tensor each, and the positions where keys are ranked.

    Args:
        problem: one that `objection_to_reading` has nothing against.
        specs: the readouts, to which `objection_to` has nothing either.
        logsumexp: of each row; None to compute it first, in a pass of its own.
        columns: stay within these keys, for which the log-sum-exp must be given.

    Raises:
        Error: where a kernel's first use on a device, which is compared with the definition, fails.
    """
    # What needs triton, which not everyone has, is imported where it runs.
    from regard_experiments.gpu.triton._read import read_all
    from regard_experiments.gpu.triton._self_check import failure

    why = failure(problem, [spec.kind for spec in specs])
    if why is not None:
        raise Error(f"readouts by Triton cannot run: {why}. Read a copy: pattern.to('cpu').")
    return read_all(problem, specs, logsumexp, columns)


def refine(
    problem: Problem, logsumexp: Float[Tensor, "N L"], coarse_above: float
) -> Float[Tensor, "N L"]:
    """Compute the log-sum-exps of large size anew; the GPU alone learns whether there are any.

    Args:
        problem: one that `objection_to_reading` has nothing against.
        logsumexp: of each row, by another kernel, which rounds products otherwise.
        coarse_above: the size beyond which one is replaced.

    Raises:
        Error: where the kernel's first use on a device, which is compared with the definition,
            fails.
    """
    from regard_experiments.gpu.triton._read import refine_all
    from regard_experiments.gpu.triton._self_check import failure_to_refine

    why = failure_to_refine(problem)
    if why is not None:
        raise Error(f"readouts by Triton cannot run: {why}. Read a copy: pattern.to('cpu').")
    return refine_all(problem, logsumexp, coarse_above)


def compare(
    one: Problem,
    other: Problem,
    logsumexps: tuple[Float[Tensor, "N L"], Float[Tensor, "N L"]],
    kind: Divergence,
) -> Float[Tensor, "N L"]:
    """Compare each row of one pattern with that of another, in float64.

    Args:
        one: a problem that `objection_to_comparing` has nothing against.
        other: the problem with which `objection_to_comparing` was called.
        logsumexps: of the rows of either.
        kind: KL divergence, Jensen–Shannon divergence or total variation distance.

    Raises:
        Error: where the kernel's first use on a device, which is compared with the definition,
            fails.
    """
    from regard_experiments.gpu.triton._compare import compare_all
    from regard_experiments.gpu.triton._self_check import failure_to_compare

    why = failure_to_compare(one, kind)
    if why is not None:
        raise Error(f"divergences by Triton cannot run: {why}. Compare copies: pattern.to('cpu').")
    return compare_all(one, other, logsumexps, kind)
