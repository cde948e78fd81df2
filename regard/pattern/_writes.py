"""Whether the tensors of a pattern were written to since its log-sum-exps were computed."""

from __future__ import annotations

import torch

from regard._tensors import version
from regard.problem import Problem


class Writes:
    """How often the tensors of an attention have been written to.

    Args:
        problem: the attention.
        given: whether its log-sum-exps came with it: they are perhaps those of longer rows, and
            can't be computed anew.
    """

    def __init__(self, problem: Problem, *, given: bool) -> None:
        self.given = given
        self._count = _count(problem)

    def are_more(self, problem: Problem) -> bool:
        """Whether they were written to since this was last asked.

        Raises:
            ValueError: they were, and the log-sum-exps were given.
        """
        before, self._count = self._count, _count(problem)
        if self.given and before != self._count:
            self._count = before
            raise ValueError(
                "query, key or mask were written to after the pattern was made, but the "
                "log-sum-exps that were given with them are those from before; make the pattern "
                "anew, or of copies"
            )
        return before != self._count


def _count(problem: Problem) -> tuple[int, ...]:
    if torch.compiler.is_compiling():
        return ()
    rows = problem.rows
    tensors = (problem.query, problem.key, rows.allowed, rows.bias, problem.alibi, problem.sink)
    return tuple(version(tensor) for tensor in tensors if tensor is not None)
