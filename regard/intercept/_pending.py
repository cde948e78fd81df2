"""A call whose context can be computed together with readouts of its weights.

Axes: B batch, H query heads, L queries, Dv head dimension of value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard._shapes import Float
from regard.inputs import Problem
from regard.pattern.reading import sizes_of, take, take_with_context
from regard.pattern.readout import Readout


class PendingContext:
    """A context that is not computed yet: whoever reads the weights may have it computed.

    Args:
        problem: of the call, with its value; the kernels on a CPU are to compute it, and no
            gradients.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.context: Float[Tensor, "*b L Dv"] | None = None

    def is_of(self, problem: Problem) -> bool:
        """Whether a problem has all queries, keys and heads of the call, in their order."""
        own = self._problem
        return problem.query.is_set_to(own.query) and problem.key.is_set_to(own.key)

    def take(self, readouts: Sequence[Readout[Any, Any]]) -> tuple[Any, ...]:
        """Take readouts of the call's weights, and the context, if it is not there yet."""
        if self.context is not None:
            return take(readouts, self._problem, sizes_of(self._problem))
        context, results = take_with_context(readouts, self._problem)
        self.context = None if context is None else self._problem.restore(context)
        return results
