"""The kernels in C++ (src/native): any mask and option, on a CPU, near the machine's limit.

Axes: B batch, H query heads, L queries, S keys, Dv head dimension of value.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from regard._shapes import Float
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.backends.native import library
from regard.backends.native._arguments import CODES, DTYPES, Arguments
from regard.backends.native._derivatives import compute
from regard.backends.native._gpt_step import (
    MAX_HEADS_OF_GROUP,
    MAX_SEQUENCES,
    GPTLayer,
    GPTStep,
    GPTWeights,
    LinearMap,
    Norm,
    matvec,
    multiply_blocks,
    supports_blocks,
    supports_matvec,
)
from regard.backends.native._once_differentiable import once_differentiable
from regard.backends.native._readouts import compare, read, run_and_read
from regard.backends.native._row_by_row import (
    compute_cross_entropy,
    gelu,
    residual_norm,
)
from regard.backends.native.library import Description, describe, why_missing
from regard.backends.objections import objection_to_context, objection_to_pair
from regard.inputs import Problem

__all__ = [
    "DTYPES",
    "MAX_HEADS_OF_GROUP",
    "MAX_SEQUENCES",
    "WIDEST",
    "Description",
    "GPTLayer",
    "GPTStep",
    "GPTWeights",
    "LinearMap",
    "Norm",
    "backward",
    "compare",
    "compute_cross_entropy",
    "describe",
    "gelu",
    "matvec",
    "multiply_blocks",
    "objection",
    "objection_to",
    "objection_to_comparing",
    "objection_to_reading",
    "once_differentiable",
    "read",
    "residual_norm",
    "run",
    "run_and_read",
    "supports_blocks",
    "supports_matvec",
    "why_missing",
]

WIDEST = 256  # maximum head dimension; the scratch memory of a task is proportional to it
_LONGEST = 2**31 - 1  # maximum number of queries or keys
_MOST_SPANS = 2**12  # maximum number of spans; a thread keeps their sums for a few rows


def objection(problem: Problem) -> str | None:
    """Return which argument is not supported, or None."""
    why = objection_to_reading(problem)
    if why is not None:
        return why
    if problem.value is None:
        return "it computes no weights without a value"
    if problem.value.shape[-1] > WIDEST:
        return f"it takes head dimensions of at most {WIDEST}"
    return objection_to_context(problem)


def objection_to_reading(problem: Problem) -> str | None:
    """Return why `read` does not support a problem, or None."""
    why = library.why_missing()
    if why is not None:
        return why
    if problem.query.device.type != "cpu":
        return f"query is on {problem.query.device}, and it computes on a CPU"
    if problem.query.dtype not in CODES:
        return f"query is {problem.query.dtype}, which only the written-out computation serves"
    if problem.query.shape[-1] > WIDEST:
        return f"it takes head dimensions of at most {WIDEST}"
    if max(problem.queries, problem.keys) > _LONGEST:
        return f"it takes at most {_LONGEST} queries and keys"
    return None


def objection_to(spec: KernelSpec, problem: Problem) -> str | None:
    """Return why `read` can't compute one readout of a supported problem, or None."""
    if spec.kind is Kind.MAX_SCORE:
        spans = problem.rows.spans
        added = spans is not None and spans.adds
        return "scaled scores are not kept where spans add to them" if added else None
    if spec.kind is Kind.SPANS and spec.size > _MOST_SPANS:
        return f"{spec.size} spans are above {_MOST_SPANS}"
    return None


def objection_to_comparing(one: Problem, other: Problem) -> str | None:
    """Return why `compare` does not support two problems, or None."""
    return objection_to_reading(one) or objection_to_reading(other) or objection_to_pair(one, other)


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and log-sum-exp, natural logarithm."""
    from regard.backends.native import _operators  # noqa: F401 - registers the operator

    context, logsumexp = compute("attention", *Arguments.of(problem))
    return context, logsumexp


def backward(
    problem: Problem,
    gradient: Float[Tensor, "B H L Dv"],
    context: Float[Tensor, "B H L Dv"],
    logsumexp: Float[Tensor, "B H L"],
    wanted: Sequence[str],
) -> dict[str, Tensor]:
    """Compute gradients of the arguments that are named in `wanted`.

    The problem may have only some keys of the rows that context and logsumexp are of; the gradients
    are then the contribution of these keys. In half precision that of an ALiBi slope is limited by
    the rounding of the context: its error grows with the mean distance of the keys.

    Args:
        problem: the problem of the forward pass.
        gradient: the gradient of the context.
        context: the result of the forward pass.
        logsumexp: of each row, contiguous; −inf for rows that see none of the problem's keys.
        wanted: names of fields of `Arguments`.

    Returns:
        The gradients by name.
    """
    from regard.backends.native import _backward

    mask = [name in wanted for name in Arguments._fields]
    arguments = Arguments.of(problem)
    gradients = _backward.backward(gradient, context, logsumexp, mask, *arguments, all_keys=False)
    return dict(zip((n for n in Arguments._fields if n in wanted), gradients, strict=True))
