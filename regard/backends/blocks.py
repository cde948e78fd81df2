"""Mask and bias as an additive mask, for kernels that take one: a block of queries at a time.

Axes: B batch, H query heads, L queries, Dv head dimension of value; l queries and s keys of a
block; b is B or 1, and h is H or 1.
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
    """A block of queries and keys, with its mask and bias.

    In fully masked rows no key is hidden, so that the kernel's arithmetic stays finite; `in_blocks`
    overwrites their results afterwards, which also stops their gradients.
    """

    rows: slice
    columns: slice
    fully_masked: Bool[Tensor, "b h l 1"]
    hidden: Bool[Tensor, "b h l s"]
    bias: Float[Tensor, "..."] | None
    """Broadcastable to the shape of `hidden`."""

    @classmethod
    def of(cls, problem: Problem, rows: slice, columns: slice) -> MaskBlock:
        """Make the block of a range of queries and a range of keys."""
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
        """Return mask and bias as one term of the scores, broadcastable to ``(b, h, l, s)``."""
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
        problem: the checked arguments.
        size: queries per block.
        columns: a function from a range of queries to the range of keys to use.
        attend: a function that computes context and logsumexp of a block; None for the latter if
            its kernel does not return it.

    Returns:
        The context; and the log-sum-exps, natural logarithm, or None.
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
