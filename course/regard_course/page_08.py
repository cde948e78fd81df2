"""Exercises of page 8, cross-attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Cross-attention"


def _cross_attention(x: Tensor, source: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor) -> Tensor:
    scores = (x @ Wq) @ (source @ Wk).mT
    return torch.softmax(scores / Wq.shape[-1] ** 0.5, dim=-1) @ (source @ Wv)


def _softmax_over_queries(x: Tensor, source: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor) -> Tensor:
    scores = (x @ Wq) @ (source @ Wk).mT
    return torch.softmax(scores / Wq.shape[-1] ** 0.5, dim=0) @ (source @ Wv)


def _not_scaled(x: Tensor, source: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor) -> Tensor:
    return torch.softmax((x @ Wq) @ (source @ Wk).mT, dim=-1) @ (source @ Wv)


def _scaled_by_width(x: Tensor, source: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor) -> Tensor:
    scores = (x @ Wq) @ (source @ Wk).mT
    return torch.softmax(scores / x.shape[-1] ** 0.5, dim=-1) @ (source @ Wv)


def _masked(x: Tensor, source: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor) -> Tensor:
    scaled = (x @ Wq) @ (source @ Wk).mT / Wq.shape[-1] ** 0.5
    later = torch.ones_like(scaled, dtype=torch.bool).triu(diagonal=1)
    return torch.softmax(scaled.masked_fill(later, -torch.inf), dim=-1) @ (source @ Wv)


def _cross_cases() -> Sequence[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(8)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return [
        (draw(queries, 3), draw(keys, 5), draw(3, 2), draw(5, 2), draw(5, 7))
        for queries, keys in ((2, 3), (6, 4))
    ]


def _padded_weights(scaled: Tensor, keep: Tensor) -> Tensor:
    return torch.softmax(scaled.masked_fill(~keep, -torch.inf), dim=-1)


def _zero_scores(scaled: Tensor, keep: Tensor) -> Tensor:
    return torch.softmax(scaled.masked_fill(~keep, 0.0), dim=-1)


def _after_softmax(scaled: Tensor, keep: Tensor) -> Tensor:
    return torch.softmax(scaled, dim=-1).masked_fill(~keep, 0.0)


def _kept_the_padding(scaled: Tensor, keep: Tensor) -> Tensor:
    return _padded_weights(scaled, ~keep)


def _rows_hidden(scaled: Tensor, keep: Tensor) -> Tensor:
    return torch.softmax(scaled.masked_fill(~keep, -torch.inf), dim=0)


def _padded_cases() -> Sequence[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(8)
    return [
        (torch.randn(2, 3, generator=generator), torch.tensor([True, True, False])),
        (torch.randn(5, 4, generator=generator), torch.tensor([False, True, True, False])),
    ]


EXERCISES = (
    Answer(
        "8.1",
        kind="predict",
        title="The French word that gets most of the weight of green",
        expected=2,
        hint="The order of the words plays no part. Which French word has a large colour channel?",
        mistakes=(
            Mistake("the word in the same place", 1, "Weights follow what words mean, not places."),
            Mistake("counted from 1", 3, "Positions count from 0: le is 0."),
        ),
    ),
    Answer(
        "8.2",
        kind="by hand",
        title="The context of a query with the scaled scores 0 and ln 3, for the values 8 and 4",
        expected=5.0,
        hint="The exponentials are 1 and 3; divide each by their sum.",
        mistakes=(
            Mistake("weights changed places", 7.0, "The larger score has the larger weight."),
            Mistake("even weights", 6.0, "Scores of 0 and ln 3 are not alike."),
            Mistake("not divided", 20.0, "Divide the exponentials by their sum, 4."),
        ),
    ),
    Answer(
        "8.3",
        kind="by hand",
        title="Numbers in the four matrices of MultiHeadAttention(12, 3, source_dim=5)",
        expected=408,
        hint=(
            "Query and output are 12 × 12. Keys and values are made of the source, which has 5 "
            "channels. The number of heads plays no part."
        ),
        mistakes=(
            Mistake("as for self-attention", 576, "Keys and values are made of 5 channels."),
            Mistake("no output matrix", 264, "The layer also has an output matrix."),
            Mistake(
                "for each head", 1224, "The heads share the channels: their number is not a factor."
            ),
        ),
    ),
    Function(
        "8.4",
        title="cross_attention(x, source, Wq, Wk, Wv): the context of x looking at a source",
        name="cross_attention",
        reference=_cross_attention,
        cases=_cross_cases,
        hint="Only the queries come from x. Each row of weights sums to 1 over the source.",
        mistakes=(
            Mistake(
                "softmax over the queries",
                _softmax_over_queries,
                "Each row, dim=-1, shares itself out over the source.",
            ),
            Mistake("not scaled", _not_scaled, "Divide the scores by √D, D the query's length."),
            Mistake(
                "scaled by the width",
                _scaled_by_width,
                "D is the length of a query, not the number of channels of x.",
            ),
            Mistake("a causal mask", _masked, "Nothing of the source is later than x."),
        ),
    ),
    Function(
        "8.5",
        title="padded_weights(scaled, keep): the weights, keep true for keys that are not padding",
        name="padded_weights",
        reference=_padded_weights,
        cases=_padded_cases,
        hint=("keep belongs to the keys, so to the columns, and it has to act before softmax."),
        mistakes=(
            Mistake("0 for −∞", _zero_scores, "A score of 0 still gets the share e⁰ = 1."),
            Mistake("masked after softmax", _after_softmax, "The rows do not sum to 1 any more."),
            Mistake("kept the padding", _kept_the_padding, "True in keep means no padding."),
            Mistake(
                "softmax over the queries",
                _rows_hidden,
                "Each row, dim=-1, shares itself out over the source.",
            ),
        ),
    ),
    Answer(
        "8.6",
        kind="break",
        title="The context of the weights ¼ and ¾ when the values 8 and 4 change places",
        expected=7.0,
        hint=(
            "A key is what a position is found by, its value what it hands over. They belong to "
            "one position."
        ),
        mistakes=(
            Mistake("no change", 5.0, "Only if keys and values are shuffled together."),
            Mistake("even weights", 6.0, "The weights stay ¼ and ¾: they come from the keys."),
        ),
    ),
)
