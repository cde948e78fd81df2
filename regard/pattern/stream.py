"""A pattern in blocks: weights recomputed a few rows at a time, passed to readouts, and freed.

Rows are complete in a block (all keys that any of its queries sees), so a block can find its own
log-sum-exp where none is given. Memory is O(block), whatever L and S are.

Axes: heads are numbered through, n of them in a block; R rows and C columns of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from regard._shapes import Bool, Float, Int
from regard.inputs import Problem
from regard.pattern.ordered import dot_products, totals
from regard.steps import total_bias

# 2²⁰ float32 scores are 4 MiB: they stay in a core's share of the cache between one pass over them
# and the next, and are many enough to hide the cost of a torch call. To hide that of a GPU's, which
# computes them in the time that a call takes, a block has 64 MiB there.
_BLOCK_SCORES = 2**20
_TIMES_ON_CUDA = 16

# Stands for −∞ among the logarithms of hidden weights: its exponential is 0, and its product with
# that 0 is 0, where −∞ would give NaN.
HIDDEN = -1e30
# Stands for it among the logarithms of visible weights, which an infinity in a key may bring about.
LOWEST = -1e29

# Beyond this size a log-sum-exp is too coarse to make weights of scores. There a row's peak
# is subtracted first, and the logarithm of its sum of exponentials then.
MOST_LOGSUMEXP = 64.0


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightBlock:
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
    has_nan: bool
    """Whether some row is NaN, as far as it sees."""
    scaled: Callable[[], Float[Tensor, "n R C"]]
    """Computes scale · q·k, of hidden keys as well: before softcap, bias and mask."""

    @staticmethod
    def seen(log_weights: Float[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Whether logarithms are those of visible weights."""
        return ~(log_weights <= HIDDEN / 2)  # NaN is seen


def stream(
    problem: Problem,
    logsumexp: Float[Tensor, "heads L"] | None = None,
    columns: slice | None = None,
) -> Iterator[WeightBlock]:
    """Yield the pattern block by block; blocks in which nothing is visible are left out.

    Args:
        problem: query, key, mask and the rest.
        logsumexp: of each row, of the heads numbered through; None to compute it with the blocks.
        columns: stay within these keys, for which the log-sum-exp must be given.
    """
    assert columns is None or logsumexp is not None, "part of a row does not tell its log-sum-exp"
    area = problem.queries * problem.keys
    if area == 0:
        return
    scores = _BLOCK_SCORES * (_TIMES_ON_CUDA if problem.query.is_cuda else 1)
    for chosen in _groups(problem, at_most=max(1, scores // area)):
        part = problem.select(chosen).cast(problem.exact_dtype).padded()
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
        yield from torch.arange(first, first + alike, device="cpu").split(at_most)


def _block(
    part: Problem, chosen: Tensor, rows: slice, known: Tensor | None, within: slice | None
) -> WeightBlock | None:
    low, high = part.rows.span(rows)
    own = None if known is None else known[:, rows].to(part.exact_dtype)
    if within is not None:
        if own is not None and is_coarse(own).any():  # that takes whole rows
            whole = _block(part, chosen, rows, known, None)
            return None if whole is None else _cut(whole, within)
        low, high = max(low, within.start), min(high, within.stop)
    if low >= high:
        return None
    columns = slice(low, high)
    scores = _scores(part, rows, columns)
    logsumexp, peak, log = _norms(part, scores, own)

    fully_masked = logsumexp == -torch.inf  # who sees nothing keeps weight 0
    log = log.masked_fill(fully_masked, 0).masked_fill(logsumexp == torch.inf, torch.nan)  # ∞ − ∞
    if peak is not None:
        scores.sub_(peak[..., None])
    log_weights = scores.sub_(log[..., None])
    weights = log_weights.exp()
    has_nan = bool(log.isnan().any())
    if has_nan:  # a visible NaN fills its row, but only as far as it sees
        weights.masked_fill_(~part.rows.visible(rows, columns)[:, 0].expand(weights.shape), 0)
    _hide(log_weights.clamp_(min=LOWEST), part, rows, columns, HIDDEN)
    return WeightBlock(
        heads=slice(int(chosen[0]), int(chosen[-1]) + 1),
        rows=rows,
        columns=columns,
        weights=weights,
        log_weights=log_weights,
        logsumexp=logsumexp,
        positions=part.rows.positions[:, 0, rows],
        has_nan=has_nan,
        scaled=partial(_scaled, part, rows, columns),
    )


def _cut(block: WeightBlock, within: slice) -> WeightBlock | None:
    """Keep the columns that lie within a range."""
    low = max(block.columns.start, within.start)
    high = min(block.columns.stop, within.stop)
    if low >= high:
        return None
    at = slice(low - block.columns.start, high - block.columns.start)
    return replace(
        block,
        columns=slice(low, high),
        weights=block.weights[..., at],
        log_weights=block.log_weights[..., at],
        scaled=lambda: block.scaled()[..., at],
    )


def _scores(part: Problem, rows: slice, columns: slice) -> Float[Tensor, "n R C"]:
    """Everything up to the softmax, −∞ for hidden keys."""
    scores = _scaled(part, rows, columns)
    if part.softcap is not None:
        scores.div_(part.softcap).tanh_().mul_(part.softcap)
    bias = total_bias(part, rows, columns)
    if bias is not None:
        scores += bias[:, 0]
    _hide(scores, part, rows, columns, -torch.inf)
    return scores


def _scaled(part: Problem, rows: slice, columns: slice) -> Float[Tensor, "n R C"]:
    return dot_products(part.query[:, 0, rows] * part.scale, part.key[:, 0, columns])


def _norms(
    part: Problem, scores: Float[Tensor, "n R C"], known: Float[Tensor, "n R"] | None
) -> tuple[Float[Tensor, "n R"], Float[Tensor, "n R"] | None, Float[Tensor, "n R"]]:
    """Find a row's log-sum-exp, and what to subtract from its scores, first and second.

    The first is None where it is 0 for all.
    """
    if known is not None and not is_coarse(known).any():
        return known, None, known
    peak = scores.amax(dim=-1)
    fully_masked = peak == -torch.inf
    peak = peak.masked_fill(fully_masked, 0)
    log = totals((scores - peak[..., None]).exp()).log()
    if part.sink is not None:
        log = torch.logaddexp(log, part.sink.to(scores.dtype) - peak)
    own = (peak + log).masked_fill(fully_masked, -torch.inf)
    if known is None:
        known = own
    else:  # where that is another, there are keys elsewhere, of which it alone knows
        rounding = 4 * torch.finfo(scores.dtype).eps
        same = (known - own).abs() <= rounding * known.abs()
        log = torch.where(same, log, known - peak)
    coarse = is_coarse(known)
    if not coarse.any():
        return known, None, known
    return known, torch.where(coarse, peak, 0), torch.where(coarse, log, known)


def is_coarse(logsumexp: Float[Tensor, "*b L"]) -> Bool[Tensor, "*b L"]:
    """Tell rows whose log-sum-exp makes no exact weights by itself."""
    return logsumexp.isfinite() & (logsumexp.abs() > MOST_LOGSUMEXP)


def _hide(scores: Tensor, part: Problem, rows: slice, columns: slice, hidden: float) -> None:
    """Overwrite the scores of hidden keys, looking only where there may be some."""
    if not part.rows.is_interval:
        scores.masked_fill_(~part.rows.visible(rows, columns)[:, 0], hidden)
        return
    low, high = part.rows.common(rows)
    low, high = max(low, columns.start), min(high, columns.stop)
    edges = [slice(columns.start, low), slice(high, columns.stop)]
    for edge in edges if low < high else [columns]:
        if edge.start < edge.stop:
            unseen = ~part.rows.visible(rows, edge)[:, 0]
            at = slice(edge.start - columns.start, edge.stop - columns.start)
            scores[..., at].masked_fill_(unseen, hidden)
