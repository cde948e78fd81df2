"""Whether the tensors of a pattern were written to since its log-sum-exps were computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from regard._tensors import version
from regard.inputs import Problem


@dataclass(frozen=True)
class Writes:
    """How often the tensors of an attention had been written to.

    Of copies, and in a graph, that is not known.
    """

    count: tuple[int, ...] | None

    @classmethod
    def of(cls, problem: Problem) -> Writes:
        """Count them now."""
        if torch.compiler.is_compiling():
            return cls(None)
        rows = problem.rows
        tensors = (problem.query, problem.key, rows.allowed, rows.bias, problem.alibi, problem.sink)
        return cls(tuple(version(tensor) for tensor in tensors if tensor is not None))

    def are_fewer(self, now: Writes, *, given: bool) -> bool:
        """Whether there were more between this count and another one.

        Args:
            now: the later one.
            given: whether the log-sum-exps came with the tensors: they are perhaps those of longer
                rows, and can't be computed anew.

        Raises:
            ValueError: there were, and the log-sum-exps were given.
        """
        if self == now or self.count is None or now.count is None:
            return False
        if given:
            raise ValueError(
                "query, key or mask were written to after the pattern was made, but the "
                "log-sum-exps that were given with them are those from before; make the pattern "
                "anew, or of copies"
            )
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> Writes:
        return Writes(None)

    def __reduce__(self) -> tuple[type[Writes], tuple[None]]:
        return Writes, (None,)
