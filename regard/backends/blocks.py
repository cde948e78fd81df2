"""Any mask and bias, written down for a kernel that adds them: a block of queries at a time.

Axes: B batch, H query heads, b and h B or 1, H or 1; L queries, Dv head dimension of value; l
queries and s keys of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Bool, Float
from regard.inputs import Problem
from regard.steps import total_bias


@dataclass(frozen=True, eq=False, kw_only=True)
class MaskBlock:
    """Some queries, the keys that they are computed with, and what is added to the scores.

    Fully masked rows see every key instead: the kernel's arithmetic stays finite, and their results
    are replaced afterwards, which also cuts their gradient off.
    """

    rows: slice
    columns: slice
    fully_masked: Bool[Tensor, "b h l 1"]
    hidden: Bool[Tensor, "b h l s"]
    bias: Float[Tensor, "..."] | None
    """Broadcastable to what is hidden."""

    @classmethod
    def of(cls, problem: Problem, rows: slice, columns: slice) -> MaskBlock:
        """Take a block out of a problem."""
        visible = problem.rows.visible(rows, columns)
        fully_masked = ~visible.any(dim=-1, keepdim=True)
        return cls(
            rows=rows,
            columns=columns,
            fully_masked=fully_masked,
            hidden=~(visible | fully_masked),
            bias=total_bias(problem, rows, columns),
        )

    def additive(self, dtype: torch.dtype) -> Float[Tensor, "..."]:
        """Write mask and bias as what is added to the scores."""
        if self.bias is None:
            mask = torch.zeros(self.hidden.shape, dtype=dtype, device=self.hidden.device)
        else:
            mask = self.bias.detach().to(dtype).masked_fill(self.fully_masked, 0)
        return mask.masked_fill(self.hidden, -torch.inf)


def in_blocks(
    problem: Problem,
    size: int,
    columns: Callable[[slice], slice],
    attend: Callable[[MaskBlock], tuple[Tensor, Tensor | None]],
) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"] | None]:
    """Compute context and logsumexp, `size` queries at a time.

    Args:
        problem: whose queries are gone over.
        size: of a block.
        columns: the keys that some queries are computed with.
        attend: computes a block.
    """
    contexts, logsumexps = [], []
    for first in range(0, problem.queries, size):
        rows = slice(first, min(first + size, problem.queries))
        block = MaskBlock.of(problem, rows, columns(rows))
        context, logsumexp = attend(block)
        contexts.append(context.masked_fill(block.fully_masked, 0))
        if logsumexp is not None:
            logsumexps.append(logsumexp.masked_fill(block.fully_masked[..., 0], -torch.inf))
    return torch.cat(contexts, dim=-2), torch.cat(logsumexps, dim=-1) if logsumexps else None
