"""Exercises of page 15."""

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Inside a real model"


def _mean_at(weights: torch.Tensor, half: int, back: int, first: int) -> torch.Tensor:
    """Mean weight so many keys back, over the queries from the first one on: (…, T, T) to (…)."""
    queries = torch.arange(first, 2 * half)
    return weights[..., queries, queries - back].mean(dim=-1)


def _induction_score(weights: torch.Tensor, half: int) -> torch.Tensor:
    return _mean_at(weights, half, half - 1, half)


def _head_matrices(c_attn: torch.Tensor, head: int, heads: int) -> torch.Tensor:
    width = c_attn.shape[0]
    return c_attn.view(width, 3, heads, width // heads)[:, :, head].movedim(1, 0)


def _weights() -> list[tuple[torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(15)
    cases = []
    for leading, half in (((), 3), ((5,), 4), ((2, 3), 7)):
        scores = torch.randn(*leading, 2 * half, 2 * half, generator=generator)
        hidden = torch.ones_like(scores).triu(1).bool()
        cases.append((scores.masked_fill(hidden, -torch.inf).softmax(dim=-1), half))
    return cases


def _matrices() -> list[tuple[torch.Tensor, int, int]]:
    generator = torch.Generator().manual_seed(15)
    return [
        (torch.randn(width, 3 * width, generator=generator), head, heads)
        for width, head, heads in ((6, 1, 2), (12, 2, 3), (20, 3, 5))
    ]


EXERCISES = (
    Answer(
        "15.1",
        kind="predict",
        title="What induction heads still find without the head that looks at the token before",
        expected="almost none",
        hint="By what does an induction head find “what followed the same token”?",
        mistakes=(
            Mistake(
                "the induction heads taken to work alone",
                "all",
                "They look for a note of which token stood before, and head 16.0 leaves that note.",
            ),
            Mistake(
                "half of a circuit taken for half of its work",
                "half",
                "Without the notes the induction heads find no place at all.",
            ),
        ),
    ),
    Answer(
        "15.2",
        kind="predict",
        title="Whether the weight on the first token tells that the model needs a head",
        expected="no",
        hint="Compare 18.8 with 18.7 in the lines below.",
        mistakes=(
            Mistake(
                "weight taken for need",
                "yes",
                "18.8 has all of its weight there and is not missed; 18.7 has two thirds, and is.",
            ),
        ),
    ),
    Answer(
        "15.3",
        kind="by hand",
        title="The share of the way from −6 to +4 that a head brings back which leads to −2",
        expected=0.4,
        hint="Count “John” as negative: from −6 to +4 is the whole way.",
        mistakes=(
            Mistake("signs left out", 2.0, "From −6 to −2 is 4, and from −6 to +4 is 10."),
            Mistake("what is left", 0.6, "That is the part of the way that is still to go."),
            Mistake("nats, no share", 4.0, "Divide by the whole way, from −6 to +4."),
        ),
    ),
    Answer(
        "15.4",
        kind="by hand",
        title="The share of a row that counts for induction",
        expected=0.6,
        hint="Where did *red* stand before, and what came next?",
        mistakes=(
            Mistake(
                "the same token", 0.1, "That is “red” itself; induction looks at what followed it."
            ),
            Mistake("the token before", 0.15, "That is “the”, the token before the query."),
            Mistake("the token itself", 0.05, "Look at what followed the earlier “red”."),
        ),
    ),
    Function(
        "15.5",
        title="induction_score(weights, half): of each head, (…, 2·half, 2·half) to (…)",
        name="induction_score",
        reference=_induction_score,
        cases=_weights,
        hint="Query i ≥ half has the same token as key i − half. What followed is one "
        "later: weights.diagonal(offset, -2, -1).",
        mistakes=(
            Mistake(
                "the same token",
                lambda weights, half: _mean_at(weights, half, half, half),
                "Key i − half is the same token. What followed it is at i − half + 1.",
            ),
            Mistake(
                "the token before",
                lambda weights, half: _mean_at(weights, half, 1, half),
                "Key i − 1 is the token before the query, not what followed its earlier copy.",
            ),
            Mistake(
                "one query too many",
                lambda weights, half: _mean_at(weights, half, half - 1, half - 1),
                "The diagonal begins at query half − 1, whose token did not stand before.",
            ),
            Mistake(
                "rows taken for keys",
                lambda weights, half: _induction_score(weights.transpose(-2, -1), half),
                "Rows are queries: weights[…, i, j] is what query i gives to key j.",
            ),
            Mistake(
                "a sum, no mean",
                lambda weights, half: half * _induction_score(weights, half),
                "Divide by the number of queries.",
            ),
        ),
    ),
    Function(
        "15.6",
        title="head_matrices(c_attn, head, heads): one head's Wq, Wk, Wv, (3, E, E/heads)",
        name="head_matrices",
        reference=_head_matrices,
        cases=_matrices,
        hint="The columns: all queries, all keys, all values; in each, one head after the other.",
        mistakes=(
            Mistake(
                "head by head",
                lambda c_attn, head, heads: c_attn.view(len(c_attn), heads, 3, -1)[:, head].movedim(
                    1, 0
                ),
                "First come the queries of all heads, then all keys, then all values.",
            ),
            Mistake(
                "heads interleaved",
                lambda c_attn, head, heads: c_attn.view(len(c_attn), 3, -1, heads)[
                    ..., head
                ].movedim(1, 0),
                "The columns of one head stand side by side, D = E/heads of them.",
            ),
            Mistake(
                "the matrix of nn.Linear",
                lambda c_attn, head, heads: (
                    _head_matrices(c_attn, head, heads).transpose(-2, -1).contiguous()
                ),
                "In GPT-2's files a matrix is (in, out), as x @ W takes it: nothing to transpose.",
            ),
        ),
    ),
    Answer(
        "15.7",
        kind="break",
        title="The induction score of a head that always looks 39 tokens back, on 40 tokens twice",
        expected=1.0,
        hint="How far back from a token in the second half stands what followed it in the first?",
        mistakes=(
            Mistake(
                "a head that ignores tokens taken for none",
                0.0,
                "What followed always stands 39 back here, so the score cannot tell the two apart.",
            ),
            Mistake("chance", 1 / 40, "It does not guess: 39 back is right at every query."),
        ),
    ),
)
