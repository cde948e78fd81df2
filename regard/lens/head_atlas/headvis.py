"""The six metrics of HeadVis by their definitions, read of a pattern that is never stored.

HeadVis is "Visualizing Attention Heads" (Luger, Kamath et al. 2026,
https://transformer-circuits.pub/2026/headvis/index.html). The definitions are those by which
Neuronpedia computes its metrics (`hijohnnylin/neuronpedia`, ``utils/neuronpedia-utils/
neuronpedia_utils/headvis/compute-head-metrics.py``). Each is a mean over all positions of all
documents, not over documents, so sums and counts of documents are added and divided at the end:

- **self attention**: a query's weight on itself;
- **previous token**: its weight on the token before, over the queries that have one;
- **entropy**: −Σ w·ln w over its keys, in nats;
- **distance**: Σ w·|q − k|, and the variance Σ w·(q − k)² − distance², which is therefore that of
  all weight of the head, not the mean of the rows' variances;
- **induction**: its weight on the keys that followed earlier copies of its token, over the queries
  that have any. A weight below 0.01 counts as 0. The query's own position is such a key where its
  token stood directly before it.

They hold no weight against a control and count what lies on a sink, unlike the roles of
`regard.lens.heads`.

Axes: H heads, G key heads, T tokens, n distances, c tiles of one size, s their side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._shapes import Bool, Float, Int
from regard.pattern import Pattern
from regard.pattern.readouts import Entropy, Offsets, Readout, queries_that_see

__all__ = ["METRICS", "SUMS", "means", "metrics", "readouts"]

METRICS = (
    "self_attention_score",
    "prev_token_score",
    "pattern_entropy",
    "qk_distance",
    "qk_distance_variance",
    "induction_score",
)
"""Their names, in the order and spelling of HeadVis."""

_THRESHOLD = 0.01  # a smaller weight is no induction
_SIDE = 128  # most queries, and most keys, of a tile of pairs with one token
_PAIRS_AT_ONCE = 2**21  # in all heads; 8 MiB of float32 weights
_ROWS_AT_ONCE = 32  # of a pattern that no readout serves


def readouts(length: int) -> tuple[Readout[Any, Any], ...]:
    """Return what `metrics` reads of the pattern of a text with so many tokens.

    Whoever reads more of the same pattern reads all in one pass, which costs little more than one.

    Example:
        >>> readouts(7)
        (Offsets(n=7), Entropy())
    """
    return Offsets(length), Entropy()


def metrics(
    pattern: Pattern, ids: Int[Tensor, " T"], read: tuple[Tensor, ...] | None = None
) -> dict[str, Float[Tensor, " H"]]:
    """Sum what the metrics are means of, over the positions of one document.

    Memory is that of the readouts, O(H·T), and of some tiles of weights.

    Args:
        pattern: of one layer, ``(H, T, T)``.
        ids: the document's token ids, ``(T,)``. As HeadVis does, one of a single token is left out:
            its sums and counts are 0.
        read: the results of `readouts` of this pattern, if they are known; else they are read.

    Returns:
        For each head, ``(H,)`` in float64: the sums ``self_attention``, ``previous_token``,
        ``entropy``, ``distance``, ``distance_squared`` and ``induction``, and the counts of
        positions that they are over: ``positions``, ``previous_positions`` (those with a token
        before) and ``induction_positions`` (those whose token stood before).

    Raises:
        ValueError: if the pattern is not of one text, or of other tokens.

    Example:
        >>> import regard, torch
        >>> x = torch.zeros(1, 3, 1)  # a head that spreads evenly
        >>> sums = metrics(regard.Pattern(x, x, mask=regard.causal()), torch.tensor([4, 5, 4]))
        >>> {name: round(float(value), 4) for name, value in means(sums).items()}
        {'self_attention_score': 0.6111, 'prev_token_score': 0.4167, 'pattern_entropy': 0.5973, \
'qk_distance': 0.5, 'qk_distance_variance': 0.4722, 'induction_score': 0.3333}
    """
    length = len(ids)
    if ids.ndim != 1 or pattern.ndim != 3 or pattern.shape[1:] != (length, length):
        raise ValueError(
            f"{pattern!r} is not (heads, {length}, {length}), one text's heads, for ids of shape "
            f"{tuple(ids.shape)}; index the batch: pattern[0]"
        )
    repeated = int(_has_copy(ids).sum())
    counts = dict(zip(_COUNTS, (length, length - 1, repeated), strict=True))
    heads = torch.zeros(pattern.shape[0], dtype=torch.float64, device=pattern.device)
    if length < 2:
        return {name: torch.zeros_like(heads) for name in (*_SUMS, *counts)}
    rows = pattern.problem.rows
    sees_back = rows.is_interval and bool((rows.stop <= rows.positions + 1).all())
    if sees_back and pattern.problem.alibi is None and rows.are_shared:
        offsets, entropy = pattern.read(*readouts(length)) if read is None else read
        sums = _of_distances(offsets.double() * queries_that_see(rows, length))
        sums["entropy"] = entropy.double().sum(-1)
        sums["induction"] = _induction(pattern, ids)
    else:
        sums = _by_rows(pattern, ids)
    return {name: sums[name] for name in _SUMS} | {
        name: heads + count for name, count in counts.items()
    }


_SUMS = (
    "self_attention",
    "previous_token",
    "entropy",
    "distance",
    "distance_squared",
    "induction",
)
_COUNTS = ("positions", "previous_positions", "induction_positions")
SUMS = (*_SUMS, *_COUNTS)
"""The names of what `metrics` returns, in its order."""


def means(sums: Mapping[str, Float[Tensor, "*h"]]) -> dict[str, Float[Tensor, "*h"]]:
    """Divide sums by their counts: the six `METRICS`; NaN where nothing was counted.

    Args:
        sums: as `metrics` returns them, or their sums over documents.
    """

    def mean(name: str, over: str) -> Tensor:
        count = sums[over]
        return torch.where(count > 0, sums[name] / count.clamp_min(1), torch.nan)

    distance = mean("distance", "positions")
    return dict(
        zip(
            METRICS,
            (
                mean("self_attention", "positions"),
                mean("previous_token", "previous_positions"),
                mean("entropy", "positions"),
                distance,
                mean("distance_squared", "positions") - distance.square(),
                mean("induction", "induction_positions"),
            ),
            strict=True,
        )
    )


def _of_distances(weight: Float[Tensor, "H n"]) -> dict[str, Float[Tensor, " H"]]:
    """Sum over the weight at each distance. Every term is positive: nothing cancels."""
    distance = torch.arange(weight.shape[-1], dtype=torch.float64, device=weight.device)
    return {
        "self_attention": weight[:, 0],
        "previous_token": weight[:, 1],
        "distance": weight @ distance,
        "distance_squared": weight @ distance.square(),
    }


def _has_copy(ids: Int[Tensor, " T"]) -> Bool[Tensor, " T"]:
    """Whether the same token stood before each position."""
    number = ids.unique(return_inverse=True)[1]
    index = torch.arange(len(ids), device=ids.device)
    first = torch.full_like(index, len(ids)).scatter_reduce_(0, number, index, "amin")
    return index > first[number]


class _Tiles(NamedTuple):
    """Queries and keys of which some pairs are a position and one that followed its copy."""

    queries: Int[Tensor, "c s"]
    keys: Int[Tensor, "c s"]
    """T where there is none."""


def _tiles(ids: Int[Tensor, " T"]) -> Iterator[_Tiles]:
    """Group the pairs by token: n copies give the later n − 1 of them n − 1 keys.

    The keys are those after the first n − 1 copies, so that the pairs of one token are a square,
    of which the lower triangle counts. Squares are cut to tiles of `_SIDE`, and those of about one
    size are computed together.
    """
    length = len(ids)
    number, counts = ids.unique(return_inverse=True, return_counts=True)[1:]
    order = number.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    found = []  # (first query, first key, queries, keys), indices into `order`
    for start, side in zip(starts.tolist(), (counts - 1).tolist(), strict=True):
        for top in range(0, side, _SIDE):
            height = min(_SIDE, side - top)
            found += [
                (start + 1 + top, start + left, height, min(_SIDE, side - left))
                for left in range(0, top + 1, _SIDE)
            ]
    if not found:
        return
    table = torch.tensor(found, device=ids.device)
    sides = table[:, 2:].amax(-1)
    # Sides of 1, 2, 3, 4, 6, 8, 12, 16 ...: at most half is added.
    exponent = torch.frexp((sides - 1).double())[1].clamp(min=2)
    padded = torch.where(sides <= 3 * 2 ** (exponent - 2), 3 * 2 ** (exponent - 2), 2**exponent)
    padded = torch.where(sides <= 2, sides, padded)
    for side in padded.unique().tolist():
        step = torch.arange(side, device=ids.device)
        query, key, height, width = table[padded == side].T[..., None]
        at = [(first + step).clamp(max=length - 1) for first in (query, key)]
        queries = torch.where(step < height, order[at[0]], 0)  # which has no key before it
        keys = torch.where(step < width, order[at[1]] + 1, length)
        yield _Tiles(queries, keys)


def _induction(pattern: Pattern, ids: Int[Tensor, " T"]) -> Float[Tensor, " H"]:
    """Sum the weights on keys that followed copies; of a causal pattern without a bias."""
    problem = pattern.problem.cast(pattern.dtype)
    query, key = problem.query.flatten(0, 1) * problem.scale, problem.key.flatten(0, 1)
    grouped = (len(key), len(query) // len(key))
    query, logsumexp = (t.unflatten(0, grouped) for t in (query, pattern.logsumexp))
    start = problem.rows.start[0, 0].to(query.device)
    total = query.new_zeros(grouped, dtype=torch.float64)
    for tiles in _tiles(ids):
        at_once = max(1, _PAIRS_AT_ONCE // (pattern.shape[0] * tiles.keys.shape[-1] ** 2))
        for rows, columns in zip(*(index.split(at_once) for index in tiles), strict=True):
            position, seen = columns[:, None], rows[..., None]
            counts = (position <= seen) & (position >= start[seen])
            scores = query[:, :, rows] @ key[:, columns.clamp(max=len(ids) - 1)].mT[:, None]
            if problem.softcap is not None:
                scores.div_(problem.softcap).tanh_().mul_(problem.softcap)
            weights = scores.sub_(logsumexp[:, :, rows][..., None]).exp_()
            weights.mul_(counts & (weights >= _THRESHOLD))
            total += weights.sum((-2, -1)).sum(-1, dtype=torch.float64)
    return total.flatten()


def _by_rows(pattern: Pattern, ids: Int[Tensor, " T"]) -> dict[str, Float[Tensor, " H"]]:
    """Sum all of them a few rows at a time, for any mask and bias; slower."""
    length, device = len(ids), pattern.device
    key = torch.arange(length, device=device)
    after = torch.cat([ids.new_full((1,), -1), ids[:-1]]).to(device)
    total = dict.fromkeys(_SUMS, torch.zeros(len(pattern), dtype=torch.float64, device=device))
    for top in range(0, length, _ROWS_AT_ONCE):
        query = key[top : top + _ROWS_AT_ONCE, None]
        weights = pattern[:, top : top + _ROWS_AT_ONCE].double()
        distance = (query - key).abs().double()
        follows = (ids.to(device)[query] == after) & (key <= query) & (key > 0)
        entries = {
            "self_attention": weights * (key == query),
            "previous_token": weights * (key == query - 1),
            "entropy": -torch.special.xlogy(weights, weights),
            "distance": weights * distance,
            "distance_squared": weights * distance.square(),
            "induction": weights * (follows & (weights >= _THRESHOLD)),
        }
        total = {name: total[name] + entry.sum((-2, -1)) for name, entry in entries.items()}
    return total
