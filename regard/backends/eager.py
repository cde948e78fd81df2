"""The written-out computation: any dtype, any mask, any device; O(L·S) memory."""

from __future__ import annotations

from torch import Tensor

from regard._shapes import Float
from regard.inputs import Problem
from regard.steps import written_out


def objection(problem: Problem) -> str | None:  # noqa: ARG001 - every backend answers this question
    """There is nothing that this backend can't honour."""
    return None


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"] | None]:
    """Compute context and logsumexp."""
    kept = {
        name: tensor
        for name, tensor in written_out(problem)
        if name in {"context", "logsumexp"}  # the L×S steps are freed as soon as they are used
    }
    return kept["context"], kept["logsumexp"]
