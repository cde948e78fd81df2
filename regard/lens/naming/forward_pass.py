"""One forward pass: the tokens, patterns and predictions of a text, and the scores of the heads.

Axes: H heads of a layer, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """The forward pass of a causal model over one text."""

    tokens: tuple[str, ...]
    patterns: tuple[Pattern, ...]
    """One pattern per layer, ``(H, T, T)``."""
    predictions: tuple[tuple[tuple[str, float], ...], ...]
    """For each token, the likeliest next tokens, with probability."""
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
    logits: Float[Tensor, "T V"],
    *,
    name: Callable[[list[int]], list[str]],
) -> ForwardPass:
    """Score every head of a causal model on one text.

    Args:
        ids: the text's token ids, ``(T,)``, at least one.
        patterns: patterns of causal self-attention, ``(H, T, T)`` per layer.
        logits: ``(T, V)``, the predictions after each token.
        name: returns the names of ids, such as a tokenizer's `tokens`.

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
    if ids.ndim != 1 or length == 0 or logits.shape[:-1] != (length,):
        raise ValueError(
            f"ids of shape {tuple(ids.shape)} and logits of shape {tuple(logits.shape)} are not "
            "(T,) and (T, V), of one text of at least one token"
        )
    if logits.isnan().any():
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
    uniform = self_attention(Pattern(blank, blank, mask=causal()), 0)
    return ForwardPass(
        tokens=tokens,
        patterns=tuple(patterns),
        predictions=_predictions(logits, name),
        heads=score_heads(layers, (tokens,), progress=False),
        uniform=score_heads([uniform], (tokens,), progress=False)[0],
    )


def _predictions(
    logits: Float[Tensor, "T V"], name: Callable[[list[int]], list[str]]
) -> tuple[tuple[tuple[str, float], ...], ...]:
    top = logits.softmax(dim=-1).topk(min(_PREDICTIONS, logits.shape[-1]), dim=-1)
    return tuple(
        tuple(zip(name(ids), probabilities, strict=True))
        for ids, probabilities in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    )
