"""One forward pass: the tokens, patterns and predictions of a text, and the scores of the heads.

Axes: H heads of a layer, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.lens.naming.head_scores import score_heads
from regard.lens.naming.heads import Heads, HeadScores
from regard.lens.naming.roles import PatternScores
from regard.masks import causal
from regard.pattern import Pattern
from regard.record.layer import self_attention

__all__ = ["ForwardPass", "forward_pass"]

_PREDICTIONS = 5  # number of likeliest next tokens that are kept


@dataclass(frozen=True, kw_only=True, eq=False)
class ForwardPass:
    """The forward pass of a model over one text."""

    tokens: tuple[str, ...]
    patterns: tuple[Pattern, ...]
    """One pattern per layer, ``(H, T, T)``."""
    predictions: Mapping[int, tuple[tuple[str, float], ...]]
    """For tokens by index, the likeliest next ones, with probability; empty for an encoder."""
    heads: Heads
    uniform: PatternScores
    """Scores of a uniform head on this text."""

    def pattern(self, head: HeadScores) -> Pattern:
        """Return the pattern of one head, ``(T, T)``."""
        pattern: Pattern = self.patterns[head.layer][head.head]
        return pattern


def forward_pass(
    ids: Int[Tensor, " T"],
    patterns: Sequence[Pattern],
    logits: Float[Tensor, "N V"] | None,
    *,
    name: Callable[[list[int]], list[str]],
    queries: Sequence[int] | None = None,
) -> ForwardPass:
    """Score every head of a model on one text.

    Args:
        ids: the text's token ids, ``(T,)``, at least one.
        patterns: patterns of self-attention, ``(H, T, T)`` per layer.
        logits: ``(N, V)``, the predictions after some tokens; None for a model without any.
        name: returns the names of ids, such as a tokenizer's `tokens`.
        queries: the indices of these tokens; None is all.

    Raises:
        ValueError: if ids, patterns and logits are not of one text, or `logits` holds NaN.

    Example:
        >>> import regard, torch
        >>> x = torch.eye(9)[None] * 40  # every token attends to itself
        >>> pattern = regard.Pattern(x, x, mask=regard.causal())
        >>> result = forward_pass(torch.arange(9), [pattern], torch.zeros(9, 9), name=lambda ids: [
        ...     "abcdefghi"[i] for i in ids])
        >>> [(str(head.role), head.evidence) for head in result.heads]
        [('current token', '1.00 ± 0.00 over 8 queries')]
    """
    length = len(ids)
    queries = range(length) if queries is None else queries
    shape = None if logits is None else tuple(logits.shape)
    if ids.ndim != 1 or length == 0 or (shape is not None and shape[:-1] != (len(queries),)):
        raise ValueError(
            f"ids of shape {tuple(ids.shape)} and logits of shape {shape} are not (T,) and (T, V), "
            "of one text of at least one token"
        )
    if logits is not None and logits.isnan().any():
        raise ValueError(
            "logits holds NaN, so there is nothing to read: the model's weights are damaged or its "
            "training diverged; take another model"
        )
    for pattern in patterns:
        if pattern.ndim != 3 or pattern.shape[1:] != (length, length):
            raise ValueError(f"{pattern!r} is not (heads, {length}, {length}): one text's heads")
    tokens = tuple(name(ids.tolist()))
    layers = [self_attention(pattern, index) for index, pattern in enumerate(patterns)]
    blank = torch.zeros(1, length, 1, device=ids.device)
    looks_back = all(pattern.is_causal for pattern in patterns)
    uniform = self_attention(Pattern(blank, blank, mask=causal() if looks_back else None), 0)
    return ForwardPass(
        tokens=tokens,
        patterns=tuple(patterns),
        predictions={} if logits is None else _predictions(queries, logits, name),
        heads=score_heads(layers, (tokens,), progress=False),
        uniform=score_heads([uniform], (tokens,), progress=False)[0],
    )


def _predictions(
    queries: Sequence[int], logits: Float[Tensor, "N V"], name: Callable[[list[int]], list[str]]
) -> dict[int, tuple[tuple[str, float], ...]]:
    top = logits.softmax(dim=-1).topk(min(_PREDICTIONS, logits.shape[-1]), dim=-1)
    likeliest = zip(queries, top.indices.tolist(), top.values.tolist(), strict=True)
    return {
        query: tuple(zip(name(ids), probabilities, strict=True))
        for query, ids, probabilities in likeliest
    }
