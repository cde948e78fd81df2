"""A pattern in blocks: weights recomputed a few rows at a time, passed to readouts, and freed.

The rows of a block are complete (all keys that any of its queries sees), so their log-sum-exps can
be computed from the block. Memory is that of a block, independent of L and S.

Axes: N = B·H flattened heads, L queries; a block has n heads, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from regard._shapes import Bool, Float, Int
from regard.backends.kernel_spec import Factors
from regard.inputs import Problem
from regard.pattern.ordered import dot_products, totals
from regard.steps import total_bias

# 2²⁰ float32 scores are 4 MiB: they stay in a core's share of the cache from one pass over them to
# the next, and are enough to hide the overhead of a torch call. A GPU computes them in the time of
# one kernel launch, so a block has 64 MiB there.
_BLOCK_SCORES = 2**20
_TIMES_ON_CUDA = 16

# The log-weight of hidden keys, instead of −∞: w·log w is 0 for w = exp(HIDDEN) = 0, while −∞ would
# give NaN.
HIDDEN = -1e30
# The lowest log-weight of visible keys, instead of −∞, which an infinity in a key may cause.
LOWEST = -1e29

# Above this magnitude the rounding error of a log-sum-exp is too large for exp(score − logsumexp):
# the maximum of a row is subtracted first, then the logarithm of the sum of exponentials.
MOST_LOGSUMEXP = 64.0


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightBlock:
    """A few complete rows of a few heads."""

    heads: slice
    """Range of flat head indices, b·H + h."""
    rows: slice
    columns: slice
    weights: Float[Tensor, "n R C"]
    log_weights: Float[Tensor, "n R C"]
    """Natural logarithms; a large negative number for hidden keys, see `seen`."""
    logsumexp: Float[Tensor, "n R"]
    positions: Int[Tensor, "m R"]
    """Position of each query among the keys; m is n, or 1 if it is the same for all heads."""
    has_nan: bool
    """Whether some row is NaN on its visible keys."""
    scaled: Callable[[], Float[Tensor, "n R C"]]
    """Computes scale · q·k before softcap, bias and mask, for hidden keys as well."""

    @staticmethod
    def seen(log_weights: Float[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Whether log-weights are those of visible keys, elementwise."""
        return ~(log_weights <= HIDDEN / 2)  # NaN is visible


def stream(
    problem: Problem,
    logsumexp: Float[Tensor, "heads L"] | None = None,
    columns: slice | None = None,
) -> Iterator[WeightBlock]:
    """Yield the pattern block by block, without blocks in which no key is visible.

    Args:
        problem: the checked arguments of attention.
        logsumexp: of each row, ``(N, L)``; None to compute it from the blocks.
        columns: a range of keys to restrict the blocks to; it requires `logsumexp`. None for all.
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


def multiplied(block: WeightBlock, factors: Factors, problem: Problem) -> WeightBlock:
    """Make of a block what is read in place of the weights: signed, with logs of magnitudes.

    The block is used up: its tensors are written to.
    """
    entries, logs, heads = block.weights, block.log_weights, problem.heads[1]
    unseen = ~WeightBlock.seen(logs)
    if factors.largest is not None and factors.odds is not None:
        largest, odds = (
            table.flatten(0, 1)[block.heads, block.rows, None]
            for table in (factors.largest, factors.odds)
        )
        key = torch.arange(block.columns.start, block.columns.stop, device=entries.device)
        entries = torch.where(key == largest, odds.to(entries), entries.div_(1 - entries))
        torch.log(entries, out=logs)
    numbers = torch.arange(block.heads.start, block.heads.stop, device=entries.device)
    if factors.key is not None:
        factor = factors.key.flatten(0, 1)[numbers][:, None, block.columns].to(entries)
        entries.mul_(factor)
        logs.add_(factor.abs().log_())
    if factors.dot is not None:
        query, key = factors.dot
        group = numbers // heads * key.shape[1] + numbers % heads * key.shape[1] // heads
        factor = dot_products(
            query.flatten(0, 1)[numbers][:, block.rows].to(entries),
            key.flatten(0, 1)[group][:, block.columns].to(entries),
        )
        entries.mul_(factor)
        logs.add_(factor.abs_().log_())
    entries.masked_fill_(unseen, 0)
    has_nan = bool(entries.isnan().any())
    logs = logs.clamp_(min=LOWEST).masked_fill_(unseen, HIDDEN)
    return replace(block, weights=entries, log_weights=logs, has_nan=has_nan)


def _groups(problem: Problem, at_most: int) -> Iterator[Tensor]:
    """Group flat head indices; the heads of a group have the same mask.

    A block contains all keys that any of its rows sees. If heads of different masks shared a block,
    the rounding of one sequence would depend on the others in the batch.
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
        if own is not None and is_coarse(own).any():  # `_norms` needs whole rows for these
            whole = _block(part, chosen, rows, known, None)
            return None if whole is None else _cut(whole, within)
        low, high = max(low, within.start), min(high, within.stop)
    if low >= high:
        return None
    columns = slice(low, high)
    scores = _scores(part, rows, columns)
    logsumexp, peak, log = _norms(part, scores, own)

    fully_masked = logsumexp == -torch.inf  # rows without visible keys have weight 0
    log = log.masked_fill(fully_masked, 0).masked_fill(logsumexp == torch.inf, torch.nan)  # ∞ − ∞
    if peak is not None:
        scores.sub_(peak[..., None])
    log_weights = scores.sub_(log[..., None])
    weights = log_weights.exp()
    has_nan = bool(log.isnan().any())
    if has_nan:  # a visible NaN makes its row NaN, but only on visible keys
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
    """Restrict a block to a range of columns; None if they do not intersect."""
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
    """Compute the masked scores, −∞ for hidden keys."""
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
    """Compute log-sum-exps, and two terms to subtract from the scores in turn.

    Returns:
        The log-sum-exps; the maximum of each row, None if it is 0 for all rows; and the logarithm
        of the remaining sum.
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
    else:  # a different log-sum-exp was given for rows with more keys than these
        rounding = 4 * torch.finfo(scores.dtype).eps
        same = (known - own).abs() <= rounding * known.abs()
        log = torch.where(same, log, known - peak)
    coarse = is_coarse(known)
    if not coarse.any():
        return known, None, known
    return known, torch.where(coarse, peak, 0), torch.where(coarse, log, known)


def is_coarse(logsumexp: Float[Tensor, "*b L"]) -> Bool[Tensor, "*b L"]:
    """Whether a log-sum-exp is too large to compute accurate weights from, elementwise."""
    return logsumexp.isfinite() & (logsumexp.abs() > MOST_LOGSUMEXP)


def _hide(scores: Tensor, part: Problem, rows: slice, columns: slice, hidden: float) -> None:
    """Overwrite the scores of hidden keys; for intervals, only columns not visible to all rows."""
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
