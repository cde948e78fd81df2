"""The written-out computation: any dtype, any mask, any device; O(L·S) memory.

Axes: B batch, H query heads, L queries, S keys, Dv head dimension of value.
"""

from __future__ import annotations

from torch import Tensor

from regard._shapes import Float
from regard.inputs import Problem
from regard.steps import written_out


def objection(problem: Problem) -> str | None:  # noqa: ARG001 - every backend answers this question
    """Return None: this backend supports every problem."""
    return None


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"] | None]:
    """Compute context and log-sum-exp, natural logarithm."""
    kept = {
        name: tensor
        for name, tensor in written_out(problem)
        if name in {"context", "logsumexp"}  # the L×S steps are freed as soon as they are used
    }
    return kept["context"], kept["logsumexp"]
