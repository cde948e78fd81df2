"""The exercises of page 7: splitting channels among heads, the layer of several heads, ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Many heads"


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Cut the channels: (B, T, E) to (B, H, T, D)."""
    batch, length, dim = x.shape
    return x.reshape(batch, length, heads, dim // heads).transpose(1, 2)


def _reshape_alone(x: Tensor, heads: int) -> Tensor:
    batch, length, dim = x.shape
    return x.reshape(batch, heads, length, dim // heads)


def _no_transpose(x: Tensor, heads: int) -> Tensor:
    batch, length, dim = x.shape
    return x.reshape(batch, length, heads, dim // heads)


def _every_other_channel(x: Tensor, heads: int) -> Tensor:
    batch, length, dim = x.shape
    return x.reshape(batch, length, dim // heads, heads).permute(0, 3, 1, 2)


def _channels_before_positions(x: Tensor, heads: int) -> Tensor:
    return _split_heads(x, heads).transpose(2, 3)


def _tables() -> Sequence[tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.arange(12.0).reshape(1, 2, 6), 3),
        (torch.randn(2, 5, 12, generator=generator), 4),
    ]


def _multi_head(x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor, heads: int) -> Tensor:
    """Causal self-attention of several heads: x (B, T, E), matrices (E, E), to (B, T, E)."""
    return _merged(_contexts(x, Wq, Wk, Wv, heads, x.shape[-1] // heads)) @ Wo


def _contexts(
    x: Tensor,
    Wq: Tensor,
    Wk: Tensor,
    Wv: Tensor,
    heads: int,
    divisor: float,
    *,
    causal: bool = True,
) -> Tensor:
    query, key, value = (_split_heads(x @ matrix, heads) for matrix in (Wq, Wk, Wv))
    scores = query @ key.transpose(-2, -1) / divisor**0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return torch.softmax(scores, dim=-1) @ value


def _merged(contexts: Tensor) -> Tensor:
    return contexts.transpose(1, 2).flatten(2)


def _scaled_by_width(
    x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor, heads: int
) -> Tensor:
    return _merged(_contexts(x, Wq, Wk, Wv, heads, x.shape[-1])) @ Wo


def _no_scale(x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor, heads: int) -> Tensor:
    return _merged(_contexts(x, Wq, Wk, Wv, heads, 1.0)) @ Wo


def _no_mask(x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor, heads: int) -> Tensor:
    return _merged(_contexts(x, Wq, Wk, Wv, heads, x.shape[-1] // heads, causal=False)) @ Wo


def _no_output_matrix(
    x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, _Wo: Tensor, heads: int
) -> Tensor:
    return _merged(_contexts(x, Wq, Wk, Wv, heads, x.shape[-1] // heads))


def _merged_without_transpose(
    x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor, heads: int
) -> Tensor:
    return _contexts(x, Wq, Wk, Wv, heads, x.shape[-1] // heads).reshape(x.shape) @ Wo


def _output_transposed(
    x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor, heads: int
) -> Tensor:
    return _multi_head(x, Wq, Wk, Wv, Wo.T, heads)


def _one_head(x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor, _heads: int) -> Tensor:
    return _multi_head(x, Wq, Wk, Wv, Wo, 1)


def _layers() -> Sequence[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int]]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(2, 5, 12, generator=generator)
    Wq, Wk, Wv, Wo = torch.randn(4, 12, 12, generator=generator).unbind()
    return [(x, Wq, Wk, Wv, Wo, 3), (x, Wq, Wk, Wv, Wo, 4)]


EXERCISES = (
    Answer(
        "7.1",
        kind="predict",
        title="Parameters of MultiHeadAttention(12, 6), where MultiHeadAttention(12, 3) has 576",
        expected=576,
        tolerance=0.5,
        hint="Twice as many heads, each half as wide.",
        mistakes=(
            Mistake("twice as many", 1152, "Twice the heads, but each has half of the channels."),
            Mistake("half as many", 288, "Heads are half as wide, but there are twice as many."),
            Mistake("three matrices", 432, "There is a fourth, the output matrix."),
            Mistake("one matrix", 144, "Query, key, value and output have a matrix each."),
        ),
    ),
    Answer(
        "7.2",
        kind="by hand",
        title="The columns of head 2, for E = 12 and H = 3",
        expected=[8, 9, 10, 11],
        hint="Head h takes the columns h·D … (h+1)·D − 1. Heads are counted from 0.",
        mistakes=(
            Mistake(
                "heads counted from 1",
                [4, 5, 6, 7],
                "The first head is head 0; these are head 1's.",
            ),
            Mistake("every third column", [2, 5, 8, 11], "A head's columns lie side by side."),
            Mistake("columns counted from 1", [9, 10, 11, 12], "The first column is column 0."),
        ),
    ),
    Answer(
        "7.3",
        kind="by hand",
        title="The rank that value and output matrix of a GPT-2 head have together at most",
        expected=64,
        tolerance=0.5,
        hint="Through how many channels does it pass on the way from E to E?",
        mistakes=(
            Mistake(
                "the width of the model", 768, "The map is E × E, but passes through D channels."
            ),
            Mistake("the number of heads", 12, "That is H; a head has D = E/H channels."),
            Mistake("both added", 128, "The product of two matrices has no more rank than either."),
        ),
    ),
    Function(
        "7.4",
        kind="write",
        title="split_heads(x, heads): channels cut among heads, (B, T, E) to (B, H, T, D)",
        name="split_heads",
        reference=_split_heads,
        cases=_tables,
        hint="First cut the last axis in two, (B, T, H, D), then bring H before T.",
        mistakes=(
            Mistake(
                "reshape alone",
                _reshape_alone,
                "Each head gets positions, not channels: cut the last axis, then transpose.",
            ),
            Mistake(
                "no transpose",
                _no_transpose,
                "H stands behind T: (B, T, H, D) needs transpose(1, 2).",
            ),
            Mistake(
                "every H-th channel",
                _every_other_channel,
                "A head's channels lie side by side: the last axis is cut into (H, D), not (D, H).",
            ),
            Mistake(
                "channels before positions",
                _channels_before_positions,
                "The last axis is a head's channels: (B, H, T, D).",
            ),
        ),
    ),
    Function(
        "7.5",
        kind="write",
        title="multi_head(x, Wq, Wk, Wv, Wo, heads): causal self-attention of several heads",
        name="multi_head",
        reference=_multi_head,
        cases=_layers,
        hint="Split query, key, value; page 5 in each head, with the root of D = E/H; merge; @ Wo.",
        mistakes=(
            Mistake(
                "√E for √D", _scaled_by_width, "A head's dot products have D = E/H terms, not E."
            ),
            Mistake("no scale", _no_scale, "Scores are divided by √D before softmax."),
            Mistake("no mask", _no_mask, "A query must not see later keys: −∞ above the diagonal."),
            Mistake(
                "no output matrix", _no_output_matrix, "The merged contexts are multiplied by Wo."
            ),
            Mistake(
                "merged without transpose",
                _merged_without_transpose,
                "Bring T before H again, then join the last two axes: transpose(1, 2).flatten(2).",
            ),
            Mistake(
                "Wo transposed",
                _output_transposed,
                "Wo is a matrix here, not an nn.Linear, which stores it transposed.",
            ),
            Mistake("one head", _one_head, "Each head has its own softmax over its own channels."),
        ),
    ),
    Answer(
        "7.6",
        kind="break",
        title="Of how many positions position 5 of 6 takes something in, with reshape alone",
        expected=2,
        tolerance=0.4,
        hint="Set x.requires_grad: which rows of x.grad are not 0 after row 5's backward?",
        mistakes=(
            Mistake(
                "what it should see",
                6,
                "Try it: each head gets all channels of some positions, and sees no others.",
            ),
            Mistake("itself alone", 1, "Its head holds six rows: those of two positions."),
            Mistake(
                "a head each", 3, "There are three heads, but position 5 is in the last one alone."
            ),
        ),
    ),
)
