"""Scores of the keys in a cache: those of the package `kvpress`, computed from a pattern.

Each takes the pattern of a layer, as a recording has it, and gives a number for each key of each
key head; a cache keeps the keys with the largest. `regard_experiments.kv.kvpress` has the presses
that use them. Nothing here needs `kvpress` or `transformers`.

Axes: B batch, H query heads, G key/value heads, L queries, S keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from regard._shapes import Float
from regard.pattern import Pattern
from regard.pattern.readouts import Received

__all__ = ["kvzip", "observed_attention", "snapkv", "tova"]


def observed_attention(pattern: Pattern) -> Float[Tensor, "*b G S"]:
    """Score each key by the weight that it receives of the queries at and after it, on average.

    These are the scores of ``kvpress.ObservedAttentionPress``. They come from H2O (Zhang et al.
    2023, arXiv:2306.14048, section 4), which sums the weights, without the division that makes up
    for early keys being seen by more queries, and which scores anew at each step of a generation.
    Where a window or padding hides a key from some of the queries after it, they count all the
    same; ``Received("mean")`` leaves them out.

    Args:
        pattern: of as many queries as keys.

    Raises:
        ValueError: for other patterns.

    Example:
        >>> import regard, torch
        >>> x = torch.zeros(1, 3, 2)
        >>> observed_attention(regard.Pattern(x, x, mask=regard.causal()))
        tensor([[0.6111, 0.4167, 0.3333]])
    """
    *_, queries, keys = pattern.shape
    if queries != keys:
        raise ValueError(
            f"observed attention is of a whole text, but the pattern has {queries} queries and "
            f"{keys} keys; score before keys are evicted"
        )
    (received,) = pattern.read(Received(grouped=True))
    later = torch.arange(keys, 0, -1, device=received.device)
    return received / later / _group(pattern)


def snapkv(pattern: Pattern, window: int = 64, kernel: int = 5) -> Float[Tensor, "*b G S"]:
    """Score each key by the weight that it and its neighbours receive of the last queries.

    These are the scores of ``kvpress.SnapKVPress``: the mean weight over the last ``window``
    queries, averaged over ``kernel`` neighbouring keys and over the query heads that share the key
    head. Before the first key and after the last one scored, zeros enter the average. The last
    ``window`` keys are kept: their score is the largest one of all, plus 1. SnapKV itself (Li et
    al. 2024, arXiv:2404.14469, section 4) chooses keys for each query head.

    Args:
        pattern: whose last rows are those of the text's last queries; it may have no others.
        window: how many queries.
        kernel: how many neighbours, odd.

    Raises:
        ValueError: for a window that does not leave a key to score, or that has fewer rows, and
            for an even kernel.

    Example:
        >>> import regard, torch
        >>> x = torch.zeros(1, 5, 2)
        >>> snapkv(regard.Pattern(x, x, mask=regard.causal()), window=1, kernel=3)
        tensor([[0.1333, 0.2000, 0.2000, 0.1333, 1.2000]])
    """
    *_, queries, keys = pattern.shape
    if not 0 < window < keys or window > queries:
        raise ValueError(
            f"window must be at least 1, and less than the {keys} keys, of which there are "
            f"{queries} queries, but is {window}"
        )
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"kernel must be odd and positive, but is {kernel}")
    (received,) = pattern.read(Received(queries=slice(-window, None), grouped=True))
    mean = received[..., : keys - window] / (window * _group(pattern))
    pooled = F.avg_pool1d(mean, kernel, stride=1, padding=kernel // 2)
    return _kept_at_the_end(pooled, window)


def tova(pattern: Pattern) -> Float[Tensor, "*b G S"]:
    """Score each key by the last query's weight on it, averaged over all heads.

    These are the scores of ``kvpress.TOVAPress``, the same for all key heads. The last key is
    kept: its score is the largest one of all, plus 1. TOVA (Oren et al. 2024, arXiv:2401.06104,
    section 4) does not make sure of that, and evicts one key at each step of a generation.

    Args:
        pattern: whose last row is that of the text's last query; it may have no others.

    Example:
        >>> import regard, torch
        >>> x = torch.zeros(1, 3, 2)
        >>> tova(regard.Pattern(x, x, mask=regard.causal()))
        tensor([[0.3333, 0.3333, 1.3333]])
    """
    mean = pattern[..., -1, :-1].mean(dim=-2, keepdim=True)
    key_heads = pattern.shape[-3] // _group(pattern)
    return _kept_at_the_end(mean.expand(*mean.shape[:-2], key_heads, -1), 1)


def kvzip(pattern: Pattern) -> Float[Tensor, "*b G S"]:
    """Score each key by the largest weight that a query has on it, over the heads that share it.

    These are the scores of ``kvpress.KVzipPress`` (Kim et al. 2025, arXiv:2505.23416, section 3):
    the queries are those of a prompt to repeat the text, and of the text once more.

    Args:
        pattern: of those queries over the keys of the text and their own.

    Example:
        >>> import regard, torch
        >>> query, key = torch.zeros(2, 3, 2), torch.zeros(1, 5, 2)
        >>> kvzip(regard.Pattern(query, key, mask=regard.causal()))
        tensor([[0.3333, 0.3333, 0.3333, 0.2500, 0.2000]])
    """
    (most,) = pattern.read(Received("max", grouped=True))
    return most


def _kept_at_the_end(scores: Tensor, count: int) -> Tensor:
    return F.pad(scores, (0, count), value=float(scores.max()) + 1)


def _group(pattern: Pattern) -> int:
    """How many query heads share a key head."""
    group = pattern.problem.group
    if group is None:
        raise ValueError(
            f"{pattern!r} is not of all heads of a layer; score the whole pattern, then index the "
            "scores"
        )
    return group
