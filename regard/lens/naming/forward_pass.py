"""One forward pass: a text's tokens and predictions, and of each layer what its heads do.

Axes: H heads of a layer, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.lens.naming.head_scores import score_heads
from regard.lens.naming.heads import Heads, HeadScores
from regard.lens.naming.roles import PatternScores
from regard.masks import causal
from regard.pattern import Pattern
from regard.record.layer import self_attention

__all__ = ["ForwardPass", "LayerPass", "forward_pass", "join_layers", "read_layer"]

_PREDICTIONS = 5  # number of likeliest next tokens that are kept


class LayerPass(NamedTuple):
    """What is known of one layer of a forward pass once its pattern is gone."""

    heads: Heads
    rows: Mapping[int, Float[Tensor, "H T"]]
    """For some queries by index, their weights in each head."""
    is_causal: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class ForwardPass:
    """The forward pass of a model over one text."""

    tokens: tuple[str, ...]
    layers: tuple[LayerPass, ...]
    predictions: Mapping[int, tuple[tuple[str, float], ...]]
    """For tokens by index, the likeliest next ones, with probability; empty for an encoder."""
    heads: Heads
    uniform: PatternScores
    """Scores of a uniform head on this text."""

    @property
    def is_causal(self) -> bool:
        """Whether every query sees exactly the keys up to itself."""
        return all(layer.is_causal for layer in self.layers)

    def row(self, head: HeadScores, query: int) -> Float[Tensor, " T"]:
        """Return the weights of one of the queries that were read, in one head."""
        return self.layers[head.layer].rows[query][head.head]


def read_layer(
    pattern: Pattern, index: int, tokens: Sequence[str], queries: Sequence[int]
) -> LayerPass:
    """Score the heads of a layer, and read the weights of some queries.

    Args:
        pattern: the layer's, ``(H, T, T)``.
        index: its number.
        tokens: the text's, at least one.
        queries: the indices of the queries.

    Raises:
        ValueError: if the pattern is not of that text.
    """
    length = len(tokens)
    if pattern.ndim != 3 or pattern.shape[1:] != (length, length):
        raise ValueError(f"{pattern!r} is not (heads, {length}, {length}): one text's heads")
    rows = {query: pattern[:, query] for query in queries}
    heads = score_heads([self_attention(pattern, index)], (tuple(tokens),), progress=False)
    return LayerPass(heads, rows, pattern.is_causal)


def join_layers(
    tokens: Sequence[str],
    layers: Sequence[LayerPass],
    logits: Float[Tensor, "N V"] | None,
    *,
    name: Callable[[list[int]], list[str]],
    queries: Sequence[int],
) -> ForwardPass:
    """Put a forward pass together from its layers.

    Args:
        tokens: the text's.
        layers: what `read_layer` returned of each.
        logits: ``(N, V)``, the predictions after some tokens; None for a model without any.
        name: returns the names of ids, such as a tokenizer's `tokens`.
        queries: the indices of these tokens.

    Raises:
        ValueError: if `logits` holds NaN or is of other tokens.
    """
    shape = None if logits is None else tuple(logits.shape)
    if shape is not None and shape[:-1] != (len(queries),):
        raise ValueError(f"logits of shape {shape} are not ({len(queries)}, V), one row a token")
    if logits is not None and logits.isnan().any():
        raise ValueError(
            "logits holds NaN, so there is nothing to read: the model's weights are damaged or its "
            "training diverged; take another model"
        )
    blank = torch.zeros(1, len(tokens), 1, device="cpu")
    looks_back = all(layer.is_causal for layer in layers)
    uniform = self_attention(Pattern(blank, blank, mask=causal() if looks_back else None), 0)
    return ForwardPass(
        tokens=tuple(tokens),
        layers=tuple(layers),
        predictions={} if logits is None else _predictions(queries, logits, name),
        heads=Heads([head for layer in layers for head in layer.heads]),
        uniform=score_heads([uniform], (tuple(tokens),), progress=False)[0],
    )


def forward_pass(
    ids: Int[Tensor, " T"],
    patterns: Sequence[Pattern],
    logits: Float[Tensor, "T V"],
    *,
    name: Callable[[list[int]], list[str]],
) -> ForwardPass:
    """Score every head of a model on one text, and read the weights of all its queries.

    Args:
        ids: the text's token ids, ``(T,)``, at least one.
        patterns: patterns of self-attention, ``(H, T, T)`` per layer.
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
    if ids.ndim != 1 or len(ids) == 0:
        raise ValueError(
            f"ids of shape {tuple(ids.shape)} are not (T,), of one text of at least one token"
        )
    tokens, every = name(ids.tolist()), range(len(ids))
    layers = [read_layer(one, index, tokens, every) for index, one in enumerate(patterns)]
    return join_layers(tokens, layers, logits, name=name, queries=every)


def _predictions(
    queries: Sequence[int], logits: Float[Tensor, "N V"], name: Callable[[list[int]], list[str]]
) -> dict[int, tuple[tuple[str, float], ...]]:
    top = logits.softmax(dim=-1).topk(min(_PREDICTIONS, logits.shape[-1]), dim=-1)
    likeliest = zip(queries, top.indices.tolist(), top.values.tolist(), strict=True)
    return {
        query: tuple(zip(name(ids), probabilities, strict=True))
        for query, ids, probabilities in likeliest
    }
