"""A pattern in blocks: weights recomputed a few rows at a time, handed to readouts, and let go.

Rows are complete in a block (all keys that any of its queries sees), so a block can find its own
log-sum-exp where none is given. Memory is O(block), whatever L and S are.

Axes: heads are numbered through, n of them in a block; R rows and C columns of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from regard.steps import total_bias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from regard._problem import Problem

# 2²⁰ float32 scores are 4 MiB: they stay in a core's share of the cache between one pass over them
# and the next, and are many enough to hide the cost of a torch call. To hide that of a GPU's, which
# computes them in the time that a call takes, a block has 64 MiB there.
_BLOCK_SCORES = 2**20
_TIMES_ON_CUDA = 16

# Stands for −∞ among the logarithms of hidden weights: its exponential is 0, and its product with
# that 0 is 0, where −∞ would give NaN.
_HIDDEN = -1e30
# Stands for it among the logarithms of visible weights, which an infinity in a key may bring about.
_LOWEST = -1e29


@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """A few complete rows of a few heads."""

    heads: slice
    """Which heads, numbered b·H + h."""
    rows: slice
    columns: slice
    weights: Float[Tensor, "n R C"]
    log_weights: Float[Tensor, "n R C"]
    """Natural logarithms; hidden keys have a large negative number, see `seen`."""
    logsumexp: Float[Tensor, "n R"]
    positions: Int[Tensor, "m R"]
    """Where each query sits among the keys; m is n, or 1 where the heads agree."""
    stray: bool
    """Whether some row is NaN, as far as it sees."""

    @staticmethod
    def seen(log_weights: Float[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Tell the logarithms of visible weights from those of hidden ones."""
        return ~(log_weights <= _HIDDEN / 2)  # NaN is seen


def stream(
    problem: Problem,
    logsumexp: Float[Tensor, "heads L"] | None = None,
    columns: slice | None = None,
) -> Iterator[Block]:
    """Yield the pattern block by block; blocks in which nothing is visible are left out.

    Args:
        problem: query, key, mask and the rest.
        logsumexp: of each row, of the heads numbered through; None to work it out on the way.
        columns: stay within these keys, for which the log-sum-exp must be given.
    """
    assert columns is None or logsumexp is not None, "part of a row does not tell its log-sum-exp"
    area = problem.queries * problem.keys
    if area == 0:
        return
    scores = _BLOCK_SCORES * (_TIMES_ON_CUDA if problem.query.is_cuda else 1)
    for chosen in _groups(problem, at_most=max(1, scores // area)):
        part = problem.select(chosen).cast(problem.exact_dtype).aligned()
        known = None if logsumexp is None else logsumexp[chosen]
        height = max(1, scores // (chosen.numel() * problem.keys))
        for top in range(0, problem.queries, height):
            rows = slice(top, min(top + height, problem.queries))
            block = _block(part, chosen, rows, known, columns)
            if block is not None:
                yield block


def _groups(problem: Problem, at_most: int) -> Iterator[Tensor]:
    """Number the heads through and group them; a group sees the same keys, row by row.

    A group's block spans what any of its rows sees. Were it shared by different masks, the rounding
    of one sequence would depend on which others are in the batch.
    """
    batch, heads = problem.heads
    apart = problem.rows.start.shape[:2]
    alike = batch * heads if apart == (1, 1) else heads if apart[1] == 1 else 1
    for first in range(0, batch * heads, max(alike, 1)):
        yield from torch.arange(first, first + alike).split(at_most)


def _block(
    part: Problem, chosen: Tensor, rows: slice, known: Tensor | None, within: slice | None
) -> Block | None:
    low, high = part.rows.span(rows)
    if within is not None:
        low, high = max(low, within.start), min(high, within.stop)
    if low >= high:
        return None
    columns = slice(low, high)
    scores = torch.bmm(part.query[:, 0, rows] * part.scale, part.key[:, 0, columns].mT)
    if part.softcap is not None:
        scores.div_(part.softcap).tanh_().mul_(part.softcap)
    bias = total_bias(part, rows, columns)
    if bias is not None:
        scores += bias[:, 0]
    if not part.tame:
        scores.clamp_(min=_LOWEST)
    _hide(scores, part, rows, columns)

    logsumexp = _logsumexp(part, scores) if known is None else known[:, rows].to(scores.dtype)
    shift = logsumexp.masked_fill(logsumexp == -torch.inf, 0)  # who sees nothing keeps weight 0
    shift = shift.masked_fill(shift == torch.inf, torch.nan)  # ∞ − ∞
    log_weights = scores.sub_(shift[..., None])
    weights = log_weights.exp()
    stray = bool(shift.isnan().any())
    if stray:  # a visible NaN fills its row, but only as far as it sees
        hidden = ~part.rows.visible(rows, columns)[:, 0].expand(weights.shape)
        weights.masked_fill_(hidden, 0)
        log_weights.masked_fill_(hidden, _HIDDEN)
    return Block(
        heads=slice(int(chosen[0]), int(chosen[-1]) + 1),
        rows=rows,
        columns=columns,
        weights=weights,
        log_weights=log_weights,
        logsumexp=logsumexp,
        positions=part.rows.positions[:, 0, rows],
        stray=stray,
    )


def _hide(scores: Tensor, part: Problem, rows: slice, columns: slice) -> None:
    """Overwrite the scores of hidden keys, looking only where there may be some."""
    if not part.rows.interval:
        scores.masked_fill_(~part.rows.visible(rows, columns)[:, 0], _HIDDEN)
        return
    low, high = part.rows.common(rows)
    low, high = max(low, columns.start), min(high, columns.stop)
    edges = [slice(columns.start, low), slice(high, columns.stop)]
    for edge in edges if low < high else [columns]:
        if edge.start < edge.stop:
            hidden = ~part.rows.visible(rows, edge)[:, 0]
            at = slice(edge.start - columns.start, edge.stop - columns.start)
            scores[..., at].masked_fill_(hidden, _HIDDEN)


def _logsumexp(part: Problem, scores: Tensor) -> Tensor:
    logsumexp = torch.logsumexp(scores, dim=-1)
    blind = logsumexp <= _HIDDEN / 2
    if part.sink is not None:
        logsumexp = torch.logaddexp(logsumexp, part.sink.to(scores.dtype))
    return logsumexp.masked_fill(blind, -torch.inf)
