"""Attention by the definition alone: Python's own floats, one row at a time.

It shares nothing with `regard`: no code, no tensor arithmetic, no notion of a mask beyond "this
query sees that key". Every sum is `math.fsum`, which rounds once. For small sizes only.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value.
"""

import itertools
import math
import operator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Exact:
    """The result in float64."""

    weights: torch.Tensor
    """(B, H, L, S), before dropout."""
    context: torch.Tensor
    """(B, H, L, Dv)"""
    logsumexp: torch.Tensor
    """(B, H, L)"""


def attend(
    query,
    key,
    value,
    *,
    visible,
    positions,
    scale=None,
    softcap=None,
    bias=None,
    alibi=None,
    sink=None,
    keep_mask=None,
    dropout=0.0,
) -> Exact:
    """Compute attention in the order of the definition.

    Args:
        query: (B, H, L, D).
        key: (B, G, S, D).
        value: (B, G, S, Dv).
        visible: (B, H, L, S), True where a query sees a key.
        positions: (B, L), where each query sits among the keys.
        scale: None is 1/√D.
        softcap: None for none.
        bias: (B, H, L, S).
        alibi: (H,).
        sink: (H,).
        keep_mask: (B, H, L, S), True where dropout keeps a weight.
        dropout: its probability.
    """
    batch, heads, queries, dim = query.shape
    group = heads // key.shape[1]
    if scale is None:
        scale = 1 / math.sqrt(dim) if dim else 1.0
    weights = torch.zeros(*visible.shape, dtype=torch.float64)
    context = torch.zeros(batch, heads, queries, value.shape[-1], dtype=torch.float64)
    logsumexp = torch.full((batch, heads, queries), -math.inf, dtype=torch.float64)
    for b, h, i in itertools.product(range(batch), range(heads), range(queries)):
        seen = visible[b, h, i].nonzero()[:, 0].tolist()
        if not seen:
            continue
        row, keys = query[b, h, i].tolist(), key[b, h // group, seen].tolist()
        scores = [scale * math.fsum(map(operator.mul, row, other)) for other in keys]
        if softcap is not None:
            scores = [softcap * math.tanh(score / softcap) for score in scores]
        if bias is not None:
            scores = [s + float(bias[b, h, i, j]) for s, j in zip(scores, seen, strict=True)]
        if alibi is not None:
            slope, position = float(alibi[h]), int(positions[b, i])
            scores = [s - slope * abs(position - j) for s, j in zip(scores, seen, strict=True)]
        shares, logsumexp[b, h, i] = softmax(scores, [] if sink is None else [float(sink[h])])
        weights[b, h, i, seen] = torch.tensor(shares, dtype=torch.float64)
        if keep_mask is not None:
            kept = keep_mask[b, h, i, seen].tolist()
            shares = [w / (1 - dropout) * s for w, s in zip(shares, kept, strict=True)]
        columns = value[b, h // group, seen].mT.tolist()
        for d, column in enumerate(columns):
            context[b, h, i, d] = math.fsum(map(operator.mul, shares, column))
    return Exact(weights, context, logsumexp)


def softmax(scores, extra) -> tuple[list[float], float]:
    """Share of each score, and the logarithm of the denominator, which holds extra logits too."""
    peak = max(scores + extra)
    total = math.fsum(math.exp(score - peak) for score in scores + extra)
    return [math.exp(score - peak) / total for score in scores], peak + math.log(total)


def keep_mask(seed, dropout, shape) -> torch.Tensor:
    """Compute which weights dropout keeps, (B, H, L, S), one at a time."""
    kept = torch.zeros(shape, dtype=torch.bool)
    for b, h, i, j in itertools.product(*map(range, shape)):
        counter = (j // 4, i, b * shape[1] + h, 0)
        word = philox(counter, (seed % 2**32, seed // 2**32))[j % 4]
        kept[b, h, i, j] = word >= dropout * 2**32
    return kept


def philox(counter, key) -> tuple[int, int, int, int]:
    """Philox4x32-10 on Python's own integers (Salmon et al. 2011, section 3.3)."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b = second // 2**32 ^ b ^ k, second % 2**32
        c, d = first // 2**32 ^ d ^ m, first % 2**32
        k, m = (k + 0x9E3779B9) % 2**32, (m + 0xBB67AE85) % 2**32
    return a, b, c, d
